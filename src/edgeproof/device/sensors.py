"""What this device can tell of itself while a model runs. A sensor that is missing gives no reading, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import final

from .. import registry
from ..protocols import Sensor

_METRICS: Mapping[str, str] = {"°C": "temperature", "W": "power"}


@final
class Sensors:
    """All sensors that answer.

    Args:
        sensors: Name → sensor; those of `edgeproof.telemetry` when None.

    Attributes:
        missing: Name → why it gives nothing.
    """

    def __init__(self, sensors: Mapping[str, Sensor] | None = None) -> None:
        if sensors is None:
            sensors = {name: registry.load("telemetry", name)() for name in registry.names("telemetry")}
        reasons = {name: sensor.missing() for name, sensor in sensors.items()}
        self.missing = {name: why for name, why in reasons.items() if why is not None}
        self._there = {name: s for name, s in sensors.items() if name not in self.missing and s.unit in _METRICS}

    def read(self) -> dict[str, float]:
        """Metric → reading; of several sensors the one that reads most: the safe side."""
        found: dict[str, float] = {}
        for sensor in self._there.values():
            with suppress(OSError, ValueError):  # a reading that fails is a reading less
                metric, value = _METRICS[sensor.unit], sensor.read()
                found[metric] = max(value, found.get(metric, value))
        return found
