"""Fold constant scales and offsets around layers into their weights.

Exact algebra, written for y = layer(x) with weights W and bias b:

* after Conv, ConvTranspose, Gemm or MatMul (with or without its Add): s·(W·x + b) + t = (s·W)·x + (s·b + t), with one
  number or one per output channel. The Add after a MatMul is its bias and stays;
* before Conv and Gemm: W·(s·x + t) + b = (W·s)·x + (b + ΣW·t), with one number or one per input channel. An offset only
  where nothing is padded, since the zeros of the padding would not get it. Before ConvTranspose a scale only, for the
  same reason at its borders. A scale in front of an offset that has to stay, s·x + t, becomes x + t/s, and s goes in.
  Not before MatMul, nor where it ends a normalisation before a Gemm: runtimes fuse these into LayerNormalization.

Nothing moves across a nonlinearity or out of a subgraph; nodes inside model-local functions are left alone. Weights are
kept in float64 over a whole chain of folds and rounded once to their own dtype; a fold whose result that dtype cannot
hold is declined. A weight that others use too is copied, never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from .affine import MIN_OPSET, Affine, Array, affine, batch_norm, floats
from .dims import dims
from .layer import CONVOLUTIONS, LAYERS, Layer
from .rewrite import Editor, cast_like, constant_tensor, label, sole_user

if TYPE_CHECKING:
    import onnx_ir as ir

COPY_LIMIT_BYTES = 1 << 20
"""A weight that other nodes use too is copied only up to this size."""

_Outcome = tuple[bool, str] | None
"""(True, what was done), (False, why it was left alone) or nothing to say."""


def absorb(editor: Editor, *ops: str, before: bool = True, copy_limit_bytes: int = COPY_LIMIT_BYTES) -> None:
    """Fold until nothing folds any more.

    Args:
        editor: The model.
        ops: Which nodes to fold: Add, Sub, Mul, Div, BatchNormalization.
        before: Also fold what comes before a layer, into all that read it.
        copy_limit_bytes: A weight that other nodes use too is copied only up to this size.
    """
    state = _Folding(editor, copy_limit_bytes)
    again = True
    while again:
        again = False
        for node in editor.nodes(*ops):
            name, outcome = label(node), _fold(state, node, before=before)
            if outcome is None:
                continue
            if outcome[0]:
                editor.did(outcome[1], name)
                again = True
            else:
                editor.decline(node, outcome[1])


@dataclass(slots=True)
class _Folding:
    """The model being edited, and the float64 values behind the weights that were changed."""

    editor: Editor
    copy_limit_bytes: int
    exact: dict[ir.Value, Array] = field(default_factory=dict)

    def read(self, value: ir.Value | None) -> Array | None:
        """A constant in float64, unrounded when it was changed before."""
        if value in self.exact:
            return self.exact[value]
        found = floats(value)
        return None if found is None else found.astype(np.float64)

    def layer(self, node: ir.Node) -> Layer | None:
        """The layer behind a node; None when its weights are not constant or it is a product of another form."""
        tensor, exact = constant_tensor(node.inputs[1]), self.read(node.inputs[1])
        if tensor is None or exact is None or exact.ndim < 2 or exact.size == 0:
            return None
        return Layer(node, exact, tensor.dtype.numpy())

    def bias(self, node: ir.Node) -> Array | str:
        """What a convolution or Gemm adds, float64, a 0-d zero when that is nothing; or why it cannot be told."""
        held = node.inputs[2] if len(node.inputs) > 2 else None
        if held is None:
            return np.zeros(())
        found = self.read(held)
        if found is None:
            return f"the bias of {label(node)} is not constant"
        return found * (attribute(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0)

    def constant(self, graph: ir.Graph, hint: str, exact: Array, dtype: np.dtype[Any]) -> ir.Value:
        """A new initializer."""
        new = self.editor.constant(graph, hint, exact.astype(dtype))
        self.exact[new] = exact
        return new

    def write(self, node: ir.Node, index: int, exact: Array, dtype: np.dtype[Any], hint: str) -> None:
        """Give a node a new constant: in place where it is the only user, else as a new initializer."""
        import onnx_ir as ir

        old = node.inputs[index] if index < len(node.inputs) else None
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        alone = old is not None and old.is_initializer() and old.graph is graph and len(old.uses()) == 1
        if old is not None and alone and not old.is_graph_output() and dims(old) == exact.shape:
            old.const_value = ir.tensor(exact.astype(dtype), name=old.name)
            self.exact[old] = exact
            return
        new = self.constant(graph, hint, exact, dtype)
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        node.replace_input_with(index, new)
        if old is not None:
            self.drop(old)

    def write_layer(self, layer: Layer, weight: Array | None, bias: Array | None) -> None:
        """New weights and a new bias, each where it is given."""
        import onnx_ir as ir

        node = layer.node
        if weight is not None:
            self.write(node, 1, weight, layer.dtype, f"{label(node)}_weight")
        if bias is not None:
            self.write(node, 2, bias, layer.dtype, f"{label(node)}_bias")
            if node.op_type == "Gemm" and attribute(node, "beta", 1.0) != 1.0:
                node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)

    def drop(self, *values: ir.Value) -> None:
        """Remove constants that nothing reads any more."""
        for value in values:
            self.editor.drop(value)
            if value.graph is None:
                self.exact.pop(value, None)

    def take_out(self, a: Affine) -> None:
        """Let x take the place of the affine node's result."""
        if not self.editor.replace(a.node.outputs[0], a.x):
            raise AssertionError(f"{label(a.node)}: its operand has one user and can take over its name")
        self.editor.remove(a.node)
        self.drop(*a.constants)


