"""From raw samples to the decision: the one computation that sealing and verifying share.

Nothing that was derived before is read. Numbers are rounded to 12 significant digits when they are written, so that
the same samples give the same bytes with every version of Python and NumPy; the last bits of a sum are not evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import registry
from ..bench import absent, measurements
from ..benchfile import METRICS
from ..bounds import RESAMPLES, interval, speedup
from ..compare import compare, structural_checks
from ..digest import digest_json
from ..environment import Control, control_check
from ..errors import EdgeproofError
from ..evaluate import EVALUATOR, kept_evaluator, metric_of
from ..gate import decide, only_guesses, verdict_state
from ..measurement import LegRun, Measurement
from ..policy import Policy, Verdict
from ..protocols import Metric, Resampled
from ..receipt import Receipt, Scores
from ..structure import Structure
from ..workspace import confirmations
from .members import DECISION_SCHEMA, Content, as_refused, refused

AA_TOLERANCE = 0.10
"""Largest difference of the A/A control in format 1, whatever this version's benches use."""
MOST_MAGNITUDE = 1e7
"""Largest number within a pooled score against labels (boxes, characters, classes)."""
MOST_WORK = 3_000_000
"""Numbers that one resample looks at, over all rules that resample; each is looked at about a thousand times. COCO's
5,000 pictures with 100 detections each take 1.3 million for a rule; 3 million take a minute and a half (measured)."""
DIGITS = 12


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from the raw samples.

    Attributes:
        verdict: The gate's, with its reasons.
        control: The A/A control; None when nothing was run.
        value: Content of ``decision.json``.
    """

    verdict: Verdict
    control: Control | None
    value: dict[str, Any]


def derive(content: Content) -> Derived:
    """Decide from raw samples.

    Raises:
        TrustError: evidence.scores, when scores are not of the kind that their metric reads; registry.unknown.
    """
    find = _metrics(content)
    try:
        return _derived(content, find)
    except EdgeproofError as e:
        raise as_refused(e, "receipts") from e
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as e:
        problem = f"have samples that cannot be computed with ({type(e).__name__}: {e})"
        raise refused("scores", "receipts", problem) from e


def _derived(content: Content, find: Callable[[str], Metric]) -> Derived:
    policy = content.policy
    baseline = _measured(content, "baseline", find)
    candidate = _measured(content, "candidate", find)
    _check_work(content, (baseline, candidate), find)
    runs = {role: _runs(content, role) for role in ("baseline", "control", "candidate")}
    everyone = [r for own in runs.values() for r in own]
    control = _control(runs, policy) if everyone else None
    score = baseline.get(content.metric)
    outputs = content.analyses["baseline"].outputs
    void = only_guesses(content.metric, outputs[0].shape if outputs else None, score) if score else ""
    spent = confirmations(content.ledger)
    verdict = decide(
        policy,
        baseline,
        candidate,
        quality_metric=content.metric,
        control=control,
        absent=absent(everyone),
        metrics=find,
        void=void,
        spent=spent,
    )
    verdict = replace(verdict, model=content.analyses["candidate"].digest)
    if content.by == "review":
        verdict = _with_structure(content, verdict)
    faster = _speedup(baseline, candidate)
    value = {
        "schema": DECISION_SCHEMA,
        "state": verdict.state,
        "policy": policy.digest,
        "model": verdict.model,
        "void": bool(void),
        "looks": {"declared": policy.looks, "spent": spent},
        "bootstrap": {"resamples": RESAMPLES, "seed": 0},
        "control": None if control is None else _control_json(control),
        "speedup": None if faster is None else [_number(x) for x in faster],
        "baseline": {name: _measurement_json(m) for name, m in sorted(baseline.items())},
        "candidate": {name: _measurement_json(m) for name, m in sorted(candidate.items())},
        "checks": [
            {
                "metric": c.rule.metric,
                "op": c.rule.op,
                "limit": str(c.rule.limit),
                "unit": c.rule.unit,
                "state": c.state,
                "got": _number(c.got),
                "low": _number(c.low),
                "high": _number(c.high),
            }
            for c in verdict.checks
        ],
    }
    return Derived(verdict, control, value)


def _with_structure(content: Content, verdict: Verdict) -> Verdict:
    """A review also asks of the two structures: no undeclared change of the interface, no new defect."""
    before, after = content.analyses["baseline"], content.analyses["candidate"]
    found = compare(before, after, content.policy.interface)
    checks = (*verdict.checks, *structural_checks(found, after))
    return replace(verdict, checks=checks, state=verdict_state(checks))


def _metrics(content: Content) -> Callable[[str], Metric]:
    """From a metric's name to the metric; a custom evaluator is known by what its scores are."""
    if content.metric != EVALUATOR:
        return metric_of
    q: Any = content.quality
    if q["kind"] not in ("mean", "proportion"):  # what resampling those would cost has no bound
        raise refused("evaluator_kind", "request.json", f"has an evaluator of kind {q['kind']!r}; they are means")
    kept = kept_evaluator(q["unit"], q["better"], q["kind"])
    return lambda name: kept if name == EVALUATOR else metric_of(name)


def _runs(content: Content, role: str) -> list[LegRun]:
    """A role's isolated runs, under the role's name: names of legs are not evidence."""
    own = (r for receipt in content.receipts[role].values() if receipt.kind == "runs" for r in receipt.runs)
    return [replace(r, leg=role) for r in own]


