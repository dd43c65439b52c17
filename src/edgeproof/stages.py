"""A check between every two tools on a model's way to the device, so that the one that lost accuracy is named.

A stage is the model as one tool left it. Where a tool must only carry the numbers over (an exporter, a simplifier, a
runtime), its outputs are held against those of the stage before; where it changes them on purpose (float16, INT8), its
score on labelled samples is held against that of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from .bounds import interval
from .dataset import DataSpec
from .errors import EdgeproofError
from .evaluate import evaluate, metric_of
from .gate import decide
from .measurement import Measurement
from .model import Model
from .policy import Policy, Rule
from .protocols import Dataset, Outputs, Progress, Session

EXPORT = 1e-5
"""Largest difference of outputs, as a share of their largest value, that an exporter or a simplifier may make."""

RUNTIME = 1e-3
"""The same for another runtime on the same graph: it sums in another order, and has approximations of its own."""

HALF = 1e-3
"""Share of the task's score that float16 may lose."""

INTEGER = 1e-2
"""Share of the task's score that INT8 may lose."""

COMPARED = 8
"""Samples on which outputs are compared value by value."""

State = Literal["pass", "fail", "open", "broken"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The model as one tool left it.

    Attributes:
        name: What people call the step that led here.
        model: The graph; for the metadata that predictions are decoded with.
        open: Makes it ready to run.
        judged: By its ``outputs`` against the stage before, or by its ``score`` against the first.
        tolerance: Largest difference, as a share.
    """

    name: str
    model: Model
    open: Callable[[], Session]
    judged: Literal["outputs", "score"]
    tolerance: float


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        name: The stage's.
        judged: How.
        state: ``pass``; ``fail``; ``open``, when the samples are too few to tell the loss from the tolerance;
            ``broken``, when the stage could not be run.
        got: Difference found, as a share; None when broken.
        tolerance: What was allowed.
        samples: How many.
        reason: One sentence.
    """

    name: str
    judged: str
    state: State
    got: float | None
    tolerance: float
    samples: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def check(
    stages: Sequence[Stage],
    dataset: Dataset,
    indices: Sequence[int],
    spec: DataSpec,
    metric: str,
    progress: Progress = lambda _what, _share: None,
) -> tuple[Checked, ...]:
    """Check every stage but the first, which is the source.

    Args:
        stages: In order.
        dataset: Labelled samples.
        indices: Which of them.
        spec: How they are scored.
        metric: The task's metric.
        progress: Told about each stage.

    Returns:
        One per stage after the first. A stage that cannot be run is skipped by the next one's comparison.
    """
    before: list[Outputs] = []
    source: Measurement | None = None
    found: list[Checked] = []
    scored = any(s.judged == "score" for s in stages)
    for done, stage in enumerate(stages):
        progress(f"checking {stage.name}", done / len(stages))
        try:
            session = stage.open()
            try:
                outputs = [session.run(dataset[i].feeds) for i in indices[:COMPARED]]
                wanted = scored if source is None else stage.judged == "score"
                score = _score(session, stage, dataset, indices, spec, metric) if wanted else None
            finally:
                session.close()
        except EdgeproofError as e:
            found.append(Checked(stage.name, stage.judged, "broken", None, stage.tolerance, 0, str(e).splitlines()[0]))
            continue
        if not before:
            before, source = outputs, score
            continue
        if stage.judged == "outputs":
            found.append(_outputs(stage, before, outputs))
        elif source is not None and score is not None:
            found.append(_scores(stage, source, score, metric, spec))
        before = outputs
    progress("checked", 1.0)
    return tuple(found)


def first_failure(checked: Sequence[Checked]) -> Checked | None:
    """The stage to blame; None when none failed."""
    return next((c for c in checked if c.state in ("fail", "broken")), None)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Largest difference of any output, as a share of its largest magnitude; infinite for other shapes or NaN."""
    worst = 0.0
    for name, want in before.items():
        got = after.get(name)
        if got is None or np.shape(got) != np.shape(want):
            return float("inf")
        if not np.size(want):
            continue
        a, b = np.asarray(want, np.float64), np.asarray(got, np.float64)
        if not (np.isfinite(a) == np.isfinite(b)).all():
            return float("inf")
        finite = np.isfinite(a)
        peak = float(np.abs(a[finite]).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(a - b)[finite].max(initial=0.0)) / peak)
    return worst


def _outputs(stage: Stage, before: Sequence[Outputs], after: Sequence[Outputs]) -> Checked:
    got = max(difference(a, b) for a, b in zip(before, after, strict=True))
    ok = got <= stage.tolerance
    said = "within" if ok else "above"
    reason = f"outputs differ by {got:.2g} of their peak, {said} {stage.tolerance:g}"
    return Checked(stage.name, "outputs", "pass" if ok else "fail", got, stage.tolerance, len(after), reason)


def _score(
    session: Session, stage: Stage, dataset: Dataset, indices: Sequence[int], spec: DataSpec, metric: str
) -> Measurement:
    scorer = metric_of(metric, spec)
    scores = evaluate(session, dataset, indices, spec, stage.model, (metric,))[metric]
    low, high = interval(scorer, scores)
    value = scorer.value(scores)
    return Measurement(metric, value, scorer.unit, scorer.better, low, high, tuple(scores), stage.model.digest)


def _scores(stage: Stage, source: Measurement, score: Measurement, metric: str, spec: DataSpec) -> Checked:
    """The loss, as the gate decides it: a share of the source's score, or the rise itself of an error rate."""
    whole = abs(source.value) if source.better == "higher" and source.value else 1.0
    lost = source.value - score.value if source.better == "higher" else score.value - source.value
    rule = Rule("quality", "<=", Decimal(repr(stage.tolerance * whole)), "drop", "baseline")
    verdict = decide(
        Policy("stage", (rule,), looks=1),
        {metric: source},
        {metric: score},
        quality_metric=metric,
        metrics=lambda name: metric_of(name, spec),
    )
    (decided,) = verdict.checks
    state: State = decided.state if decided.state in ("pass", "fail") else "open"
    reason = (
        f"{metric} {source.value:.4f} became {score.value:.4f}: {lost / whole:+.2%} lost, {stage.tolerance:.1%} allowed"
    )
    if state == "open":
        reason += f" ({len(score.samples)} samples do not tell)"
    return Checked(stage.name, "score", state, lost / whole, stage.tolerance, len(score.samples), reason)
