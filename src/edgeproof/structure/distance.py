"""How far stored tensors moved: the norm of the difference over the norm of the first, on real values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .recognise import reader, recognise


def distances(baseline: Path, candidate: Path, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    """‖b − a‖ / ‖a‖ of pairs of tensors, in float64.

    Args:
        baseline: File of the first model.
        candidate: File of the second.
        pairs: Names of tensors in them.

    Returns:
        One entry per pair; None where either cannot be read as numbers, the shapes differ, or it is not finite.
    """
    ours = reader(recognise(baseline)).values(baseline, [a for a, _ in pairs])
    theirs = reader(recognise(candidate)).values(candidate, [b for _, b in pairs])
    found: list[float | None] = []
    for a, b in pairs:
        x, y = ours.get(a), theirs.get(b)
        if x is None or y is None or x.shape != y.shape:
            found.append(None)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            x, y = x.astype(np.float64), y.astype(np.float64)
            norm, moved = float(np.linalg.norm(x)), float(np.linalg.norm(y - x))
        ratio = moved / norm if norm else (0.0 if moved == 0 else np.inf)
        found.append(float(ratio) if np.isfinite(ratio) else None)
    return found
