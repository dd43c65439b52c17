"""A bench kept on disk: what was measured, on which machine, with which inputs, and every raw sample.

The file is written again after every process, so that an interrupted bench goes on where it stopped, and more
processes can be added to it later. It belongs to one request: another model, target, machine or plan is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import registry
from .bench import (
    CONTROL,
    Control,
    Leg,
    Plan,
    absent,
    bench,
    control_check,
    environment,
    measurements,
    plan_digest,
    random_feeds,
)
from .dataset import Feeds
from .errors import InputError
from .evaluate import EVALUATOR, kept_evaluator, metric_of
from .files import check_record, read_json, write_json
from .job import feeds_digest
from .measurement import LegRun, Measurement
from .model import Model, load_model, size_bytes
from .policy import Policy
from .protocols import Metric, Progress
from .target import Target

FORMAT = "edgeproof.bench/1"
RESULT_FORMAT = "edgeproof.result/1"
RESULT = "result.json"
NAME = "bench.json"
NEVER = "a bench never measures it: decide with --policy speed, or measure quality with 'edgeproof optimize'"
METRICS: tuple[str, ...] = (
    "latency_p50",
    "latency_p90",
    "latency_p95",
    "latency_p99",
    "throughput",
    "cold_start",
    "peak_memory",
    "power",
    "temperature",
)
"""What is shown of a leg's runs, in this order."""


@dataclass(frozen=True, slots=True)
class KeptLeg:
    """One model that was measured.

    Attributes:
        name: Unique within the bench.
        file: Name of the model's file.
        digest: The model's digest.
        size_bytes: Its size on disk.
        target: Where it ran, with its settings.
    """

    name: str
    file: str
    digest: str
    size_bytes: int
    target: str


@dataclass(frozen=True, slots=True)
class BenchFile:
    """All of it.

    Attributes:
        legs: Baseline, A/A control, candidates.
        inferences: Timed inferences per process and leg.
        plan: How one process measured.
        dataset: Digest of the inputs.
        machine: Stable facts of the machine, with their digest.
        runs: Raw samples of every leg and process.
    """

    legs: tuple[KeptLeg, ...]
    inferences: int
    plan: Plan
    dataset: str
    machine: Mapping[str, Any]
    runs: tuple[LegRun, ...]

    @property
    def rounds(self) -> int:
        """Processes measured."""
        return len({r.round for r in self.runs})

    @property
    def baseline(self) -> KeptLeg:
        """The first model."""
        return self.legs[0]

    @property
    def candidates(self) -> tuple[KeptLeg, ...]:
        """All models but the baseline and its control."""
        return tuple(leg for leg in self.legs[1:] if leg.name != CONTROL)

    @property
    def control(self) -> Control:
        """Whether the environment was fit to measure in."""
        return control_check(self.runs, self.baseline.name, CONTROL)

    @property
    def no_sensor(self) -> dict[str, str]:
        """Power or temperature → why there is no reading."""
        return absent(self.runs)

    def measured(self, leg: KeptLeg, metrics: Sequence[str] = METRICS) -> dict[str, Measurement]:
        """A leg's measurements, computed from the raw samples."""
        found = measurements(
            self.runs,
            leg.name,
            metrics,
            model=leg.digest,
            target=leg.target,
            machine=self.machine["digest"],
            dataset=self.dataset,
            evaluator=plan_digest(self.plan, self.inferences),
        )
        size: Metric = registry.load("metrics", "size")()
        samples = (size.score(leg.size_bytes, None),)
        found["size"] = Measurement(
            "size", size.value(samples), size.unit, size.better, None, None, samples, leg.digest, target=leg.target
        )
        return found

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.request, "runs": [r.to_json() for r in self.runs]}

    @property
    def request(self) -> dict[str, Any]:
        """Everything but the runs: what runs must share to be kept in one file."""
        return {
            "format": FORMAT,
            "legs": [asdict(leg) for leg in self.legs],
            "inferences": self.inferences,
            "plan": self.plan.to_json(),
            "dataset": self.dataset,
            "machine": dict(self.machine),
        }


