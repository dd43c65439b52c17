"""Quality of a tool's model, and what of it is in INT8, on ONNX Runtime's CPU provider with one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeproof import registry
from edgeproof.bounds import bootstrap
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.graph.macs import UnknownAmountError, macs
from edgeproof.graph.quantised import computed
from edgeproof.model import load_model
from edgeproof.protocols import Context, Progress, Resampled

from .tasks import Prepared, session_of

RESAMPLES = 1000


def scores_of(path: Path, task: Prepared, progress: Progress) -> list[Any]:
    """Raw scores of a model on a task's test samples; the float model's metadata serves all (a tool may drop it)."""
    original = load_model(task.model)
    spec = load_spec(str(task.test))
    samples = open_dataset(spec, original)
    spec = complete(spec, original, samples)
    session = session_of(load_model(path))
    try:
        found = evaluate(session, samples, range(len(samples)), spec, original, (task.task.metric,), progress=progress)
    finally:
        session.close()
    return found[task.task.metric]


def value_and_drop(task: Prepared, base: Sequence[Any], got: Sequence[Any]) -> dict[str, float]:
    """The metric, and how much less than the float model's it is: relative, with a 95 % interval, paired by sample."""
    metric = metric_of(task.task.metric, load_spec(str(task.test)))
    both = [metric.resampled(s) if isinstance(metric, Resampled) else _mean(s) for s in (base, got)]
    everything = np.arange(len(base))
    floats, value = (f(everything) for f in both)
    draws = bootstrap(lambda index: 1 - both[1](index) / both[0](index), len(base), 1.0, resamples=RESAMPLES).draws
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"value": value, "drop": 1 - value / floats, "drop_low": float(low), "drop_high": float(high)}


def _mean(scores: Sequence[Any]) -> Any:
    array = np.asarray(scores, np.float64)
    return lambda index: float(array[index].mean())


def integers(path: Path) -> dict[str, Any]:
    """Share of MACs whose operands are codes, and the operators that ONNX Runtime runs, from its own profile."""
    model = load_model(path)
    shaped = registry.load("passes", "infer_shapes")()(model, Context(session_of)).model
    total, held, unknown = 0, 0, 0
    for one in computed(shaped.graph.graph):
        try:
            count = macs(one.node).value
        except UnknownAmountError:
            count = None
        if count is None:
            unknown += 1
            continue
        total += count
        held += count * one.integer
    return {"macs": total, "int8_share": held / total if total else 0.0, "uncounted": unknown}


def kernels(path: Path, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Operators that the runtime executed → how many of each."""
    session = session_of(load_model(path), profile=True)
    try:
        session.run(feeds)
        return dict(Counter(layer.op for layer in session.layers()))
    finally:
        session.close()
