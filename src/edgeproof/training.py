"""Training by a file: dataset, model, and the stages train, prune, retrain, qat, export, for people who want no code.

Every stage starts from the model that the one before it left, is scored on samples that nothing learns from, and keeps
what it made in a folder of its own; a run that was interrupted goes on with the first stage that is not finished.
See docs/training.md for the file.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from . import registry
from .bounds import interval
from .dataset import DataSpec, Feeds, load_spec
from .digest import digest_json
from .errors import EdgeproofError, InputError, UnsupportedError, did_you_mean
from .evaluate import complete, evaluate, metric_of, open_dataset
from .files import os_error, read_json, read_yaml, write_json, yaml_problem
from .graph.cost import cost
from .graph.shapes import closed
from .model import Model, load_model, save_model, size_bytes
from .protocols import Builder, Context, Dataset, Progress
from .prune.schedule import schedule
from .runtimes import backend, compile_for, find_target
from .target import Target
from .train.child import train
from .train.fit import LIMITS, Epoch, Training, check_limits
from .train.losses import Term
from .train.teacher import heads
from .workspace import only_one

FORMAT = "edgeproof.training/1"
NAME = "training.json"


@dataclass(frozen=True, slots=True)
class Learning:
    """Settings of ``train``, ``retrain`` and ``qat`` alike.

    Attributes:
        epochs: Passes over the samples.
        rate: Highest learning rate, as a share of each tensor's size.
        batch: Samples per step.
        optimizer: ``adam`` or ``sgd``.
        decay: Weight decay.
        l1: Weight of the sum of magnitudes.
        seconds: Longest time; 0 means any.
        patience: Epochs without progress after which to stop; 0 means never.
        norms: ``trained`` or ``frozen`` batch norms.
        labels: Weight of the labels' cross entropy; the teacher has the rest. ``train`` has no teacher: 1.
        temperature: Of the teacher, for classifiers (KL); 0 compares the outputs themselves.
    """

    epochs: int = 10
    rate: float = 2e-3
    batch: int = 16
    optimizer: Literal["adam", "sgd"] = "adam"
    decay: float = 0.0
    l1: float = 0.0
    seconds: float = 0.0
    patience: int = 0
    norms: Literal["trained", "frozen"] = "trained"
    labels: float = 0.0
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Pruning:
    """Settings of ``prune``.

    Attributes:
        keep: Share of the multiply-accumulates that is left in the end.
        criterion: See the pass ``prune_channels``.
        rank: See there.
        round_to: See there.
        exclude: See there.
        steps: How often to prune a little and recover; with more than one, ``recover`` is needed.
        recover: Epochs of distillation from the unpruned model after every step but the last.
    """

    keep: float = 0.5
    criterion: str = "l2"
    rank: str = "layer"
    round_to: int = 8
    exclude: str = ""
    steps: int = 1
    recover: int = 0


@dataclass(frozen=True, slots=True)
class Quantising(Learning):
    """Settings of ``qat``: how ranges are found, and how the quantised graph learns.

    Attributes:
        method: Of the ranges; see the pass ``int8``.
        per_channel: A scale per output channel.
        keep: Layers that stay in float.
        scales: ``learned`` or ``fixed``.
        target: Whose quantisation.
    """

    method: str = "percentile"
    per_channel: bool = True
    keep: str = ""
    scales: Literal["learned", "fixed"] = "learned"
    target: str = "onnxruntime:cpu"


@dataclass(frozen=True, slots=True)
class Exporting:
    """Settings of ``export``.

    Attributes:
        fp16: Write a float16 copy of the last float model too.
        targets: Runtimes to build for, with commas between.
    """

    fp16: bool = False
    targets: str = ""


STAGES: Mapping[str, type[Any]] = {
    "train": Learning,
    "prune": Pruning,
    "retrain": Learning,
    "qat": Quantising,
    "export": Exporting,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        kind: Its name in `STAGES`.
        settings: An instance of its settings.
    """

    kind: str
    settings: Any


@dataclass(frozen=True, slots=True)
class Spec:
    """A training file.

    Attributes:
        model: The ONNX file to start from.
        data: Labelled samples.
        stages: In order.
        out: Folder of the run.
        seed: Of the split and of all that is random.
        engine: What trains.
        test: Share of the samples that only score.
    """

    model: Path
    data: str
    stages: tuple[Stage, ...]
    out: Path
    seed: int = 0
    engine: str = "auto"
    test: float = 0.25


