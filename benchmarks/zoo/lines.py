"""Rendered text with exact truth: lines to read, lines that stand on their head, and pages with boxes.

Faces are DejaVu's (free licence), from their Debian package.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgeproof.demo import draw_text
from edgeproof.files import write_json, write_text

from .packages import FONTS, unpacked

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold")
LINE = (48, 320)
"""Height and width of a line to read, in pixels."""
TURNED = (48, 192)
"""Height and width of a line to turn, in pixels."""
PAGE = (640, 640)
"""Height and width of a page, in pixels."""
ZOOM = 2
"""Lines are drawn this much larger, so that blur and rotation act on fine pixels."""

_NORMALISED = "colour: bgr, scale: 1/255"
LINE_DATA = f"""\
# Rendered lines and their text, which has no spaces: those that are read into margins do not count.
format: text
path: labels.tsv
metric: exact_match
preprocess: {{resize: none, {_NORMALISED}, mean: [0.5], std: [0.5]}}
decode: {{kind: ctc, options: {{charset: "metadata:character", ignore: " \\u3000"}}}}
"""
TURNED_DATA = f"""\
# Rendered lines, upright (0) or turned by 180 degrees (1).
format: images
path: labels.csv
metric: top1
preprocess: {{resize: none, {_NORMALISED}, mean: [0.5], std: [0.5]}}
"""
PAGE_DATA = f"""\
# Rendered pages with the box of every line.
format: coco
path: pages.json
evaluator: evaluator.py:line_f1
options: {{images: pictures}}
preprocess: {{resize: none, {_NORMALISED}, mean: [0.406, 0.456, 0.485], std: [0.225, 0.224, 0.229]}}
"""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How hard a line is to read; ranges are uniform.

    Attributes:
        contrast: Between paper and ink, in grey levels.
        rotation: At most this many degrees either way.
        blur: Radius in zoomed pixels.
        noise: Standard deviation in grey levels.
        tilt: Corners move by at most this share of the height (perspective).
    """

    contrast: tuple[float, float]
    rotation: float
    blur: tuple[float, float]
    noise: tuple[float, float]
    tilt: float


DIFFICULTIES = {
    "easy": Difficulty((120, 200), 0.5, (0.0, 0.8), (0, 6), 0.0),
    "medium": Difficulty((50, 130), 1.5, (0.6, 3.2), (4, 20), 0.08),
}


def faces(cache: Path) -> list[Path]:
    """Font files."""
    folder = unpacked(FONTS, "usr/share/fonts/truetype/dejavu", cache)
    return [folder / f"{name}.ttf" for name in FACES]


def write_lines(cache: Path, folder: Path, count: int, seed: int, difficulty: Literal["easy", "medium"]) -> Path:
    """Lines of ``LINE`` pixels and their text.

    Returns:
        The data file.
    """
    rng, fonts = np.random.default_rng(seed), faces(cache)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        picture, text = draw_line(rng, fonts, LINE, DIFFICULTIES[difficulty])
        picture.save(folder / f"pictures/{i:05d}.png")
        rows.append(f"pictures/{i:05d}.png\t{text}\n")
    write_text(folder / "labels.tsv", "".join(rows))
    write_text(folder / "data.yaml", LINE_DATA)
    return folder / "data.yaml"