def _measured(content: Content, role: str, find: Callable[[str], Metric]) -> dict[str, Measurement]:
    found = {"size": _size(content.analyses[role])}
    wanted = [r.metric for r in content.policy.rules if r.metric != "quality"]
    names = tuple(dict.fromkeys((*METRICS, *(n for n in wanted if registry.load("metrics", n).needs == "runs"))))
    for member, receipt in sorted(content.receipts[role].items()):
        if receipt.kind == "pipeline":
            continue
        runs = [replace(r, leg=role) for r in receipt.runs]
        new = measurements(
            runs,
            role,
            names,
            model=receipt.model,
            target=receipt.target,
            machine=_machine(receipt),
            dataset=receipt.dataset,
            evaluator=receipt.evaluator,
        )
        new |= {s.metric: _scored(receipt, s, find(s.metric)) for s in receipt.scores.values()}
        for name, measurement in new.items():
            if name in found:
                raise refused("receipt", member, f"measures {name}, which another receipt of the {role} does too")
            found[name] = measurement
    return found


def _size(analysis: Structure) -> Measurement:
    size = analysis.size_bytes
    return Measurement("size", float(size), "bytes", "lower", None, None, (size,), analysis.digest)


def _scored(receipt: Receipt, scores: Scores, metric: Metric) -> Measurement:
    _check_scores(scores, metric)
    samples = scores.samples
    # An interval by bootstrap is for display alone and costs as much as a decision; the bounds that decide are kept.
    shown = bool(samples) and metric.kind == "proportion"
    low, high = interval(metric, samples) if shown else (None, None)
    return Measurement(
        metric=scores.metric,
        value=metric.value(samples) if samples else math.nan,
        unit=scores.unit,
        better=scores.better,
        low=low,
        high=high,
        samples=samples,
        model=receipt.model,
        dataset=receipt.dataset,
        evaluator=receipt.evaluator,
        target=receipt.target,
        machine=_machine(receipt),
    )


def _machine(receipt: Receipt) -> str:
    """Digest of where it was measured. A record from elsewhere may state one environment for two devices."""
    module = receipt.device.get("module")
    return digest_json([receipt.environment, module]) if module else receipt.environment


def _check_scores(scores: Scores, metric: Metric) -> None:
    """Scores that a metric can be computed from."""
    name = f"scores of {scores.metric}"
    if metric.kind == "proportion" and not all(s in (0, 1) and not isinstance(s, bool) for s in scores.samples):
        raise refused("scores", name, "are not all 0 or 1")
    if isinstance(metric, Resampled):
        numbers = _numbers(scores.samples)
        if metric.needs == "labels" and not all(abs(x) <= MOST_MAGNITUDE for x in numbers):
            raise refused("scores", name, f"hold a number beyond {MOST_MAGNITUDE:g}")
    elif not all(isinstance(s, int | float) and not isinstance(s, bool) for s in scores.samples):
        raise refused("scores", name, "are not all numbers")


def _check_work(content: Content, sides: Sequence[Mapping[str, Measurement]], find: Callable[[str], Metric]) -> None:
    """What deciding costs, before anything is resampled."""
    work = 0
    for rule in content.policy.rules:
        name = content.metric if rule.metric == "quality" else rule.metric
        metric = find(name)
        for measurement in (side[name] for side in sides if name in side):
            samples = measurement.samples
            if metric.kind == "pooled" and isinstance(metric, Resampled):
                work += metric.cost(samples) if samples else 0
            elif metric.kind != "run":
                work += len(samples)
    if work > MOST_WORK:
        problem = f"ask for {work:,} numbers to be resampled; at most {MOST_WORK:,} are"
        raise refused("work", "receipts", problem)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return _numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return [x for v in value for x in _numbers(v)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused("scores", "receipts", f"have {value!r} where a number is expected")
    return [value]


def _control(runs: Mapping[str, Sequence[LegRun]], policy: Policy) -> Control:
    """The A/A control, and whether every process timed as many inferences as the policy asks for."""
    everyone = [r for own in runs.values() for r in own]
    control = control_check(everyone, "baseline", "control", AA_TOLERANCE)
    problems = list(control.problems)
    fewest = min(len(r.latency_ns) for r in everyone)
    if fewest < policy.inferences:
        problems.append(f"a process timed {fewest} inferences, the policy asks for {policy.inferences}")
    if runs["candidate"] and {r.round for r in runs["candidate"]} != {r.round for r in runs["baseline"]}:
        problems.append("baseline and candidate were not measured in the same processes")
    return replace(control, problems=tuple(problems))


def _speedup(
    baseline: Mapping[str, Measurement], candidate: Mapping[str, Measurement]
) -> tuple[float, float, float] | None:
    sides = [side["latency_p50"].samples for side in (baseline, candidate) if "latency_p50" in side]
    if len(sides) < 2 or len(sides[0]) != len(sides[1]) or len(sides[0]) < 2:
        return None
    return speedup(*sides)


def _control_json(control: Control) -> dict[str, Any]:
    return {
        "ok": control.ok,
        "ratio": _number(control.ratio),
        "low": _number(control.low),
        "high": _number(control.high),
        "tolerance": control.tolerance,
    }


def _measurement_json(m: Measurement) -> dict[str, Any]:
    return {
        "value": _number(m.value),
        "low": _number(m.low),
        "high": _number(m.high),
        "unit": m.unit,
        "better": m.better,
        "samples": len(m.samples),
    }


def _number(x: float | None) -> float | None:
    """Rounded; None for what is no finite number."""
    return float(f"{x:.{DIGITS}g}") if x is not None and math.isfinite(x) else None
