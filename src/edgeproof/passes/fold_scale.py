"""Fold a Mul, Add, Sub or Div by a per-channel constant into the Conv, ConvTranspose or Gemm beside it.

Also the normalisation ``(x − mean)/std`` that exporters put in front of the first convolution, where no padding forbids
it, and a constant factor on the result of a MatMul.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..change import Change
from ..graph.absorb import absorb_after, absorb_before, feeder, output_rank, per_channel, rank
from ..graph.rewrite import Editor, array, cast_like, label, sole_user, static
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FoldScale:
    """Fold scales and shifts."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (freeze_weights, infer_shapes, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep."""
    for node in editor.nodes("Mul", "Add", "Sub", "Div"):
        if len(node.inputs) != 2 or "axis" in node.attributes or "broadcast" in node.attributes:
            continue
        constants = [array(v) for v in node.inputs]
        if (constants[0] is None) == (constants[1] is None):
            continue
        at = 0 if constants[1] is not None else 1
        constant, source = constants[1 - at], node.inputs[at]
        assert constant is not None
        assert source is not None
        if constant.dtype.kind not in "fV" or constant.size == 0:
            continue
        if _ends_hard_swish(source) or _begins_hard_sigmoid(node, constant):
            editor.decline(node, "it is part of a hard-swish or hard-sigmoid, which runtimes recognise only as a whole")
            continue
        if not _into_before(editor, node, source, constant, constant_first=at == 1):
            _into_after(editor, node, source, constant, constant_first=at == 1)


def _ends_hard_swish(source: ir.Value) -> bool:
    """Whether ``source`` is Clip(…) or x · Clip(…), whose factor 1/6 belongs to the pattern."""
    product = source.producer()
    if product is None:
        return False
    parts = product.inputs if product.op_type == "Mul" else (source,)
    producers = [None if v is None else v.producer() for v in parts]
    return any(p is not None and p.op_type == "Clip" for p in producers)


def _begins_hard_sigmoid(node: ir.Node, constant: NDArray[np.generic]) -> bool:
    """Whether the node is the ``+ 3`` of ``Clip(x + 3, 0, 6) / 6``."""
    clip = sole_user(node.outputs[0]) if node.op_type == "Add" and constant.size == 1 else None
    if clip is None or clip.op_type != "Clip":
        return False
    return any(use.node.op_type in ("Div", "Mul") for use in clip.outputs[0].uses())


def _into_before(
    editor: Editor, node: ir.Node, source: ir.Value, constant: NDArray[np.generic], *, constant_first: bool
) -> bool:
    before = feeder(source)
    if isinstance(before, str):
        producer = source.producer()
        if producer is not None and producer.op_type in ("Conv", "ConvTranspose", "Gemm"):
            editor.decline(node, before)
        return _into_matmul(editor, node, source, constant, constant_first=constant_first)
    out_rank = output_rank(before)
    axis = 1
    values = None if out_rank is None else per_channel(constant, out_rank, axis)
    if values is None:
        editor.decline(node, "its constant is not one number per channel")
        return False
    affine = _affine(node.op_type, values, constant_first=constant_first)
    if isinstance(affine, str):
        editor.decline(node, affine)
        return False
    name = label(before)
    reason = absorb_after(editor, before, *affine)
    if reason is not None:
        editor.decline(node, f"{name}: {reason}")
        return False
    return editor.bypass(f"folded {node.op_type} into the operator before it", node, source)


def _into_after(
    editor: Editor, node: ir.Node, source: ir.Value, constant: NDArray[np.generic], *, constant_first: bool
) -> bool:
    after = sole_user(node.outputs[0])
    if after is None or after.op_type not in ("Conv", "Gemm") or after.inputs[0] is not node.outputs[0]:
        return False
    source_rank = rank(source)
    values = None if source_rank is None else per_channel(constant, source_rank, 1)
    if values is None:
        return False
    affine = _affine(node.op_type, values, constant_first=constant_first)
    reason = affine if isinstance(affine, str) else absorb_before(editor, after, *affine)
    if reason is not None:
        editor.decline(node, reason)
        return False
    return editor.bypass(f"folded {node.op_type} into the operator after it", node, source)


def _into_matmul(
    editor: Editor, node: ir.Node, source: ir.Value, constant: NDArray[np.generic], *, constant_first: bool
) -> bool:
    """``(x·W)·s`` becomes ``x·(W·s)`` when s is one number or one per column."""
    before = source.producer()
    if before is None or before.op_type != "MatMul" or node.op_type not in ("Mul", "Div"):
        return False
    weight, held = array(before.inputs[1]), before.inputs[1]
    if weight is None or held is None or weight.ndim != 2 or sole_user(source) is None or sole_user(held) is None:
        return False
    out_rank = rank(source)
    values = None if out_rank is None else per_channel(constant, out_rank, out_rank - 1)
    if values is None or values.size not in (1, weight.shape[1]):
        return False
    affine = _affine(node.op_type, values, constant_first=constant_first)
    folded = None if isinstance(affine, str) else cast_like(weight.astype(np.float64) * affine[0], weight)
    if folded is None or before.graph is None:
        return False
    before.replace_input_with(1, editor.constant(before.graph, f"{held.name}_folded", folded))
    return editor.bypass(f"folded {node.op_type} into the MatMul before it", node, source)


def _affine(
    op: str, c: NDArray[np.float64], *, constant_first: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | str:
    """Scale and shift that ``x op c`` (or ``c op x``) applies to x."""
    one, zero = np.ones(1), np.zeros(1)
    if not np.isfinite(c).all():
        return "its constant is not finite"
    if op == "Mul":
        return c, zero
    if op == "Add":
        return one, c
    if op == "Sub":
        return (-one, c) if constant_first else (one, -c)
    if constant_first:
        return "it divides a constant by the result"
    if (c == 0).any():
        return "it divides by zero"
    return 1.0 / c, zero


def gemm(editor: Editor) -> None:
    """Make ``MatMul(x, W) + b`` one Gemm where x and W are matrices and b has one number per column."""
    for node in editor.nodes("Add"):
        if len(node.inputs) != 2 or editor.opset < 7:
            continue
        for product, bias in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            before = None if product is None else product.producer()
            if product is None or bias is None or before is None or before.op_type != "MatMul":
                continue
            if sole_user(product) is None or rank(before.inputs[0]) != 2 or rank(before.inputs[1]) != 2:
                continue
            columns, b = static(before.inputs[1]), array(bias)
            if columns is None or b is None or b.dtype.kind not in "fV" or b.ndim > 2 or b.size not in (1, columns[1]):
                continue
            if b.ndim == 2 and b.shape[0] != 1:
                continue
            new = editor.insert(node, "Gemm", [*before.inputs, bias], node.outputs[0])
            if editor.replace(node.outputs[0], new):
                editor.did("made MatMul and Add one Gemm", node)
                editor.remove(node)
                break


IMPL: type[Pass] = FoldScale
