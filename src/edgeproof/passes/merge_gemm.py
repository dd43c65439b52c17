"""Make ``MatMul(x, W) + b`` one Gemm where x and W are matrices and b has one number per column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.affine import MIN_OPSET
from ..graph.dims import dims, static
from ..graph.rewrite import Editor, array, sole_user
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class MergeGemm:
    """Merge MatMul and Add."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (infer_shapes, rewrite))


def rewrite(editor: Editor) -> None:
    """One sweep."""
    for node in editor.nodes("Add") if editor.opset >= MIN_OPSET else ():
        for product, bias in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            before = None if product is None else product.producer()
            if product is None or bias is None or before is None or not _fits(before, product, bias):
                continue
            new = editor.insert(node, "Gemm", [*before.inputs, bias], node.outputs[0])
            if editor.replace(node.outputs[0], new):
                editor.did("made MatMul and Add one Gemm", node)
                editor.remove(node)
                editor.remove(before)
                break


def _fits(before: ir.Node, product: ir.Value, bias: ir.Value) -> bool:
    """Whether a product of matrices with static columns has a constant row as its bias."""
    user = sole_user(product)
    if before.op_type != "MatMul" or before.domain not in ("", "ai.onnx") or user is None:
        return False
    if before.graph is not user.graph:
        return False
    columns, b = static(before.inputs[1]), array(bias)
    if len(dims(before.inputs[0]) or ()) != 2 or columns is None or len(columns) != 2:
        return False
    if b is None or b.dtype.kind not in "fV" or b.size not in (1, columns[1]):
        return False
    return b.ndim < 2 or (b.ndim == 2 and b.shape[0] == 1)


IMPL: type[Pass] = MergeGemm
