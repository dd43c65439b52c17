"""Keep what calibration saw on disk, so that no model streams the same samples twice.

An entry is what one graph showed of one set of samples: histograms by tensor. It lies in two files, `NAME.npz` (plain
arrays, never pickle) and `NAME.json` (for whom it is, and the digest of the arrays). The JSON is written last, and an
entry whose parts do not belong together counts as absent: it is collected again.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..digest import digest_bytes, digest_json
from ..files import write_bytes, write_json
from .calibration import Calibration
from .histogram import Histogram

FORMAT = "edgeproof.calibration/1"
ARRAYS = ("numbers", "ends", "counts")
_MOST_BYTES = 2**30


def fill(memory: dict[str, Any], folder: Path, data: str) -> int:
    """Read what was kept of these samples into a context's calibration; what is there already stays.

    Args:
        memory: `Context.calibration`: key of the graph → histograms.
        folder: Where entries lie; it may be missing.
        data: Digest of the samples, in their order.

    Returns:
        The number of entries read.
    """
    count = 0
    for key, about, calibration in _entries(folder, data):
        if key not in memory:
            memory[key] = calibration
            memory.update({f"{key}:{name}": value for name, value in about.items()})
            count += 1
    return count


def keep(memory: Mapping[str, Any], folder: Path, data: str) -> int:
    """Write what a context's calibration holds; entries that are there with the same tensors are left.

    Facts about an entry stand beside it in the memory, as JSON objects under ``KEY:NAME``.

    Args:
        memory: `Context.calibration`.
        folder: Where entries lie; made when missing.
        data: Digest of the samples, in their order.

    Returns:
        The number of entries written.

    Raises:
        InputError: files.disk_full, files.read_only.
    """
    count = 0
    for key, value in memory.items():
        if not _is_calibration(value):
            continue
        path = folder / f"{_name(key, data)}.json"
        held = _read(path)
        if held is not None and set(held[2]) >= set(value):
            continue
        about = {name.removeprefix(f"{key}:"): v for name, v in memory.items() if name.startswith(f"{key}:")}
        save(path, key, data, value, {n: v for n, v in about.items() if _is_json(v)})
        count += 1
    return count


def save(path: Path, key: str, data: str, calibration: Calibration, about: Mapping[str, Any]) -> None:
    """Write one entry, atomically.

    Args:
        path: Of its JSON part; the arrays lie beside it with the suffix ``.npz``.
        key: Names the graph: its digest, and what else decides what was seen.
        data: Digest of the samples.
        calibration: The histograms.
        about: Facts about them, JSON values.
    """
    states = [h.state() for h in calibration.values()]
    counts = [c for _, _, c in states]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        numbers=np.array([[*n, c.size] for (n, _, c) in states], np.int64).reshape(-1, 5),
        ends=np.array([e for _, e, _ in states], np.float64).reshape(-1, 2),
        counts=np.concatenate([np.zeros(0, np.int64), *counts]),
    )
    arrays = buffer.getvalue()
    write_bytes(path.with_suffix(".npz"), arrays)
    write_json(
        path,
        {
            "format": FORMAT,
            "key": key,
            "data": data,
            "tensors": list(calibration),
            "about": dict(about),
            "arrays": digest_bytes(arrays),
        },
    )


def load(path: Path, key: str, data: str) -> Calibration | None:
    """One entry, or None when there is none of this graph and these samples, or when it is damaged."""
    held = _read(path)
    return held[2] if held is not None and held[0] == {"key": key, "data": data} else None


def _name(key: str, data: str) -> str:
    return digest_json([key, data]).removeprefix("sha256:")[:32]


def _entries(folder: Path, data: str) -> Iterator[tuple[str, dict[str, Any], Calibration]]:
    for path in sorted(folder.glob("*.json")):
        held = _read(path)
        if held is not None and held[0]["data"] == data:
            yield held[0]["key"], held[1], held[2]


def _read(path: Path) -> tuple[dict[str, str], dict[str, Any], Calibration] | None:
    """({key, data}, facts, histograms); None for anything that is not a whole entry."""
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        arrays = path.with_suffix(".npz").read_bytes()
        if head["format"] != FORMAT or head["arrays"] != digest_bytes(arrays):
            return None
        with zipfile.ZipFile(io.BytesIO(arrays)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MOST_BYTES:
                return None
        with np.load(io.BytesIO(arrays), allow_pickle=False) as held:
            numbers, ends, counts = (held[name] for name in ARRAYS)
        stops = np.cumsum(numbers[:, 4])
        calibration = {
            str(name): Histogram.restored(
                (int(n[0]), int(n[1]), int(n[2]), int(n[3])), (float(e[0]), float(e[1])), counts[stop - n[4] : stop]
            )
            for name, n, e, stop in zip(head["tensors"], numbers, ends, stops, strict=True)
        }
        return {"key": str(head["key"]), "data": str(head["data"])}, dict(head["about"]), calibration
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, zipfile.BadZipFile):
        return None


def _is_calibration(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, Histogram) for v in value.values())


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
