"""Write spelled-out hard-swish, hard-sigmoid and ReLU6 as the operators that runtimes fuse into convolutions.

Rules, tried on every node until none applies; h is any positive bound, and constants may stand on either side:

* Min and Max (or Relu and Min) with constant bounds → Clip;
* Clip(a·x + b, 0, h) / h → HardSigmoid(x, alpha=a/h, beta=b/h);
* x · Clip(a·x + b, 0, h) / h, divided at any place → x · HardSigmoid(x, alpha=a/h, beta=b/h);
* x · HardSigmoid(x, 1/6, 0.5) → HardSwish(x), when the model's opset is 14 or later; the opset is never raised.

ONNX Runtime expands HardSwish into HardSigmoid and Mul when it loads a model, and fuses either form into the
convolution in front (measured with 1.32: Conv with activation HardSwish, HardSigmoid or Clip; Min and Max stay nodes).
x · Sigmoid(x) is fused as it stands and left alone.

Run it before ``fold_affine``, which would move the + 3 or the / 6 into neighbouring weights and leave no pattern. alpha
and beta are stored as float32, so float64 patterns are declined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..change import Change
from ..graph.affine import MIN_OPSET, affine
from ..graph.dims import dims
from ..graph.rewrite import Editor, array, constant_tensor, label, sole_user
from ..graph.rules import run_rules
from ..model import Model, attribute
from ..protocols import Context, Pass
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir

HARD_SWISH_OPSET = 14
CLIP_INPUTS_OPSET = 11
"""From here on, Clip takes its bounds as inputs."""


@dataclass(frozen=True, slots=True)
class FuseActivation:
    """Write spelled-out hard-swish, hard-sigmoid and ReLU6 as single operators.

    Attributes:
        hard_swish: Write HardSwish where the opset has it; otherwise HardSigmoid and Mul.
        clip: Write Min and Max with constant bounds as Clip.
    """

    hard_swish: bool = True
    clip: bool = True

    def __call__(self, model: Model, context: Context) -> Change:
        """Rewrite what matches exactly; the given model is left as it is."""

        def fuse(editor: Editor) -> None:
            rewrite(editor, hard_swish=self.hard_swish, clip=self.clip)

        opset = model.graph.opset_imports.get("", MIN_OPSET)
        if opset < MIN_OPSET:
            return Change.none(model, ("model", f"opset {opset} is below {MIN_OPSET}; convert it first"))
        return run_rules(model, (infer_shapes, fuse), rounds=1)


def rewrite(editor: Editor, *, hard_swish: bool = True, clip: bool = True) -> None:
    """Until no rule applies."""
    if editor.opset < MIN_OPSET:
        return
    rules: list[_Rule] = [_clip] if clip else []
    rules += [_gate, _hard_sigmoid]
    if hard_swish and editor.opset >= HARD_SWISH_OPSET:
        rules.append(_hard_swish)
    again = True
    while again:
        again = False
        for node in editor.nodes():
            for rule in rules:
                outcome = rule(node)
                if isinstance(outcome, _Rewrite):
                    _replace(editor, outcome)
                    again = True
                    break
                if outcome is not None:
                    editor.decline(node, outcome)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Which operator on x takes the place of which nodes.

    Attributes:
        old: The nodes, in order; the result of the last one is replaced, the others are read by nobody else.
        x: Their common input.
        op_type: Clip, HardSigmoid or HardSwish.
        numbers: Lower and upper bound, or alpha and beta.
        gate: Multiply the operator's result by x.
    """

    old: tuple[ir.Node, ...]
    x: ir.Value
    op_type: str
    numbers: tuple[float, float] = (0.0, 0.0)
    gate: bool = False


_Outcome = _Rewrite | str | None
"""What to do, why it is left alone though it looks like the pattern, or nothing to say."""

_Rule = Callable[["ir.Node"], _Outcome]


def _clip(node: ir.Node) -> _Outcome:
    """Min(Max(x, low), high), Max(Min(x, high), low) or Min(Relu(x), high)."""
    outer = _bound(node)
    inner = _bound(outer[0].producer()) if outer and _is(node, "Min", "Max") else None
    if outer is None or inner is None or node.op_type == inner[2]:
        return None
    first = outer[0].producer()
    assert first is not None
    low, high = (outer[1], inner[1]) if node.op_type == "Max" else (inner[1], outer[1])
    if not low <= high:  # Clip would not give the same in either order
        return f"its lower bound {low:g} is above its upper bound {high:g}"
    if (reason := _chain_broken((first, node))) is not None:
        return reason
    return _Rewrite((first, node), inner[0], "Clip", (low, high))


