"""Let a Conv, or an AveragePool that counts its padding, pad for itself: a Pad of zeros before it goes away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.rewrite import Editor, array, integers
from ..graph.rules import run_rules
from ..model import Model, attribute
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class MergePads:
    """Merge pads."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (freeze_weights, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep."""
    import onnx_ir as ir

    for node in editor.nodes("Conv", "AveragePool"):
        source = node.inputs[0]
        pad = None if source is None else source.producer()
        if source is None or pad is None or pad.op_type != "Pad" or pad.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "AveragePool" and not attribute(node, "count_include_pad", 0):
            editor.decline(pad, "the pooling after it does not count its own padding")
            continue
        if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            editor.decline(pad, f"the {node.op_type} after it chooses its padding itself")
            continue
        pads = _zero_pads(pad, editor.opset)
        if isinstance(pads, str):
            editor.decline(pad, pads)
            continue
        half = len(pads) // 2
        if any(pads[:2]) or any(pads[half : half + 2]):
            editor.decline(pad, "it pads the batch or the channels")
            continue
        if node.op_type == "AveragePool" and attribute(node, "ceil_mode", 0):
            editor.decline(pad, "the pooling after it rounds its size up")
            continue
        space = pads[2:half] + pads[half + 2 :]
        own = list(attribute(node, "pads", [0] * len(space)))
        if attribute(node, "auto_pad", "NOTSET") == "VALID":
            own = [0] * len(space)
            del node.attributes["auto_pad"]
        both = [a + b for a, b in zip(own, space, strict=True)]
        if node.op_type == "AveragePool" and any(
            p >= k for p, k in zip(both, 2 * list(attribute(node, "kernel_shape", ())), strict=True)
        ):
            editor.decline(pad, "the padding is as large as the pooling window")
            continue
        node.attributes["pads"] = ir.AttrInt64s("pads", both)
        node.replace_input_with(0, pad.inputs[0])
        editor.did(f"merged padding into {node.op_type}", pad)


def _zero_pads(pad: ir.Node, opset: int) -> list[int] | str:
    """Begin and end padding per axis of a constant Pad of zeros, or why it is none."""
    if attribute(pad, "mode", "constant") != "constant":
        return f"it pads by {attribute(pad, 'mode', '')}, not with zeros"
    if opset < 11:
        value, pads = attribute(pad, "value", 0.0), list(attribute(pad, "pads", attribute(pad, "paddings", ())))
    else:
        fill = pad.inputs[2] if len(pad.inputs) > 2 else None
        constant = array(fill)
        if fill is not None and constant is None:
            return "its fill value is not constant"
        value = 0.0 if constant is None else float(constant.reshape(-1)[0])
        if len(pad.inputs) > 3 and pad.inputs[3] is not None:
            return "it names its axes"
        found = integers(pad.inputs[1])
        if found is None:
            return "its padding is not constant"
        pads = found
    if value != 0:
        return f"it pads with {value}, not with zeros"
    if not pads or min(pads) < 0:
        return "it crops"
    return pads


IMPL: type[Pass] = MergePads
