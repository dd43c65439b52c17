"""Labelled samples and how they become model inputs, declared once and used everywhere.

The same `DataSpec` drives calibration, evaluation and, later, the pipeline on the device, so that preprocessing cannot
differ between them. Its digest enters every receipt. The JSON schema of a data file is ``dataset.schema.json`` beside
this file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .digest import digest_file, digest_json
from .errors import InputError, did_you_mean
from .files import os_error, read_yaml, yaml_problem
from .target import Setting

Feeds = Mapping[str, NDArray[Any]]
"""Input name → array, batch dimension included."""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """From a picture (H×W×3, 0..255) to a model input. Steps run in the order of the fields.

    Attributes:
        size: Target (height, width) in pixels; None takes the model's fixed size, or keeps the picture's.
        resize: ``stretch``, ``letterbox`` (keep aspect, centre, pad), ``crop`` (shorter side, then centre crop),
            ``pad_right`` (scale to the height, pad on the right: text lines) or ``none``.
        crop_fraction: With ``crop``: share of the resized shorter side that is kept (0.875 = 256 → 224).
        pad_value: Value of padding, 0..255, before scale, mean and std.
        interpolation: ``bilinear``, ``bicubic``, ``nearest`` or ``area``. All but nearest average over the source
            pixels that they shrink (Pillow's resampling), unlike OpenCV's and most devices' two-tap bilinear.
        colour: ``rgb``, ``bgr`` or ``gray`` (one channel).
        scale: Factor on pixel values, first.
        mean: Subtracted per channel, after scale; one value, or one per channel in the order of ``colour``.
        std: Divided by per channel, last; one value, or one per channel in the order of ``colour``.
        layout: ``nchw`` or ``nhwc``.
        dtype: NumPy dtype of the result. Integers are rounded half to even and saturate.
    """

    size: tuple[int, int] | None = None
    resize: Literal["stretch", "letterbox", "crop", "pad_right", "none"] = "stretch"
    crop_fraction: float = 1.0
    pad_value: float = 114.0
    interpolation: Literal["bilinear", "bicubic", "nearest", "area"] = "bilinear"
    colour: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Decode:
    """From model outputs to a prediction that a metric understands.

    Attributes:
        kind: ``classes`` (scores → ranked classes), ``ctc`` (logits T×C → text, best path), ``boxes`` (→ detections),
            ``none`` (the outputs as they are), or ``auto``: by the kind of the labels (class, string, boxes, other).
        output: Name of the output to read; empty means the first.
        options: Kind-specific values, the fields of `decode.Classes`, `decode.Ctc` and `decode.BoxesFormat`.
    """

    kind: Literal["auto", "classes", "ctc", "boxes", "none"] = "auto"
    output: str = ""
    options: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Everything that defines a data set for edgeproof.

    Attributes:
        format: Name of the data plug-in (file name in ``data/``).
        path: Where the samples are (file, folder or ``module:callable``).
        preprocess: How pictures become inputs; None when samples are arrays already, or to take it from the model.
        decode: How outputs become predictions.
        metric: Name of the quality metric; empty takes the one for the kind of the labels.
        evaluator: ``file.py:callable`` or ``module:callable`` that scores one example instead of a metric.
        limit: Use at most this many samples; 0 means all.
        seed: Of the choice of ``limit`` samples.
        options: Format-specific values (e.g. COCO's annotation file); paths in it are relative to ``root``.
        root: Folder that relative paths in ``evaluator`` and ``options`` are resolved against; empty is the current.
        source: The data file that this was read from, for errors; empty when there is none.
        left_out: Fields of ``preprocess`` that the data file leaves out: they are taken from the model.
    """

    format: str
    path: str
    preprocess: Preprocess | None = None
    decode: Decode = field(default_factory=Decode)
    metric: str = ""
    evaluator: str = ""
    limit: int = 0
    seed: int = 0
    options: Mapping[str, Setting] = field(default_factory=dict)
    root: str = ""
    source: str = ""
    left_out: tuple[str, ...] = ()

    def place(self, key: str) -> str:
        """What errors call a setting: with the data file that it stands in."""
        return f"{self.source}: {key}" if self.source else f"data.{key}"

    def to_json(self, *, paths: bool = False) -> dict[str, Any]:
        """As JSON; where it was read is left out unless asked for, since the content has a digest of its own."""
        value = _plain(asdict(self))
        if not paths:
            for key in ("path", "root", "source", "left_out"):
                del value[key]
        return value  # type: ignore[no-any-return]

    @staticmethod
    def from_json(value: Mapping[str, Any], subject: str = "data") -> DataSpec:
        """Inverse of ``to_json(paths=True)``; also what a data file holds.

        Raises:
            InputError: data.key, data.value.
        """
        return settings_from(DataSpec, value, subject)

    @property
    def evaluator_digest(self) -> str:
        """Digest of what turns inputs into scores."""
        return digest_json(self.evaluator_parts)

    @property
    def evaluator_parts(self) -> dict[str, Any]:
        """What turns inputs into scores: preprocessing, decoding, metric, digest of a custom evaluator's source."""
        value = self.to_json()
        parts = {k: value[k] for k in ("preprocess", "decode", "metric", "evaluator")}
        return {**parts, "source": source_digest(self.evaluator, self.root)}


@dataclass(frozen=True, slots=True)
class Example:
    """One sample.

    Attributes:
        id: Stable name within its data set (a file name, an index).
        feeds: Model inputs.
        truth: The label: a class index, a string, a `Boxes`, or None.
        meta: What decoding needs to undo preprocessing: ``scale``, ``pad``, ``size`` (all in pixels).
    """

    id: str
    feeds: Feeds
    truth: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Detections or ground truth of one picture, in pixels of the original picture.

    Attributes:
        xyxy: float32 [n, 4].
        classes: int64 [n].
        scores: float32 [n]; ones for ground truth.
        crowd: bool [n], regions that neither help nor hurt; None for none.
    """

    xyxy: NDArray[np.float32]
    classes: NDArray[np.int64]
    scores: NDArray[np.float32]
    crowd: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Indices into a data set, each sorted, no index in two parts.

    Attributes:
        calibration: Ranges of activations come from these; labels are not used.
        search: Candidates are compared on these.
        confirm: The verdict comes from these, which nothing was chosen by.
    """

    calibration: tuple[int, ...]
    search: tuple[int, ...]
    confirm: tuple[int, ...]


def split(n: int, seed: int = 0, *, calibration: int | None = None, search: int | None = None) -> Split:
    """Divide ``n`` samples into calibration, search and confirmation parts.

    The order is that of SHA-256 over seed and index, so it is the same on every machine and NumPy version. Without
    given counts, calibration takes a fifth, at most 128; search three tenths; confirmation the rest. At least one
    sample goes to confirm, then to calibration, then to search: n=1 gives 0/0/1, n=2 1/0/1, n=3 1/1/1, n=10 2/3/5.

    Args:
        n: Number of samples, at least 1.
        seed: Of the order.
        calibration: Samples for calibration instead of the default share.
        search: Samples for search instead of the default share.

    Raises:
        InputError: data.empty for n < 1; data.split when nothing is left to confirm on.
    """
    if n < 1:
        raise InputError("data.empty", "data", f"{n} samples cannot be split; expected at least 1", "add samples")
    first = calibration if calibration is not None else (0 if n < 2 else max(1, min(128, n // 5)))
    second = search if search is not None else (0 if n < 3 else max(1, n * 3 // 10))
    if first < 0 or second < 0 or first + second >= n:
        raise InputError(
            "data.split",
            "data",
            f"{first} samples to calibrate and {second} to search leave none of {n} to confirm on",
            "lower these counts or add samples",
        )
    order = shuffled(n, seed)
    parts = (order[:first], order[first : first + second], order[first + second :])
    return Split(*(tuple(sorted(p)) for p in parts))


def shuffled(n: int, seed: int) -> list[int]:
    """0..n-1 in the order of SHA-256 over seed and index."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())


def source_digest(callable_name: str, root: str) -> str:
    """Digest of the file behind ``file.py:callable``; empty for a module, which a digest of the environment covers."""
    source = callable_name.rpartition(":")[0]
    path = Path(root, source)
    return digest_file(path) if source.endswith(".py") and path.is_file() else ""


EXAMPLE = "a data file is e.g.  path: photos  and, on a line of its own,  preprocess: {size: [224, 224], scale: 1/255}"
"""For hints: a short data file."""

T = TypeVar("T")


def settings_from(cls: type[T], value: Any, subject: str) -> T:
    """A frozen dataclass from parsed YAML or JSON, each value checked against its field's type.

    Numbers may be written as fractions (``1/255``) and one number stands for a list of one.

    Raises:
        InputError: data.key (unknown or absent), data.value.
    """
    if not isinstance(value, Mapping):
        raise _bad_value(subject, value, "keys and values")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise InputError("data.key", subject, f"unknown key {key!r}", did_you_mean(str(key), known))
    for f in known.values():
        if f.default is MISSING and f.default_factory is MISSING and f.name not in value:
            raise InputError("data.key", subject, f"has no {f.name!r}", f"add {f.name}: ...")
    hints = get_type_hints(cls)
    return cls(**{k: _coerced(hints[k], v, f"{subject}: {k}") for k, v in value.items()})


def _coerced(hint: Any, value: Any, subject: str) -> Any:
    args, origin = get_args(hint), get_origin(hint)
    if hint == Setting:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise _bad_value(subject, value, "one value")
    if origin in (Union, UnionType):
        if value is None:
            return None
        return _coerced(next(a for a in args if a is not type(None)), value, subject)
    if origin is Literal:
        if value not in args:
            raise InputError("data.value", subject, f"is {value!r}", did_you_mean(str(value), map(str, args)))
        return value
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        if args[-1] is not Ellipsis and len(items) != len(args):
            raise _bad_value(subject, value, f"a list of {len(args)}")
        return tuple(_coerced(args[0], v, subject) for v in items)
    if origin is not None:  # a mapping of settings
        if not isinstance(value, Mapping):
            raise _bad_value(subject, value, "keys and values")
        return {str(k): _coerced(args[1], v, f"{subject}.{k}") for k, v in value.items()}
    if is_dataclass(hint):
        return settings_from(hint, value, subject)  # type: ignore[arg-type]
    return _scalar(hint, value, subject)


def _scalar(hint: type, value: Any, subject: str) -> Any:
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError) as e:
            raise _bad_value(subject, value, "a finite number") from e
        return number
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _bad_value(subject, value, {int: "a whole number", str: "text", bool: "true or false"}[hint])
    return value


def _bad_value(subject: str, value: Any, expected: str) -> InputError:
    return InputError("data.value", subject, f"is {value!r}; expected {expected}", EXAMPLE)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


PICTURES = frozenset((".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
"""Suffixes of files that are taken as pictures."""


def load_spec(path_or_text: str) -> DataSpec:
    """What ``--data`` names: a data file, or the samples themselves.

    A YAML file (or text of several lines) holds the fields of `DataSpec`; relative paths in it start at its folder.
    ``format`` may be left out of it where the path tells. Everything that was guessed is in the result; show it with
    `describe`.

    Raises:
        InputError: data.missing, data.not_yaml, data.key, data.value, data.format.
    """
    text = path_or_text
    if "\n" in text:
        return _from_yaml(text, Path.cwd(), "data")
    path = Path(text)
    if path.suffix.lower() not in (".yaml", ".yml"):
        guess = _guess(path) if path.exists() else _guess_callable(text)
        return DataSpec(path=text, root=str(Path.cwd()), **guess)
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise _missing(text) from e
    except OSError as e:
        raise os_error(path, e) from e
    except UnicodeDecodeError as e:
        raise InputError("data.not_yaml", text, "is not UTF-8 text", f"save it as UTF-8; {EXAMPLE}") from e
    return _from_yaml(content, path.resolve().parent, text)


def _from_yaml(text: str, root: Path, subject: str) -> DataSpec:
    import yaml

    try:
        value = read_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as e:  # ValueError: dates and numbers that are none
        raise InputError("data.not_yaml", subject, f"is not valid YAML: {yaml_problem(e)}", EXAMPLE) from e
    if isinstance(value, Mapping) and "names" in value and "format" not in value:  # a YOLO data file of its own
        return DataSpec("yolo", str(root / Path(subject).name), root=str(root), source=subject)
    spec = dict(value) if isinstance(value, Mapping) else value
    if isinstance(spec, dict):
        if not isinstance(spec.get("path"), str):
            raise InputError("data.key", subject, "has no 'path'", "add path: where the samples are")
        named = spec["path"]
        where = root / named
        is_callable = spec.get("format") == "callable" or (not where.exists() and _CALLABLE.match(named) is not None)
        if "format" not in spec:
            guess = _guess_callable(named) if is_callable or not where.exists() else _guess(where)
            spec = {**spec, "format": guess["format"]}
            options = spec.get("options") or {}
            if "options" in guess and isinstance(options, Mapping):  # other kinds are refused below
                spec["options"] = {**guess["options"], **options}
        given = spec.get("preprocess")
        left_out = [f.name for f in fields(Preprocess) if f.name not in given] if isinstance(given, Mapping) else []
        spec = {**spec, "root": str(root), "path": named if is_callable else str(where)}
        spec |= {"source": subject, "left_out": left_out}
    return DataSpec.from_json(spec, subject)


_CALLABLE = re.compile(r"(.+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*")


def _guess_callable(text: str) -> dict[str, Any]:
    if _CALLABLE.fullmatch(text):
        return {"format": "callable"}
    raise _missing(text)


def _guess(path: Path) -> dict[str, Any]:
    """Format and options that a path speaks for."""
    if path.is_dir():
        return _guess_folder(path)
    by_suffix = {".npz": "npz", ".npy": "npz", ".json": "coco", ".csv": "images"}
    by_suffix |= {".txt": "text", ".tsv": "text", ".jsonl": "text"}
    if path.suffix.lower() in by_suffix:
        return {"format": by_suffix[path.suffix.lower()]}
    raise InputError(
        "data.format",
        str(path),
        f"what kind of samples a {path.suffix or 'suffixless'} file holds is not known",
        "expected .npz, .npy, .json (COCO), .csv, .tsv, .txt, .jsonl, a folder, file.py:callable, or a .yaml data file",
    )


def _guess_folder(path: Path) -> dict[str, Any]:
    if (path / "images").is_dir() and ((path / "labels").is_dir() or (path / "data.yaml").is_file()):
        return {"format": "yolo"}
    if (path / "annotations").is_dir():
        found = sorted((path / "annotations").glob("*.json"))
        if len(found) == 1:
            return {"format": "coco", "options": {"annotations": f"annotations/{found[0].name}"}}
        raise InputError(
            "data.format",
            str(path),
            f"has {len(found)} annotation files in annotations/; expected 1",
            "give the path of the .json file to use",
        )
    folders = [f for f in path.iterdir() if f.is_dir()]
    if any((f / "labels").is_dir() and (f / "images").is_dir() for f in folders):
        return {"format": "yolo"}
    if folders or any((path / f"labels{s}").is_file() for s in (".csv", ".tsv")):
        return {"format": "images"}
    if not any(path.iterdir()):
        raise InputError("data.empty", str(path), "has no samples (the folder is empty)", "add samples to it")
    raise InputError(
        "data.format",
        str(path),
        "has neither class subfolders, nor images/ and labels/, nor labels.csv",
        "make a subfolder per class, or a labels.csv with a picture and a label a line; or write a .yaml data file",
    )


def _missing(text: str) -> InputError:
    return InputError(
        "data.missing",
        text,
        "no such file or folder, and not of the form file.py:callable",
        "check the path given to --data",
    )


def describe(spec: DataSpec) -> str:
    """Several lines for people: every setting that is in force, guessed or given."""
    lines = [f"data        {spec.format} at {spec.path}" + (f", {spec.limit} samples at most" if spec.limit else "")]
    lines += [f"            {k}: {v}" for k, v in spec.options.items()]
    lines.append(f"preprocess  {_describe_preprocess(spec.preprocess)}")
    options = "".join(f", {k} {v}" for k, v in spec.decode.options.items())
    lines.append(f"decode      {spec.decode.kind} of {spec.decode.output or 'the first output'}{options}")
    lines.append(f"quality     {spec.evaluator or spec.metric or 'by the kind of the labels'}")
    return "\n".join(lines)


def _describe_preprocess(p: Preprocess | None) -> str:
    if p is None:
        return "none given"
    size = f"to {p.size[0]}×{p.size[1]} (height×width)" if p.size else "to the model's size"
    steps = [f"{p.resize} {size}, {p.interpolation}" if p.resize != "none" else "no resize", p.colour]
    if p.resize in ("letterbox", "pad_right"):
        steps.append(f"pad with {p.pad_value:g}")
    if p.resize == "crop":
        steps.append(f"keep {p.crop_fraction:g} of the shorter side")
    steps.append(f"(x × {p.scale:.6g} − {_list(p.mean)}) / {_list(p.std)}")
    return "; ".join([*steps, f"{p.dtype} {p.layout}"])


def _list(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(values) == 1 else "[" + ", ".join(f"{v:g}" for v in values) + "]"
