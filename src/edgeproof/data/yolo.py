"""Pictures with boxes, as Ultralytics YOLO keeps them: images/, labels/ beside it, and a data.yaml with the names.

A label file has one line per object: class, centre x, centre y, width, height as shares of the picture; a longer line
is a polygon and counts with its bounding box. A picture without a label file has no objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..dataset import PICTURES, Boxes, DataSpec, settings_from
from ..errors import InputError, did_you_mean
from ..files import read_yaml
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ._samples import bad_label, existing, from_pictures, lines_of


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set.

    Attributes:
        split: Which part to read: a key of data.yaml (``val``, ``test``, ``train``) or a subfolder of images/; empty
            takes ``val`` where there is one, else all of images/.
    """

    split: str = ""


@dataclass(frozen=True, slots=True)
class Yolo:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """List pictures and read their label files; the first picture is decoded and checked against the model."""
        options = settings_from(Options, spec.options, spec.place("options"))
        path = existing(spec)
        config, root = _config(path)
        paths = _pictures(_source(config, root, options.split))
        classes = _class_count(config)
        names = [p.relative_to(root).as_posix() if p.is_relative_to(root) else p.name for p in paths]
        files = [_label_file(p) for p in paths]
        if paths and not any(f.is_file() for f in files):
            raise InputError(
                "data.missing",
                spec.path,
                f"none of {len(paths)} pictures has a label file, e.g. {files[0]}",
                "put labels/ beside images/, one .txt per picture",
            )
        rows = [_rows(f, n, classes) if f.is_file() else [] for f, n in zip(files, names, strict=True)]
        return from_pictures(
            spec,
            inputs,
            paths,
            names,
            lambda i, meta: _boxes(rows[i], meta["size"]),
            lambda i: rows[i],
            resize="letterbox",
        )


def _config(path: Path) -> tuple[Mapping[str, Any], Path]:
    """data.yaml (empty where there is none) and the folder that its paths start at."""
    import yaml

    file = path / "data.yaml" if path.is_dir() else path
    if not file.is_file():
        return {}, path
    try:
        value = read_yaml("\n".join(lines_of(file)))
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise InputError("data.not_yaml", str(file), f"is not valid YAML: {' '.join(str(e).split())}", "fix it") from e
    if not isinstance(value, Mapping):
        raise InputError(
            "data.not_yaml",
            str(file),
            "holds no keys; expected names, train and val",
            "e.g.  names: {0: cat}  and  val: images/val",
        )
    root = file.parent / str(value.get("path") or "")
    return value, root if root.is_dir() else file.parent


def _source(config: Mapping[str, Any], root: Path, split: str) -> Path:
    """Folder of pictures, or text file that lists them."""
    wanted = (split,) if split else ("val", "valid", "test", "train")
    for name in wanted:
        value = config.get(name)
        if isinstance(value, str):
            # exporters write ../valid/images relative to a folder that does not exist
            for place in (root / value, root / value.removeprefix("../")):
                if place.exists():
                    return place
    for name in wanted:
        for place in (root / "images" / name, root / name / "images"):
            if place.is_dir():
                return place
    if not split and (root / "images").is_dir():
        return root / "images"
    known = [k for k in ("train", "val", "test") if isinstance(config.get(k), str)]
    raise InputError(
        "data.missing", str(root), f"has no pictures for split {split or 'val'!r}", did_you_mean(split or "val", known)
    )


def _pictures(source: Path) -> list[Path]:
    if source.is_file():
        return [source.parent / line.strip() for line in lines_of(source) if line.strip()]
    return sorted(p for p in source.rglob("*") if p.suffix.lower() in PICTURES and not p.name.startswith("."))


def _class_count(config: Mapping[str, Any]) -> int | None:
    names = config.get("names")
    if isinstance(names, list | Mapping):
        return len(names)
    count = config.get("nc")
    return count if isinstance(count, int) else None


def _label_file(picture: Path) -> Path:
    """The last folder called images becomes labels."""
    parts = list(picture.parts)
    for i in range(len(parts) - 2, -1, -1):
        if parts[i] == "images":
            parts[i] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _rows(file: Path, sample: str, classes: int | None) -> list[list[float]]:
    """[class, left, top, right, bottom] as shares of the picture, one per object."""
    rows = []
    for number, line in enumerate(lines_of(file), 1):
        if not line.strip():
            continue
        where = f"{sample}, line {number} of {file.name}"
        try:
            values = [float(v) for v in line.split()]
        except ValueError as e:
            raise bad_label(where, f"is {line.strip()!r}; expected numbers", "class x y width height, 0..1") from e
        if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
            raise bad_label(where, f"has {len(values)} numbers; expected 5", "class x y width height, 0..1")
        label, rest = values[0], np.array(values[1:])
        if not label.is_integer() or label < 0 or (classes is not None and label >= classes):
            last = "" if classes is None else f"..{classes - 1}"
            raise bad_label(where, f"has class {label:g}; expected 0{last}", "fix the label or names in data.yaml")
        if not ((rest >= 0) & (rest <= 1)).all():
            raise bad_label(
                where, f"has coordinates outside 0..1: {line.strip()!r}", "write shares of the picture's size"
            )
        rows.append([label, *_corners(rest)])
    return rows


def _corners(values: NDArray[Any]) -> list[float]:
    if len(values) == 4:
        x, y, w, h = (float(v) for v in values)
        return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    points = values.reshape(-1, 2)
    return [*map(float, points.min(axis=0)), *map(float, points.max(axis=0))]


def _boxes(rows: Sequence[Sequence[float]], size: tuple[int, int]) -> Boxes:
    height, width = size
    table = np.array(rows, np.float64).reshape(-1, 5)
    xyxy = table[:, 1:] * np.array([width, height, width, height], np.float64)
    return Boxes(xyxy.astype(np.float32), table[:, 0].astype(np.int64), np.ones(len(table), np.float32))


IMPL: type[DataFormat] = Yolo