def load_training(path: Path) -> Spec:
    """Read a training file. Paths in it are seen from the file's own folder.

    Raises:
        InputError: training.missing, training.not_yaml, training.key, training.value.
    """
    import yaml

    try:
        value = read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise InputError("training.missing", str(path), "no such file", "check the path") from e
    except OSError as e:
        raise os_error(path, e) from e
    except (yaml.YAMLError, RecursionError, ValueError) as e:  # ValueError: dates and numbers that are none
        problem = f"is no readable YAML file: {yaml_problem(e)[:200]}"
        raise InputError("training.not_yaml", str(path), problem, EXAMPLE) from e
    if not isinstance(value, Mapping):
        raise InputError("training.not_yaml", str(path), "holds no mapping", EXAMPLE)
    known = ("model", "data", "stages", "out", "seed", "engine", "test")
    _known(value, known, str(path))
    for key in ("model", "data", "stages"):
        if not value.get(key):
            raise InputError("training.key", f"{path}: {key}", "is missing", EXAMPLE)
    stages = value["stages"]
    if not isinstance(stages, Sequence) or isinstance(stages, str):
        raise InputError("training.value", f"{path}: stages", f"is {reprlib.repr(stages)}; expected a list", EXAMPLE)
    for key in ("model", "data", "out", "engine"):
        if not isinstance(value.get(key, ""), str):
            problem = f"is {reprlib.repr(value[key])}; expected text"
            raise InputError("training.value", f"{path}: {key}", problem, EXAMPLE)
    root = path.parent
    data = str(value["data"])
    seed = _checked(int, value.get("seed", 0), f"{path}: seed")
    check_limits("seed", seed, f"{path}: seed")
    test = _checked(float, value.get("test", 0.25), f"{path}: test")
    if not 0 < test < 1:
        raise InputError(
            "training.value", f"{path}: test", f"is {test}; expected a share between 0 and 1", "test: 0.25"
        )
    return Spec(
        root / str(value["model"]),
        str(root / data) if (root / data).exists() else data,
        tuple(_stage(stage, f"{path}: stages[{i}]") for i, stage in enumerate(stages)),
        root / str(value.get("out", f"runs/{path.stem}")),
        seed,
        str(value.get("engine", "auto")),
        test,
    )


EXAMPLE = "a training file is e.g.  {model: net.onnx, data: data.yaml, stages: [{train: {epochs: 5}}, {qat: {}}]}"
"""For hints: the shortest there is."""


def _stage(value: Any, subject: str) -> Stage:
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        problem = f"is {reprlib.repr(value)}; expected one stage with its settings"
        raise InputError("training.value", subject, problem, EXAMPLE)
    ((kind, settings),) = value.items()
    if kind not in STAGES:
        raise InputError("training.key", f"{subject}: {kind}", "is no stage", did_you_mean(str(kind), STAGES))
    settings = settings or {}
    if not isinstance(settings, Mapping):
        raise InputError(
            "training.value", f"{subject}: {kind}", f"is {reprlib.repr(settings)}; expected settings", EXAMPLE
        )
    hints = get_type_hints(STAGES[kind])
    _known(settings, [f.name for f in fields(STAGES[kind])], f"{subject}: {kind}")
    checked = {name: _checked(hints[name], v, f"{subject}: {kind}.{name}") for name, v in settings.items()}
    for name, number in checked.items():
        if isinstance(number, int | float):
            check_limits(name, number, f"{subject}: {kind}.{name}", STAGE_LIMITS)
    return Stage(kind, STAGES[kind](**checked))


STAGE_LIMITS: Mapping[str, tuple[float, float, str]] = {
    **LIMITS,
    "labels": (0, 1, "0.1"),
    "temperature": (0, 1e3, "4"),
    "keep": (1e-9, 1, "0.5"),
    "round_to": (1, 1e6, "8"),
    "steps": (1, 100, "2"),
    "recover": (0, 1e6, "3"),
}
"""As `LIMITS`, for all settings of stages."""


def _known(value: Mapping[str, Any], names: Sequence[str], subject: str) -> None:
    for key in value:
        if key not in names:
            raise InputError("training.key", f"{subject}: {key}", "is not known", did_you_mean(str(key), names))