def load_bench(path: Path) -> BenchFile:
    """Read a kept bench.

    Raises:
        InputError: files.missing, files.not_json, bench.format.
    """
    value = read_json(path)
    try:
        if value["format"] != FORMAT:
            raise KeyError("format")
        _check_kept(value, str(path))
        return BenchFile(
            tuple(KeptLeg(**leg) for leg in value["legs"]),
            value["inferences"],
            Plan(**value["plan"]),
            value["dataset"],
            value["machine"],
            tuple(LegRun.from_json(r) for r in value["runs"]),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise InputError(
            "bench.format", str(path), f"is no kept bench of format {FORMAT} ({e})", "give the bench.json of a bench"
        ) from e


def _check_kept(value: Mapping[str, Any], subject: str) -> None:
    """Hold a kept bench against its types before anything is computed from it."""
    check_record(BenchFile, {k: v for k, v in value.items() if k in ("inferences", "dataset", "machine")}, subject)
    check_record(Plan, value["plan"], subject)
    for leg in value["legs"]:
        check_record(KeptLeg, leg, subject)
    for run in value["runs"]:
        check_record(LegRun, run, subject)
        for key in ("before", "after"):
            condition = run.get("environment", {}).get(key, {})
            if not isinstance(condition, Mapping):
                raise TypeError(f"environment.{key} is {condition!r}")


def _measurement(value: Any, subject: str) -> Measurement:
    """A kept measurement, held against its types; raw scores of one metric look alike."""
    check_record(Measurement, value, subject)
    if len({_look(score) for score in value["samples"]}) > 1:
        raise TypeError(f"samples of {value['metric']} are of different kinds")
    return Measurement.from_json(value)


def _look(score: Any) -> str:
    if isinstance(score, Mapping):
        return f"object of {', '.join(sorted(score))}"
    return "list" if isinstance(score, list) else "number" if isinstance(score, int | float) else "other"


def run_bench(
    paths: Sequence[Path],
    target: Target | Sequence[Target],
    out: Path,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rounds: int = 10,
    inferences: int = 200,
    seed: int = 0,
    plan: Plan | None = None,
    progress: Progress = lambda _what, _share: None,
) -> BenchFile:
    """Measure models against the first of them on random inputs, and keep it all in ``out/bench.json``.

    Args:
        paths: Model files; the first is the baseline.
        target: Where they run; with several, every model runs on each, and the baseline is the first on the first.
        out: Folder of the bench.
        shapes: Shapes of open inputs.
        rounds: Fresh processes in all, those that are there already included.
        inferences: Timed inferences per process and model.
        seed: Of the inputs and of the order of legs.
        plan: How one process measures.
        progress: Told about each process.

    Raises:
        InputError: bench.other, when the folder holds the bench of another request; and as `bench`.
    """
    targets = (target,) if isinstance(target, Target) else tuple(target)
    legs, feeds, kept = _prepare(paths, targets, shapes or {}, seed)
    start = BenchFile(kept, inferences, plan or Plan(seed=seed), feeds_digest(feeds), environment().to_json(), ())
    file = out / NAME
    done = _done(file, start)

    def with_runs(runs: Sequence[LegRun]) -> BenchFile:
        return BenchFile(start.legs, inferences, start.plan, start.dataset, start.machine, tuple(runs))

    def keep(_index: int, runs: list[LegRun]) -> None:
        done.extend(runs)
        write_json(file, with_runs(done).to_json())

    rounds = max(rounds, 1 + max((r.round for r in done), default=-1))
    write_json(file, with_runs(done).to_json())  # a folder that cannot be written is found out before, not after
    bench(
        legs,
        feeds,
        rounds=rounds,
        inferences=inferences,
        plan=start.plan,
        progress=progress,
        on_round=keep,
        done=tuple(done),
    )
    return with_runs(done)


@dataclass(frozen=True, slots=True)
class Case:
    """A candidate to decide on.

    Attributes:
        name: Its name.
        baseline: Metric → measurement of the baseline.
        candidate: Metric → measurement of the candidate.
        quality_metric: What ``quality`` stands for.
        control: Whether the environment was fit.
        absent: Metric → why there is no measurement of it.
        metrics: From a metric's name to the metric, where the registry does not have it.
    """

    name: str
    baseline: Mapping[str, Measurement]
    candidate: Mapping[str, Measurement]
    quality_metric: str
    control: Control
    absent: Mapping[str, str]
    metrics: Callable[[str], Metric] | None = None


def cases(path: Path, policy: Policy) -> list[Case]:
    """The candidates in a kept bench (``bench.json``) or in the result of a run (``result.json``).

    In a bench of one model, the model is decided on against its own control.

    Args:
        path: The file, or the folder that it lies in.
        policy: What is asked.

    Raises:
        InputError: files.missing, files.not_json, bench.format.
    """
    path = _inside(path) if path.is_dir() else path
    value = read_json(path)
    if isinstance(value, Mapping) and value.get("format") == RESULT_FORMAT:
        return _result_cases(value, path)
    kept = load_bench(path)
    metrics = tuple({*METRICS, *(r.metric for r in policy.rules if _from_runs(r.metric))})
    base = kept.measured(kept.baseline, metrics)
    control = kept.control
    if kept.inferences < policy.inferences:
        short = f"each process timed {kept.inferences} inferences, the policy asks for {policy.inferences}"
        control = replace(control, problems=(*control.problems, short))
    if kept.candidates:
        sides = [(leg.name, kept.measured(leg, metrics)) for leg in kept.candidates]
    else:
        sides = [(kept.baseline.name, kept.measured(kept.legs[-1], metrics))]
    unmeasured = {r.metric: NEVER for r in policy.rules if r.metric not in base and not _from_runs(r.metric)}
    unmeasured |= kept.no_sensor
    return [Case(name, base, candidate, "quality", control, unmeasured) for name, candidate in sides]


def _inside(folder: Path) -> Path:
    """What a folder holds to decide on."""
    found = next((folder / name for name in (RESULT, NAME) if (folder / name).is_file()), None)
    if found is None:
        raise InputError(
            "files.missing",
            str(folder),
            f"holds neither {RESULT} (a finished run) nor {NAME} (a bench)",
            "finish the run with the same 'edgeproof optimize' command, or give the folder of another",
        )
    return found


def _result_cases(value: Mapping[str, Any], path: Path) -> list[Case]:
    try:
        control = Control.from_json(value["control"])
        measured = {
            c["name"]: {n: _measurement(m, f"{path}: {c['name']}") for n, m in c["measured"].items()}
            for c in value["candidates"]
            if c["measured"]
        }
        base = measured.pop("original")
        measured = measured or {"original": base}  # no candidate got that far: decide on the original itself
        metrics = _kept_metrics(value["metric"], value.get("quality", {}))
        return [Case(name, base, side, value["metric"], control, {}, metrics) for name, side in measured.items()]
    except (KeyError, TypeError, AttributeError) as e:
        raise InputError(
            "bench.format", str(path), f"holds no measurements of an original and its candidates ({e})", "run it again"
        ) from e


def _kept_metrics(name: str, quality: Mapping[str, Any]) -> Callable[[str], Metric] | None:
    """Where the quality was scored by the user's own evaluator: its scores are kept, the evaluator is not needed."""
    if name != EVALUATOR:
        return None
    kept = kept_evaluator(quality["unit"], quality["better"], quality["kind"])
    return lambda asked: kept if asked == EVALUATOR else metric_of(asked)


def _from_runs(metric: str) -> bool:
    return metric in registry.names("metrics") and registry.load("metrics", metric).needs == "runs"


def _prepare(
    paths: Sequence[Path], targets: Sequence[Target], shapes: Mapping[str, Sequence[int]], seed: int
) -> tuple[list[Leg], list[Feeds], tuple[KeptLeg, ...]]:
    models = [load_model(path) for path in paths]
    feeds = random_feeds(models[0], shapes, seed=seed)
    for path, model in zip(paths, models, strict=True):
        if {i.name for i in model.inputs} != {i.name for i in models[0].inputs}:
            raise InputError(
                "bench.interface",
                str(path),
                f"takes {_inputs(model)}; {paths[0].name} takes {_inputs(models[0])}",
                "measure models with the same inputs against each other",
            )
    legs: list[Leg] = []
    kept: list[KeptLeg] = []
    names = _names(paths)
    for target in targets:
        for name, path, model in zip(names, paths, models, strict=True):
            called = name if len(targets) == 1 else f"{name} on {target.name}"
            for leg in (Leg(called, path, target), Leg(CONTROL, path, target))[: 1 if legs else 2]:
                legs.append(leg)
                kept.append(KeptLeg(leg.name, path.name, model.digest, size_bytes(path), leg.place))
    return legs, feeds, tuple(kept)


def _inputs(model: Model) -> str:
    return ", ".join(map(str, model.inputs))


def _names(paths: Sequence[Path]) -> list[str]:
    """File stems, told apart by their folder or by number."""
    names: list[str] = []
    for path in paths:
        name = path.stem
        if name in names or name == CONTROL:
            name = f"{path.parent.name}/{path.stem}"
        while name in names:
            name += "'"
        names.append(name)
    return names


def _done(file: Path, start: BenchFile) -> list[LegRun]:
    if not file.exists():
        return []
    before = load_bench(file)
    if not before.runs:
        return []  # it failed before anything was measured
    for key, value in start.request.items():
        if before.request[key] != value:
            raise InputError(
                "bench.other",
                str(file),
                f"holds a bench with other {key}; measurements of different requests are never mixed",
                "choose another folder with --out, or delete this one",
            )
    return list(before.runs)
