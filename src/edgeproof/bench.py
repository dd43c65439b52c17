"""Measure models against each other: fresh processes, interleaved, with an A/A control and every raw sample kept.

One round is one fresh process that runs all legs in turns (`worker.interleaved`), and beside it one process per leg
that runs nothing else (`worker.alone`). Samples within a process are not independent, so the round is what repeats:
intervals and decisions count rounds. Feeds are prepared before and the clock covers the session's run alone; whole
pipelines are another measurement.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from . import registry, toolchain
from .bounds import interval
from .dataset import Feeds
from .digest import digest_json
from .environment import AA_TOLERANCE as AA_TOLERANCE
from .environment import Control as Control
from .environment import Environment as Environment
from .environment import control_check as control_check
from .environment import environment as environment
from .errors import InputError, UnsupportedError, error_from
from .graph.equivalence import MOST_VALUES
from .graph.example_shape import example_shape
from .graph.shapes import check_shapes
from .job import CONTROL as CONTROL
from .job import MARK, QUANTITIES, save_feeds
from .job import Leg as Leg
from .job import Plan as Plan
from .measurement import LegRun, Measurement
from .model import Model, TensorSpec
from .protocols import Metric, Progress
from .runtimes import python_for

FEEDS = 8
"""Random inputs that a bench cycles through when it is given no data."""


def bench(
    legs: Sequence[Leg],
    feeds: Sequence[Feeds],
    *,
    rounds: int = 10,
    inferences: int = 200,
    plan: Plan | None = None,
    progress: Progress = lambda _what, _share: None,
    on_round: Callable[[int, list[LegRun]], None] = lambda _index, _runs: None,
    done: Sequence[LegRun] = (),
) -> list[LegRun]:
    """Measure.

    Args:
        legs: Baseline, its A/A control (the same model and target under another name) and candidates.
        feeds: Inputs to cycle through; each must fit every leg.
        rounds: Fresh processes.
        inferences: Timed inferences per process and leg.
        plan: How one process measures.
        progress: Told about each round.
        on_round: Given each round's index and runs as soon as it is finished, to keep them.
        done: Runs of earlier rounds, which are not measured again.

    Returns:
        All runs, those of ``done`` first, one per leg and round.

    Raises:
        InputError: bench.legs, bench.feeds.
        UnsupportedError: bench.crashed, bench.timeout, naming the leg; and what a leg's backend refuses.
    """
    plan = plan or Plan()
    _check(legs, feeds, rounds, inferences)
    names = {leg.name for leg in legs}
    have = {i for i in range(rounds) if {r.leg for r in done if r.round == i} == names}
    runs = [r for r in done if r.round in have]
    with tempfile.TemporaryDirectory(prefix="edgeproof-bench-") as folder:
        path = Path(folder) / "feeds.npz"
        save_feeds(path, feeds)
        for index in range(rounds):
            if index in have:
                continue
            progress(f"measuring {len(legs)} legs, process {index + 1} of {rounds}", index / rounds)
            new = _round(legs, path, index, inferences, plan)
            on_round(index, new)
            runs += new
    progress("measured", 1.0)
    return runs


def measurements(
    runs: Sequence[LegRun],
    leg: str,
    metrics: Sequence[str],
    *,
    model: str,
    target: str = "",
    machine: str = "",
    dataset: str = "",
    evaluator: str = "",
) -> dict[str, Measurement]:
    """What a leg's runs say, metric by metric.

    Args:
        runs: Runs of any legs.
        leg: Whose.
        metrics: Names of metrics that need runs.
        model: Digest of the leg's model.
        target: Where it ran, with its settings.
        machine: Digest of the environment.
        dataset: Digest of the inputs.
        evaluator: Digest of the plan.

    Returns:
        Metric → measurement. A metric that any run has nothing for (a sensor without readings) is left out.
    """
    own = sorted((r for r in runs if r.leg == leg), key=lambda r: r.round)
    found: dict[str, Measurement] = {}
    for name in metrics:
        metric: Metric = registry.load("metrics", name)()
        scores = [metric.score(run, None) for run in own]
        if not scores or any(s is None for s in scores):
            continue
        low, high = interval(metric, scores)
        found[name] = Measurement(
            metric=name,
            value=metric.value(scores),
            unit=metric.unit,
            better=metric.better,
            low=low,
            high=high,
            samples=tuple(scores),
            model=model,
            dataset=dataset,
            evaluator=evaluator,
            target=target,
            machine=machine,
        )
    return found


def absent(runs: Sequence[LegRun]) -> dict[str, str]:
    """Why sensors gave no readings: power or temperature → one line."""
    reasons = {name: why for r in runs for name, why in r.environment.get("no_sensor", {}).items()}
    found: dict[str, str] = {}
    for name, why in sorted(reasons.items()):
        quantity = QUANTITIES.get(registry.load("telemetry", name).unit, name)
        found[quantity] = "; ".join(filter(None, (found.get(quantity), f"{name}: {why}")))
    return found


def plan_digest(plan: Plan, inferences: int) -> str:
    """What two measurements must share besides inputs and machine."""
    return digest_json({"plan": plan.digest, "inferences": inferences})


def random_feeds(
    model: Model, shapes: Mapping[str, Sequence[int]] | None = None, *, count: int = FEEDS, seed: int = 0
) -> list[Feeds]:
    """Seeded random inputs, for speed alone: normal floats, integers 0 or 1, any text.

    Args:
        model: Whose inputs.
        shapes: Shapes of inputs with open dimensions. An open first dimension alone counts as a batch of 1.
        count: How many.
        seed: Of the random numbers.

    Raises:
        InputError: bench.shape, when a dimension is open; bench.feeds, when a dtype cannot be made up; shape.*.
    """
    given = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    check_shapes(model, given)
    rng = np.random.default_rng(seed)
    fixed = {spec.name: given.get(spec.name) or _closed(spec, model.outputs) for spec in model.inputs}
    return [{spec.name: _random(spec, fixed[spec.name], rng) for spec in model.inputs} for _ in range(count)]


def _closed(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> tuple[int, ...]:
    if spec.shape is not None:
        first = (1,) if spec.shape and isinstance(spec.shape[0], str) else spec.shape[:1]
        dims = tuple(d for d in (*first, *spec.shape[1:]) if isinstance(d, int))
        if len(dims) == len(spec.shape):
            return dims
    raise InputError(
        "bench.shape",
        spec.name,
        f"has open dimensions: {spec}",
        f"give its shape, e.g. --shape {spec.name}={example_shape(spec, outputs)}",
    )


def _random(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if math.prod(shape) > MOST_VALUES:
        raise InputError(
            "bench.feeds",
            spec.name,
            f"would have {math.prod(shape):,} values in shape {list(shape)}; at most {MOST_VALUES:,} are made up",
            "measure a model with smaller inputs",
        )
    if spec.dtype == "string":
        return np.full(shape, "text")
    if spec.dtype in ("float16", "float32", "float64"):
        return rng.standard_normal(shape).astype(spec.dtype)
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if spec.dtype in ("uint8", "int8"):
        return rng.integers(0, 128, shape).astype(spec.dtype)
    if spec.dtype in ("int16", "int32", "int64", "uint16", "uint32", "uint64"):
        return rng.integers(0, 2, shape).astype(spec.dtype)  # indices, masks, lengths: 0 and 1 are always in range
    raise InputError("bench.feeds", spec.name, f"dtype {spec.dtype} cannot be made up", "give the model a cast")


def _check(legs: Sequence[Leg], feeds: Sequence[Feeds], rounds: int, inferences: int) -> None:
    names = [leg.name for leg in legs]
    if not legs or len(set(names)) != len(names):
        raise InputError("bench.legs", "bench", f"legs are {names}; expected different names", "rename one")
    if not feeds:
        raise InputError("bench.feeds", "bench", "there is no input to run", "give at least one sample")
    if rounds < 1 or inferences < 1:
        raise InputError(
            "bench.count",
            "bench",
            f"asked for {rounds} processes of {inferences} inferences; expected at least one of each",
            "10 processes of 200 inferences are the least that the default policy decides on",
        )


def _round(legs: Sequence[Leg], feeds: Path, index: int, inferences: int, plan: Plan) -> list[LegRun]:
    """One fresh process with all legs, and one per leg alone."""
    common = {"plan": plan.to_json(), "feeds": str(feeds)}
    job = {"task": "interleaved", "legs": [leg.to_json() for leg in legs], "round": index, "inferences": inferences}
    together = _ask({**job, **common}, legs, plan.timeout_s)
    runs = []
    for leg in legs:
        alone = _ask({"task": "alone", "leg": leg.to_json(), **common}, [leg], plan.timeout_s) if plan.alone else {}
        sensors = {name: tuple(values) for name, values in together["sensors"].get(leg.name, {}).items() if values}
        latency = tuple(together["latency_ns"][leg.name])
        runs.append(LegRun(leg.name, index, latency, **alone, sensors=sensors, environment=together["environment"]))
    return runs


def _ask(job: Mapping[str, Any], legs: Sequence[Leg], timeout_s: float) -> dict[str, Any]:
    """Run one worker; whatever happens, it is gone afterwards."""
    command = toolchain.command(python_for(leg.target.backend for leg in legs), "edgeproof.worker")
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
    try:
        out, err = process.communicate(json.dumps({**job, "parent": os.getpid()}), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        raise UnsupportedError(
            "bench.timeout",
            _blamed(err, legs),
            f"its measuring process was stopped after {timeout_s:g} s",
            "measure fewer inferences, or find out with one why it is so slow",
        ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        _crashed(process.returncode, err, legs)
    result: dict[str, Any] = json.loads(out)
    if "error" in result:
        _raise(result["error"], _blamed(err, legs))
    return result


def _crashed(code: int, err: str, legs: Sequence[Leg]) -> NoReturn:
    subject = _blamed(err, legs)
    if code < 0:
        name = signal.Signals(-code).name
        hint = "it may have run out of memory" if name == "SIGKILL" else "the runtime crashed on it; try another target"
        raise UnsupportedError("bench.crashed", subject, f"its measuring process was ended by {name}", hint)
    last = next((line for line in reversed(err.splitlines()) if line and not line.startswith(MARK)), "no message")
    raise UnsupportedError(
        "bench.crashed", subject, f"its measuring process ended with exit code {code}: {last[:300]}", "run it again"
    )


def _blamed(err: str, legs: Sequence[Leg]) -> str:
    """The leg that the worker was busy with."""
    told = [line.removeprefix(MARK) for line in err.splitlines() if line.startswith(MARK)]
    return told[-1] if told else ", ".join(leg.name for leg in legs)


def _raise(error: Mapping[str, Any], leg: str) -> NoReturn:
    """The worker's error again, with the leg in front."""
    raise error_from({**error, "subject": f"{leg}: {error['subject']}"})
