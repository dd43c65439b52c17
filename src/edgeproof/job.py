"""What one measuring process is asked to do: the legs, the plan and the inputs, as plain files and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .dataset import Feeds
from .digest import digest_array, digest_json
from .errors import InputError
from .files import replacing
from .target import Target

CONTROL = "control"
"""Name of the A/A control: the baseline, loaded a second time."""
MARK = "edgeproof-leg: "
"""How a worker says on stderr which leg it is working on."""
QUANTITIES: Mapping[str, str] = {"W": "power", "°C": "temperature"}
"""Unit of a sensor → name under which metrics find it, whatever the sensor is called."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One model on one target.

    Attributes:
        name: Unique within a bench.
        path: The model's file.
        target: Where it runs.
    """

    name: str
    path: Path
    target: Target

    def to_json(self) -> dict[str, Any]:
        """As JSON; of the target what a worker needs."""
        t = self.target
        target = {"name": t.name, "backend": t.backend, "device": t.device, "settings": dict(t.settings)}
        return {"name": self.name, "path": str(self.path), "target": target}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Leg:
        """Inverse of `to_json`, without the quantisation scheme."""
        return Leg(value["name"], Path(value["path"]), Target(**value["target"]))

    @property
    def place(self) -> str:
        """The target and the settings that differ from its defaults, e.g. ``onnxruntime:cpu threads=2``."""
        return " ".join([self.target.name, *(f"{k}={v}" for k, v in sorted(self.target.settings.items()))])


@dataclass(frozen=True, slots=True)
class Plan:
    """How one process measures.

    Attributes:
        warmup: Untimed inferences per process and leg, before the first timed one.
        block: Timed inferences of one leg before the next leg's turn.
        settle: Untimed inferences after each turn, so that caches and threads belong to the leg again.
        sensor_s: Seconds of load per process and leg while sensors are read; 0 for none.
        sensor_hz: Readings per second.
        alone: Whether each leg also gets a process of its own, for cold start and peak memory.
        timeout_s: Longest time of one process.
        seed: Of the order of legs.
    """

    warmup: int = 20
    block: int = 20
    settle: int = 2
    sensor_s: float = 1.0
    sensor_hz: float = 10.0
    alone: bool = True
    timeout_s: float = 1800.0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """What makes two measurements comparable."""
        value = self.to_json()
        return digest_json({k: v for k, v in value.items() if k not in ("timeout_s", "seed")})


def feeds_digest(feeds: Sequence[Feeds]) -> str:
    """Digest of inputs: names, dtypes, shapes and values."""
    return digest_json([{name: digest_array(array) for name, array in f.items()} for f in feeds])


def save_feeds(path: Path, feeds: Sequence[Feeds]) -> None:
    """Write inputs as an NPZ file. Names go into a table of their own: an ONNX name may hold any character."""
    names = [list(f) for f in feeds]
    arrays = {f"{i}_{j}": _plain(f[name]) for i, f in enumerate(feeds) for j, name in enumerate(names[i])}
    table = np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)
    with replacing(path) as temporary, temporary.open("wb") as out:
        np.savez(out, names=table, **arrays)  # type: ignore[arg-type]


def load_feeds(path: Path) -> list[Feeds]:
    """Inverse of `save_feeds`."""
    with np.load(path, allow_pickle=False) as z:
        names = json.loads(z["names"].tobytes())
        return [{name: z[f"{i}_{j}"] for j, name in enumerate(row)} for i, row in enumerate(names)]


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "O":
        return array.astype(str)  # text; an object array could only be kept with pickle
    if array.dtype.kind == "V":
        raise InputError(
            "bench.feeds", "inputs", f"dtype {array.dtype.name} cannot be fed to a session", "give the model a cast"
        )
    return array
