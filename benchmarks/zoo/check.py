"""Quality of a model of the zoo, or of a variant of it, on its data: edgeproof's data, metrics and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeproof import registry
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.model import load_model
from edgeproof.protocols import Backend, Progress

KNOWN: Mapping[str, Mapping[str, str]] = {
    "lines_easy": {"exact_match": ".990 (n=200, another generator)"},
    "lines_medium": {"exact_match": ".755 (n=200, another generator)"},
    "portraits": {"evaluator": ".692 (n=445, another draw)"},
    "scenes": {"map50": ".734 (n=60, another draw)", "map": ".616 (n=60, another draw)"},
    "reuters_r8": {"evaluator": ".9425 (n=400, another probe)"},
    "mnist": {"top1": ".964 (n=2000, another network of this size)"},
}
"""What FP32 reached on like data before, by data set and metric: independent figures to compare with."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "lines_easy": ("exact_match", "char_accuracy"),
    "lines_medium": ("exact_match", "char_accuracy"),
    "scenes": ("map50", "map"),
    "pages": ("evaluator",),
    "turned": ("top1",),
    "portraits": ("evaluator", "top5"),
    "reuters_r8": ("evaluator",),
    "mnist": ("top1",),
    "digits": ("top1",),
}
"""Metrics that say something about a data set, the main one first."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One figure.

    Attributes:
        metric: Its name.
        value: Of all samples.
        samples: How many there were.
    """

    metric: str
    value: float
    samples: int


def quality(model_file: Path, data_file: Path, data: str, progress: Progress) -> list[Quality]:
    """Run a model on ONNX Runtime's CPU provider over a data set.

    Args:
        model_file: The model or a variant of it.
        data_file: What `catalogue.write_data` returned.
        data: Name of the data set.
        progress: Told after every sample.
    """
    model = load_model(model_file)
    backend: Backend = registry.load("backends", "onnxruntime")()
    target = next(t for t in backend.targets() if t.device == "cpu")
    spec = load_spec(str(data_file))
    samples = open_dataset(spec, model)
    spec = complete(spec, model, samples)
    session = backend.compile(model, target)
    try:
        scores = evaluate(session, samples, range(len(samples)), spec, model, METRICS[data], progress=progress)
    finally:
        session.close()
    return [Quality(name, metric_of(name, spec).value(values), len(samples)) for name, values in scores.items()]
