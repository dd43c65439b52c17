"""One candidate: build it, score it, time it, look into it. Everything is kept in the run's folder as it is made.

What is there already is read back instead of being made again, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from . import registry
from .bench import bench
from .bounds import interval
from .change import Change
from .dataset import DataSpec, Feeds, Split
from .digest import digest_json
from .errors import EdgeproofError, InputError
from .evaluate import evaluate, metric_of
from .job import CONTROL, Leg, Plan, feeds_digest
from .measurement import LegRun, Measurement
from .model import Model, file_digests, graphs, load_model, save_model, size_bytes, weight_bytes
from .policy import Policy
from .protocols import Context, Dataset, Progress
from .quant import cache
from .recipe import Recipe
from .runtimes import compile_for, observer
from .target import Target
from .workspace import Workspace

Part = Literal["search", "confirm"]

FIDELITY_METRICS: tuple[str, ...] = ("cosine", "sqnr", "max_abs")
FIDELITY_EXAMPLES = 16
SEARCH_ROUNDS = 2
SEARCH_INFERENCES = 60
SEARCH_PLAN = Plan(alone=False, sensor_s=0.0)
"""The search only ranks: no cold start, no peak memory, no sensors."""

FEEDS = 8
MODELS_HELD = 6
"""Models that stay in memory because another recipe may start from them; they share what weights they can."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all candidates of a run share.

    Attributes:
        workspace: Where everything is kept.
        path: The original model's file.
        original: The original model.
        dataset: Labelled samples.
        spec: How they are read and scored.
        parts: Which samples calibrate, which search, which confirm.
        metric: The quality metric.
        policy: The rules.
        target: Where it is to run.
        machine: Digest of the stable part of the environment.
        calibration: Histograms collected so far, shared by range methods; kept in the run's folder ``calibration``.
        made: What beginnings of recipes made last in this process, by digest of their steps.
    """

    workspace: Workspace
    path: Path
    original: Model
    dataset: Dataset
    spec: DataSpec
    parts: Split
    metric: str
    policy: Policy
    target: Target
    machine: str
    calibration: dict[str, Any] = field(default_factory=dict)
    made: dict[str, tuple[Model, list[Change]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model file and how it is run.

    Attributes:
        recipe: How it was made; no steps for the original.
        path: Its file.
        digest: The model's digest.
        target: The target with the recipe's runtime settings.
    """

    recipe: Recipe
    path: Path
    digest: str
    target: Target

    @property
    def name(self) -> str:
        """Short name."""
        return self.recipe.name

    @property
    def leg(self) -> Leg:
        """As a leg of a bench."""
        return Leg(self.name, self.path, self.target)


def original_candidate(setup: Setup) -> Candidate:
    """The original as it came, at the target's own settings."""
    return Candidate(Recipe("original"), setup.path, setup.original.digest, setup.target)


def build(setup: Setup, recipe: Recipe, progress: Progress) -> Candidate:
    """Apply a recipe's passes to the original and keep the model.

    Raises:
        EdgeproofError: from a pass that cannot do its work on this model.
    """
    folder = setup.workspace.folder(recipe.name)
    path = folder / "model.onnx"
    target = setup.target.with_settings(recipe.runtime)
    kept = setup.workspace.read(f"candidates/{recipe.name}/change.json")
    if kept is not None and kept["recipe"] == recipe.to_json() and path.is_file():
        with suppress(EdgeproofError):  # a damaged file is made again
            model = load_model(path)
            if model.digest == kept["digest"]:
                return Candidate(recipe, path, model.digest, target)
    model, changes = _applied(setup, recipe, progress)
    own = f"candidates/{recipe.name}/"
    if setup.workspace.keeps(own) and (kept is None or kept["digest"] != model.digest):
        setup.workspace.forget(own, "confirm/")  # measured on a model that is no more
    save_model(model, path)
    setup.workspace.write(
        f"candidates/{recipe.name}/change.json",
        {
            "recipe": recipe.to_json(),
            "digest": model.digest,
            "size_bytes": size_bytes(path),
            "files": file_digests(path),
            "before": summary(setup.original),
            "after": summary(model),
            "steps": [
                {
                    "pass": step.name,
                    "modified": change.modified,
                    "applied": list(change.applied),
                    "declined": [[node, _reason(recipe, node, why)] for node, why in change.declined],
                    "facts": change.facts,
                }
                for step, change in zip(recipe.steps, changes, strict=True)
            ],
        },
    )
    return Candidate(recipe, path, model.digest, target)


def made(setup: Setup, recipe: Recipe, progress: Progress = lambda _what, _share: None) -> Model:
    """What a recipe makes, without keeping it.

    Raises:
        EdgeproofError: from a pass that cannot do its work on this model.
    """
    return _applied(setup, recipe, progress)[0]


