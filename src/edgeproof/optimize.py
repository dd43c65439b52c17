"""The main job: from a model file to the fastest variant that meets the policy, and a verdict about it.

1. Freeze what was asked (digests of model, data, policy, target) before anything is measured.
2. Search: a strategy proposes recipes; each candidate is built, scored on the search samples and timed briefly.
3. Confirm: the finalists, at most as many as the policy declared looks, are measured in full beside the original and
   its A/A control, and scored on samples that the search never saw.
4. Gate: accept, reject or hold for each finalist, from bounds; the fastest accepted one is the result.

Stopping at any point loses nothing: the same command goes on from the last finished piece.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from . import __version__, registry
from .bench import absent, measurements
from .benchfile import METRICS
from .bounds import speedup
from .dataset import DataSpec, Feeds, Split, describe, split
from .digest import digest_json
from .environment import Control, control_check, environment
from .errors import EdgeproofError
from .evaluate import complete, metric_of, open_dataset
from .gate import decide
from .graph.inspection import inspect_model
from .job import CONTROL
from .measurement import LegRun, Measurement
from .model import file_digests, load_model
from .outcome import Row, finish, guesses
from .policy import Policy, Rule
from .probe import Prober
from .protocols import Dataset, Probing, Progress, Strategy
from .recipe import Recipe
from .search.ladder import Ladder
from .structure import read_here
from .target import Target
from .train.child import can_train
from .trial import (
    Candidate,
    Setup,
    build,
    confirm_runs,
    failure,
    original_candidate,
    quality,
    search_runs,
    size_measurement,
)
from .workspace import Workspace, confirmations

FASTER = 1.02
"""A candidate must beat the original by this factor in the search to be worth a confirmation."""

SAFE = 0.25
"""The last of several looks goes to a candidate that lost at most this share of the limit in the search: one that is
near the limit there needs thousands of examples to be told from it, and a run should end with something to ship."""

SEARCH_SHARE = 0.55

TRAINING_S = 900.0
"""Longest time to train a candidate for, when the caller does not say."""

TRAINING_STEP = 12.0
"""Time to learn from one sample, as a multiple of one inference: forward and backward with rounding, on one core."""


def optimize(
    path: str | Path,
    spec: DataSpec,
    policy: Policy,
    target: Target,
    out: str | Path,
    *,
    seed: int = 0,
    training_s: float = TRAINING_S,
    strategy: Strategy | None = None,
    progress: Progress = lambda _what, _share: None,
    tell: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Find the fastest variant of a model that meets a policy.

    Args:
        path: The ONNX file.
        spec: The samples and how they are read and scored.
        policy: The rules.
        target: Where it is to run; settings that it carries are kept fixed.
        out: Folder of the run; a run that was interrupted is continued.
        seed: Of the sample split and of every random choice.
        training_s: Longest time to train a candidate for, where post-training means do not suffice and something is
            installed that can train; 0 for never.
        strategy: What proposes candidates; the `Ladder` when left out.
        progress: Told what is happening and the share done.
        tell: Given lines about what will be done, guesses included, before the work starts.

    Returns:
        The content of ``result.json``.

    Raises:
        EdgeproofError: for unusable input; a reject or a hold is a result, not an error.
    """
    path, out = Path(path), Path(out)
    progress("reading the model and the samples", 0.0)
    original = load_model(path)
    dataset = open_dataset(spec, original)
    spec = complete(spec, original, dataset)
    parts = split(len(dataset), seed)
    for line in _plan(spec, policy, target, parts, out):
        tell(line)
    machine = environment()
    request = {
        "edgeproof": __version__,
        "model": original.digest,
        "model_name": path.name,
        "dataset": dataset.digest,
        "evaluator": spec.evaluator_digest,
        "metric": spec.metric,
        "policy": policy.to_json(),
        "target": {"name": target.name, "settings": dict(target.settings)},
        "seed": seed,
        "machine": machine.digest,
        "files": file_digests(path),
        "split": digest_json([list(p) for p in (parts.calibration, parts.search, parts.confirm)]),
    }
    workspace = Workspace.create(out, request)
    with workspace.locked():
        workspace.once("environment.json", machine.to_json)
        workspace.once("data.json", spec.to_json)
        workspace.once("evaluator.json", lambda: spec.evaluator_parts)
        workspace.once("samples.json", lambda: _samples(dataset, parts))
        setup = Setup(
            workspace=workspace,
            path=path,
            original=original,
            dataset=dataset,
            spec=spec,
            parts=parts,
            metric=spec.metric,
            policy=policy,
            target=target,
            machine=machine.digest,
        )
        workspace.once("inspection.json", lambda: _inspection(setup))
        workspace.once("structure.json", partial(_structure, path))
        rows = _search(setup, strategy or _ladder(setup, seed, training_s), progress, tell)
        rows = _confirm(setup, rows, progress)
        progress("writing the result", 0.99)
        return finish(setup, rows)


