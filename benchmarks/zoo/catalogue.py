"""What the zoo has: every model with its source and licence, and every data set with the model that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeproof.digest import digest_bytes, digest_file
from edgeproof.errors import InputError, TrustError, did_you_mean
from edgeproof.files import write_bytes

from . import centernet, composites, efficientnet_lite0, lines, minilm, mnist, reuters
from .packages import EFFICIENTNET_LITE0, HUMAN, MINILM, MNIST, RAPIDOCR, Package, member

if TYPE_CHECKING:
    import onnx

    from .reuters import Embed

DEFAULT_SAMPLES = 200
SEED = 2026

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model.

    Attributes:
        what: One line for people.
        package: Where its weights come from.
        licence: Of the weights.
        build: Cache folder → the file's bytes.
        digest: Of the file, where it is taken as it is.
    """

    what: str
    package: Package
    licence: str
    build: Callable[[Path], bytes]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ZooData:
    """A data set.

    Attributes:
        model: Name of the model that it is for.
        what: One line for people, with the licence of what it is made from.
        write: (cache, folder, samples, seed) → the data file.
    """

    model: str
    what: str
    write: Callable[[Path, Path, int, int], Path]


def _built(build: Callable[[Path], onnx.ModelProto], cache: Path) -> bytes:
    data: bytes = build(cache).SerializeToString(deterministic=True)
    return data


def _shipped(name: str, cache: Path) -> bytes:
    return member(RAPIDOCR, f"rapidocr_onnxruntime/models/{name}", cache)


def _write_reuters(cache: Path, folder: Path, count: int, seed: int) -> Path:
    return reuters.write_texts(cache, folder, count, seed, _embedder(fetch("minilm", cache)))


def _embedder(model: Path) -> Embed:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def embed(feeds: Mapping[str, Any]) -> Any:
        return session.run(None, dict(feeds))[0]

    return embed


MODELS: Mapping[str, ZooModel] = {
    "ppocr_rec": ZooModel(
        "PP-OCRv4 text recogniser, N×3×48×W → N×T×6625 (CTC)",
        RAPIDOCR,
        "Apache-2.0",
        partial(_shipped, "ch_PP-OCRv4_rec_infer.onnx"),
        "sha256:48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "ppocr_det": ZooModel(
        "PP-OCRv4 text detector, N×3×H×W → N×1×H×W",
        RAPIDOCR,
        "Apache-2.0",
        partial(_shipped, "ch_PP-OCRv4_det_infer.onnx"),
        "sha256:d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ppocr_cls": ZooModel(
        "PP-OCR text direction, N×3×48×192 → N×2",
        RAPIDOCR,
        "Apache-2.0",
        partial(_shipped, "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        "sha256:e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "efficientnet_lite0": ZooModel(
        "EfficientNet-Lite0, N×3×224×224 → N×1000 (ImageNet)",
        EFFICIENTNET_LITE0,
        "Apache-2.0",
        partial(_built, efficientnet_lite0.build),
    ),
    "centernet": ZooModel(
        "CenterNet, MobileNetV3, 1×3×512×512 → 1×100×6 (COCO)",
        HUMAN,
        "package MIT, weights not stated: benchmarks only, never ship them",
        partial(_built, centernet.build),
    ),
    "minilm": ZooModel(
        "all-MiniLM-L6-v2 sentence embeddings, N×T → N×384", MINILM, "Apache-2.0", partial(_built, minilm.build)
    ),
    "mnist_cnn": ZooModel(
        "13,308-parameter network trained here, N×1×28×28 → N×10", MNIST, "ours", partial(_built, mnist.build)
    ),
}

_COMPOSITES = "cut-outs GPL-2, made at run time"
DATA: Mapping[str, ZooData] = {
    "lines_easy": ZooData(
        "ppocr_rec", "rendered lines, clear (DejaVu fonts)", partial(lines.write_lines, difficulty="easy")
    ),
    "lines_medium": ZooData(
        "ppocr_rec", "rendered lines, blurred and noisy (DejaVu fonts)", partial(lines.write_lines, difficulty="medium")
    ),
    "pages": ZooData("ppocr_det", "rendered pages with boxes (DejaVu fonts)", lines.write_pages),
    "turned": ZooData("ppocr_cls", "rendered lines at 0 or 180 degrees (DejaVu fonts)", lines.write_turned),
    "portraits": ZooData(
        "efficientnet_lite0", f"one cut-out on a photo, 89 cut-outs ({_COMPOSITES})", composites.write_portraits
    ),
    "scenes": ZooData("centernet", f"cut-outs of 25 classes on photos ({_COMPOSITES})", composites.write_scenes),
    "reuters_r8": ZooData("minilm", "news in 8 topics, linear probe (package AGPL, downloaded)", _write_reuters),
    "mnist": ZooData("mnist_cnn", "MNIST digits that were not trained on (MIT)", mnist.write_mnist),
    "digits": ZooData("mnist_cnn", "OpenCV's digits, other hands (Apache-2.0)", mnist.write_shifted),
}


def fetch(name: str, cache: Path) -> Path:
    """The model's file, from the cache or made once.

    Raises:
        InputError: zoo.unknown, zoo.client, zoo.offline.
        TrustError: zoo.digest.
    """
    entry = _known(name, MODELS)
    path = cache / "models" / f"{name}.onnx"
    if path.is_file() and (not entry.digest or digest_file(path) == entry.digest):
        return path
    data = entry.build(cache)
    if entry.digest and digest_bytes(data) != entry.digest:
        raise TrustError("zoo.digest", name, f"has {digest_bytes(data)}; expected {entry.digest}", "")
    write_bytes(path, data)
    return path


def write_data(name: str, cache: Path, folder: Path, samples: int, seed: int = SEED) -> Path:
    """Write a data set into an empty folder.

    Returns:
        The data file, for ``--data``.

    Raises:
        InputError: zoo.unknown, zoo.folder.
    """
    entry = _known(name, DATA)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError("zoo.folder", str(folder), "is not empty", "give a new folder, so that no old samples remain")
    return entry.write(cache, folder, samples, seed)


def _known(name: str, entries: Mapping[str, T]) -> T:
    if name not in entries:
        raise InputError("zoo.unknown", name, "is not in the zoo", did_you_mean(name, entries))
    return entries[name]