def _checked(kind: Any, value: Any, subject: str) -> Any:
    """A value of the type that a setting has; numbers in text are numbers (YAML reads 1e-3 as text)."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            known = ", ".join(map(str, get_args(kind)))
            raise InputError(
                "training.value",
                subject,
                f"is {reprlib.repr(value)}; expected one of {known}",
                f"write {get_args(kind)[0]}",
            )
        return value
    if kind is str and isinstance(value, list):
        value = ",".join(map(str, value))
    good = isinstance(value, bool) if kind is bool else not isinstance(value, bool)
    try:
        made = kind(value) if good else None
    except (TypeError, ValueError, OverflowError):
        made = None
    if made is None or (kind is int and made != value) or (kind is not str and not np.isfinite(made)):
        expected = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
        problem = f"is {reprlib.repr(value)}; expected {expected}"
        raise InputError("training.value", subject, problem, "correct the value")
    return made


@dataclass
class Run:
    """A training run as it goes on.

    Attributes:
        spec: The file.
        data: How samples are read.
        dataset: The samples.
        learned: Indices to learn from.
        tested: Indices that only score.
        float_model: The last model without Q/DQ.
        teacher: What ``retrain`` learns from: the model before the last pruning.
        model: The last model.
        progress: Told about long work.
    """

    spec: Spec
    data: DataSpec
    dataset: Dataset
    learned: Sequence[int]
    tested: Sequence[int]
    float_model: Model
    teacher: Model
    model: Model
    progress: Progress
    rows: list[dict[str, Any]] = field(default_factory=list)


def run_training(
    spec: Spec,
    *,
    until: str = "",
    progress: Progress = lambda _what, _share: None,
    tell: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Do the stages.

    Args:
        spec: The file.
        until: Stop behind the first stage of this kind; empty does all.
        progress: Told about long work.
        tell: Given a line about each stage as it ends.

    Returns:
        The content of ``training.json``.

    Raises:
        InputError: training.labels, training.stage, and what stages say.
        UnsupportedError: train.engine, with the line that installs one.
    """
    if until and until not in [s.kind for s in spec.stages]:
        known = did_you_mean(until, [s.kind for s in spec.stages])
        raise InputError("training.stage", until, "is no stage of this file", known)
    with only_one(spec.out):
        return _staged(spec, until, progress, tell)


def _staged(spec: Spec, until: str, progress: Progress, tell: Callable[[str], None]) -> dict[str, Any]:
    """All stages, one after the other."""
    model = load_model(spec.model)
    data = load_spec(spec.data)
    dataset = open_dataset(data, model)
    data = complete(data, model, dataset)
    order = np.random.default_rng(spec.seed).permutation(len(dataset))
    apart = max(1, round(len(dataset) * spec.test))
    if apart >= len(dataset):
        problem = f"has {len(dataset)} samples; {apart} of them would score, and none would be learned from"
        raise InputError("training.samples", spec.data, problem, "give more samples, or a smaller share with test:")
    run = Run(spec, data, dataset, sorted(order[apart:]), sorted(order[:apart]), model, model, model, progress)
    key = digest_json([model.digest, dataset.digest, spec.seed, spec.test, spec.engine])
    _row(run, "start", spec.model, [], spec.out / "00-start", key)
    for number, stage in enumerate(spec.stages, 1):
        folder = spec.out / f"{number:02}-{stage.kind}"
        key = digest_json([key, stage.kind, asdict(stage.settings)])
        before = run.model
        kept = _kept(folder, key)
        if kept is None:
            epochs = WORK[stage.kind](run, stage.settings, folder)
            save_model(run.model, folder / "model.onnx")
        else:
            run.model = load_model(folder / "model.onnx")
            epochs = [Epoch(**e) for e in kept["epochs"]]
        if stage.kind == "prune":
            run.teacher = before
        if stage.kind != "qat":
            run.float_model = run.model
        _row(run, stage.kind, folder / "model.onnx", epochs, folder, key)
        tell(_line(run.rows[-1]))
        write_json(spec.out / NAME, _result(run))
        if stage.kind == until:
            break
    return _result(run)


def _result(run: Run) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "metric": run.data.metric,
        "samples": {"learned": len(run.learned), "tested": len(run.tested)},
        "stages": run.rows,
    }


