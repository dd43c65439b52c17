"""How far stored tensors moved: the norm of the difference over the norm of the first, on real values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .recognise import reader, recognise


def distances(baseline: Path, candidate: Path, names: Sequence[str]) -> list[float | None]:
    """‖b − a‖ / ‖a‖ of tensors of one name in both, in float64.

    Args:
        baseline: File of the first model.
        candidate: File of the second.
        names: Of tensors.

    Returns:
        One entry per name; None where either cannot be read as numbers, the shapes differ, or it is not finite.
    """
    ours = reader(recognise(baseline)).values(baseline, list(names))
    theirs = reader(recognise(candidate)).values(candidate, list(names))
    found: list[float | None] = []
    for name in names:
        x, y = ours.get(name), theirs.get(name)
        if x is None or y is None or x.shape != y.shape:
            found.append(None)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            x, y = x.astype(np.float64), y.astype(np.float64)
            norm, moved = float(np.linalg.norm(x)), float(np.linalg.norm(y - x))
        ratio = moved / norm if norm else (0.0 if moved == 0 else np.inf)
        found.append(float(ratio) if np.isfinite(ratio) else None)
    return found
