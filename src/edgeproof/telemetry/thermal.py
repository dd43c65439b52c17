"""The hottest thermal zone of the system, in °C.

Source: Linux, Documentation/driver-api/thermal/sysfs-api.rst: ``temp`` in millidegrees Celsius.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, final

from ..protocols import Sensor
from ._celsius import celsius


@final
class Thermal:
    """Hottest thermal zone.

    Args:
        root: The thermal folder.
    """

    unit: ClassVar[str] = "°C"

    def __init__(self, root: Path = Path("/sys/class/thermal")) -> None:
        self._root = root

    def missing(self) -> str | None:
        """Why there is no reading here, or None."""
        return None if self._readings() else f"{self._root} has no zone that can be read"

    def read(self) -> float:
        """The hottest zone now.

        Raises:
            ValueError: when no zone answers any more.
        """
        readings = self._readings()
        if not readings:
            raise ValueError(f"no zone in {self._root}")
        return max(readings)

    def _readings(self) -> list[float]:
        return celsius(self._root.glob("thermal_zone*/temp"))


IMPL: type[Sensor] = Thermal
