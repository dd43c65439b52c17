"""The hottest temperature that the kernel's hwmon drivers report, in °C.

Source: Linux, Documentation/hwmon/sysfs-interface.rst: ``temp*_input`` in millidegrees Celsius.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, final

from ..protocols import Sensor
from ._celsius import celsius


@final
class Hwmon:
    """Hottest of all hwmon temperature channels.

    Args:
        root: The hwmon folder.
    """

    unit: ClassVar[str] = "°C"

    def __init__(self, root: Path = Path("/sys/class/hwmon")) -> None:
        self._root = root

    def missing(self) -> str | None:
        """Why there is no reading here, or None."""
        return None if self._readings() else f"{self._root} has no temperature that can be read"

    def read(self) -> float:
        """The hottest channel now.

        Raises:
            ValueError: when no channel answers any more.
        """
        readings = self._readings()
        if not readings:
            raise ValueError(f"no temperature in {self._root}")
        return max(readings)

    def _readings(self) -> list[float]:
        return celsius(self._root.glob("hwmon*/temp*_input"))


IMPL: type[Sensor] = Hwmon
