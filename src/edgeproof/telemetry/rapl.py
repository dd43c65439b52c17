"""Processor power from Intel's and AMD's energy counters (RAPL), in watts, averaged between two readings.

The kernel gives a counter of microjoules per package that wraps around at ``max_energy_range_uj``. Reading it usually
needs root since CVE-2020-8694.
Source: Linux, Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import ClassVar, final

from ..protocols import Sensor

_PACKAGE = re.compile(r"(intel-rapl|amd-rapl):\d+$")  # without sub-zones (core, uncore), which packages include


@final
class Rapl:
    """Watts of all processor packages.

    Args:
        root: The powercap folder.
    """

    unit: ClassVar[str] = "W"

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        self._root = root
        self._last: tuple[float, dict[Path, int]] | None = None

    def missing(self) -> str | None:
        """Why there is no reading here, or None."""
        packages = self._packages()
        if not packages:
            return f"{self._root} has no processor energy counter"
        for package in packages:
            try:
                _integer(package / "energy_uj")
            except (OSError, ValueError) as e:
                return f"{package / 'energy_uj'} cannot be read ({e}); it usually needs root"
        return None

    def read(self) -> float:
        """Mean watts since the last reading.

        Raises:
            ValueError: at the first reading, which only starts the count, and when no time has passed.
        """
        now = time.monotonic()
        energy = {p: _integer(p / "energy_uj") for p in self._packages()}
        last, self._last = self._last, (now, energy)
        if last is None or now <= last[0] or last[1].keys() != energy.keys():
            raise ValueError("power needs two readings of the energy counter")
        used = sum(_difference(last[1][p], energy[p], p) for p in energy)
        return used / 1e6 / (now - last[0])

    def _packages(self) -> list[Path]:
        return sorted(p for p in self._root.glob("*-rapl:*") if _PACKAGE.fullmatch(p.name))


def _difference(before: int, after: int, package: Path) -> int:
    return after - before if after >= before else after - before + _integer(package / "max_energy_range_uj")


def _integer(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


IMPL: type[Sensor] = Rapl
