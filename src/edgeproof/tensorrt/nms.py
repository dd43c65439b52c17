"""Append non-maximum suppression to a detection head: as TensorRT's plugin, or as ONNX operators that run anywhere.

Both give the same four outputs: ``num_detections`` int32 [N, 1], ``detection_boxes`` [N, K, 4] (corners),
``detection_scores`` [N, K] and ``detection_classes`` int32 [N, K], sorted by score; what lies beyond the number of
detections is zero in the ONNX form, and of no meaning in the plugin's.
Source: TensorRT, plugin ``EfficientNMS_TRT`` version 1 (README and plugin configuration); ONNX, NonMaxSuppression-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import InputError, UnsupportedError, did_you_mean
from ..graph.rewrite import Editor

if TYPE_CHECKING:
    import onnx_ir as ir

PLUGIN = "EfficientNMS_TRT"
DOMAIN = "TRT"
OUTPUTS = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
NEWEST_WITHOUT = 10
"""Last opset whose NonMaxSuppression this is not written for."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """What is kept.

    Attributes:
        boxes: Tensor [N, B, 4]; the same name as ``scores`` where one tensor [N, 4 + C, B] or [N, B, 4 + C] has both.
        scores: Tensor [N, B, C].
        max_boxes: Detections per image, at most.
        iou: Boxes that overlap a better one by more are dropped.
        score: Boxes with less are dropped.
        centre: Boxes are centre, width and height instead of two corners.
        agnostic: Boxes of different classes suppress each other.
        sigmoid: Scores are logits.
    """

    boxes: str = ""
    scores: str = ""
    max_boxes: int = 100
    iou: float = 0.5
    score: float = 0.25
    centre: bool = False
    agnostic: bool = False
    sigmoid: bool = False


def append_nms(graph: ir.Model, wanted: Suppression, form: Literal["plugin", "onnx"]) -> None:
    """Append it in place; its outputs take the place of the model's.

    Args:
        graph: The clone to change.
        wanted: What is kept.
        form: ``plugin`` for TensorRT, ``onnx`` for everything else.

    Raises:
        InputError: append_nms.tensor, append_nms.value, naming the tensor or the setting.
        UnsupportedError: append_nms.opset, for the ONNX form.
    """
    _check(wanted)
    editor = Editor(graph)
    boxes, scores = _head(editor, wanted)
    if form == "onnx" and editor.opset <= NEWEST_WITHOUT:
        raise UnsupportedError(
            "append_nms.opset",
            f"opset {editor.opset}",
            "has no such NonMaxSuppression",
            "convert the model to opset 11",
        )
    made = (_plugin if form == "plugin" else _standard)(_Chain(editor), boxes, scores, wanted)
    if form == "plugin":
        graph.opset_imports[DOMAIN] = 1
    graph.graph.outputs.clear()
    for name, value in zip(OUTPUTS, made, strict=True):
        value.name = editor.fresh(name)
        graph.graph.outputs.append(value)


def _plugin(chain: _Chain, boxes: ir.Value, scores: ir.Value, wanted: Suppression) -> list[ir.Value]:
    import onnx_ir as ir

    batch, dtype = _batch(boxes), boxes.dtype or ir.DataType.FLOAT
    node = ir.node(
        PLUGIN,
        [boxes, scores],
        {
            "plugin_version": "1",
            "score_threshold": float(wanted.score),
            "iou_threshold": float(wanted.iou),
            "max_output_boxes": wanted.max_boxes,
            "background_class": -1,
            "score_activation": int(wanted.sigmoid),
            "class_agnostic": int(wanted.agnostic),
            "box_coding": int(wanted.centre),
        },
        domain=DOMAIN,
        num_outputs=4,
        name=chain.editor.fresh("nms"),
    )
    chain.editor.model.graph.append(node)
    shapes: tuple[list[Any], ...] = (
        [batch, 1],
        [batch, wanted.max_boxes, 4],
        [batch, wanted.max_boxes],
        [batch, wanted.max_boxes],
    )
    types = (ir.DataType.INT32, dtype, dtype, ir.DataType.INT32)
    for value, shape, kind in zip(node.outputs, shapes, types, strict=True):
        value.shape, value.dtype = ir.Shape(shape), kind
    return list(node.outputs)


def _standard(chain: _Chain, boxes: ir.Value, scores: ir.Value, wanted: Suppression) -> list[ir.Value]:
    """Suppress per class, lay the survivors' scores out densely, and take the best of them per image."""
    import onnx_ir as ir

    k, batch = wanted.max_boxes, _batch(boxes)
    dtype: ir.DataType = boxes.dtype or ir.DataType.FLOAT
    boxes, scores = (chain.add("Cast", v, to=int(ir.DataType.FLOAT)) for v in (boxes, scores))
    if wanted.centre:
        boxes = _corners(chain, boxes)
    if wanted.sigmoid:
        scores = chain.add("Sigmoid", scores)
    classes = None
    if wanted.agnostic:  # of one box, the best class would suppress the others
        classes = chain.add("ArgMax", scores, axis=2, keepdims=0)
        scores = chain.reduce("ReduceMax", scores, 2)
    by_class = chain.add("Transpose", scores, perm=[0, 2, 1])  # [N, C, B]
    most, iou, least = (chain.constant(v) for v in (np.int64(k), np.float32(wanted.iou), np.float32(wanted.score)))
    found = chain.add("NonMaxSuppression", boxes, by_class, most, iou, least)  # [M, 3]: image, class, box
    shape = chain.add("Shape", by_class)
    nothing = chain.add("ConstantOfShape", shape, value=ir.tensor(np.array([-1], np.float32)))
    kept = chain.add("ScatterND", nothing, found, chain.add("GatherND", by_class, found))
    flat = chain.add("Reshape", kept, chain.constant(np.array([0, -1], np.int64)))
    padding = chain.add("Expand", chain.constant(np.array([[-1]], np.float32)), _counts(chain, shape, k))
    top, index = chain.several("TopK", 2, chain.add("Concat", flat, padding, axis=1), chain.constant(np.array([k])))
    real = chain.add("Greater", top, chain.constant(np.float32(-0.5)))
    per_class = chain.add("Gather", shape, chain.constant(np.int64(2)))
    zero = chain.constant(np.int64(0))
    safe = chain.add("Where", real, index, zero)
    box = chain.add("Mod", safe, per_class)
    label = chain.add("Div", safe, per_class) if classes is None else chain.add("GatherElements", classes, box, axis=1)
    label = chain.add("Where", real, label, zero)
    at = chain.add("Expand", chain.unsqueeze(box, 2), chain.constant(np.array([1, 1, 4])))
    corners = chain.add("GatherElements", boxes, at, axis=1)
    number = chain.reduce("ReduceSum", chain.add("Cast", real, to=int(ir.DataType.INT32)), 1)
    floats = chain.add("Cast", real, to=int(ir.DataType.FLOAT))
    made = [
        number,
        chain.add("Cast", chain.add("Mul", corners, chain.unsqueeze(floats, 2)), to=int(dtype)),
        chain.add("Cast", chain.add("Mul", top, floats), to=int(dtype)),
        chain.add("Cast", label, to=int(ir.DataType.INT32)),
    ]
    shapes: tuple[list[Any], ...] = ([batch, 1], [batch, k, 4], [batch, k], [batch, k])
    types = (ir.DataType.INT32, dtype, dtype, ir.DataType.INT32)
    for value, size, kind in zip(made, shapes, types, strict=True):
        value.shape, value.dtype = ir.Shape(size), kind
    return made