def _applied(setup: Setup, recipe: Recipe, progress: Progress) -> tuple[Model, list[Change]]:
    """Apply a recipe's passes, from the longest beginning of it that this process still holds."""
    steps = recipe.steps
    keys = [digest_json([first, recipe.seed]) for first in _beginnings(recipe)]
    start = next((n for n in range(len(steps), 0, -1) if keys[n] in setup.made), 0)
    model, changes = setup.made.pop(keys[start]) if start else (setup.original, [])
    if start:
        setup.made[keys[start]] = (model, changes)  # now the latest
    context = Context(
        compile=partial(compile_for, observer(setup.target)),
        feeds=lambda: calibration_feeds(setup),
        samples=len(setup.parts.calibration),
        target=setup.target.with_settings(recipe.runtime),
        seed=recipe.seed,
        progress=progress,
        calibration=setup.calibration,
    )
    kept_calibration = setup.workspace.root / "calibration"
    samples = digest_json([setup.dataset.digest, list(setup.parts.calibration)])
    if not setup.calibration:
        cache.fill(setup.calibration, kept_calibration, samples)
    try:
        for n in range(start, len(steps)):
            earlier = replace(recipe, steps=steps[: max(n - 1, 0)])
            context = replace(context, before=partial(made, setup, earlier))
            model, change = apply_recipe(model, replace(recipe, steps=steps[n : n + 1]), context)
            changes = [*changes, *change]
            setup.made[keys[n + 1]] = (model, changes)
    finally:
        cache.keep(setup.calibration, kept_calibration, samples)
    for key in list(setup.made)[:-MODELS_HELD]:
        del setup.made[key]
    return model, changes


def _beginnings(recipe: Recipe) -> list[Any]:
    """The first 0, 1, … steps of a recipe as JSON."""
    steps = recipe.to_json()["steps"]
    return [steps[:n] for n in range(len(steps) + 1)]


def _reason(recipe: Recipe, node: str, why: str) -> str:
    """Why a node was left alone; the search's reason in place of the setting that it made of it."""
    return recipe.reasons.get(node, why) if why.startswith("kept in float by the setting keep=") else why


def summary(model: Model) -> dict[str, Any]:
    """Nodes, operators and weights of a model, for before and after."""
    ops = Counter(node.op_type for g in graphs(model.graph) for node in g)
    return {"nodes": ops.total(), "ops": dict(ops.most_common()), "weight_bytes": weight_bytes(model.graph)}


def apply_recipe(model: Model, recipe: Recipe, context: Context) -> tuple[Model, list[Change]]:
    """Run a recipe's passes in order.

    Returns:
        The last model and what every step did.
    """
    changes = []
    for step in recipe.steps:
        implementation = registry.load("passes", step.name)
        try:
            run_pass = implementation(**step.settings)
        except TypeError as e:
            raise InputError(
                "recipe.settings",
                f"{recipe.name}: step {step.name}",
                f"does not take {dict(step.settings)!r}: {e}",
                f"run 'edgeproof apply --list' for the settings of {step.name}",
            ) from e
        change: Change = run_pass(model, context)
        changes.append(change)
        model = change.model
    return model, changes


def calibration_feeds(setup: Setup) -> Iterator[Feeds]:
    """The calibration samples' inputs, one at a time."""
    for index in setup.parts.calibration:
        yield setup.dataset[index].feeds


def quality(setup: Setup, candidate: Candidate, part: Part, progress: Progress) -> Measurement:
    """Score a candidate on one part of the samples; every example's raw score is kept."""
    name = f"candidates/{candidate.name}/quality-{part}.json"
    indices = setup.parts.search if part == "search" else setup.parts.confirm

    def score() -> dict[str, Any]:
        model = load_model(candidate.path)
        session = compile_for(candidate.target, model)
        reference = None
        try:
            if metric_of(setup.metric, setup.spec).needs == "reference":
                reference = compile_for(setup.target, setup.original)
            scores = evaluate(
                session,
                setup.dataset,
                indices,
                setup.spec,
                model,
                (setup.metric,),
                reference=reference,
                progress=progress,
            )[setup.metric]
        finally:
            session.close()
            if reference is not None:
                reference.close()
        return _measured(setup, candidate, setup.metric, scores, part).to_json()

    value = setup.workspace.once(name, score)
    _record(setup, candidate, f"quality-{part}", value["samples"], value["dataset"])
    return Measurement.from_json(value)


