from pathlib import Path

import pytest

from edgeproof.protocols import Sensor
from edgeproof.telemetry.hwmon import Hwmon
from edgeproof.telemetry.thermal import Thermal

SENSORS = [
    (Hwmon, ("hwmon0/temp1_input", "hwmon1/temp2_input")),
    (Thermal, ("thermal_zone0/temp", "thermal_zone7/temp")),
]


@pytest.mark.parametrize(("kind", "files"), SENSORS)
def test_the_hottest_channel_is_read_in_celsius(tmp_path: Path, kind: type[Sensor], files: tuple[str, str]) -> None:
    for name, milli in zip(files, ("45500", "61250"), strict=True):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(milli)
    sensor = kind(tmp_path)  # type: ignore[call-arg]
    assert sensor.missing() is None
    assert sensor.read() == 61.25


@pytest.mark.parametrize(("kind", "files"), SENSORS)
@pytest.mark.parametrize("content", ["0", "", "broken"])
def test_a_channel_of_zero_or_without_an_answer_is_missing(
    tmp_path: Path, kind: type[Sensor], files: tuple[str, str], content: str
) -> None:
    (tmp_path / files[0]).parent.mkdir()
    (tmp_path / files[0]).write_text(content)
    sensor = kind(tmp_path)  # type: ignore[call-arg]
    missing = sensor.missing()
    assert missing is not None
    assert missing.startswith(str(tmp_path))
    with pytest.raises(ValueError, match="no "):
        sensor.read()


@pytest.mark.parametrize(("kind", "files"), SENSORS)
def test_a_machine_without_thermometers_is_missing_them(
    tmp_path: Path, kind: type[Sensor], files: tuple[str, str]
) -> None:
    assert kind(tmp_path / "nothing").missing() is not None  # type: ignore[call-arg]