def _hard_sigmoid(node: ir.Node) -> _Outcome:
    """Clip(a·x + b, 0, h) / h, anchored at the division (or at the Clip when h is 1)."""
    divided = _linear(node)
    if divided is not None:
        gate = _unscaled_gate(divided[0])
        if gate is None or divided[2] != 0:
            return None
        return _sigmoid(gate, divided[1], (*gate.nodes, node), product=False)
    gate = _unscaled_gate(node.outputs[0]) if _is(node, "Clip") else None
    return _sigmoid(gate, 1.0, gate.nodes, product=False) if gate and gate.height == 1 else None


def _gate(node: ir.Node) -> _Outcome:
    """Match x · Clip(a·x + b, 0, h) / h, anchored at its last node: the division, or the product."""
    divided = _linear(node)
    product = node if divided is None else divided[0].producer()
    if product is None or not _is(product, "Mul") or (divided is not None and divided[2] != 0):
        return None
    left, right = product.inputs
    for clipped, other in ((left, right), (right, left)):
        if clipped is None or other is None or (gate := _unscaled_gate(clipped)) is None:
            continue
        if divided is not None and other is gate.x:
            return _sigmoid(gate, divided[1], (*gate.nodes, product, node), product=True)
        scaled = _linear(other.producer()) if divided is None else None
        if scaled is not None and scaled[0] is gate.x and scaled[2] == 0 and other.producer() is not None:
            return _sigmoid(gate, scaled[1], (other.producer(), *gate.nodes, product), product=True)
        if divided is None and other is gate.x and gate.height != 1 and not _divided_next(product):
            return f"x · Clip(…, 0, {gate.height:g}) is not divided by {gate.height:g}"
    return None


def _hard_swish(node: ir.Node) -> _Outcome:
    """Match x · HardSigmoid(x, 1/6, 0.5)."""
    if not _is(node, "Mul"):
        return None
    left, right = node.inputs
    for inner, x in ((left, right), (right, left)):
        sigmoid = None if inner is None else inner.producer()
        if (
            inner is None
            or x is None
            or sigmoid is None
            or not _is(sigmoid, "HardSigmoid")
            or sigmoid.inputs[0] is not x
        ):
            continue
        alpha, beta = attribute(sigmoid, "alpha", 0.2), attribute(sigmoid, "beta", 0.5)
        if np.float32(alpha) != np.float32(1 / 6) or beta != 0.5:
            return f"alpha {alpha:g} and beta {beta:g} are not those of HardSwish, 1/6 and 0.5"
        if (reason := _chain_broken((sigmoid, node))) is not None:
            return reason
        return _Rewrite((sigmoid, node), x, "HardSwish")
    return None


@dataclass(frozen=True, slots=True)
class _Gate:
    """Clip(scale·x + shift, 0, height)."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: float
    shift: float
    height: float
    dtype: np.dtype[Any]


def _unscaled_gate(value: ir.Value) -> _Gate | None:
    """Read the nodes behind a value as a gate; there must be an offset, or it is a plain Clip."""
    clip = value.producer()
    bounds = _bounds(clip)
    if clip is None or bounds is None or bounds[0] != 0 or not 0 < bounds[1] < float("inf"):
        return None
    source = clip.inputs[0]
    add = None if source is None else source.producer()
    added = _linear(add)
    if add is None or added is None or added[2] == 0:
        return None
    x, scale, shift = added
    nodes: tuple[ir.Node, ...] = (add, clip)
    scaled, before = _linear(x.producer()), x.producer()
    if scaled is not None and before is not None and scaled[2] == 0 and sole_user(x) is add:
        x, scale, nodes = scaled[0], scale * scaled[1], (before, *nodes)
    dtype = next(c.dtype for v in add.inputs if (c := array(v)) is not None)
    return _Gate(nodes, x, scale, shift, bounds[1], dtype) if scale > 0 else None


def _sigmoid(gate: _Gate, factor: float, old: tuple[ir.Node | None, ...], *, product: bool) -> _Outcome:
    """HardSigmoid in place of a gate times a factor, which must undo the gate's height."""
    nodes = tuple(n for n in old if n is not None)
    if abs(factor * gate.height - 1) > 4 * float(np.finfo(gate.dtype).eps):
        return f"its Clip ends at {gate.height:g}, but the result is multiplied by {factor:g} and not by its inverse"
    if gate.dtype == np.float64:
        return "it computes in float64, but HardSigmoid stores its slope as float32"
    if (reason := _chain_broken(nodes)) is not None:
        return reason
    numbers = (gate.scale / gate.height, gate.shift / gate.height)
    return _Rewrite(nodes, gate.x, "HardSigmoid", numbers, product)


