"""See what values tensors take, in one pass over the samples and in memory that does not depend on their number.

The model is run as it is, with the observed tensors as further outputs of a copy; each sample's arrays are counted and
dropped before the next sample is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..dataset import Feeds
from ..errors import InputError
from ..model import Model, TensorSpec
from ..protocols import Progress, Session
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
) -> Calibration:
    """Histogram of every named floating-point tensor over the samples.

    Args:
        model: The model; it is not changed.
        tensors: Names of tensors of its main graph: inputs, intermediate values or outputs. Names it lacks are left
            out of the result; tensors that hold no floats, or stay empty, have empty histograms.
        compile: Makes a runnable session.
        feeds: One entry per sample. Read once.
        total: Number of samples, for progress; 0 when unknown.
        progress: Told after every sample.

    Raises:
        InputError: calibration.empty, without samples; calibration.not_finite, when a tensor holds NaN or an infinity.
    """
    watched = observed(model, tensors)
    have = {spec.name for spec in (*watched.inputs, *watched.outputs)}
    histograms = {name: Histogram() for name in dict.fromkeys(tensors) if name in have}
    session = compile(watched)
    count = 0
    try:
        for sample in feeds:
            outputs = session.run(sample)
            for name, histogram in histograms.items():
                array = outputs.pop(name, None)
                if array is None:
                    array = sample.get(name)
                _count(model, name, histogram, array, count)
            del outputs
            count += 1
            progress(f"calibrating, sample {count}", min(1.0, count / total) if total else 0.0)
    finally:
        session.close()
    if not count:
        raise InputError(
            "calibration.empty", model.name, "got 0 calibration samples; expected at least 1", "give a data set"
        )
    return histograms


def observed(model: Model, tensors: Sequence[str]) -> Model:
    """A copy whose outputs include the named intermediate tensors."""
    graph = model.graph.clone()
    values = {value.name: value for node in graph.graph for value in node.outputs if value.name}
    have = {v.name for v in graph.graph.outputs}
    extra = [values[name] for name in dict.fromkeys(tensors) if name in values and name not in have]
    graph.graph.outputs.extend(extra)
    outputs = (*model.outputs, *(TensorSpec(v.name or "", "float32", None) for v in extra))
    # The digest only names the model; hashing all weights again for a throw-away copy would cost a read of them.
    return Model(f"{model.name}-observed", model.digest, model.inputs, outputs, graph)


def _count(model: Model, name: str, histogram: Histogram, array: Any, sample: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return
    if histogram.update(array):
        return
    bad = int(np.count_nonzero(~np.isfinite(array)))
    raise InputError(
        "calibration.not_finite",
        f"{model.name}: tensor {name!r}",
        f"holds {bad} of {array.size} values that are NaN or infinite on sample {sample}; expected finite values",
        f"check that sample, or leave the tensor's nodes in float with the setting keep={name!r}",
    )
