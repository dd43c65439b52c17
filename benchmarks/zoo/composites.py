"""Photo cut-outs pasted on photos: pictures whose classes and boxes are exact by construction, any number, seeded.

The cut-outs are Tux Paint's stamps (GPL-2) and the backgrounds are OpenCV's sample pictures; both come from Debian
packages at run time and neither is kept in this repository. Backgrounds show nothing of the classes that are
pasted, and are calm: with graffiti among them CenterNet's AP50 falls from .63 to .51 (measured, 100 scenes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeproof.files import write_json, write_text

from .packages import OPENCV_DOC, STAMPS, unpacked

if TYPE_CHECKING:
    from PIL.Image import Image

BACKGROUNDS = (
    "aero1.jpg",
    "aero3.jpg",
    "aloeL.jpg",
    "aloeR.jpg",
    "board.jpg",
    "building.jpg",
    "ela_original.jpg",
    "rubberwhale1.png",
    "stuff.jpg",
    "text_motion.jpg",
)
SCENE = (480, 640)
"""Height and width of a picture for detectors, in pixels."""
PORTRAIT = (320, 320)
"""Height and width of a picture for classifiers, in pixels."""
SIGNS = "town/roadsigns/"
"""Cut-outs that are not mirrored, since there is writing on them."""
QUALITY = 92
"""JPEG quality of the pictures written."""

SCENE_DATA = """\
# Cut-outs on photos with exact boxes; categories are the indices of COCO's 80 classes.
format: coco
path: scenes.json
metric: map50
options: {images: pictures, categories: id}
preprocess: {size: [512, 512], resize: letterbox, pad_value: 127, scale: 1}
decode: {kind: boxes, output: out_tower_0_detections, options: {format: xyxy_score_class, iou: 0.5}}
"""

PORTRAIT_DATA = """\
# One cut-out on a photo; the label is an ImageNet class, and the evaluator accepts its synonyms too.
format: images
path: labels.csv
evaluator: evaluator.py:accepted
preprocess: {size: [224, 224], resize: crop, crop_fraction: 0.875, interpolation: bicubic, mean: [127], std: [128]}
"""


@dataclass(frozen=True, slots=True)
class Material:
    """What pictures are made from.

    Attributes:
        stamps: Folder of the cut-outs.
        backgrounds: Background files.
        labels: ``tux_labels.json``.
    """

    stamps: Path
    backgrounds: tuple[Path, ...]
    labels: Mapping[str, Any]


def labels() -> dict[str, Any]:
    """Which cut-out shows what."""
    value: dict[str, Any] = json.loads(Path(__file__).with_name("tux_labels.json").read_text(encoding="utf-8"))
    return value


def material(cache: Path) -> Material:
    """Fetch and unpack what is needed."""
    stamps = unpacked(STAMPS, "usr/share/tuxpaint/stamps", cache)
    photos = unpacked(OPENCV_DOC, "usr/share/doc/opencv-doc/examples/data", cache)
    return Material(stamps, tuple(photos / name for name in BACKGROUNDS), labels())


def write_scenes(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """Pictures with one to four objects of 25 COCO classes, and their annotations.

    Returns:
        The data file.
    """
    stuff, rng = material(cache), np.random.default_rng(seed)
    names: Mapping[str, Sequence[str]] = stuff.labels["coco"]
    index: Mapping[str, int] = stuff.labels["coco_index"]
    pictures: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        picture, boxes = _scene(stuff, names, rng)
        name = f"{i:05d}.jpg"
        picture.save(folder / "pictures" / name, quality=QUALITY)
        pictures.append({"id": i, "file_name": name, "height": SCENE[0], "width": SCENE[1]})
        for what, (left, top, right, bottom) in boxes:
            width, height = right - left, bottom - top
            box = {"bbox": [left, top, width, height], "area": width * height, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": i, "category_id": index[what], **box})
    categories = [{"id": index[n], "name": n} for n in names]
    write_json(folder / "scenes.json", {"images": pictures, "annotations": annotations, "categories": categories})
    write_text(folder / "data.yaml", SCENE_DATA)
    return folder / "data.yaml"


Box = tuple[int, int, int, int]


def _scene(
    stuff: Material, names: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> tuple[Image, list[tuple[str, Box]]]:
    picture = _background(stuff, SCENE, rng)
    boxes: list[tuple[str, Box]] = []
    for _ in range(int(rng.integers(1, 5))):
        what = str(rng.choice(list(names)))
        cut_out = _cut_out(stuff.stamps, str(rng.choice(names[what])), float(rng.uniform(160, 400)), rng)
        width, height = cut_out.size
        for _attempt in range(20):
            left, top = int(rng.integers(SCENE[1] - width + 1)), int(rng.integers(SCENE[0] - height + 1))
            box = (left, top, left + width, top + height)
            if not any(_touch(box, other) for _, other in boxes):
                picture.paste(cut_out, (left, top), cut_out)
                boxes.append((what, box))
                break
    return picture, boxes


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def write_portraits(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """Pictures of one object each, every cut-out as often as the others, with an ImageNet label.

    Returns:
        The data file.
    """
    stuff, rng = material(cache), np.random.default_rng(seed)
    accepted: Mapping[str, list[int]] = stuff.labels["imagenet"]
    names = list(accepted)
    order: list[int] = []
    while len(order) < count:
        order.extend(rng.permutation(len(names)).tolist())
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for i, which in enumerate(order[:count]):
        _portrait(stuff, names[which], rng).save(folder / "pictures" / f"{i:05d}.jpg", quality=QUALITY)
        rows.append(f"pictures/{i:05d}.jpg,{accepted[names[which]][0]}\n")
    write_text(folder / "labels.csv", "".join(rows))
    write_text(folder / "evaluator.py", evaluator_source(accepted))
    write_text(folder / "data.yaml", PORTRAIT_DATA)
    return folder / "data.yaml"


def evaluator_source(accepted: Mapping[str, Sequence[int]]) -> str:
    """The evaluator with its table filled in, so that its digest covers the table."""
    also = {v[0]: tuple(v[1:]) for v in accepted.values() if len(v) > 1}
    source = Path(__file__).with_name("score_accepted.py").read_text(encoding="utf-8")
    return source.replace("= {}\n", f"= {also}\n", 1)


def _portrait(stuff: Material, name: str, rng: np.random.Generator) -> Image:
    picture = _background(stuff, PORTRAIT, rng)
    cut_out = _cut_out(stuff.stamps, name, PORTRAIT[0] * float(rng.uniform(0.55, 0.85)), rng)
    width, height = cut_out.size
    middle = ((PORTRAIT[1] - width) / 2, (PORTRAIT[0] - height) / 2)
    left, top = (int(m * (1 + rng.uniform(-0.4, 0.4))) for m in middle)
    picture.paste(cut_out, (left, top), cut_out)
    return picture


def _background(stuff: Material, size: tuple[int, int], rng: np.random.Generator) -> Image:
    """A random window of a random photo."""
    from PIL import Image

    with Image.open(stuff.backgrounds[int(rng.integers(len(stuff.backgrounds)))]) as opened:
        photo = opened.convert("RGB")
    ratio = size[1] / size[0]
    most = min(photo.height, photo.width / ratio)
    height = most * float(rng.uniform(0.6, 1.0))
    left, top = rng.uniform(0, photo.width - height * ratio), rng.uniform(0, photo.height - height)
    window = (left, top, left + height * ratio, top + height)
    return photo.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=window)


def _cut_out(stamps: Path, name: str, longest: float, rng: np.random.Generator) -> Image:
    """A cut-out cropped to what is visible, its longer side scaled to ``longest`` pixels, often mirrored.

    Its alpha channel is the mask, and its size is the size of the box.
    """
    from PIL import Image, ImageEnhance, ImageOps

    with Image.open(stamps / f"{name}.png") as opened:
        picture = opened.convert("RGBA")
    picture = picture.crop(_visible(picture))
    scale = longest / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    if rng.random() < 0.5 and not name.startswith(SIGNS):
        picture = ImageOps.mirror(picture)
    alpha = picture.getchannel("A")
    brighter = ImageEnhance.Brightness(picture.convert("RGB")).enhance(float(rng.uniform(0.85, 1.15)))
    brighter.putalpha(alpha)
    return brighter.crop(_visible(brighter))


def _visible(picture: Image) -> Box:
    box = picture.getchannel("A").point(lambda v: 255 * (v > 127)).getbbox()
    assert box is not None
    return box
