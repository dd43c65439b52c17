from pathlib import Path

import pytest

from edgeproof.telemetry.rapl import Rapl


def counter(root: Path, name: str, energy_uj: int, wraps_at: int = 1_000_000_000) -> None:
    zone = root / name
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{wraps_at}\n")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_power_is_energy_over_time_of_all_packages(tmp_path: Path, clock: list[float]) -> None:
    counter(tmp_path, "intel-rapl:0", 1_000_000)
    counter(tmp_path, "intel-rapl:1", 5_000_000)
    counter(tmp_path, "intel-rapl:0:0", 0)  # a part of package 0: not counted again
    sensor = Rapl(tmp_path)
    with pytest.raises(ValueError, match="two readings"):
        sensor.read()
    clock[0] += 0.5
    counter(tmp_path, "intel-rapl:0", 4_000_000)
    counter(tmp_path, "intel-rapl:1", 6_000_000)
    counter(tmp_path, "intel-rapl:0:0", 3_000_000)
    assert sensor.read() == pytest.approx(8.0)  # (3 J + 1 J) / 0.5 s


def test_a_counter_that_wraps_around_goes_on(tmp_path: Path, clock: list[float]) -> None:
    counter(tmp_path, "amd-rapl:0", 9_000_000, wraps_at=10_000_000)
    sensor = Rapl(tmp_path)
    with pytest.raises(ValueError, match="two readings"):
        sensor.read()
    clock[0] += 1.0
    counter(tmp_path, "amd-rapl:0", 1_000_000, wraps_at=10_000_000)
    assert sensor.read() == pytest.approx(2.0)


def test_a_machine_without_counters_is_missing_power_not_drawing_none(tmp_path: Path) -> None:
    sensor = Rapl(tmp_path)
    assert sensor.missing() == f"{tmp_path} has no processor energy counter"
    with pytest.raises(ValueError, match="two readings"):
        sensor.read()


def test_a_counter_that_cannot_be_read_says_what_it_needs(tmp_path: Path) -> None:
    counter(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    missing = Rapl(tmp_path).missing()
    assert missing is not None
    assert missing.endswith("it usually needs root")
    counter(tmp_path, "intel-rapl:0", 1)
    assert Rapl(tmp_path).missing() is None