def _plan(spec: DataSpec, policy: Policy, target: Target, parts: Split, out: Path) -> list[str]:
    """What will be done, with everything that was guessed, one line each."""
    counts = f"{len(parts.calibration)} to calibrate, {len(parts.search)} to search, {len(parts.confirm)} to confirm"
    settings = "".join(f", {k} {v}" for k, v in target.settings.items())
    rules = "; ".join(map(str, policy.rules))
    return [
        *describe(spec).splitlines(),
        f"samples     {counts}",
        f"policy      {policy.name}: {rules}; {policy.looks} confirmed at most",
        f"target      {target.name}{settings}",
        f"run         {out}",
    ]


def _ladder(setup: Setup, seed: int, training_s: float) -> Ladder:
    """The default strategy for this run."""
    training_s = training_s if training_s > 0 and can_train() else 0.0
    threads = () if "threads" in setup.target.settings else _thread_counts()
    rule = _drop_rule(setup.policy)
    return Ladder(
        setup.target, _fixed_shapes(setup), float(rule.limit) if rule else math.inf, threads, training_s, seed
    )


def _search(
    setup: Setup, strategy: Strategy, progress: Progress, tell: Callable[[str], None] = lambda _line: None
) -> list[Row]:
    """Build, score and time what the strategy proposes."""
    original = original_candidate(setup)
    base = quality(setup, original, "search", _within(progress, "original: quality", 0.0, 0.05))
    rows: list[Row] = []
    seen: dict[tuple[str, str], Row] = {}
    if isinstance(strategy, Probing):
        strategy.attach(Prober(setup, lambda what, _share: progress(what, 0.05 + _step(strategy, rows) * len(rows))))
    while (recipe := strategy.ask()) is not None:
        step = _step(strategy, rows)
        done = 0.05 + step * len(rows)
        if any(s.name == "distil" for s in recipe.steps):
            tell(_cost_of_training(setup, recipe, rows))
        row = _try(setup, recipe, base, seen, _within(progress, recipe.name, done, step))
        rows.append(row)
        strategy.tell(recipe, {"ok": bool(row.search), **row.search})
    return rows


def _step(strategy: Strategy, rows: list[Row]) -> float:
    """Share of the whole that one more candidate takes."""
    return SEARCH_SHARE / max(strategy.expected, len(rows) + 1)


def _cost_of_training(setup: Setup, recipe: Recipe, rows: list[Row]) -> str:
    """What a recipe that trains is expected to cost, in one line."""
    settings = recipe.steps[-1].settings
    p50 = next((row.search["p50_ms"] for row in rows if row.search), 0.0)
    epochs, longest = float(settings["epochs"] or 0), float(settings["seconds"] or 0)
    whole = epochs * len(setup.parts.calibration) * p50 / 1e3 * TRAINING_STEP
    stop = f", stopped at {longest:.0f} s" if whole > longest else ""
    return (
        f"training    {recipe.name}: post-training INT8 lost too much; {epochs:.0f} epochs of "
        f"{len(setup.parts.calibration)} samples take about {whole:.0f} s{stop}"
    )


