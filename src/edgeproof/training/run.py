"""Do the stages of a training file: each from the model that the one before it left.

A stage is scored on samples that nothing learns from, and keeps what it made in a folder of its own. A run that was
interrupted goes on with the first stage that is not finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import registry
from ..bounds import interval
from ..dataset import DataSpec, Feeds, load_spec
from ..digest import digest_json
from ..errors import InputError, UnsupportedError, did_you_mean
from ..evaluate import complete, evaluate, metric_of, open_dataset
from ..files import read_json, write_json
from ..graph.cost import cost
from ..graph.shapes import closed
from ..model import Model, load_model, save_model, size_bytes
from ..protocols import Builder, Context, Dataset, Progress
from ..prune.schedule import schedule
from ..runtimes import backend, compile_for, find_target
from ..target import Target
from ..train.child import train
from ..train.fit import Epoch, Training
from ..train.losses import Term
from ..train.teacher import heads
from ..workspace import only_one
from .spec import Exporting, Learning, Pruning, Quantising, Spec

FORMAT = "edgeproof.training/1"
NAME = "training.json"


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
        if stage.kind not in ("qat", "export"):
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


def _place() -> Target:
    return find_target("onnxruntime:cpu", {})


def _feeds(run: Run) -> Iterator[Feeds]:
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


def _learn(run: Run, s: Learning, model: Model, teacher: Model, folder: Path) -> tuple[Model, list[Epoch]]:
    """Train a model on what the settings say."""
    logits = next((o.name for o in model.outputs), "")
    terms: list[Term] = []
    if s.labels > 0:
        terms.append(Term("cross_entropy", logits, s.labels))
    if s.labels < 1:
        rest = 1 - s.labels
        if s.temperature:
            terms.append(Term("kl", logits, rest, s.temperature))
        else:
            terms += [Term("mse", name, rest) for name in heads(model, teacher)]
    shared = {f.name: getattr(s, f.name) for f in fields(s) if f.name in Training.__dataclass_fields__}
    training = Training(terms=tuple(terms), seed=run.spec.seed, **shared)
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
    implementation = registry.load("passes", "prune_channels")
    done = 1.0
    for number, keep in enumerate(schedule(settings.steps, settings.keep), 1):
        change = implementation(
            keep=keep / done,
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
        run.model, done = change.model, keep
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
    run.model, epochs = _learn(run, settings, change.model, float_model, folder)
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
    place = _place()
    return Context(
        partial(compile_for, place), partial(_feeds, run), len(run.learned), place, run.spec.seed, run.progress
    )


WORK: Mapping[str, Callable[[Run, Any, Path], list[Epoch]]] = {
    "train": _train,
    "prune": _prune,
    "retrain": _retrain,
    "qat": _qat,
    "export": _export,
}
"""What each stage does to a run."""