def _fold(state: _Folding, node: ir.Node, *, before: bool) -> _Outcome:
    """Fold one node backwards where possible, else forwards."""
    if node.op_type == "BatchNormalization":
        found = batch_norm(node, state.editor.opset)
        if isinstance(found, str):
            return False, found
    else:
        read = affine(node) if state.editor.opset >= MIN_OPSET else None
        if read is None:
            return None
        found = read
    with np.errstate(all="ignore"):  # whatever overflows is declined
        outcome = _into_producer(state, found)
        if before and not (outcome and outcome[0]):
            outcome = _into_consumers(state, found) or outcome
    if outcome is None and found.by_channel:
        return False, "no Conv, ConvTranspose, Gemm or MatMul with constant weights is beside it"
    return outcome


def _into_producer(state: _Folding, a: Affine) -> _Outcome:
    """Fold into the layer whose output the node scales or shifts."""
    source = a.x.producer()
    bias = affine(source) if state.editor.opset >= MIN_OPSET else None
    if bias is not None and not bias.scales and _is(bias.x.producer(), "MatMul"):
        source = bias.x.producer()
    else:
        bias = None
    if source is None or not _is(source, *LAYERS) or (_is(source, "MatMul") and bias is None and not a.scales):
        return None
    if constant_tensor(source.inputs[1]) is None:
        return (False, f"{label(source)} has no constant weights") if _is(source, *CONVOLUTIONS) else None
    if source.graph is not a.node.graph:
        return False, f"{label(source)} lies in another graph"
    for value in (a.x, *([bias.x] if bias else [])):
        if sole_user(value) is None:
            why = "is an output of the graph" if value.is_graph_output() else f"has {len(value.uses())} users"
            return False, f"{value.name}, the result of {label(value.producer() or source)}, {why}"
    layer = state.layer(source)
    if layer is None:
        return None
    numbers = a.per_channel(layer.outputs, layer.axis, layer.rank)
    if numbers is None:
        return False, f"it has more than one number per channel ({layer.outputs}) of {label(source)}"
    s, t = numbers
    if not layer.fits(weight := layer.scaled_outputs(s)):
        return False, f"{layer.dtype} cannot hold the weights of {label(source)} times the constant"
    if a.scales and (reason := _too_large(state, source)):
        return False, reason
    if layer.node.op_type == "MatMul":
        return _matmul(state, a, bias, layer, weight, s, t)
    b = state.bias(source)
    if isinstance(b, str):
        return False, b
    if cast_like(new := b * s + t, np.empty(0, layer.dtype)) is None:
        return False, f"{layer.dtype} cannot hold the bias of {label(source)} with the constant"
    biased = a.shifts or (len(source.inputs) > 2 and source.inputs[2] is not None)
    state.write_layer(layer, weight if a.scales else None, new if biased else None)
    state.take_out(a)
    return True, f"folded {a.node.op_type} into the {source.op_type} before it"


