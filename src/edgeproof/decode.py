"""From model outputs to a prediction that a metric understands: ranked classes, text, or boxes.

Outputs have batch 1. The options of a kind are the fields of its dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .dataset import Boxes, Decode, settings_from
from .errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Classes:
    """Scores of classes → ranked classes.

    Attributes:
        offset: Index of class 0 in the output (1 where the first score is a background class).
    """

    offset: int = 0


@dataclass(frozen=True, slots=True)
class Ctc:
    """Scores of symbols per time step → text, by best path.

    Attributes:
        blank: Index of the blank.
        ignore: Symbols left out of the text, e.g. a space where samples are single words and margins read as spaces.
        charset: The other symbols in order, as one string, or ``metadata:KEY`` for the model's own (one symbol a line).
            Where the model has one class more than symbols and blank, the last class is a space (PaddleOCR's
            ``use_space_char``).
    """

    blank: int = 0
    ignore: str = ""
    charset: str = "metadata:character"


@dataclass(frozen=True, slots=True)
class BoxesFormat:
    """Detector outputs → boxes in pixels of the original picture.

    Attributes:
        format: ``xyxy_score_class`` ([1, N, 6]), ``yolov8`` ([1, 4+classes, N]: centre, size, class scores) or
            ``yolov5`` ([1, N, 5+classes]: centre, size, objectness, class scores).
        score: Boxes below this score are dropped. Low, since average precision needs the whole curve.
        iou: Of two boxes of one class that overlap by more, the one with the lower score is dropped; 1 keeps all.
        max: At most this many boxes, best first.
        normalized: Coordinates are shares of the input size instead of pixels.
    """

    format: Literal["xyxy_score_class", "yolov8", "yolov5"] = "xyxy_score_class"
    score: float = 0.001
    iou: float = 0.7
    max: int = 100
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Nothing to set."""


OPTIONS: Mapping[str, type] = {"classes": Classes, "ctc": Ctc, "boxes": BoxesFormat, "none": NoOptions}
"""Options of every kind."""


def check(spec: Decode, subject: str = "decode") -> Any:
    """The options of a kind as its dataclass.

    Args:
        spec: How outputs are decoded.
        subject: What errors call it.

    Raises:
        InputError: data.key, data.value, decode.value.
    """
    options: Any = settings_from(OPTIONS[spec.kind], spec.options, f"{subject}.options")
    if isinstance(options, BoxesFormat) and not (0 <= options.score <= 1 and 0 <= options.iou <= 1 <= options.max):
        raise InputError(
            "decode.value",
            f"{subject}.options",
            f"score is {options.score}, iou is {options.iou}, max is {options.max}; expected 0..1, 0..1 and at least 1",
            "leave them out for 0.001, 0.7 and 100",
        )
    return options


def decode(
    outputs: Mapping[str, NDArray[Any]], spec: Decode, meta: Mapping[str, Any], metadata: Mapping[str, str]
) -> Any:
    """Make a prediction.

    Args:
        outputs: Output name → array, batch 1.
        spec: What to read and how; ``kind`` must not be ``auto``.
        meta: From `preprocess.apply`: ``size``, ``input``, ``scale``, ``pad``.
        metadata: The model's own metadata properties.

    Returns:
        ``classes``: int64 [classes], best first. ``ctc``: a string. ``boxes``: `Boxes`. ``none``: the outputs.

    Raises:
        InputError: decode.output, decode.shape, decode.charset, data.key, data.value.
    """
    options = check(spec)
    if spec.kind == "none":
        return outputs
    array = chosen(outputs, spec)
    if isinstance(options, Classes):
        return ranked_classes(array, options)
    if isinstance(options, Ctc):
        return best_path(array, options, metadata)
    return boxes(array, options, meta)


def chosen(outputs: Mapping[str, NDArray[Any]], spec: Decode) -> NDArray[Any]:
    """The output that is decoded."""
    name = spec.output or next(iter(outputs))
    if name not in outputs:
        raise InputError(
            "decode.output", f"output {name!r}", "the model has no such output", did_you_mean(name, outputs)
        )
    return outputs[name]


def ranked_classes(scores: NDArray[Any], options: Classes) -> NDArray[np.int64]:
    """Class indices, best first; ties keep the lower index first, a class whose score is NaN is left out.

    Args:
        scores: Logits or probabilities; all dimensions but one are 1.
        options: See `Classes`.
    """
    if scores.size != max(scores.shape, default=0):
        raise _shape(scores, "one score per class, e.g. [1, 1000]", "classes")
    flat = scores.reshape(-1).astype(np.float64)[options.offset :]
    order = np.argsort(-flat, kind="stable")
    return order[~np.isnan(flat[order])].astype(np.int64)


def best_path(scores: NDArray[Any], options: Ctc, metadata: Mapping[str, str]) -> str:
    """Text of the best path: the best symbol per step, repeats merged, blanks dropped.

    Args:
        scores: Logits or probabilities, [1, T, C], [T, 1, C] or [T, C].
        options: See `Ctc`.
        metadata: The model's metadata, for the character set.
    """
    if scores.ndim == 3 and 1 in scores.shape[:2]:
        scores = scores[0] if scores.shape[0] == 1 else scores[:, 0]
    if scores.ndim != 2:
        raise _shape(scores, "[1, T, C] or [T, 1, C]", "ctc")
    symbols = _symbols(options, metadata, scores.shape[1])
    path = scores.argmax(axis=1)
    kept = np.ones(len(path), bool)
    kept[1:] = path[1:] != path[:-1]
    return "".join(symbols[i] for i in path[kept] if i != options.blank and symbols[i] not in options.ignore)