def _chain_broken(nodes: tuple[ir.Node, ...]) -> str | None:
    """Why the nodes before the last cannot go: another node reads their result, or it is an output."""
    for node in nodes[:-1]:
        out = node.outputs[0]
        user = sole_user(out)
        if out.is_graph_output():
            return f"{out.name}, inside the pattern, is an output of the graph"
        if user is None:
            return f"{out.name}, inside the pattern, has {len(out.uses())} users"
        if user.graph is not nodes[-1].graph or node.graph is not nodes[-1].graph:
            return f"{out.name}, inside the pattern, lies in another graph"
    return None


def _divided_next(product: ir.Node) -> bool:
    """Whether the only user of a product scales it, so that the pattern is judged there."""
    user = sole_user(product.outputs[0])
    scaled = None if user is None else _linear(user)
    return scaled is not None and scaled[2] == 0


def _linear(node: ir.Node | None) -> tuple[ir.Value, float, float] | None:
    """(x, scale, shift) of a node that computes scale·x + shift with single numbers, shaped like x."""
    found = affine(node)
    numbers = None if found is None else found.numbers()
    return None if found is None or numbers is None else (found.x, *numbers)


def _bounds(clip: ir.Node | None) -> tuple[float, float] | None:
    """(low, high) of a Clip on floats with constant bounds; an absent bound is infinite."""
    if clip is None or not _is(clip, "Clip"):
        return None
    bounds = [float(attribute(clip, "min", -np.inf)), float(attribute(clip, "max", np.inf))]
    for i, value in enumerate(clip.inputs[1:3]):
        if value is not None:
            number = _number(value)
            if number is None:
                return None
            bounds[i] = number
    return bounds[0], bounds[1]


def _bound(node: ir.Node | None) -> tuple[ir.Value, float, str] | None:
    """(x, bound, Min or Max) of a node that bounds x by one constant; Relu is Max with zero."""
    if node is None:
        return None
    if _is(node, "Relu") and node.inputs[0] is not None:
        return node.inputs[0], 0.0, "Max"
    if not _is(node, "Min", "Max") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    for x, constant in ((left, right), (right, left)):
        if x is None or constant is None or constant_tensor(x) is not None:
            continue
        number, shape, limit = _number(constant), dims(constant), dims(x)
        if number is not None and shape is not None and len(shape) <= len(limit or ()):
            return x, number, node.op_type
    return None


def _number(value: ir.Value) -> float | None:
    """A constant of one float16, float32 or float64 number."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype.name not in ("FLOAT16", "FLOAT", "DOUBLE") or tensor.size != 1:
        return None
    found: NDArray[Any] | None = array(value)
    return None if found is None else float(found.reshape(-1)[0])


def _replace(editor: Editor, rewrite: _Rewrite) -> None:
    """Carry a rewrite out."""
    last = rewrite.old[-1]
    out = last.outputs[0]
    names = " + ".join(label(n) for n in rewrite.old)
    constants = [v for n in rewrite.old for v in n.inputs if v is not None and constant_tensor(v) is not None]
    new = _operator(editor, rewrite)
    if rewrite.gate:
        new = editor.insert(last, "Mul", [rewrite.x, new], out)
    if not editor.replace(out, new):
        raise AssertionError(f"{label(last)}: the new node can take over its name")
    for node in reversed(rewrite.old):
        editor.remove(node)
    for value in constants:
        editor.drop(value)
    editor.did(f"wrote {rewrite.op_type}{' and Mul' if rewrite.gate else ''}", names)


def _operator(editor: Editor, rewrite: _Rewrite) -> ir.Value:
    last, (first, second) = rewrite.old[-1], rewrite.numbers
    out, graph = last.outputs[0], last.graph
    if rewrite.op_type == "HardSwish":
        return editor.insert(last, "HardSwish", [rewrite.x], out)
    if rewrite.op_type == "HardSigmoid":
        return editor.insert(last, "HardSigmoid", [rewrite.x], out, alpha=first, beta=second)
    if editor.opset < CLIP_INPUTS_OPSET:
        return editor.insert(last, "Clip", [rewrite.x], out, min=first, max=second)
    assert graph is not None
    dtype = next(c.dtype for v in last.inputs if (c := array(v)) is not None)
    bounds = [
        editor.constant(graph, f"{out.name}_{k}", np.asarray(v, dtype)) for k, v in (("min", first), ("max", second))
    ]
    return editor.insert(last, "Clip", [rewrite.x, *bounds], out)


def _is(node: ir.Node, *op_types: str) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


IMPL: type[Pass] = FuseActivation
