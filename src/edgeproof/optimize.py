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
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from . import __version__, registry
from .bench import absent, measurements
from .bounds import ratio_bounds
from .dataset import DataSpec, Feeds, split
from .environment import Control, control_check, environment
from .errors import EdgeproofError, InputError, State, did_you_mean
from .evaluate import complete, open_dataset
from .files import replacing
from .gate import decide
from .graph.inspection import inspect_model
from .job import CONTROL
from .layers import layer_report
from .measurement import LegRun, Measurement
from .model import load_model
from .policy import Policy, Rule, Verdict
from .protocols import Progress, Strategy
from .recipe import Recipe
from .search.ladder import Ladder
from .target import Target
from .trial import (
    Candidate,
    Setup,
    build,
    confirm_runs,
    failure,
    fidelity,
    original_candidate,
    quality,
    search_runs,
    size_measurement,
)
from .workspace import Workspace

RUN_METRICS: tuple[str, ...] = (
    "latency_p50",
    "latency_p90",
    "latency_p95",
    "latency_p99",
    "throughput",
    "cold_start",
    "peak_memory",
)
FASTER = 1.02
"""A candidate must beat the original by this factor in the search to be worth a confirmation."""

SEARCH_SHARE = 0.55


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result table.

    Attributes:
        candidate: The candidate; None when it could not be made.
        recipe: How it was to be made.
        state: ``accept``, ``reject``, ``hold``, ``screened`` (lost in the search) or ``failed``.
        why: One sentence.
        search: Search result: ``speedup``, ``drop``, ``p50_ms``.
        measured: Confirmed measurements by metric name; empty when not confirmed.
        verdict: The gate's verdict; None when not confirmed.
        speedup: Confirmed speed-up over the original at p50, with its 95 % interval (value, low, high).
    """

    candidate: Candidate | None
    recipe: Recipe
    state: str
    why: str
    search: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    verdict: Verdict | None = None
    speedup: tuple[float, ...] = ()


def optimize(
    path: str | Path,
    spec: DataSpec,
    policy: Policy,
    target: Target,
    out: str | Path,
    *,
    seed: int = 0,
    strategy: Strategy | None = None,
    progress: Progress = lambda _what, _share: None,
) -> dict[str, Any]:
    """Find the fastest variant of a model that meets a policy.

    Args:
        path: The ONNX file.
        spec: The samples and how they are read and scored.
        policy: The rules.
        target: Where it is to run; settings that it carries are kept fixed.
        out: Folder of the run; a run that was interrupted is continued.
        seed: Of the sample split and of every random choice.
        strategy: What proposes candidates; the `Ladder` when left out.
        progress: Told what is happening and the share done.

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
    }
    workspace = Workspace.create(out, request)
    with workspace.locked():
        workspace.once("environment.json", machine.to_json)
        workspace.once("data.json", spec.to_json)
        setup = Setup(
            workspace=workspace,
            path=path,
            original=original,
            dataset=dataset,
            spec=spec,
            parts=split(len(dataset), seed),
            metric=spec.metric,
            policy=policy,
            target=target,
            machine=machine.digest,
        )
        workspace.once("inspection.json", lambda: _inspection(setup))
        rows = _search(setup, strategy or _ladder(setup, seed), progress)
        rows = _confirm(setup, rows, progress)
        progress("writing the result", 0.99)
        return _finish(setup, rows)


def _ladder(setup: Setup, seed: int) -> Ladder:
    """The default strategy for this run."""
    threads = () if "threads" in setup.target.settings else _thread_counts()
    rule = _drop_rule(setup.policy)
    return Ladder(setup.target, _fixed_shapes(setup), float(rule.limit) if rule else math.inf, threads, seed)