def fidelity(setup: Setup, candidate: Candidate) -> dict[str, float]:
    """How close the outputs are to the original's, on a few search samples: metric name → value."""

    def score() -> dict[str, float]:
        model = load_model(candidate.path)
        session = compile_for(candidate.target, model)
        reference = compile_for(setup.target, setup.original)
        try:
            scores = evaluate(
                session,
                setup.dataset,
                setup.parts.search[:FIDELITY_EXAMPLES],
                setup.spec,
                model,
                FIDELITY_METRICS,
                reference=reference,
            )
        finally:
            session.close()
            reference.close()
        values = {name: registry.load("metrics", name)().value(scores[name]) for name in FIDELITY_METRICS}
        return {name: value for name, value in values.items() if abs(value) < float("inf")}

    value: dict[str, float] = setup.workspace.once(f"candidates/{candidate.name}/fidelity.json", score)
    return value


def search_runs(setup: Setup, candidate: Candidate, progress: Progress) -> list[LegRun]:
    """A short bench against the original, enough to rank."""

    def measure() -> list[dict[str, Any]]:
        runs = bench(
            (original_candidate(setup).leg, candidate.leg),
            bench_feeds(setup),
            rounds=SEARCH_ROUNDS,
            inferences=SEARCH_INFERENCES,
            plan=SEARCH_PLAN,
            progress=progress,
        )
        return [run.to_json() for run in runs]

    value = setup.workspace.once(f"candidates/{candidate.name}/bench-search.json", measure)
    _record(setup, candidate, "bench-search", value)
    return [LegRun.from_json(v) for v in value]


def confirm_runs(setup: Setup, candidates: tuple[Candidate, ...], progress: Progress) -> list[LegRun]:
    """The full bench: the original, its A/A control and the finalists, interleaved in fresh processes."""
    original = original_candidate(setup)
    legs = (original.leg, Leg(CONTROL, original.path, original.target), *(c.leg for c in candidates))
    done: list[LegRun] = []
    for round_index in range(setup.policy.runs):
        kept = setup.workspace.read(f"confirm/round-{round_index:03d}.json")
        if kept is None:
            break
        done += [LegRun.from_json(v) for v in kept]

    def keep(round_index: int, runs: list[LegRun]) -> None:
        value = [run.to_json() for run in runs]
        setup.workspace.write(f"confirm/round-{round_index:03d}.json", value)

    feeds, plan = bench_feeds(setup), Plan()
    inputs = feeds_digest(feeds)
    measuring = {"plan": plan.to_json(), "inferences": setup.policy.inferences, "feeds": inputs}
    setup.workspace.once("measuring.json", lambda: measuring)
    runs = bench(
        legs,
        feeds,
        rounds=setup.policy.runs,
        inferences=setup.policy.inferences,
        plan=plan,
        progress=progress,
        on_round=keep,
        done=done,
    )
    for leg, candidate in ((CONTROL, original), *((c.name, c) for c in (original, *candidates))):
        own = [r.to_json() for r in runs if r.leg == leg]
        _record(setup, candidate, "bench-confirm", own, inputs, leg)
    return runs


def bench_feeds(setup: Setup) -> list[Feeds]:
    """A few real inputs that benches cycle through."""
    return [setup.dataset[i].feeds for i in setup.parts.search[:FEEDS]]


def size_measurement(setup: Setup, candidate: Candidate) -> Measurement:
    """Size on disk; exact."""
    size = size_bytes(candidate.path)
    return Measurement("size", float(size), "bytes", "lower", None, None, (size,), candidate.digest)


def failure(error: EdgeproofError) -> str:
    """Why a candidate could not be made, in one line."""
    return f"{error.subject}: {error.problem}"


def _measured(setup: Setup, candidate: Candidate, name: str, scores: list[Any], part: Part) -> Measurement:
    metric = metric_of(name, setup.spec)
    low, high = interval(metric, scores)
    return Measurement(
        metric=name,
        value=metric.value(scores),
        unit=metric.unit,
        better=metric.better,
        low=low,
        high=high,
        samples=scores,
        model=candidate.digest,
        dataset=digest_json([setup.dataset.digest, part, list(_indices(setup, part))]),
        evaluator=setup.spec.evaluator_digest,
        target=setup.target.name,
        machine=setup.machine,
    )


def _indices(setup: Setup, part: Part) -> tuple[int, ...]:
    return setup.parts.search if part == "search" else setup.parts.confirm


def _record(setup: Setup, candidate: Candidate, kind: str, raw: Any, samples: str = "", leg: str = "") -> None:
    """Enter a measuring run into the ledger: the digest of its raw numbers, and of the samples that it used."""
    entry: Mapping[str, Any] = {
        "kind": kind,
        "candidate": leg or candidate.name,
        "recipe": candidate.recipe.digest,
        "model": candidate.digest,
        "policy": setup.policy.digest,
        "samples": samples,
        "result": digest_json(raw),
    }
    setup.workspace.record(entry)