def _kept(folder: Path, key: str) -> dict[str, Any] | None:
    """What a finished stage of this very run left; None when there is none."""
    file = folder / "stage.json"
    if not file.is_file() or not (folder / "model.onnx").is_file():
        return None
    value: dict[str, Any] = read_json(file)
    return value if value.get("key") == key else None


def _row(run: Run, kind: str, path: Path, epochs: Sequence[Epoch], folder: Path, key: str) -> None:
    """Score the model as it is now, once, and keep it."""
    kept = read_json(folder / "stage.json") if (folder / "stage.json").is_file() else {}
    if kept.get("key") != key:
        metric = metric_of(run.data.metric, run.data)
        session = compile_for(_place(), run.model)
        original = compile_for(_place(), load_model(run.spec.model)) if metric.needs == "reference" else None
        scores = evaluate(
            session,
            run.dataset,
            run.tested,
            run.data,
            run.model,
            (run.data.metric,),
            reference=original,
            progress=run.progress,
        )
        session.close()
        if original is not None:
            original.close()
        low, high = interval(metric, scores[run.data.metric])
        counted = cost(run.model, {n: a.shape for n, a in run.dataset[0].feeds.items()}).to_json()
        kept = {
            "key": key,
            "stage": kind,
            "model": run.model.digest,
            "path": str(path),
            "size_bytes": size_bytes(path),
            "macs": counted["macs"],
            "quality": {"value": metric.value(scores[run.data.metric]), "low": low, "high": high, "unit": metric.unit},
            "epochs": [asdict(e) for e in epochs],
        }
        write_json(folder / "stage.json", kept)
    run.rows.append({k: v for k, v in kept.items() if k != "key"})


def _line(row: Mapping[str, Any]) -> str:
    q = row["quality"]
    known = q["low"] is not None and q["high"] is not None
    bounds = f" [{q['low']:.4f}, {q['high']:.4f}]" if known else " (too few samples for an interval)"
    return f"{row['stage']:<10}{q['value']:.4f}{bounds}, {row['size_bytes'] / 1e6:.2f} MB"


def _place() -> Any:
    return find_target("onnxruntime:cpu", {})


def _feeds(run: Run) -> Any:
    return (run.dataset[i].feeds for i in run.learned)


def _labels(run: Run) -> list[int]:
    """Class indices of the samples to learn from.

    Raises:
        InputError: training.labels, for data whose truth is no class of the model.
    """
    session = compile_for(_place(), run.model)
    scores = session.run(run.dataset[run.learned[0]].feeds)[run.model.outputs[0].name]
    session.close()
    classes = np.shape(scores)[-1] if np.ndim(scores) else 1
    found = []
    for i in run.learned:
        truth = run.dataset[i].truth
        if not isinstance(truth, int | np.integer) or isinstance(truth, bool):
            raise InputError(
                "training.labels",
                f"sample {run.dataset[i].id!r}",
                f"has {'no label' if truth is None else type(truth).__name__}; a loss on labels needs a class index",
                "use retrain or qat with labels: 0, which learn from the model itself",
            )
        if not 0 <= truth < classes:
            raise InputError(
                "training.labels",
                f"sample {run.dataset[i].id!r}",
                f"has the label {truth}; the model's first output has scores for 0 to {classes - 1}",
                "correct the labels, or give the classes in the model's order (docs/data.md)",
            )
        found.append(int(truth))
    return found


def _learn(run: Run, s: Learning, model: Model, teacher: Model, folder: Path, **more: Any) -> tuple[Model, list[Epoch]]:
    """Train a model on what the settings say."""
    ends = heads(model, teacher)
    logits = next((o.name for o in model.outputs), "")
    terms: list[Term] = []
    if s.labels > 0:
        terms.append(Term("cross_entropy", logits, s.labels))
    if s.labels < 1:
        kind, names = ("kl", (logits,)) if s.temperature else ("mse", ends)
        terms += [Term(kind, n, 1 - s.labels, s.temperature or 1.0) for n in names]  # type: ignore[arg-type]
    training = Training(
        terms=tuple(terms),
        optimizer=s.optimizer,
        rate=s.rate,
        epochs=s.epochs,
        batch=s.batch,
        decay=s.decay,
        l1=s.l1,
        seconds=s.seconds,
        patience=s.patience,
        norms=s.norms,
        seed=run.spec.seed,
        **more,
    )
    return train(
        model,
        teacher,
        _feeds(run),
        training,
        engine_name=run.spec.engine,
        labels=_labels(run) if s.labels > 0 else None,
        folder=folder / "job",
        progress=run.progress,
    )


