"""See what values tensors take, in one pass over the samples and in memory that does not depend on their number.

A copy of the model hands the observed tensors out and computes nothing beyond them; the arrays of one run are counted
and dropped before the next. A run takes one sample, or a few where a model allows it (`batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..errors import InputError
from ..model import Model, TensorSpec
from ..protocols import Progress, Session
from . import batches, derive
from .histogram import Histogram

Calibration = dict[str, Histogram]
"""Tensor name → what was seen of it."""


def calibrate(
    model: Model,
    tensors: Sequence[str],
    compile: Callable[[Model], Session],  # noqa: A002  (the name that Context has)
    feeds: Iterable[Feeds],
    *,
    total: int = 0,
    progress: Progress = lambda _what, _share: None,
    enough: Callable[[Calibration, int], bool] | None = None,
) -> Calibration:
    """Histogram of every named floating-point tensor over the samples.

    Tensors that are functions of another named one are not observed but computed from it.

    Args:
        model: The model; it is not changed.
        tensors: Names of tensors of its main graph: inputs, intermediate values or outputs. Names it lacks are left
            out of the result; tensors that hold no floats, or stay empty, have empty histograms.
        compile: Makes a runnable session.
        feeds: One entry per sample. Read once.
        total: Number of samples, for progress and for even thinning; 0 when unknown.
        progress: Told after every run.
        enough: Asked after every run, with what was seen and how many samples there were; the rest is not read once
            it says so. None reads all.

    Raises:
        InputError: calibration.empty, without samples; calibration.not_finite, when a tensor holds NaN or an infinity.
    """
    functions = derive.heads(model.graph.graph, tensors)
    watched = observed(model, [name for name in tensors if name not in functions], alone=True)
    have = {spec.name for spec in (*watched.inputs, *watched.outputs)}
    expected = 0 if enough else total  # it may be over at any sample
    histograms = {name: Histogram(expected=expected) for name in tensors if name in have and name not in functions}
    session = compile(watched)
    count = 0
    try:
        for samples, values in batches.runs(session, watched, feeds):
            for name, histogram in histograms.items():
                array = values.get(name)
                if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not histogram.update(array, samples):
                    raise _bad_sample(model, name, array, samples, count)
            array, values = None, {}  # let go of them before the next run
            count += samples
            progress(f"calibrating, sample {count}", min(1.0, count / total) if total else 0.0)
            if enough is not None and enough(histograms, count):
                break
    finally:
        session.close()
    if not count:
        raise InputError(
            "calibration.empty", model.name, "got 0 calibration samples; expected at least 1", "give a data set"
        )
    return histograms | _functions(model, tensors, functions, histograms, count)


def _functions(
    model: Model, tensors: Sequence[str], functions: Mapping[str, str], seen: Calibration, count: int
) -> Calibration:
    """Histograms of tensors that were not observed, from those of the tensors that they are functions of."""
    found: Calibration = {}
    for head, chain in derive.chains(model.graph.graph, tensors).items():
        points, weights = seen[head].points()
        for name, at_points in derive.values(chain, head, points).items():
            if functions.get(name) == head:
                histogram = seen[head].mapped(at_points, weights)
                if histogram is None:
                    raise _not_finite(model, name, f"is NaN or infinite for values that {head!r} takes", count)
                found[name] = histogram
    return found


def observed(model: Model, tensors: Sequence[str], *, alone: bool = False) -> Model:
    """A copy whose outputs include the named intermediate tensors.

    Args:
        model: The model; it is not changed.
        tensors: Names of tensors of its main graph; names it lacks are left out.
        alone: Drop outputs that are not named, and what only they need; all stay when none would be left.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    graph = model.graph.clone()
    outputs = graph.graph.outputs
    values = {value.name: value for node in graph.graph for value in node.outputs if value.name}
    have = {v.name for v in outputs}
    extra = [values[name] for name in dict.fromkeys(tensors) if name in values and name not in have]
    kept = [v for v in outputs if v.name in tensors]
    if alone and (extra or kept):
        outputs[:] = [*kept, *extra]
        RemoveUnusedNodesPass()(graph)
    else:
        outputs.extend(extra)
    own = {spec.name: spec for spec in model.outputs}
    specs = tuple(own.get(v.name or "") or TensorSpec(v.name or "", "float32", None) for v in outputs)
    # The digest only names the model; hashing all weights again for a throw-away copy would cost a read of them.
    return Model(f"{model.name}-observed", model.digest, model.inputs, specs, graph)


def _bad_sample(model: Model, name: str, array: NDArray[Any], samples: int, before: int) -> InputError:
    """What to say of a run whose tensor is not finite: of its first such sample."""
    parts = ~np.isfinite(array.reshape(samples, -1))
    which = int(np.argmax(parts.any(axis=1)))
    problem = f"holds {np.count_nonzero(parts[which])} of {parts.shape[1]} values that are NaN or infinite"
    return _not_finite(model, name, problem, before + which)


def _not_finite(model: Model, name: str, problem: str, sample: int) -> InputError:
    return InputError(
        "calibration.not_finite",
        f"{model.name}: tensor {name!r}",
        f"{problem} on sample {sample}; expected finite values",
        f"check that sample, or leave the tensor's nodes in float with the setting keep={name!r}",
    )
