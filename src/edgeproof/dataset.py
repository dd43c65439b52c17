"""Labelled samples and how they become model inputs, declared once and used everywhere.

The same `DataSpec` drives calibration, evaluation and, later, the pipeline on the device, so that preprocessing cannot
differ between them. Its digest enters every receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .digest import digest_json
from .target import Setting

Feeds = Mapping[str, NDArray[Any]]
"""Input name → array, batch dimension included."""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """From a picture (H×W×3, 0..255) to a model input. Steps run in the order of the fields.

    Attributes:
        size: Target (height, width) in pixels; None keeps the picture's size.
        resize: ``stretch``, ``letterbox`` (keep aspect, centre, pad), ``crop`` (shorter side, then centre crop),
            ``pad_right`` (scale to the height, pad on the right: text lines) or ``none``.
        crop_fraction: With ``crop``: share of the resized shorter side that is kept (0.875 = 256 → 224).
        pad_value: Value of padding, 0..255.
        interpolation: ``bilinear``, ``bicubic``, ``nearest`` or ``area``.
        colour: ``rgb``, ``bgr`` or ``gray`` (one channel).
        scale: Factor on pixel values, first.
        mean: Subtracted per channel, after scale.
        std: Divided by per channel, last.
        layout: ``nchw`` or ``nhwc``.
        dtype: NumPy dtype of the result.
    """

    size: tuple[int, int] | None = None
    resize: Literal["stretch", "letterbox", "crop", "pad_right", "none"] = "stretch"
    crop_fraction: float = 1.0
    pad_value: int = 114
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
            ``none`` (the outputs as they are).
        output: Name of the output to read; empty means the first.
        options: Kind-specific values. ``ctc``: blank (0), charset (a string, or ``metadata:KEY`` for the model's own).
            ``boxes``: format (``xyxy_score_class``, ``yolov8``, ``yolov5``), score, iou (NMS), max.
    """

    kind: Literal["classes", "ctc", "boxes", "none"] = "classes"
    output: str = ""
    options: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Everything that defines a data set for edgeproof.

    Attributes:
        format: Name of the data plug-in (file name in ``data/``).
        path: Where the samples are (file, folder or ``module:callable``).
        preprocess: How pictures become inputs; None when samples are arrays already.
        decode: How outputs become predictions.
        metric: Name of the quality metric, or empty: then outputs are compared to the original's.
        evaluator: ``file.py:callable`` or ``module:callable`` that scores one example instead of a metric.
        limit: Use at most this many samples; 0 means all.
        seed: Of the split into calibration, search and confirmation parts.
        options: Format-specific values (e.g. COCO's annotation file).
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

    def to_json(self) -> dict[str, Any]:
        """As JSON; the path is left out, since the content has a digest of its own."""
        value = asdict(self)
        del value["path"]
        return _plain(value)  # type: ignore[no-any-return]

    @property
    def evaluator_digest(self) -> str:
        """Digest of what turns inputs into scores: preprocessing, decoding, metric."""
        value = self.to_json()
        return digest_json({k: value[k] for k in ("preprocess", "decode", "metric", "evaluator")})


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


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