def _symbols(options: Ctc, metadata: Mapping[str, str], classes: int) -> list[str]:
    """Symbol per class index, with an empty one for the blank."""
    symbols = list(options.charset)
    if options.charset.startswith("metadata:"):
        key = options.charset.removeprefix("metadata:")
        if key not in metadata:
            raise InputError(
                "decode.charset",
                f"metadata {key!r}",
                "the model carries no such metadata, so its characters are not known",
                f"give decode.options.charset; {did_you_mean(key, metadata)}",
            )
        symbols = metadata[key].split("\n")
        if len(symbols) == classes:  # a newline at the end
            symbols = symbols[:-1] if not symbols[-1] else symbols
    if len(symbols) + 2 == classes:
        symbols = [*symbols, " "]
    if len(symbols) + 1 != classes or not 0 <= options.blank < classes:
        raise InputError(
            "decode.charset",
            "decode.options.charset",
            f"has {len(symbols)} symbols and blank {options.blank}, but the model has {classes} classes; "
            f"expected {classes - 1} symbols, or {classes - 2} and a space",
            "give the character set that the model was trained with",
        )
    return [*symbols[: options.blank], "", *symbols[options.blank :]]


def boxes(array: NDArray[Any], options: BoxesFormat, meta: Mapping[str, Any]) -> Boxes:
    """Boxes in pixels of the original picture, best first, clipped to it; non-finite ones are dropped.

    Args:
        array: See `BoxesFormat.format`.
        options: See `BoxesFormat`.
        meta: From `preprocess.apply`; empty leaves input pixels.
    """
    xyxy, scores, classes = _split_columns(array, options)
    if options.normalized:
        height, width = meta["input"]
        xyxy = xyxy * np.array([width, height, width, height], np.float64)
    keep = (scores >= options.score) & np.isfinite(scores) & np.isfinite(xyxy).all(axis=1)
    xyxy, scores, classes = xyxy[keep], scores[keep], classes[keep]
    order = suppressed(xyxy, scores, classes, options.iou, options.max)
    xyxy = _undone(xyxy[order], meta)
    return Boxes(xyxy.astype(np.float32), classes[order].astype(np.int64), scores[order].astype(np.float32))


def _split_columns(array: NDArray[Any], options: BoxesFormat) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Corners float64 [n, 4] in input pixels, scores [n], classes [n]."""
    rows = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    least = {"xyxy_score_class": 6, "yolov8": 5, "yolov5": 6}[options.format]
    if options.format == "yolov8" and rows.ndim == 2:
        rows = rows.T
    exact = options.format == "xyxy_score_class"
    if rows.ndim != 2 or rows.shape[1] < least or (exact and rows.shape[1] != least):
        expected = {"xyxy_score_class": "[1, N, 6]", "yolov8": "[1, 4+classes, N]", "yolov5": "[1, N, 5+classes]"}
        raise _shape(array, expected[options.format], f"boxes as {options.format}")
    rows = rows.astype(np.float64)
    if exact:
        return rows[:, :4], rows[:, 4], rows[:, 5]
    half = rows[:, 2:4] / 2
    corners = np.concatenate([rows[:, :2] - half, rows[:, :2] + half], axis=1)
    by_class = rows[:, 4:] if options.format == "yolov8" else rows[:, 5:] * rows[:, 4:5]
    best = by_class.argmax(axis=1)
    return corners, by_class[np.arange(len(rows)), best], best


def suppressed(
    xyxy: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any], iou: float, most: int
) -> NDArray[np.intp]:
    """Greedy non-maximum suppression within each class.

    Returns:
        Indices of the boxes kept, best first (ties: lower index first), at most ``most``.
    """
    order = np.argsort(-scores, kind="stable")
    if iou >= 1:
        return order[:most]
    area = np.prod(np.maximum(xyxy[:, 2:] - xyxy[:, :2], 0), axis=1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        first, rest = order[0], order[1:]
        kept.append(int(first))
        overlap = np.minimum(xyxy[first, 2:], xyxy[rest, 2:]) - np.maximum(xyxy[first, :2], xyxy[rest, :2])
        inter = np.prod(np.maximum(overlap, 0), axis=1)
        union = area[first] + area[rest] - inter
        order = rest[(inter <= iou * union) | (classes[rest] != classes[first])]
    return np.array(kept, np.intp)


def _undone(xyxy: NDArray[Any], meta: Mapping[str, Any]) -> NDArray[Any]:
    """Input pixels → picture pixels."""
    if "scale" not in meta:
        return xyxy
    (scale_y, scale_x), (pad_y, pad_x), (height, width) = meta["scale"], meta["pad"], meta["size"]
    pad, scale = np.array([pad_x, pad_y] * 2), np.array([scale_x, scale_y] * 2)
    clipped: NDArray[Any] = np.clip((xyxy - pad) / scale, 0, np.array([width, height] * 2))
    return clipped


def _shape(array: NDArray[Any], expected: str, kind: str) -> InputError:
    return InputError(
        "decode.shape",
        f"output {array.dtype}{list(array.shape)}",
        f"cannot be decoded to {kind}; expected {expected}",
        "choose the output and the kind in the data file, e.g.  decode: {kind: classes, output: scores}",
    )