def _try(setup: Setup, recipe: Recipe, base: Measurement, seen: dict[tuple[str, str], Row], progress: Progress) -> Row:
    """One candidate of the search; what cannot be made becomes a row with the reason, never an end of the run."""
    try:
        progress("building", 0.0)
        candidate = build(setup, recipe, lambda what, share: progress(what, share * 0.3))
        key = (candidate.digest, str(sorted(recipe.runtime.items())))
        if key in seen:
            why = f"the same model as {seen[key].recipe.name}{_last_refusal(setup, recipe)}"
            return Row(candidate, recipe, "screened", why, seen[key].search)
        got = quality(setup, candidate, "search", lambda what, share: progress(what, 0.3 + share * 0.3))
        runs = search_runs(setup, candidate, lambda what, share: progress(what, 0.6 + share * 0.4))
    except EdgeproofError as e:
        if e.code.startswith(("files.", "workspace.")):  # nothing about this candidate, and no other would fare better
            raise
        return Row(None, recipe, "failed", failure(e))
    worse = (base.value - got.value) if base.better == "higher" else (got.value - base.value)
    speedup = geometric_mean(_ratios(runs, "original", candidate.name))
    p50 = median(x for r in runs if r.leg == candidate.name for x in r.latency_ns) / 1e6
    search = {"speedup": speedup, "drop": worse, "p50_ms": p50, "quality": got.value}
    seen[key] = Row(candidate, recipe, "screened", "", search)
    return seen[key]


def _confirm(setup: Setup, rows: list[Row], progress: Progress) -> list[Row]:
    """Measure the finalists in full and let the gate decide."""
    finalists = tuple(row.candidate for row in _finalists(setup.policy, rows) if row.candidate is not None)
    start = 0.05 + SEARCH_SHARE
    original = original_candidate(setup)
    judged = (original, *finalists)
    part = 0.03 / len(judged)
    scores = {
        c.name: quality(
            setup, c, "confirm", _within(progress, f"{c.name}: quality, fresh samples", start + n * part, part)
        )
        for n, c in enumerate(judged)
    }
    for c in finalists:
        setup.workspace.once(f"candidates/{c.name}/structure.json", partial(_structure, c.path))
    runs = confirm_runs(setup, finalists, _within(progress, "confirming", start + 0.03, 0.34))
    control = control_check(runs, "original", CONTROL)
    setup.workspace.write("control.json", control.to_json())
    base = _measured(setup, original, "original", runs, scores["original"])
    # The original stands for itself through its A/A control: the same model, loaded a second time.
    again = _measured(setup, original, CONTROL, runs, scores["original"])
    out = [_confirmed(setup, original, base, again, runs, control)]
    out[0] = replace(out[0], measured=base, speedup=())
    for row in rows:
        if row.candidate is None or row.candidate not in finalists:
            out.append(_screened(setup, row, [c.name for c in finalists]))
            continue
        got = _measured(setup, row.candidate, row.recipe.name, runs, scores[row.recipe.name])
        out.append(replace(_confirmed(setup, row.candidate, base, got, runs, control), search=row.search))
    return out


def _confirmed(
    setup: Setup,
    candidate: Candidate,
    base: Mapping[str, Measurement],
    got: Mapping[str, Measurement],
    runs: list[LegRun],
    control: Control,
) -> Row:
    """What the gate says of a finalist."""
    verdict = decide(
        setup.policy,
        base,
        got,
        quality_metric=setup.metric,
        control=control,
        absent=absent(runs),
        metrics=lambda name: metric_of(name, setup.spec),
        void=guesses(setup, base[setup.metric]),
        spent=confirmations(setup.workspace.ledger()),
    )
    return Row(
        candidate=candidate,
        recipe=candidate.recipe,
        state=verdict.state,
        why=verdict.why,
        measured=got,
        verdict=verdict,
        speedup=speedup(base["latency_p50"].samples, got["latency_p50"].samples),
    )


def _last_refusal(setup: Setup, recipe: Recipe) -> str:
    """Why a recipe's last pass changed nothing, as an end of a sentence."""
    change = setup.workspace.read(f"candidates/{recipe.name}/change.json") or {"steps": []}
    if not change["steps"] or change["steps"][-1]["modified"] or not change["steps"][-1]["declined"]:
        return ""
    return f": {change['steps'][-1]['declined'][0][1]}"


def _finalists(policy: Policy, rows: list[Row]) -> list[Row]:
    """Whom to confirm: the fastest good one, then ever safer ones, as many as there are looks; the last is safe."""
    rule = _drop_rule(policy)
    limit = float(rule.limit) if rule else math.inf
    good = [r for r in rows if r.candidate and r.search and not r.why]
    good = [r for r in good if r.search["drop"] <= limit and r.search["speedup"] >= FASTER]
    good.sort(key=lambda r: -r.search["speedup"])
    safest = min((r.search["drop"] for r in good), default=0.0)
    chosen: list[Row] = []
    for row in good:
        last = 0 < len(chosen) == policy.looks - 1
        enough = max(limit * SAFE, safest) if last else math.inf
        safer = not chosen or row.search["drop"] < chosen[-1].search["drop"]
        if safer and row.search["drop"] <= enough and len(chosen) < policy.looks:
            chosen.append(row)
    return chosen


