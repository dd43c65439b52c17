"""Run several samples at once where a model lets them stand side by side, so that small models cost what they compute.

A run of a small model, and every tensor that it hands out, costs more to call than to compute. Samples are joined along
the first axis when the model leaves that axis open, and after a trial: the first ones run alone and together, and every
tensor must come out the same, up to rounding. Values are those of single runs, up to that rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..graph.rewrite import deterministic
from ..model import Model
from ..protocols import Outputs, Session

MOST = 16
"""Samples joined, at most."""

MOST_BYTES = 2**23
"""Bytes that a joint run may hand out: what stays in the second- and third-level caches until it is counted. PP-OCRv4's
classifier, 3.3 MB a sample, took longer with 4 at once than with 2, and with 8 longer than one by one."""

RTOL = 1e-4
"""How far a value of a joint run may be off, as a share of its tensor's largest."""

Run = tuple[int, Mapping[str, NDArray[Any]]]
"""How many samples, and every tensor that is known of them, inputs included, joined along the first axis."""


def runs(session: Session, model: Model, feeds: Iterable[Feeds]) -> Iterator[Run]:
    """Run all samples, in their order.

    Args:
        session: Of the model.
        model: What it runs.
        feeds: One entry per sample. Read once; no more than `MOST` are held.
    """
    size = MOST if _open(model) else 1
    joined = False
    alone: list[Run] = []  # runs of the trial
    waiting: list[Feeds] = []
    for sample in feeds:
        if size == 1:
            yield 1, _run(session, sample)  # nothing here keeps it alive during the next run
            continue
        if waiting and not _alike(waiting[0], sample):
            if joined:
                yield from _singly(session, waiting)
            alone, waiting = [], []
        waiting.append(sample)
        if not joined:
            alone.append((1, _run(session, sample)))
            yield alone[-1]
            size = min(size, _fitting(alone[-1][1]))
        if len(waiting) < size:
            continue
        if joined:
            yield size, _run(session, _join(waiting))
        elif size > 1:
            joined = _agree([values for _, values in alone], _run(session, _join(waiting)))
            size = size if joined else 1
        alone, waiting = [], []
    if joined:
        yield from _singly(session, waiting)


def _run(session: Session, sample: Feeds) -> Mapping[str, NDArray[Any]]:
    outputs: Outputs = session.run(sample)
    return {**sample, **outputs}


def _singly(session: Session, samples: Iterable[Feeds]) -> Iterator[Run]:
    for sample in samples:
        yield 1, _run(session, sample)


def _open(model: Model) -> bool:
    """Whether samples may stand side by side: the first axis is open, and nothing is chosen, drawn or looped over."""
    graph = model.graph.graph
    return (
        all(spec.shape and not isinstance(spec.shape[0], int) for spec in model.inputs)
        and all(node.graph is graph for node in graph.all_nodes())
        and not model.graph.functions
        and deterministic(model.graph)
    )


def _alike(first: Feeds, other: Feeds) -> bool:
    return {n: (a.shape, a.dtype) for n, a in first.items()} == {n: (a.shape, a.dtype) for n, a in other.items()}


def _fitting(values: Mapping[str, NDArray[Any]]) -> int:
    """How many samples fit one run: a power of two, so that looks at 16, 32, … samples fall between runs."""
    room = MOST_BYTES // max(1, sum(a.nbytes for a in values.values()))
    return 1 << max(0, min(room, MOST).bit_length() - 1)


def _join(samples: Sequence[Feeds]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([s[name] for s in samples]) for name in samples[0]}


def _agree(alone: Sequence[Mapping[str, NDArray[Any]]], together: Mapping[str, NDArray[Any]]) -> bool:
    """Whether every tensor of a joint run is what single runs gave, one after the other."""
    for name, got in together.items():
        parts = [values[name] for values in alone]
        if not all(isinstance(a, np.ndarray) and a.ndim for a in (got, *parts)):
            return False
        if any(a.shape[1:] != got.shape[1:] for a in parts) or sum(len(a) for a in parts) != len(got):
            return False
        want = np.concatenate(parts)
        if got.dtype.kind != "f":
            if not np.array_equal(want, got):
                return False
        elif got.size and not np.abs(got - want).max() <= RTOL * np.abs(want).max():
            return False
    return True