def _search(setup: Setup, strategy: Strategy, progress: Progress) -> list[Row]:
    """Build, score and time what the strategy proposes."""
    original = original_candidate(setup)
    base = quality(setup, original, "search", _within(progress, "original: quality", 0.0, 0.05))
    rows: list[Row] = []
    seen: dict[tuple[str, str], str] = {}
    while (recipe := strategy.ask()) is not None:
        step = SEARCH_SHARE / max(strategy.expected, len(rows) + 1)
        done = 0.05 + step * len(rows)
        row = _try(setup, recipe, base, _within(progress, recipe.name, done, step))
        if row.candidate is not None:
            key = (row.candidate.digest, str(sorted(recipe.runtime.items())))
            if key in seen:
                row = replace(row, why=f"the same model as {seen[key]}{_last_refusal(setup, recipe)}")
            seen.setdefault(key, recipe.name)
        rows.append(row)
        strategy.tell(recipe, {"ok": bool(row.search), **row.search})
    return rows


def _try(setup: Setup, recipe: Recipe, base: Measurement, progress: Progress) -> Row:
    """One candidate of the search; what cannot be made becomes a row with the reason, never an end of the run."""
    try:
        progress("building", 0.0)
        candidate = build(setup, recipe, lambda what, share: progress(what, share * 0.3))
        got = quality(setup, candidate, "search", lambda what, share: progress(what, 0.3 + share * 0.3))
        runs = search_runs(setup, candidate, lambda what, share: progress(what, 0.6 + share * 0.4))
    except InputError as e:
        if e.code.startswith("files."):
            raise
        return Row(None, recipe, "failed", failure(e))
    except EdgeproofError as e:
        return Row(None, recipe, "failed", failure(e))
    worse = (base.value - got.value) if base.better == "higher" else (got.value - base.value)
    speedup = geometric_mean(_ratios(runs, "original", candidate.name))
    p50 = median(x for r in runs if r.leg == candidate.name for x in r.latency_ns) / 1e6
    search = {"speedup": speedup, "drop": worse, "p50_ms": p50, "quality": got.value}
    return Row(candidate, recipe, "screened", "", search)


def _confirm(setup: Setup, rows: list[Row], progress: Progress) -> list[Row]:
    """Measure the finalists in full and let the gate decide."""
    finalists = tuple(row.candidate for row in _finalists(setup.policy, rows) if row.candidate is not None)
    start = 0.05 + SEARCH_SHARE
    original = original_candidate(setup)
    scores = {
        c.name: quality(setup, c, "confirm", _within(progress, f"{c.name}: quality, fresh samples", start, 0.03))
        for c in (original, *finalists)
    }
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
    verdict = decide(setup.policy, base, got, quality_metric=setup.metric, control=control, absent=absent(runs))
    times = [m["latency_p50"].samples for m in (got, base)]
    low, high = ratio_bounds(times[1], times[0], 0.025, 0.025)
    ratio = geometric_mean([c / b for c, b in zip(*times, strict=True)])
    return Row(
        candidate=candidate,
        recipe=candidate.recipe,
        state=verdict.state,
        why=verdict.why,
        measured=got,
        verdict=verdict,
        speedup=(1 / ratio, 1 / high, 1 / low),
    )


def _last_refusal(setup: Setup, recipe: Recipe) -> str:
    """Why a recipe's last pass changed nothing, as an end of a sentence."""
    change = setup.workspace.read(f"candidates/{recipe.name}/change.json") or {"steps": []}
    if not change["steps"] or change["steps"][-1]["modified"] or not change["steps"][-1]["declined"]:
        return ""
    return f": {change['steps'][-1]['declined'][0][1]}"


def _finalists(policy: Policy, rows: list[Row]) -> list[Row]:
    """Whom to confirm: the fastest good one, then ever safer ones, as many as there are looks."""
    rule = _drop_rule(policy)
    limit = float(rule.limit) if rule else math.inf
    good = [r for r in rows if r.candidate and r.search and not r.why]
    good = [r for r in good if r.search["drop"] <= limit and r.search["speedup"] >= FASTER]
    good.sort(key=lambda r: -r.search["speedup"])
    chosen: list[Row] = []
    for row in good:
        safer = not chosen or row.search["drop"] < chosen[-1].search["drop"]
        if safer and len(chosen) < policy.looks:
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
        why = f"not faster than the original ({row.search['speedup']:.2f}×)"
    elif finalists:
        why = f"behind {' and '.join(finalists)} in the search"
    else:
        why = "not confirmed"
    return Row(row.candidate, row.recipe, "screened", why, row.search)