def _screened(setup: Setup, row: Row, finalists: list[str]) -> Row:
    """Say why a candidate was not confirmed."""
    if row.why:
        return row
    rule = _drop_rule(setup.policy)
    if rule and row.search["drop"] > float(rule.limit):
        why = f"quality drop {row.search['drop']:.4f} in the search, limit {rule.limit}"
    elif row.search["speedup"] < FASTER:
        why = f"{row.search['speedup']:.2f}× in the search; below {FASTER}× it is not worth a confirmation"
    elif finalists:
        why = f"{row.search['speedup']:.2f}× in the search, behind {' and '.join(finalists)}"
    else:
        why = "not confirmed"
    return Row(row.candidate, row.recipe, "screened", why, row.search)


def _measured(
    setup: Setup, candidate: Candidate, leg: str, runs: list[LegRun], score: Measurement
) -> dict[str, Measurement]:
    names = tuple(dict.fromkeys((*METRICS, *_run_metrics_of(setup.policy))))
    values = measurements(
        runs,
        leg,
        names,
        model=candidate.digest,
        target=setup.target.name,
        machine=setup.machine,
    )
    return {**values, "size": size_measurement(setup, candidate), setup.metric: score}


def _run_metrics_of(policy: Policy) -> tuple[str, ...]:
    """Metrics that rules ask for and that come from runs (power, temperature, …)."""
    names = [r.metric for r in policy.rules if r.metric != "quality"]
    return tuple(n for n in names if registry.load("metrics", n).needs == "runs")


def _drop_rule(policy: Policy) -> Rule | None:
    """The rule on quality drop, if there is one."""
    return next((r for r in policy.rules if r.metric == "quality" and r.unit == "drop"), None)


def _fixed_shapes(setup: Setup) -> str:
    """Shapes to fix the inputs to: those of the samples, when the model leaves them open and all samples agree."""
    if not any(spec.dynamic for spec in setup.original.inputs):
        return ""
    first = setup.dataset[0].feeds
    probes = {0, len(setup.dataset) // 3, len(setup.dataset) // 2, len(setup.dataset) - 1}
    if any(_shapes(setup.dataset[i].feeds) != _shapes(first) for i in probes):
        return ""
    return ";".join(f"{name}={','.join(map(str, array.shape))}" for name, array in first.items())


def _shapes(feeds: Feeds) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feeds.items()}


def _inspection(setup: Setup) -> dict[str, Any]:
    """The original's inspection, with the shapes that the samples give it."""
    shapes = {n: tuple(a.shape) for n, a in setup.dataset[0].feeds.items()} if _fixed_shapes(setup) else None
    return inspect_model(setup.original, setup.path, shapes).to_json()


def _samples(dataset: Dataset, parts: Split) -> dict[str, Any]:
    """Which samples calibrate, which search and which confirm, by index."""
    return {
        "digest": dataset.digest,
        "count": len(dataset),
        "calibration": list(parts.calibration),
        "search": list(parts.search),
        "confirm": list(parts.confirm),
    }


def _structure(path: Path) -> dict[str, Any]:
    """A model's static analysis as evidence holds it, taken before the model is measured."""
    return read_here(path).to_json()


def _thread_counts() -> tuple[int, ...]:
    """Thread counts worth trying on this machine."""
    cores = len(os.sched_getaffinity(0))
    return tuple(sorted({1, max(cores // 2, 1), cores}))


def _ratios(runs: list[LegRun], baseline: str, leg: str) -> list[float]:
    """Per round, how many times faster ``leg`` is than ``baseline``, from medians."""
    base = {r.round: median(r.latency_ns) for r in runs if r.leg == baseline}
    return [base[r.round] / median(r.latency_ns) for r in runs if r.leg == leg and r.round in base]


def _within(progress: Progress, what: str, start: float, share: float) -> Progress:
    """Progress of a part, as progress of the whole."""
    return lambda detail, done: progress(f"{what}: {detail}" if detail else what, start + share * min(done, 1.0))