def _corners(chain: _Chain, boxes: ir.Value) -> ir.Value:
    """Centre, width, height → two corners."""
    middle, size = chain.several("Split", 2, boxes, *chain.split_sizes([2, 2]), axis=2, **chain.split_attribute([2, 2]))
    half = chain.add("Mul", size, chain.constant(np.float32(0.5)))
    return chain.add("Concat", chain.add("Sub", middle, half), chain.add("Add", middle, half), axis=2)


def _counts(chain: _Chain, shape: ir.Value, k: int) -> ir.Value:
    """[N, k]."""
    first = chain.add("Gather", shape, chain.constant(np.array([0])))
    return chain.add("Concat", first, chain.constant(np.array([k])), axis=0)


def _head(editor: Editor, wanted: Suppression) -> tuple[ir.Value, ir.Value]:
    """Boxes [N, B, 4] and scores [N, B, C], split from one tensor where it has both."""
    boxes, scores = _find(editor, wanted.boxes), _find(editor, wanted.scores)
    if boxes is scores:
        return _split(_Chain(editor), boxes)
    for value, what, good in (
        (boxes, "boxes [N, B, 4]", _rank(boxes) in (None, 3) and _size(boxes, -1) in (None, 4)),
        (scores, "scores [N, B, C]", _rank(scores) in (None, 3)),
    ):
        if not good:
            raise InputError(
                "append_nms.tensor",
                f"tensor {value.name}",
                f"has the shape {value.shape}; expected {what}",
                "name the tensors in front of the last reshapes",
            )
    return boxes, scores


