"""A training file: model, samples, and the stages with their settings, read and held against what each may be."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import InputError, did_you_mean
from ..files import os_error, read_yaml, yaml_problem
from ..train.fit import LIMITS, check_limits


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
