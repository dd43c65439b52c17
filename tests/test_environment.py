import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edgeproof.environment import (
    Control,
    condition,
    control_check,
    environment,
    others_share,
    temperatures,
)
from edgeproof.measurement import LegRun


def fake(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {
    "proc/cpuinfo": "processor : 0\nmodel name : Test CPU 9000\ncpu MHz : 1500.5\n",
    "proc/meminfo": "MemTotal:       16300000 kB\nMemAvailable:    8192000 kB\n",
    "proc/loadavg": "0.50 0.25 0.10 1/100 4242\n",
    "proc/stat": "cpu  100 20 30 4000 50 6 7 8 9 9\ncpu0 1 1 1 1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1800000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
    "sys/class/thermal/thermal_zone0/temp": "45500\n",
    "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
    "sys/fs/cgroup/cpu.max": "200000 100000\n",
}


def test_stable_facts_are_read_from_the_system(tmp_path: Path) -> None:
    facts = environment(fake(tmp_path, MACHINE)).facts
    assert facts["cpu"] == "Test CPU 9000"
    assert facts["memory_gib"] == 16  # 16,300,000 kB / 1024²
    assert facts["governor"] == "performance"
    assert facts["cpu_limit"] == "200000 100000"
    assert facts["packages"]["numpy"] == np.__version__


def test_a_fact_that_the_system_does_not_tell_is_left_out(tmp_path: Path) -> None:
    facts = environment(tmp_path).facts
    assert {"governor", "memory_gib", "cpu_limit", "device"}.isdisjoint(facts)


def test_the_same_machine_has_the_same_digest() -> None:
    assert environment().digest == environment().digest


def test_another_governor_is_another_environment(tmp_path: Path) -> None:
    before = environment(fake(tmp_path, MACHINE)).digest
    fake(tmp_path, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"})
    assert environment(tmp_path).digest != before


def test_load_and_temperature_do_not_change_the_digest(tmp_path: Path) -> None:
    before = environment(fake(tmp_path, MACHINE)).digest
    fake(tmp_path, {"proc/loadavg": "9 9 9 9/9 9\n", "sys/class/thermal/thermal_zone0/temp": "90000\n"})
    assert environment(tmp_path).digest == before


def test_what_changes_is_read_apart(tmp_path: Path) -> None:
    assert condition(fake(tmp_path, MACHINE)) == {
        "load": [0.5, 0.25, 0.1],
        "available_mib": 8000.0,
        "mhz": [1800.0],
        "temperatures_c": {"thermal_zone0 x86_pkg_temp": 45.5},
        "throttled": 7,
        "busy_ticks": 100 + 20 + 30 + 6 + 7 + 8,  # proc(5): all but idle and iowait
    }
    assert condition(tmp_path / "nothing") == {}
    assert temperatures(tmp_path / "nothing") == {}


def test_other_processes_are_what_is_left_of_the_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sysconf", lambda _name: 100)
    # 3 s of processor time were used in 2 s on 4 cores, 1 s by this process: 2 s of 8 by others.
    assert others_share({"busy_ticks": 1000}, {"busy_ticks": 1300}, own_s=1.0, wall_s=2.0) == 0.25
    assert others_share({}, {"busy_ticks": 1300}, own_s=1.0, wall_s=2.0) is None
    assert others_share({"busy_ticks": 1000}, {"busy_ticks": 1001}, own_s=0.0, wall_s=0.01) is None


def pairs(ratios: list[float], **environment: Any) -> list[LegRun]:
    runs = []
    for i, ratio in enumerate(ratios):
        base = 1_000_000 * (1 + i)  # the machine drifts; both legs of a round see it
        runs.append(LegRun("original", i, (base,) * 3, environment=environment))
        runs.append(LegRun("control", i, (round(base * ratio),) * 3, environment=environment))
    return runs


def test_a_control_like_its_baseline_is_fit() -> None:
    ratios = [1.01, 0.99, 1.02, 0.98, 1.0]
    control = control_check(pairs(ratios), "original", "control")
    logs = np.log(ratios)
    low, high = stats.t.interval(0.95, 4, loc=logs.mean(), scale=stats.sem(logs))
    assert control.ok
    assert (control.ratio, control.low, control.high) == pytest.approx(
        (math.exp(logs.mean()), math.exp(low), math.exp(high)), rel=1e-5
    )


def test_a_control_unlike_its_baseline_voids_the_environment() -> None:
    control = control_check(pairs([1.3, 1.31, 1.29]), "original", "control")
    assert not control.ok
    assert control.problems[0].startswith("the same model measured twice differs by more than ±10% (ratio 1.300")


def test_a_control_too_noisy_to_tell_voids_the_environment() -> None:
    control = control_check(pairs([0.7, 1.4, 1.0]), "original", "control")
    assert control.problems[0].startswith("too noisy, or too few runs, to show that the same model measures alike")


def test_one_run_cannot_tell() -> None:
    control = control_check(pairs([1.0]), "original", "control")
    assert (control.ratio, control.low, control.high, control.ok) == (1.0, None, None, False)


def test_a_missing_control_voids_the_environment() -> None:
    control = control_check(pairs([1.0, 1.0])[::2], "original", "control")
    assert control.problems == ("there is no run of both original and its A/A control control",)


def test_throttling_voids_the_environment() -> None:
    runs = pairs([1.0] * 5, before={"throttled": 7}, after={"throttled": 9})
    control = control_check(runs, "original", "control")
    assert control.problems == ("the processor throttled in 5 of the runs (first: 0); cool it or lower its clock",)
    calm = pairs([1.0] * 5, before={"throttled": 7}, after={"throttled": 7})
    assert control_check(calm, "original", "control").ok


def test_a_busy_machine_is_a_warning_and_no_fault() -> None:
    control = control_check(pairs([1.0] * 5, others_share=0.4), "original", "control")
    assert control.ok
    assert control.warnings[0].startswith("other processes used 40% of the processor in the median run")
    assert control_check(pairs([1.0] * 5, others_share=0.02), "original", "control").warnings == ()


def test_a_control_survives_json() -> None:
    control = control_check(pairs([1.3, 1.3, 1.31], others_share=0.5), "original", "control")
    assert Control.from_json(control.to_json()) == control


def test_the_distribution_and_the_release_of_a_jetson_are_part_of_the_machine(tmp_path: Path) -> None:
    # /etc/os-release as in os-release(5); /etc/nv_tegra_release as JetPack 6 writes it.
    files = {
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.0\n",
    }
    facts = environment(fake(tmp_path, {**MACHINE, **files})).facts
    assert facts["os"] == "Ubuntu 22.04.4 LTS"
    assert facts["jetpack"] == "# R36 (release), REVISION: 4.0"


def test_the_state_of_cooling_devices_is_read_where_they_answer(tmp_path: Path) -> None:
    cooling = "sys/class/thermal/cooling_device"
    fake(tmp_path, {f"{cooling}0/type": "pwm-fan\n", f"{cooling}0/cur_state": "2\n", f"{cooling}1/type": "Processor\n"})
    assert condition(tmp_path)["cooling"] == {"cooling_device0 pwm-fan": 2.0}
