"""Fold inference BatchNormalization into the Conv, ConvTranspose or Gemm before it, or into the Conv or Gemm after it.

``y = γ·(x − μ)/√(σ² + ε) + β`` is a scale and a shift per channel. Source: ONNX BatchNormalization-15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..change import Change
from ..graph.absorb import absorb_after, absorb_before, feeder
from ..graph.rewrite import Editor, array, attribute, dims, sole_user
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FoldBatchNorm:
    """Fold batch normalisation."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (freeze_weights, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep: backwards into the operator before where possible, else forwards."""
    for node in editor.nodes("BatchNormalization"):
        affine = scale_and_shift(node, editor.opset)
        if isinstance(affine, str):
            editor.decline(node, affine)
            continue
        before = feeder(node.inputs[0])
        reason = before if isinstance(before, str) else absorb_after(editor, before, *affine)
        if reason is None:
            source = node.inputs[0]
            assert source is not None
            if not editor.bypass("folded batch norm into the operator before it", node, source):
                raise AssertionError("the output of a node that feeds only this one can always take its name")
            continue
        after = sole_user(node.outputs[0])
        if after is not None and after.op_type in ("Conv", "Gemm") and after.inputs[0] is node.outputs[0]:
            reason = absorb_before(editor, after, *affine)
            source = node.inputs[0]
            if reason is None and source is not None:
                editor.bypass("folded batch norm into the operator after it", node, source)
                continue
        editor.decline(node, reason or "there is nothing to fold into")


def scale_and_shift(node: ir.Node, opset: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | str:
    """What an inference batch norm multiplies and adds.

    Returns:
        float64 [C] each; or why there are none.
    """
    if attribute(node, "training_mode", 0) or (opset < 7 and not attribute(node, "is_test", 0)):
        return "it is in training mode"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "its running statistics are read"
    if attribute(node, "spatial", 1) == 0:
        return "its statistics are per element, not per channel"
    shape = dims(node.inputs[0])
    if shape is not None and len(shape) < 2:
        return "its input has no channel axis"
    numbers = [array(v) for v in node.inputs[1:5]]
    if any(n is None or n.ndim != 1 for n in numbers) or len(numbers) != 4:
        return "its parameters are not constant"
    gamma, beta, mean, variance = (n.astype(np.float64) for n in numbers if n is not None)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return "its scale or shift is not finite"
    return scale, shift


IMPL: type[Pass] = FoldBatchNorm