def _matmul(
    state: _Folding, a: Affine, bias: Affine | None, layer: Layer, weight: Array, s: Array, t: Array
) -> _Outcome:
    """MatMul: the offset goes into the Add behind it, which is made if need be."""
    if bias is not None and bias.node.op_type == "Sub":  # x − c is written as x + (−c) when its constant changes
        return False, f"{label(bias.node)} subtracts; only an Add behind a MatMul is taken as its bias"
    old = None if bias is None else state.read(bias.constants[0])
    new = t if old is None else old * s + t
    if cast_like(new, np.empty(0, layer.dtype)) is None:
        return False, f"{layer.dtype} cannot hold the bias of {label(layer.node)} with the constant"
    done, hint = f"folded {a.node.op_type} into the MatMul before it", f"{label(layer.node)}_bias"
    if a.scales:
        state.write(layer.node, 1, weight, layer.dtype, f"{label(layer.node)}_weight")
    if bias is not None:
        state.write(bias.node, _index(bias), new, layer.dtype, hint)
    elif a.shifts:
        assert a.node.graph is not None
        out = a.node.outputs[0]
        added = state.editor.insert(a.node, "Add", [a.x, state.constant(a.node.graph, hint, new, layer.dtype)], out)
        if not state.editor.replace(out, added):
            raise AssertionError(f"{label(a.node)}: the new Add can take over its name")
        state.editor.remove(a.node)
        state.drop(*a.constants)
        return True, done
    state.take_out(a)
    return True, done


def _into_consumers(state: _Folding, a: Affine) -> _Outcome:
    """Fold into all the layers that read the node's result."""
    y = a.node.outputs[0]
    takers = CONVOLUTIONS if not a.by_channel and _normalises(a) else (*CONVOLUTIONS, "Gemm")
    uses = [(u.node, u.idx) for u in y.uses()]
    if not any(i == 0 and _is(n, *takers) for n, i in uses):
        return None
    if y.is_graph_output():
        return False, f"{y.name} is an output of the graph"
    for node, index in uses:
        if index != 0 or not _is(node, *takers) or node.graph is not a.node.graph:
            return False, f"{y.name} is also read by {label(node)}, which cannot take the constant in"
    users = [node for node, _ in uses]
    plan = _plan(state, a, users)
    if isinstance(plan, str):
        return _scale_past_offset(state, a, users) or (False, plan)
    for layer, weight, bias in plan:
        state.write_layer(layer, weight, bias)
        layer.node.replace_input_with(0, a.x)
    state.editor.remove(a.node)
    state.drop(*a.constants)
    return True, f"folded {a.node.op_type} into the {_named(plan)} after it"


_Plan = list[tuple[Layer, Array | None, Array | None]]
"""(layer, new weight or None, new bias or None) of every layer that takes a constant in."""


def _plan(state: _Folding, a: Affine, users: list[ir.Node]) -> _Plan | str:
    """The plan, or why one of the layers cannot take the constant in."""
    plan: _Plan = []
    for node in users:
        got = _prepared(state, a, node)
        if isinstance(got, str):
            return got
        plan.append(got)
    return plan


def _named(plan: _Plan) -> str:
    return " and ".join(sorted({layer.node.op_type for layer, _, _ in plan}))


