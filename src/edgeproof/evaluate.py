"""Run a model over samples once and score every metric that was asked for.

Nothing is stored: outputs live until their example is scored, and the original runs beside the candidate when a metric
compares with it. Examples have batch 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from . import registry
from .dataset import Boxes, DataSpec, Decode, Example, shuffled
from .decode import check, chosen, decode
from .errors import InputError, did_you_mean
from .measurement import Better, Score
from .model import Model
from .preprocess import guess
from .protocols import DataFormat, Dataset, Kind, Metric, Needs, Outputs, Progress, Session

EVALUATOR = "evaluator"
"""Name of the metric that a custom evaluator is."""

_RESIZE = {"images": "stretch", "coco": "letterbox", "yolo": "letterbox", "text": "pad_right"}
"""How pictures of a format are resized where nothing was declared."""

_PER_EXAMPLE = ("labels", "examples", "reference")


def metric_units() -> Mapping[str, str]:
    """Name of every metric → its unit, for policies."""
    return {name: registry.load("metrics", name).unit for name in registry.names("metrics")}


def metric_of(name: str, spec: DataSpec | None = None) -> Metric:
    """A metric by name; ``evaluator`` is the custom one of the data.

    Raises:
        InputError: registry.unknown, registry.callable.
    """
    if name == EVALUATOR and spec is not None and spec.evaluator:
        return custom_metric(spec.evaluator, spec.root)
    metric: Metric = registry.load("metrics", name)()
    return metric


def open_dataset(spec: DataSpec, model: Model) -> Dataset:
    """The samples of a specification, fitted to the model's inputs, at most ``spec.limit`` of them.

    The samples within the limit are the first of an order by SHA-256 over seed and index, put back into the data set's
    own order; they stay the same from run to run and do not favour the first classes of a sorted folder.

    Raises:
        InputError: registry.unknown, data.missing, data.empty, data.mismatch, data.label, data.picture, data.value.
    """
    if spec.limit < 0:
        raise InputError(
            "data.value", spec.place("limit"), f"is {spec.limit}; expected 0 (all) or more", "leave it out to use all"
        )
    data_format: DataFormat = registry.load("data", spec.format)()
    dataset = data_format.open(spec, model.inputs)
    if 0 < spec.limit < len(dataset):
        dataset = dataset.take(sorted(shuffled(len(dataset), spec.seed)[: spec.limit]))
    return dataset


def complete(spec: DataSpec, model: Model, dataset: Dataset | None = None) -> DataSpec:
    """Write out everything that was left to be guessed, so that it can be shown, kept and digested.

    Preprocessing comes from the model's input, decoding and the quality metric from the kind of the first label.

    Args:
        spec: As declared.
        model: The original.
        dataset: The opened data, when the caller has it.

    Raises:
        InputError: as `open_dataset`; data.key and data.value for decoding options.
    """
    dataset = open_dataset(spec, model) if dataset is None else dataset
    preprocess = spec.preprocess
    if spec.format in _RESIZE and len(model.inputs) == 1 and not spec.options.get("tokenizer"):
        preprocess = guess(preprocess, model.inputs[0], _RESIZE[spec.format], spec.left_out)
    elif preprocess is not None and len(model.inputs) == 1:
        preprocess = guess(preprocess, model.inputs[0], left_out=spec.left_out)
    kind = spec.decode.kind if spec.decode.kind != "auto" else _decode_kind(dataset[0].truth)
    decoding = replace(spec.decode, kind=kind, output=spec.decode.output or model.outputs[0].name)
    check(decoding, spec.place("decode"))
    return replace(spec, preprocess=preprocess, left_out=(), decode=decoding, metric=quality_metric(spec, dataset))


def quality_metric(spec: DataSpec, dataset: Dataset | None = None) -> str:
    """Name of the metric that quality rules mean.

    It is the custom evaluator, else the declared metric, else by the kind of the first label: ``top1`` for a class,
    ``char_accuracy`` for text, ``map`` for boxes, and ``cosine`` to the original's outputs where there is no label.

    Args:
        spec: As declared.
        dataset: The opened data; without it the format tells, as far as it can.

    Raises:
        InputError: data.metric, for a declared metric that does not exist.
    """
    if spec.evaluator:
        return EVALUATOR
    if spec.metric:
        known = registry.names("metrics")
        if spec.metric not in known:
            hint = did_you_mean(spec.metric, known)
            raise InputError("data.metric", spec.place("metric"), f"there is no metric {spec.metric!r}", hint)
        return spec.metric
    if dataset is None:
        by_format = {"images": "top1", "text": "char_accuracy", "coco": "map", "yolo": "map"}
        return by_format.get(spec.format, "cosine")
    by_kind = {"classes": "top1", "ctc": "char_accuracy", "boxes": "map", "none": "cosine"}
    return by_kind[_decode_kind(dataset[0].truth)]


def _decode_kind(truth: Any) -> Literal["classes", "ctc", "boxes", "none"]:
    if isinstance(truth, int | np.integer):
        return "classes"
    if isinstance(truth, str):
        return "ctc"
    return "boxes" if isinstance(truth, Boxes) else "none"


def evaluate(
    session: Session,
    dataset: Dataset,
    indices: Sequence[int],
    spec: DataSpec,
    model: Model,
    metrics: Sequence[str],
    reference: Session | None = None,
    progress: Progress = lambda _what, _share: None,
) -> dict[str, list[Score]]:
    """One pass over the examples at ``indices``.

    Args:
        session: The model that is judged.
        dataset: The samples.
        indices: Which of them, in this order.
        spec: How outputs become predictions.
        model: The model behind ``session``, for its metadata (a character set).
        metrics: Names of metrics that are scored example by example.
        reference: The original, run on the same feeds; needed by metrics that compare with it.
        progress: Told after every example.

    Returns:
        Metric name → raw scores, one per index.

    Raises:
        InputError: data.label, decode.output, decode.shape, decode.charset, evaluate.metric, evaluate.evaluator.
    """
    scorers = {name: metric_of(name, spec) for name in metrics}
    _check_metrics(scorers, reference)
    needs = {m.needs for m in scorers.values()}
    scores: dict[str, list[Score]] = {name: [] for name in metrics}
    for done, index in enumerate(indices, 1):
        example = dataset[index]
        outputs = session.run(example.feeds)
        original = reference.run(example.feeds) if reference is not None and "reference" in needs else None
        prediction = _prediction(outputs, spec.decode, example, model) if "labels" in needs else None
        pairs: dict[str, tuple[Any, Any]] = {
            "labels": (prediction, example.truth),
            "examples": (outputs, example),
            "reference": (outputs, original),
        }
        for name, metric in scorers.items():
            scores[name].append(_score(name, metric, *pairs[metric.needs]))
        progress(f"evaluating sample {done} of {len(indices)}", done / len(indices))
    return scores


def _check_metrics(scorers: Mapping[str, Metric], reference: Session | None) -> None:
    for name, metric in scorers.items():
        if metric.needs not in _PER_EXAMPLE:
            raise InputError(
                "evaluate.metric",
                name,
                "is measured by running the model for time, not on samples",
                "use 'edgeproof bench'",
            )
        if metric.needs == "reference" and reference is None:
            raise InputError(
                "evaluate.metric",
                name,
                "compares with the original's outputs, and none was given",
                "give the original too",
            )


def _score(name: str, metric: Metric, got: Any, want: Any) -> Score:
    """The metric's score; a metric that does not go with the kind of the labels says so."""
    if metric.needs != "labels":
        return metric.score(got, want)
    try:
        return metric.score(got, want)
    except (TypeError, ValueError, AttributeError) as e:
        raise InputError(
            "evaluate.metric",
            name,
            f"cannot score a prediction of type {type(got).__name__} against a label of type {type(want).__name__}",
            "leave metric out to get the one for the kind of the labels",
        ) from e