def write_turned(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """Lines of ``TURNED`` pixels half of them turned by 180 degrees.

    Returns:
        The data file.
    """
    from PIL import Image

    rng, fonts = np.random.default_rng(seed), faces(cache)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        picture, _ = draw_line(rng, fonts, TURNED, DIFFICULTIES["easy"])
        turned = int(rng.integers(2))
        if turned:
            picture = picture.transpose(Image.Transpose.ROTATE_180)
        picture.save(folder / f"pictures/{i:05d}.png")
        rows.append(f"pictures/{i:05d}.png,{turned}\n")
    write_text(folder / "labels.csv", "".join(rows))
    write_text(folder / "data.yaml", TURNED_DATA)
    return folder / "data.yaml"


def write_pages(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """Pages of ``PAGE`` pixels with the boxes of their lines, as COCO annotations.

    Returns:
        The data file.
    """
    rng, fonts = np.random.default_rng(seed), faces(cache)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    pictures: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for i in range(count):
        picture, boxes = draw_page(rng, fonts)
        name = f"{i:05d}.png"
        picture.save(folder / "pictures" / name)
        pictures.append({"id": i, "file_name": name, "height": PAGE[0], "width": PAGE[1]})
        for left, top, right, bottom in boxes:
            box = [left, top, right - left, bottom - top]
            rest = {"bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": i, "category_id": 1, **rest})
    categories = [{"id": 1, "name": "line"}]
    write_json(folder / "pages.json", {"images": pictures, "annotations": annotations, "categories": categories})
    shutil.copyfile(Path(__file__).with_name("score_lines.py"), folder / "evaluator.py")
    write_text(folder / "data.yaml", PAGE_DATA)
    return folder / "data.yaml"


def draw_line(
    rng: np.random.Generator, fonts: Sequence[Path], size: tuple[int, int], difficulty: Difficulty
) -> tuple[Image, str]:
    """One line, as RGB picture of ``size`` (height, width), and its text: words, numbers and codes without spaces."""
    from PIL import Image, ImageDraw, ImageFilter

    height, width = (side * ZOOM for side in size)
    font, text = _fitting(rng, fonts, height, width)
    left, top, right, bottom = (int(v) for v in font.getbbox(text))
    paper, ink = _colours(rng, difficulty.contrast)
    picture = Image.new("RGB", (width, height), paper)
    x = rng.uniform(6, max(7, min(40, width - (right - left) - 6)))
    y = (height - (bottom - top)) / 2 + rng.uniform(-3, 3)
    ImageDraw.Draw(picture).text((x - left, y - top), text, font=font, fill=ink)
    picture = _tilted(picture, rng, difficulty.tilt, paper)
    angle = rng.uniform(-difficulty.rotation, difficulty.rotation)
    picture = picture.rotate(angle, Image.Resampling.BICUBIC, fillcolor=paper)
    picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(*difficulty.blur)))
    picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    noisy = np.asarray(picture, np.float32) + rng.normal(0, rng.uniform(*difficulty.noise), (*size, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), text


def _fitting(rng: np.random.Generator, fonts: Sequence[Path], height: int, width: int) -> tuple[FreeTypeFont, str]:
    """A face and a text that fits: one or two pieces joined by a sign."""
    from PIL import ImageFont

    pieces = [draw_text(rng) for _ in range(int(rng.integers(1, 3)))]
    text = str(rng.choice(["-", "/", ":", "."])).join(pieces)
    path, size = fonts[int(rng.integers(len(fonts)))], int(rng.integers(height // 2, int(height * 0.72)))
    while True:
        font = ImageFont.truetype(path, size)
        left, top, right, bottom = font.getbbox(text)
        if right - left <= width - 24 and bottom - top <= height - 8:
            return font, text
        size -= 2


Colour = tuple[int, int, int]


def _colours(rng: np.random.Generator, contrast: tuple[float, float]) -> tuple[Colour, Colour]:
    """Paper and ink; a quarter is light on dark."""
    paper = rng.integers(140, 256, size=3).astype(float)
    ink = np.clip(paper - rng.uniform(*contrast) + rng.normal(0, 8, 3), 0, 255)
    light, dark = _colour(paper), _colour(ink)
    return (dark, light) if rng.random() < 0.25 else (light, dark)


def _colour(value: np.ndarray) -> Colour:
    red, green, blue = (int(v) for v in value)
    return red, green, blue


def _tilted(picture: Image, rng: np.random.Generator, tilt: float, paper: Colour) -> Image:
    """The picture with its corners moved: seen at an angle."""
    from PIL import Image

    if tilt == 0:
        return picture
    width, height = picture.size
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], float)
    moved = corners + rng.uniform(-tilt, tilt, (4, 2)) * height
    rows, values = [], []
    for (x, y), (u, v) in zip(corners, moved, strict=True):  # output corner → source corner
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    coefficients = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    return picture.transform(
        (width, height), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC, fillcolor=paper
    )


def draw_page(rng: np.random.Generator, fonts: Sequence[Path]) -> tuple[Image, list[tuple[int, int, int, int]]]:
    """One page with up to ten lines, and their boxes (left, top, right, bottom)."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = PAGE
    paper, ink = _colours(rng, (80, 180))
    picture = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(picture)
    boxes: list[tuple[int, int, int, int]] = []
    y = int(rng.integers(10, 60))
    while len(boxes) < 10:
        font = ImageFont.truetype(fonts[int(rng.integers(len(fonts)))], int(rng.integers(18, 44)))
        text = draw_text(rng)
        while rng.random() < 0.6 and font.getlength(f"{text} {'n' * 8}") < width * 0.8:
            text = f"{text} {draw_text(rng)}"
        left, top, right, bottom = (int(v) for v in font.getbbox(text))
        if right - left > width - 40 or y + bottom - top > height - 10:
            break
        x = int(rng.integers(10, width - (right - left) - 10))
        draw.text((x - left, y - top), text, font=font, fill=ink)
        boxes.append((x, y, x + right - left, y + bottom - top))
        y += bottom - top + int(rng.integers(14, 50))
    noisy = np.asarray(picture, np.float32) + rng.normal(0, rng.uniform(0, 12), (*PAGE, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), boxes
