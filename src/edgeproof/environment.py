"""The machine: what it is, how it was doing, and whether that was fit to measure in.

What stays the same (processor, cores, memory, kernel, packages, limits, governor) is hashed and binds measurements to
the machine. What changes (load, temperatures, clocks, throttle counters) is read before and after every process.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from .bounds import ratio_bounds
from .digest import digest_json
from .measurement import LegRun

ROOT = Path("/")
PACKAGES = ("edgeproof", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt")
AA_TOLERANCE = 0.10
"""Largest difference of the A/A control. Interleaved runs of one model differ by a per-run standard deviation of
0.027 on two shared cores (measured), so ten runs stay well inside, and a machine that does not is not fit to measure
on."""
OTHERS_SHARE = 0.10
"""Share of all cores that other processes may use before a warning."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The stable part.

    Attributes:
        facts: Name → value, as JSON; absent facts are left out, never guessed.
    """

    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As JSON, with the digest."""
        return {**self.facts, "digest": self.digest}

    @property
    def digest(self) -> str:
        """Same machine, same software and same limits: same digest."""
        return digest_json(dict(self.facts))


def environment(root: Path = ROOT) -> Environment:
    """Read the stable facts.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    cpu = root / "sys/devices/system/cpu"
    usable = sorted(os.sched_getaffinity(0)) if root == ROOT else []
    facts = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "os": _os_name(root),
        "jetpack": _text(root / "etc/nv_tegra_release"),
        "device": _text(root / "proc/device-tree/model"),
        "cpu": _cpu_model(root),
        "cores": os.cpu_count(),
        "usable_cores": usable or None,
        "governor": _text(cpu / "cpu0/cpufreq/scaling_governor"),
        "min_khz": _text(cpu / "cpu0/cpufreq/scaling_min_freq"),
        "max_khz": _text(cpu / "cpu0/cpufreq/scaling_max_freq"),
        "boost": _text(cpu / "cpufreq/boost"),
        "no_turbo": _text(cpu / "intel_pstate/no_turbo"),
        "power_profile": _text(root / "sys/firmware/acpi/platform_profile"),
        "nvpmodel": _text(root / "var/lib/nvpmodel/status"),
        "memory_gib": _memory_gib(root),
        "cpu_limit": _text(root / "sys/fs/cgroup/cpu.max") or _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        "memory_limit": _text(root / "sys/fs/cgroup/memory.max")
        or _text(root / "sys/fs/cgroup/memory/memory.limit_in_bytes"),
        "python": platform.python_version(),
        "packages": {name: v for name in PACKAGES if (v := _version(name))},
    }
    return Environment({k: v for k, v in facts.items() if v is not None})


def condition(root: Path = ROOT) -> dict[str, Any]:
    """Read what changes: load, free memory, clocks, temperatures, throttling, cooling, CPU time of all processes."""
    load = _text(root / "proc/loadavg")
    clocks = [float(line.split(":")[1]) for line in _lines(root / "proc/cpuinfo") if line.startswith("cpu MHz")]
    frequencies = [
        int(t) for p in _glob(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq") if (t := _text(p))
    ]
    values = {
        "load": [float(x) for x in load.split()[:3]] if load else None,
        "available_mib": _meminfo(root, "MemAvailable", 1024),
        "mhz": [f / 1000 for f in frequencies] or clocks or None,
        "temperatures_c": temperatures(root) or None,
        "throttled": _throttled(root),
        "cooling": _cooling(root) or None,
        "busy_ticks": _busy_ticks(root),
    }
    return {k: v for k, v in values.items() if v is not None}


def temperatures(root: Path = ROOT) -> dict[str, float]:
    """Thermal zone → °C, for the zones that answer."""
    found: dict[str, float] = {}
    for zone in _glob(root, "sys/class/thermal/thermal_zone*"):
        value = _number(zone / "temp")
        if value is not None:
            found[f"{zone.name} {_text(zone / 'type') or ''}".strip()] = value / 1000
    return found


def _cooling(root: Path) -> dict[str, float]:
    """Cooling device (a fan, a clock limit) → its state, 0 when idle, for the devices that answer."""
    found: dict[str, float] = {}
    for device in _glob(root, "sys/class/thermal/cooling_device*"):
        state = _number(device / "cur_state")
        if state is not None:
            found[f"{device.name} {_text(device / 'type') or ''}".strip()] = state
    return found


@dataclass(frozen=True, slots=True)
class Control:
    """Whether the environment was fit to measure in.

    Attributes:
        ratio: Typical control / baseline of the runs' median latency: the same model twice. None without runs.
        low: Lower end of its 95 % interval; None when there are fewer than two runs.
        high: Upper end.
        tolerance: Largest difference allowed.
        problems: What makes measurements of this environment void, as sentences.
        warnings: What a reader should know, as sentences.
    """

    ratio: float | None
    low: float | None
    high: float | None
    tolerance: float
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Nothing makes it void."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "tolerance": self.tolerance,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Control:
        """Inverse of `to_json`."""
        return Control(**{**value, "problems": tuple(value["problems"]), "warnings": tuple(value["warnings"])})


def control_check(runs: Sequence[LegRun], baseline: str, control: str, tolerance: float = AA_TOLERANCE) -> Control:
    """Compare the baseline with itself and look at what the machine said of itself.

    The whole 95 % interval of the ratio must lie within 1/(1 + tolerance) .. 1 + tolerance: a difference is a fault,
    and so is an interval too wide to exclude one.

    Args:
        runs: All legs' runs.
        baseline: Name of the baseline's leg.
        control: Name of the leg that is the same model once more.
        tolerance: Largest difference allowed, as a share.
    """
    first = {r.round: median(r.latency_ns) for r in runs if r.leg == baseline and r.latency_ns}
    second = {r.round: median(r.latency_ns) for r in runs if r.leg == control and r.latency_ns}
    rounds = sorted(first.keys() & second.keys())
    problems, warnings = _throttle_problems(runs), _load_warnings(runs)
    if not rounds:
        problem = f"there is no run of both {baseline} and its A/A control {control}"
        return Control(None, None, None, tolerance, (problem, *problems), warnings)
    pairs = [first[i] for i in rounds], [second[i] for i in rounds]
    ratio = geometric_mean(c / b for b, c in zip(*pairs, strict=True))
    low, high = ratio_bounds(*pairs, 0.025, 0.025)
    if not (low >= 1 / (1 + tolerance) and high <= 1 + tolerance):
        problems = (_aa_problem(ratio, low, high, tolerance, len(rounds)), *problems)
    known = math.isfinite(low) and math.isfinite(high) and low > 0
    return Control(ratio, low if known else None, high if known else None, tolerance, problems, warnings)


def _aa_problem(ratio: float, low: float, high: float, tolerance: float, n: int) -> str:
    if not math.isfinite(high) or low <= 0:
        return (
            f"one run cannot show that the same model measures alike twice (ratio {ratio:.3f}); at least 3 are needed"
        )
    found = f"ratio {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}, in {n} runs"
    if 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return (
            f"too noisy, or too few runs, to show that the same model measures alike twice within ±{tolerance:.0%} "
            f"({found})"
        )
    return f"the same model measured twice differs by more than ±{tolerance:.0%} ({found})"


def _throttle_problems(runs: Iterable[LegRun]) -> tuple[str, ...]:
    throttled = {
        r.round
        for r in runs
        if "throttled" in r.environment.get("before", {})
        and r.environment.get("after", {}).get("throttled", 0) > r.environment["before"]["throttled"]
    }
    if not throttled:
        return ()
    return (
        f"the processor throttled in {len(throttled)} of the runs (first: {min(throttled)}); "
        "cool it or lower its clock",
    )


def _load_warnings(runs: Sequence[LegRun]) -> tuple[str, ...]:
    shares = {r.round: r.environment["others_share"] for r in runs if "others_share" in r.environment}
    if not shares or median(shares.values()) <= OTHERS_SHARE:
        return ()
    return (
        f"other processes used {median(shares.values()):.0%} of the processor in the median run "
        f"(worst {max(shares.values()):.0%}); intervals are wider than on an idle machine",
    )


def others_share(before: Mapping[str, Any], after: Mapping[str, Any], own_s: float, wall_s: float) -> float | None:
    """Share of all cores that other processes used between two conditions.

    Args:
        before: A `condition`.
        after: A later one.
        own_s: CPU seconds of this process in between.
        wall_s: Seconds in between.
    """
    if "busy_ticks" not in before or "busy_ticks" not in after or wall_s < 0.2:  # ticks of 10 ms say little below
        return None
    busy_s = (after["busy_ticks"] - before["busy_ticks"]) / os.sysconf("SC_CLK_TCK")
    return float(min(max((busy_s - own_s) / (wall_s * (os.cpu_count() or 1)), 0.0), 1.0))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().rstrip("\0") or None
    except OSError:
        return None


def _number(path: Path) -> float | None:
    try:
        return float(_text(path) or "")
    except ValueError:
        return None


def _lines(path: Path) -> list[str]:
    return (_text(path) or "").splitlines()


def _os_name(root: Path) -> str | None:
    """Name and version of the distribution. Source: os-release(5)."""
    for line in _lines(root / "etc/os-release"):
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'") or None
    return None


def _glob(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(pattern))


def _cpu_model(root: Path) -> str | None:
    for line in _lines(root / "proc/cpuinfo"):
        if line.startswith(("model name", "Hardware", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _meminfo(root: Path, key: str, divisor: int) -> float | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / divisor
    return None


def _memory_gib(root: Path) -> int | None:
    value = _meminfo(root, "MemTotal", 1024 * 1024)  # what the kernel reserves differs from boot to boot: whole GiB
    return None if value is None else round(value)


def _throttled(root: Path) -> int | None:
    counters = _glob(root, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
    values = [v for p in counters if (v := _number(p)) is not None]
    return int(sum(values)) if values else None


def _busy_ticks(root: Path) -> int | None:
    """User, nice, system, irq, softirq and steal ticks of all cores. Source: proc(5), /proc/stat."""
    for line in _lines(root / "proc/stat"):
        if line.startswith("cpu "):
            ticks = [int(x) for x in line.split()[1:9]]
            return sum(ticks) - ticks[3] - ticks[4]  # without idle and iowait
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