def _measured(
    setup: Setup, candidate: Candidate, leg: str, runs: list[LegRun], score: Measurement
) -> dict[str, Measurement]:
    names = tuple(dict.fromkeys((*RUN_METRICS, *_run_metrics_of(setup.policy))))
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


def _finish(setup: Setup, rows: list[Row]) -> dict[str, Any]:
    """Pick the best, copy it, look into the layers and write the result."""
    accepted = [r for r in rows if r.state == "accept" and r.candidate is not None]
    best = min(accepted, key=lambda r: r.measured["latency_p50"].value, default=None)
    state: State = "accept" if best else ("hold" if any(r.state == "hold" for r in rows) else "reject")
    root = setup.workspace.root
    if best is not None and best.candidate is not None:
        with replacing(root / "best.onnx") as temporary:
            shutil.copyfile(best.candidate.path, temporary)
        setup.workspace.write(
            "best.json",
            {
                "name": best.recipe.name,
                "model": best.candidate.digest,
                "recipe": best.recipe.to_json(),
                "target": setup.target.name,
                "settings": dict(best.candidate.target.settings),
            },
        )
    else:
        (root / "best.onnx").unlink(missing_ok=True)
        (root / "best.json").unlink(missing_ok=True)
    clean = next((r.candidate for r in rows if r.recipe.name == "float"), None)
    result = {
        "format": "edgeproof.result/1",
        "state": state,
        "best": best.recipe.name if best else None,
        "metric": setup.metric,
        "samples": {
            "calibration": len(setup.parts.calibration),
            "search": len(setup.parts.search),
            "confirm": len(setup.parts.confirm),
        },
        "control": setup.workspace.read("control.json"),
        "candidates": [_row_json(setup, row, clean) for row in rows],
    }
    setup.workspace.write("result.json", result)
    return result


def _row_json(setup: Setup, row: Row, clean: Candidate | None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": row.recipe.name,
        "recipe": row.recipe.to_json(),
        "state": row.state,
        "why": row.why,
        "search": dict(row.search),
        "speedup": list(row.speedup) or None,
        "measured": {name: m.to_json() for name, m in row.measured.items()},
        "verdict": row.verdict.to_json() if row.verdict else None,
    }
    if row.candidate is not None:
        value["model"] = row.candidate.digest
        value["path"] = os.path.relpath(row.candidate.path, setup.workspace.root)
        value["size_bytes"] = size_measurement(setup, row.candidate).value
        if row.measured:
            value["fidelity"] = fidelity(setup, row.candidate)
            value["layers"] = setup.workspace.once(
                f"candidates/{row.recipe.name}/layers.json", partial(layer_report, setup, row.candidate, clean)
            )
    change = setup.workspace.read(f"candidates/{row.recipe.name}/change.json")
    if change is not None:
        value["change"] = {k: v for k, v in change.items() if k != "recipe"}
    return value


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


def find_target(name: str, settings: Mapping[str, Any]) -> Target:
    """The target called ``name`` on this machine, with settings on top.

    Raises:
        InputError: target.unknown.
        UnsupportedError: target.not_installed, with the line that installs it.
    """
    from .errors import UnsupportedError

    backend_name = name.partition(":")[0]
    if backend_name not in registry.names("backends"):
        raise InputError(
            "target.unknown", name, "no such runtime", did_you_mean(backend_name, registry.names("backends"))
        )
    backend = registry.load("backends", backend_name)()
    line = backend.missing()
    if line is not None:
        raise UnsupportedError("target.not_installed", name, "the runtime is not installed", f"run '{line}'")
    targets: dict[str, Target] = {t.name: t for t in backend.targets()}
    if name == backend_name:
        return next(iter(targets.values())).with_settings(settings)
    if name not in targets:
        raise UnsupportedError(
            "target.not_installed",
            name,
            f"does not run here; what runs: {', '.join(targets)}",
            "run 'edgeproof targets' for the line that installs it",
        )
    return targets[name].with_settings(settings)