def _split(chain: _Chain, both: ir.Value) -> tuple[ir.Value, ir.Value]:
    rank, rows, columns = _rank(both), _size(both, 1), _size(both, 2)
    channels = rows if columns is None else columns if rows is None else min(rows, columns)
    if rank != 3 or channels is None or channels < 5:
        raise InputError(
            "append_nms.tensor",
            f"tensor {both.name}",
            f"has the shape {both.shape}; expected [N, 4 + C, B] or [N, B, 4 + C]",
            "name boxes and scores apart",
        )
    turned = chain.add("Transpose", both, perm=[0, 2, 1]) if channels == rows else both
    sizes = [4, channels - 4]
    boxes, scores = chain.several("Split", 2, turned, *chain.split_sizes(sizes), axis=2, **chain.split_attribute(sizes))
    if both.dtype is not None:
        boxes.dtype = scores.dtype = both.dtype
    count = _size(both, 2 if channels == rows else 1)
    boxes.shape = _shape([_batch(both), count, 4])
    return boxes, scores


def _shape(dims: list[Any]) -> ir.Shape:
    import onnx_ir as ir

    return ir.Shape(dims)


def _find(editor: Editor, name: str) -> ir.Value:
    graph = editor.model.graph
    known = {v.name: v for v in (*graph.inputs, *(o for n in graph for o in n.outputs)) if v.name}
    if name not in known:
        outputs = [o.name or "" for o in graph.outputs]
        hint = did_you_mean(name, list(known)) or f"the model's outputs are {', '.join(outputs)}"
        raise InputError("append_nms.tensor", f"tensor {name!r}", "is not in the model", hint)
    return known[name]


def _check(wanted: Suppression) -> None:
    for name, value, good, expected in (
        ("max_boxes", wanted.max_boxes, wanted.max_boxes > 0, "at least 1"),
        ("iou", wanted.iou, 0 < wanted.iou <= 1, "a number above 0, at most 1"),
        ("score", wanted.score, 0 <= wanted.score < 1, "a number from 0, below 1"),
    ):
        if not good:
            raise InputError("append_nms.value", name, f"is {value}; expected {expected}", "correct the setting")


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _size(value: ir.Value, axis: int) -> int | None:
    if value.shape is None or len(value.shape) < 2:
        return None
    found = value.shape[axis]
    return found if isinstance(found, int) else None


def _batch(value: ir.Value) -> Any:
    return None if value.shape is None else value.shape[0]


class _Chain:
    """Adds nodes at the end of the main graph, in the form that its opset has."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    def add(self, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, count: int, *inputs: ir.Value, **attributes: Any) -> list[ir.Value]:
        import onnx_ir as ir

        name = self.editor.fresh(f"nms_{op.lower()}")
        node = ir.node(op, list(inputs), attributes or None, num_outputs=count, name=name)
        for i, value in enumerate(node.outputs):
            value.name = self.editor.fresh(f"{name}_{i}")
        self.editor.model.graph.append(node)
        return list(node.outputs)

    def constant(self, value: Any) -> ir.Value:
        return self.editor.constant(self.editor.model.graph, "nms_constant", np.asarray(value))

    def reduce(self, op: str, value: ir.Value, axis: int) -> ir.Value:
        """Keeps the axis. ReduceSum takes axes as an input from opset 13, ReduceMax from 18."""
        if self.editor.opset >= (13 if op == "ReduceSum" else 18):
            return self.add(op, value, self.constant(np.array([axis])), keepdims=1)
        return self.add(op, value, axes=[axis], keepdims=1)

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        if self.editor.opset >= 13:
            return self.add("Unsqueeze", value, self.constant(np.array([axis])))
        return self.add("Unsqueeze", value, axes=[axis])

    def split_sizes(self, sizes: list[int]) -> list[ir.Value]:
        return [self.constant(np.array(sizes))] if self.editor.opset >= 13 else []

    def split_attribute(self, sizes: list[int]) -> dict[str, list[int]]:
        return {} if self.editor.opset >= 13 else {"split": sizes}