def _prediction(outputs: Outputs, declared: Decode, example: Example, model: Model) -> Any:
    """The decoded prediction, after a look at whether the label is of that kind."""
    kind = _decode_kind(example.truth) if declared.kind == "auto" else declared.kind
    decoding = declared if declared.kind == kind else replace(declared, kind=kind)
    truth = example.truth
    fits: Any = {"classes": int | np.integer, "ctc": str, "boxes": Boxes, "none": object}[kind]
    if truth is None or not isinstance(truth, fits):
        wanted = {"classes": "a class index", "ctc": "text", "boxes": "boxes", "none": "a label"}[kind]
        got = "no label" if truth is None else f"a label of type {type(truth).__name__}"
        raise InputError(
            "data.label",
            f"sample {example.id!r}",
            f"has {got}; decoding to {kind} is scored against {wanted}",
            "add labels, or choose metric: cosine to compare with the original's outputs",
        )
    if kind == "classes":
        offset = check(decoding).offset
        count = int(chosen(outputs, decoding).size) - offset
        if not 0 <= int(truth) < count:
            raise InputError(
                "data.label",
                f"sample {example.id!r}",
                f"has class {truth}; the model has {count} classes, 0..{count - 1}",
                "fix the label, or give options.classes, the names in the order of the model's classes",
            )
    return decode(outputs, decoding, example.meta, model.metadata)


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A callable of the user's own as a metric; ``better``, ``unit`` and ``kind`` come from its attributes.

    Attributes:
        call: (outputs, truth, meta) → number for one example.
        name: For errors.
        better: ``higher`` unless the callable says ``lower``.
        unit: ``1`` unless the callable says otherwise.
        kind: ``mean`` of numbers, or ``proportion`` when the callable says that every score is 0 or 1.
    """

    call: Callable[[Outputs, Any, Mapping[str, Any]], Any]
    name: str
    better: Better = "higher"
    unit: str = "1"
    kind: Kind = "mean"
    needs: ClassVar[Needs] = "examples"

    def score(self, got: Any, want: Any) -> float:
        """Ask the callable.

        Args:
            got: Outputs of the model.
            want: The `Example`.

        Raises:
            InputError: evaluate.evaluator, when it raises or returns anything but a finite number.
        """
        try:
            number = float(self.call(got, want.truth, want.meta))
        except (Exception, SystemExit) as e:  # the user's code may raise anything, and call exit()
            raise self._error(want, f"raised {type(e).__name__}: {e}") from e
        if not math.isfinite(number):
            raise self._error(want, f"returned {number}; expected a finite number")
        if self.kind == "proportion" and number not in (0.0, 1.0):
            raise self._error(want, f"returned {number}; a proportion's scores are 0 or 1")
        return number

    def value(self, scores: Sequence[float]) -> float:
        """Mean over examples."""
        return sum(scores) / len(scores)

    def _error(self, example: Example, problem: str) -> InputError:
        return InputError(
            "evaluate.evaluator",
            f"{self.name} on sample {example.id!r}",
            problem,
            "it takes (outputs, truth, meta) and returns one number",
        )


def kept_evaluator(unit: str, better: Better, kind: Kind) -> Metric:
    """The metric behind kept scores of a custom evaluator, which itself need not be here any more."""

    def gone(*_: Any) -> float:
        raise InputError("evaluate.evaluator", EVALUATOR, "is not here; only its scores are", "run optimize again")

    metric: Any = CustomMetric(gone, EVALUATOR, better, unit, kind)
    return metric  # type: ignore[no-any-return]


def custom_metric(name: str, root: str = "") -> Metric:
    """The metric behind ``file.py:callable``.

    Raises:
        InputError: registry.callable, evaluate.evaluator.
    """
    call = registry.callable_at(name, root)
    better: Any = getattr(call, "better", "higher")
    if better not in ("higher", "lower"):
        raise InputError("evaluate.evaluator", name, f"better is {better!r}; expected 'higher' or 'lower'", "set it so")
    kind: Any = getattr(call, "kind", "mean")
    if kind not in ("mean", "proportion"):
        raise InputError("evaluate.evaluator", name, f"kind is {kind!r}; expected 'mean' or 'proportion'", "set it so")
    metric: Any = CustomMetric(call, name, better, str(getattr(call, "unit", "1")), kind)
    return metric  # type: ignore[no-any-return]
