"""Pictures with boxes, annotated as in COCO: an instances JSON file and a folder of pictures.

Boxes with ``iscrowd`` neither help nor hurt. Pictures without annotations count: what is found on them is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..dataset import Boxes, DataSpec, settings_from
from ..errors import InputError
from ..files import read_json
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ._samples import bad_label, beside, existing, from_pictures


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set.

    Attributes:
        annotations: The JSON file, where the path is a folder.
        images: Folder of pictures; empty looks in the usual places beside the JSON file.
        categories: How category ids become class indices: ``order`` (0, 1, … by sorted id), ``id`` (the id itself), or
            a list of pairs, ``1=0, 3=2``, id = class; other categories are then left out.
    """

    annotations: str = ""
    images: str = ""
    categories: str = "order"


@dataclass(frozen=True, slots=True)
class Coco:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """Read the annotations; the first picture is decoded and checked against the model."""
        options = settings_from(Options, spec.options, spec.place("options"))
        path = existing(spec)
        json_path = beside(spec, options.annotations) if options.annotations else path
        value = _checked(read_json(json_path) if json_path.is_file() else None, json_path)
        try:
            pictures = sorted(value["images"], key=lambda p: int(p["id"]))
            classes = class_of(options.categories, [int(c["id"]) for c in value.get("categories", [])])
            truths = _truths(value, pictures, classes, json_path)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise _not_coco(json_path, f"{type(e).__name__} {e}") from e
        names = [str(p["file_name"]) for p in pictures]
        folder = beside(spec, options.images) if options.images else _folder(json_path, names)
        labels = [
            [t.xyxy.astype(float).tolist(), t.classes.tolist(), None if t.crowd is None else t.crowd.tolist()]
            for t in truths
        ]
        return from_pictures(
            spec,
            inputs,
            [folder / n for n in names],
            names,
            lambda i, _meta: truths[i],
            lambda i: labels[i],
            resize="letterbox",
        )


def _checked(value: Any, path: Path) -> dict[str, Any]:
    """The JSON value, when it has the shape of COCO annotations."""
    ok = (
        isinstance(value, dict)
        and isinstance(value.get("images"), list)
        and isinstance(value.get("annotations"), list)
        and all(isinstance(p, dict) and "id" in p and "file_name" in p for p in value["images"])
    )
    if not ok or value is None:
        raise _not_coco(path, "no such lists")
    return value  # type: ignore[no-any-return]


def _not_coco(path: Path, problem: str) -> InputError:
    return InputError(
        "data.not_coco",
        str(path),
        f"is not a COCO annotation file ({problem}); expected images (id, file_name), "
        "annotations (image_id, category_id, bbox) and categories (id)",
        "give the instances JSON file, or options.annotations",
    )


def class_of(rule: str, ids: Sequence[int]) -> dict[int, int]:
    """Class index by category id.

    Raises:
        InputError: data.value.
    """
    if rule == "order":
        return {c: i for i, c in enumerate(sorted(ids))}
    if rule == "id":
        return {c: c for c in ids}
    try:
        pairs = [pair.split("=") for pair in rule.split(",")]
        return {int(c): int(i) for c, i in pairs}
    except ValueError as e:
        raise InputError(
            "data.value", "data.options: categories", f"is {rule!r}; expected 'order', 'id' or pairs as '1=0, 3=2'", ""
        ) from e


def _truths(value: Mapping[str, Any], pictures: Sequence[Any], classes: Mapping[int, int], path: Path) -> list[Boxes]:
    """Ground truth of every picture, in their order."""
    known = {int(c["id"]) for c in value.get("categories", [])}
    rows: dict[int, list[tuple[list[float], int, bool]]] = defaultdict(list)
    for a in value["annotations"]:
        category = int(a["category_id"])
        if category not in known:
            raise bad_label(
                f"annotation {a.get('id')}",
                f"has category {category}, which {path.name} does not list",
                "fix categories",
            )
        box = a.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
            raise bad_label(f"annotation {a.get('id')}", f"has bbox {box!r}; expected [x, y, width, height]", "fix it")
        if category in classes:
            rows[int(a["image_id"])].append((box, classes[category], bool(a.get("iscrowd", 0))))
    return [_boxes(rows[int(p["id"])]) for p in pictures]


def _boxes(rows: Sequence[tuple[list[float], int, bool]]) -> Boxes:
    xywh = np.array([r[0] for r in rows], np.float64).reshape(-1, 4)
    xyxy = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1).astype(np.float32)
    crowd = np.array([r[2] for r in rows], bool)
    return Boxes(xyxy, np.array([r[1] for r in rows], np.int64), np.ones(len(rows), np.float32), crowd)


def _folder(json_path: Path, names: Sequence[str]) -> Path:
    """Where the pictures are: the usual places of COCO's own layout and of exporting tools."""
    split = json_path.stem.removeprefix("instances_")
    parent, outer = json_path.parent, json_path.parent.parent
    places = (
        parent,
        parent / "images",
        parent / split,
        outer / split,
        outer / "images",
        outer / "images" / split,
        outer,
    )
    for place in places:
        if names and (place / names[0]).is_file():
            return place
    if not names:
        return parent
    raise InputError(
        "data.missing",
        str(json_path),
        f"picture {names[0]!r} is in none of {', '.join(str(p) for p in places)}",
        "give options.images, the folder of the pictures",
    )


IMPL: type[DataFormat] = Coco