def _scale_past_offset(state: _Folding, a: Affine, users: list[ir.Node]) -> _Outcome:
    """s·x + t in front of padded convolutions: x + t/s, and s goes into their weights."""
    before = affine(a.x.producer())
    if before is None or a.node.op_type != "Add" or before.shifts or not before.scales or not np.all(before.scale):
        return None
    if sole_user(a.x) is not a.node or before.node.graph is not a.node.graph:
        return None
    plan = _plan(state, replace(before, node=a.node, x=a.node.outputs[0]), users)  # as if it came last
    offset = np.asarray(a.shift / before.scale)
    if isinstance(plan, str) or cast_like(offset, np.empty(0, plan[0][0].dtype)) is None:
        return None
    for layer, weight, bias in plan:
        state.write_layer(layer, weight, bias)
    index = _index(a)
    state.write(a.node, index, offset, plan[0][0].dtype, f"{label(a.node)}_offset")
    a.node.replace_input_with(1 - index, before.x)
    state.editor.remove(before.node)
    state.drop(*before.constants)
    return True, f"folded the {before.node.op_type} before it into the {_named(plan)} after it, dividing its offset"


def _prepared(state: _Folding, a: Affine, node: ir.Node) -> tuple[Layer, Array | None, Array | None] | str:
    """(layer, new weight or None, new bias or None), or why it cannot take the constant in."""
    layer = state.layer(node)
    if layer is None:
        return f"{label(node)} has no constant weights"
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return f"{label(node)} transposes its input"
    if a.shifts and layer.padded():
        return f"{label(node)} pads its input with zeros, which would not get the offset"
    numbers = a.per_channel(layer.inputs, layer.axis, layer.rank)
    if numbers is None:
        return f"it has more than one number per channel ({layer.inputs}) that {label(node)} reads"
    s, t = numbers
    if not _keeps_shape(a, layer):
        return f"the shape of {a.x.name} is unknown or grows by broadcasting"
    if a.scales and (reason := _too_large(state, node)):
        return reason
    weight, bias = layer.scaled_inputs(s), None
    if a.shifts:
        b = state.bias(node)
        if isinstance(b, str):
            return b
        bias = layer.offset(t) + b
    if not layer.fits(weight) or (bias is not None and cast_like(bias, np.empty(0, layer.dtype)) is None):
        return f"{layer.dtype} cannot hold the weights of {label(node)} with the constant"
    return layer, weight if a.scales else None, bias


def _keeps_shape(a: Affine, layer: Layer) -> bool:
    """Whether the node's result is certainly shaped like x: no axis of x grows to that of the constant."""
    if a.by_channel:
        return True
    single = a.scale.size == 1 and a.shift.size == 1
    if single and a.rank < layer.weight.ndim:
        return True
    shape = dims(a.x)
    return shape is not None and len(shape) == layer.weight.ndim and (single or shape[layer.axis] == layer.inputs)


def _normalises(a: Affine) -> bool:
    """Whether the node, past others of its kind, scales what was divided by something computed: a normalisation."""
    source, steps = a.x.producer(), 0
    while (inner := affine(source)) is not None and steps < 4:
        source, steps = inner.x.producer(), steps + 1
    return _is(source, "Div", "Mul")


def _too_large(state: _Folding, node: ir.Node) -> str | None:
    """Why a weight is not copied."""
    value = node.inputs[1]
    tensor = constant_tensor(value)
    if value is None or tensor is None or len(value.uses()) == 1 or tensor.nbytes <= state.copy_limit_bytes:
        return None
    return f"{value.name} ({tensor.nbytes:,} bytes) is shared by {len(value.uses())} nodes and would be copied"


def _index(a: Affine) -> int:
    """Which input the constant of an arithmetic node is."""
    return next(i for i, v in enumerate(a.node.inputs) if v is a.constants[0])


def _is(node: ir.Node | None, *op_types: str) -> bool:
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types