def _train(run: Run, settings: Learning, folder: Path) -> list[Epoch]:
    """With labels, or only with them where nothing is said."""
    run.model, epochs = _learn(run, replace(settings, labels=settings.labels or 1.0), run.model, run.model, folder)
    return epochs


def _retrain(run: Run, settings: Learning, folder: Path) -> list[Epoch]:
    """With the model before the pruning as the teacher."""
    run.model, epochs = _learn(run, settings, run.model, run.teacher, folder)
    return epochs


def _prune(run: Run, settings: Pruning, folder: Path) -> list[Epoch]:
    """In steps, each recovered from before the next."""
    whole, epochs = run.model, []
    for number, keep in enumerate(schedule(settings.steps, settings.keep), 1):
        left = keep if number == 1 else keep / schedule(settings.steps, settings.keep)[number - 2]
        implementation = registry.load("passes", "prune_channels")
        change = implementation(
            keep=left,
            criterion=settings.criterion,
            rank=settings.rank,
            round_to=settings.round_to,
            exclude=settings.exclude,
        )(run.model, _context(run))
        if not change.modified:
            why = "; ".join(f"{n}: {r}" for n, r in change.declined[:3])
            raise InputError(
                "training.prune",
                run.model.name,
                f"could not be pruned: {why}",
                "lower round_to, of which layers keep a multiple, or exclude less",
            )
        run.model = change.model
        if settings.recover and number < settings.steps:
            learning = Learning(epochs=settings.recover)
            run.model, more = _learn(run, learning, run.model, whole, folder / f"step-{number}")
            epochs += more
    return epochs


def _qat(run: Run, settings: Quantising, folder: Path) -> list[Epoch]:
    """Quantise, then teach it by the float model."""
    float_model = run.model
    if any(n.op_type == "BatchNormalization" for n in float_model.graph.graph):
        float_model = registry.load("passes", "simplify")()(float_model, _context(run)).model  # folds batch norms
    context = replace(_context(run), target=find_target(settings.target, {}, run=False))
    implementation = registry.load("passes", "int8")
    change = implementation(method=settings.method, per_channel=settings.per_channel, keep=settings.keep)(
        float_model, context
    )
    if not change.modified:
        why = "; ".join(f"{n}: {r}" for n, r in change.declined[:3])
        raise InputError("training.qat", run.model.name, f"could not be quantised: {why}", "choose another target")
    run.model, epochs = _learn(run, settings, change.model, float_model, folder, scales=settings.scales)
    return epochs


def _export(run: Run, settings: Exporting, folder: Path) -> list[Epoch]:
    """Copies for devices, beside the model itself."""
    if settings.fp16:
        half = registry.load("passes", "fp16")()(run.float_model, _context(run)).model
        save_model(half, folder / "fp16.onnx")
    for name in (t.strip() for t in settings.targets.split(",") if t.strip()):
        target = find_target(name, {}, run=False)
        maker = backend(target.backend)
        if isinstance(maker, Builder):
            _build(run, maker, target, folder / name.replace(":", "-"))
    return []


def _build(run: Run, maker: Builder, target: Target, out: Path) -> None:
    """The model as it is; where a runtime takes no open dimensions, with the sizes of the first sample."""
    try:
        maker.build(run.model, target, out, run.progress)
    except UnsupportedError:
        if not any(spec.dynamic for spec in run.model.inputs):
            raise
        sizes = {name: array.shape for name, array in run.dataset[0].feeds.items()}
        maker.build(closed(run.model, sizes), target, out, run.progress)


def _context(run: Run) -> Context:
    def feeds() -> Any:
        return islice(_feeds(run), None)

    place = _place()
    return Context(lambda m: compile_for(place, m), feeds, len(run.learned), place, run.spec.seed, run.progress)


WORK: Mapping[str, Callable[[Run, Any, Path], list[Epoch]]] = {
    "train": _train,
    "prune": _prune,
    "retrain": _retrain,
    "qat": _qat,
    "export": _export,
}
"""What each stage does to a run."""

__all__ = ["EdgeproofError", "Feeds", "Run", "Spec", "Stage", "load_training", "run_training"]
