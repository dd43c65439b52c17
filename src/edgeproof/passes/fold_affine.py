"""Fold constant scales and offsets around convolutions and matrix products into their weights.

Exact algebra, written for y = layer(x) with weights W and bias b:

* after Conv, ConvTranspose, Gemm or MatMul (with or without its Add): s·(W·x + b) + t = (s·W)·x + (s·b + t), with one
  number or one per output channel. The Add after a MatMul is its bias and stays;
* before Conv: W·(s·x + t) + b = (W·s)·x + (b + ΣW·t), with one number or one per input channel. An offset only where
  nothing is padded, since the zeros of the padding would not get it. Before ConvTranspose a scale only, for the same
  reason at its borders. A scale in front of an offset that has to stay, s·x + t, becomes x + t/s, and s goes in. Not
  before Gemm and MatMul: runtimes fuse the scale and offset there into LayerNormalization.

Nothing moves across a nonlinearity or out of a subgraph; nodes inside model-local functions are left alone. Weights are
kept in float64 over a whole chain of folds and rounded once to their own dtype; a fold whose result that dtype cannot
hold is declined. A weight that others use too is copied, never changed. Run it after ``fuse_activation``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..change import Change
from ..graph.rewrite import Editor, array, attribute, cast_like, constant_tensor, dims, label, sole_user
from ..model import Model
from ..protocols import Context, Pass
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir

Array = NDArray[Any]

MIN_OPSET = 7
"""Below this, arithmetic and Gemm broadcast by attributes instead of by NumPy's rules."""

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_LAYERS = (*_CONVOLUTIONS, "Gemm", "MatMul")

_Outcome = tuple[bool, str] | None
"""(True, what was done), (False, why it was left alone) or nothing to say."""


@dataclass(frozen=True, slots=True)
class FoldAffine:
    """Fold constant scales and offsets around convolutions and matrix products into their weights.

    Attributes:
        before: Also fold what comes before a convolution, into the convolutions that read it.
        copy_limit_bytes: A weight that other nodes use too is copied only up to this size.
    """

    before: bool = True
    copy_limit_bytes: int = 1 << 20

    def __call__(self, model: Model, context: Context) -> Change:
        """Fold until nothing folds any more; the given model is left as it is."""
        state = _Folding(Editor(model.graph.clone()), self.copy_limit_bytes)
        if state.editor.opset < MIN_OPSET:
            return Change.none(model, ("model", f"opset {state.editor.opset} is below {MIN_OPSET}; convert it first"))
        infer_shapes(state.editor)
        applied: list[str] = []
        declined: dict[str, str] = {}
        again = True
        while again:
            again, declined = False, {}
            for node in state.editor.nodes("Add", "Sub", "Mul", "Div"):
                found, name = affine(node), label(node)
                if found is None:
                    continue
                outcome = _into_producer(state, found)
                if self.before and not (outcome and outcome[0]):
                    outcome = _into_consumers(state, found) or outcome
                if outcome and outcome[0]:
                    applied.append(outcome[1])
                    again = True
                elif outcome:
                    declined[name] = outcome[1]
        if not applied:
            return Change.none(model, *declined.items())
        return Change(Model.of(state.editor.model, model.name), True, tuple(applied), tuple(declined.items()))


@dataclass(frozen=True, slots=True)
class Affine:
    """A node that computes ``scale·x + shift``.

    Attributes:
        node: Add, Sub, Mul or Div.
        x: The operand that is not constant.
        constant: The other one.
        scale: Float64, shaped like the constant, or a 0-d one.
        shift: Float64, shaped like the constant, or a 0-d zero.
        rank: Rank of the constant, which may exceed that of x.
    """

    node: ir.Node
    x: ir.Value
    constant: ir.Value
    scale: Array
    shift: Array
    rank: int

    @property
    def scales(self) -> bool:
        """Whether it multiplies by anything but one."""
        return bool(np.any(self.scale != 1))

    @property
    def shifts(self) -> bool:
        """Whether it adds anything but zero."""
        return bool(np.any(self.shift != 0))

    def numbers(self) -> tuple[float, float] | None:
        """(scale, shift) when both are single numbers and the result is certainly shaped like x; otherwise None."""
        shape = dims(self.x)
        if self.scale.size != 1 or self.shift.size != 1 or self.rank > len(shape or ()):
            return None
        return self.scale.item(), self.shift.item()


def affine(node: ir.Node | None) -> Affine | None:
    """Read a node as ``scale·x + shift``; None when it is not one, or both or neither operand is constant.

    >>> import numpy as np, onnx_ir as ir
    >>> c = ir.Value(name="c", const_value=ir.tensor(np.float32([4]), name="c"))
    >>> graph = ir.Graph([], [], nodes=[], initializers=[c])
    >>> a = affine(ir.node("Sub", [c, ir.Value(name="x")]))
    >>> float(a.scale), float(a.shift[0])
    (-1.0, 4.0)
    """
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in ("Add", "Sub", "Mul", "Div"):
        return None
    left, right = node.inputs
    a, b = _floats(left), _floats(right)
    if (a is None) == (b is None):
        return None
    c, x, constant = (a, right, left) if b is None else (b, left, right)
    if c is None or x is None or constant is None:
        return None
    wide, one, zero = c.astype(np.float64), np.ones(()), np.zeros(())
    if node.op_type == "Mul":
        scale, shift = wide, zero
    elif node.op_type == "Add":
        scale, shift = one, wide
    elif node.op_type == "Sub":
        scale, shift = (one, -wide) if b is not None else (-one, wide)
    elif b is not None:
        with np.errstate(divide="ignore"):
            scale, shift = np.asarray(1 / wide), zero
    else:  # c / x is not affine
        return None
    return Affine(node, x, constant, scale, shift, c.ndim)


def per_channel(c: Array, channels: int, axis: int, rank: int | None) -> Array | None:
    """A constant as one number per channel, float64 [channels].

    Args:
        c: The constant.
        channels: Size of the channel axis of the other operand.
        axis: That axis, counted from the end (negative).
        rank: Rank of the other operand; None when unknown, then a constant may reach only as far as the channel axis.

    Returns:
        None when the constant varies along another axis, has another number of channels or raises the rank.
    """
    if c.ndim > (-axis if rank is None else rank):
        return None
    others = [d for i, d in enumerate(c.shape, start=-c.ndim) if i != axis]
    size = c.shape[axis] if c.ndim >= -axis else 1
    if any(d != 1 for d in others) or size not in (1, channels):
        return None
    return np.broadcast_to(c.reshape(-1), (channels,))


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
        found = _floats(value)
        return None if found is None else found.astype(np.float64)

    def write(self, node: ir.Node, index: int, exact: Array, dtype: np.dtype[Any], hint: str) -> None:
        """Give a node a new constant: in place where it is the only user, else as a new initializer."""
        import onnx_ir as ir

        old = node.inputs[index] if index < len(node.inputs) else None
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        rounded = exact.astype(dtype)
        alone = old is not None and old.is_initializer() and old.graph is graph and len(old.uses()) == 1
        if old is not None and alone and not old.is_graph_output() and dims(old) == rounded.shape:
            old.const_value = ir.tensor(rounded, name=old.name)
            self.exact[old] = exact
            return
        new = self.editor.constant(graph, hint, rounded)
        self.exact[new] = exact
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        node.replace_input_with(index, new)
        if old is not None:
            self.drop(old)

    def drop(self, value: ir.Value) -> None:
        """Remove a constant that nothing reads any more."""
        if value.uses() or value.is_graph_output() or value.is_graph_input() or value.graph is None:
            return
        producer = value.producer()
        if producer is not None:
            self.editor.remove(producer)
        elif value.name is not None:
            self.exact.pop(value, None)
            del value.graph.initializers[value.name]

    def take_out(self, a: Affine) -> None:
        """Let x take the place of the affine node's result."""
        if not self.editor.replace(a.node.outputs[0], a.x):
            raise AssertionError(f"{label(a.node)}: its operand has one user and can take over its name")
        self.editor.remove(a.node)
        self.drop(a.constant)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution or matrix product with constant weights."""

    node: ir.Node
    weight: Array
    dtype: np.dtype[Any]
    group: int

    @property
    def convolution(self) -> bool:
        return self.node.op_type in _CONVOLUTIONS

    @property
    def axis(self) -> int:
        """Channel axis of input and output, from the end."""
        return 1 - self.weight.ndim if self.convolution else -1

    @property
    def rank(self) -> int | None:
        """Rank of the output; for convolutions of the input too."""
        if self.node.op_type == "MatMul":
            shape = dims(self.node.outputs[0])
            return None if shape is None else len(shape)
        return self.weight.ndim

    @property
    def output_axis(self) -> int:
        """Axis of the weight along which output channels lie (within a group for ConvTranspose)."""
        if self.node.op_type == "Gemm":
            return 0 if attribute(self.node, "transB", 0) else 1
        return {"Conv": 0, "ConvTranspose": 1}.get(self.node.op_type, self.weight.ndim - 1)

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        n: int = self.weight.shape[self.output_axis]
        return n * self.group if self.node.op_type == "ConvTranspose" else n

    @property
    def inputs(self) -> int:
        """Number of input channels of a convolution."""
        n: int = self.weight.shape[1 if self.node.op_type == "Conv" else 0]
        return n * self.group if self.node.op_type == "Conv" else n

    def scaled_outputs(self, s: Array) -> Array:
        """Weights with each output channel multiplied; s is [outputs]."""
        w = self.weight
        if self.node.op_type == "ConvTranspose":  # [inputs, outputs / group, …], inputs ordered by group
            grouped = w.reshape(self.group, -1, w.shape[1], *w.shape[2:])
            scaled: Array = grouped * s.reshape(self.group, 1, -1, *[1] * (w.ndim - 2))
            return scaled.reshape(w.shape)
        return np.asarray(w * np.expand_dims(s, [i for i in range(w.ndim) if i != self.output_axis]))

    def scaled_inputs(self, s: Array) -> Array:
        """Weights of a convolution with each input channel multiplied; s is [inputs]."""
        w = self.weight
        ones = [1] * (w.ndim - 2)
        if self.node.op_type == "ConvTranspose":
            return w * s.reshape(-1, 1, *ones)
        grouped = w.reshape(self.group, -1, *w.shape[1:])  # [group, outputs / group, inputs / group, …]
        return np.reshape(grouped * s.reshape(self.group, 1, -1, *ones), w.shape)

    def offset(self, t: Array) -> Array:
        """What an offset t [inputs] in front of an unpadded Conv adds to each output channel, [outputs]."""
        taps = self.weight.reshape(self.group, -1, self.weight.shape[1], int(np.prod(self.weight.shape[2:]))).sum(-1)
        return np.asarray((taps * t.reshape(self.group, 1, -1)).sum(-1)).reshape(-1)

    def fits(self, weight: Array) -> bool:
        """Whether the dtype holds new weights: nothing infinite, no channel rounded away among the subnormal numbers.

        A channel below the largest weight by more than the square of the dtype's precision was dead before.
        """
        rounded = cast_like(weight, np.empty(0, self.dtype))
        if rounded is None:
            return False
        rest = tuple(i for i in range(weight.ndim) if i != self.output_axis)
        largest = np.abs(weight).max(axis=rest)
        error = np.abs(rounded.astype(np.float64) - weight).max(axis=rest)
        eps = float(np.finfo(self.dtype).eps)
        return not bool(((error > eps * largest) & (largest > eps**2 * largest.max())).any())


def _layer(state: _Folding, node: ir.Node) -> _Layer | None:
    """The layer behind a node; None when its weights are not constant or it is a product of another form."""
    raw = _floats(node.inputs[1])
    exact = state.read(node.inputs[1])
    if raw is None or exact is None or exact.ndim < 2 or exact.size == 0:
        return None
    group = attribute(node, "group", 1) if node.op_type in _CONVOLUTIONS else 1
    return _Layer(node, exact, raw.dtype, group)


def _into_producer(state: _Folding, a: Affine) -> _Outcome:
    """Fold into the layer whose output the node scales or shifts."""
    source = a.x.producer()
    bias = affine(source)
    if bias is not None and not bias.scales and _is(bias.x.producer(), "MatMul"):
        source = bias.x.producer()
    else:
        bias = None
    if source is None or not _is(source, *_LAYERS) or (_is(source, "MatMul") and bias is None and not a.scales):
        return None
    layer = _layer(state, source)
    if layer is None:
        return (False, f"{label(source)} has no constant weights") if _is(source, *_CONVOLUTIONS) else None
    if source.graph is not a.node.graph:
        return False, f"{label(source)} lies in another graph"
    for value in (a.x, *([bias.x] if bias else [])):
        if sole_user(value) is None:
            why = "is an output of the graph" if value.is_graph_output() else f"has {len(value.uses())} users"
            return False, f"{value.name}, the result of {label(value.producer() or source)}, {why}"
    s = per_channel(a.scale, layer.outputs, layer.axis, layer.rank)
    t = per_channel(a.shift, layer.outputs, layer.axis, layer.rank)
    if s is None or t is None:
        return (
            False,
            f"a constant with {a.rank} axes is not one number per channel ({layer.outputs}) of {label(source)}",
        )
    if not layer.fits(weight := layer.scaled_outputs(s)):
        return False, f"{layer.dtype} cannot hold the weights of {label(source)} times the constant"
    if a.scales and (reason := _too_large(state, source)):
        return False, reason
    if layer.node.op_type == "MatMul":
        return _matmul(state, a, bias, layer, weight, s, t)
    return _with_bias(state, a, layer, weight, s, t)


def _with_bias(state: _Folding, a: Affine, layer: _Layer, weight: Array, s: Array, t: Array) -> _Outcome:
    """Conv, ConvTranspose, Gemm: the third input takes the offset."""
    import onnx_ir as ir

    node, name = layer.node, label(a.node)
    old = node.inputs[2] if len(node.inputs) > 2 else None
    b = state.read(old)
    if old is not None and b is None:
        return False, f"the bias of {label(node)} is not constant"
    beta = attribute(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    new = t if b is None else beta * b * s + t
    if cast_like(new, np.empty(0, layer.dtype)) is None:
        return False, f"{layer.dtype} cannot hold the bias of {label(node)} with the constant"
    if a.scales:
        state.write(node, 1, weight, layer.dtype, f"{label(node)}_weight")
    if b is not None or a.shifts:
        state.write(node, 2, new, layer.dtype, f"{label(node)}_bias")
        if beta != 1.0:
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    op = a.node.op_type
    state.take_out(a)
    return True, f"{name}: {op} folded into {node.op_type} {label(node)} before it"


def _matmul(
    state: _Folding, a: Affine, bias: Affine | None, layer: _Layer, weight: Array, s: Array, t: Array
) -> _Outcome:
    """MatMul: the offset goes into the Add behind it, which is made if need be."""
    name, op = label(a.node), a.node.op_type
    if bias is not None and bias.node.op_type == "Sub":  # x − c is written as x + (−c) when its constant changes
        return False, f"{label(bias.node)} subtracts; only an Add behind a MatMul is taken as its bias"
    old = None if bias is None else state.read(bias.constant)
    new = t if old is None else old * s + t
    if cast_like(new, np.empty(0, layer.dtype)) is None:
        return False, f"{layer.dtype} cannot hold the bias of {label(layer.node)} with the constant"
    if a.scales:
        state.write(layer.node, 1, weight, layer.dtype, f"{label(layer.node)}_weight")
    if bias is not None:
        index = next(i for i, v in enumerate(bias.node.inputs) if v is bias.constant)
        state.write(bias.node, index, new, layer.dtype, f"{label(layer.node)}_bias")
        state.take_out(a)
    elif a.shifts:
        assert a.node.graph is not None
        index = next(i for i, v in enumerate(a.node.inputs) if v is a.constant)
        out = a.node.outputs[0]
        added = state.editor.insert(a.node, "Add", [a.x, a.constant], out)
        producer = added.producer()
        assert producer is not None
        state.write(producer, 1, new, layer.dtype, f"{label(layer.node)}_bias")
        if not state.editor.replace(out, added):
            raise AssertionError(f"{name}: the new Add can take over its name")
        state.editor.remove(a.node)
        state.drop(a.constant)
    else:
        state.take_out(a)
    return True, f"{name}: {op} folded into MatMul {label(layer.node)} before it"


def _into_consumers(state: _Folding, a: Affine) -> _Outcome:
    """Fold into all the convolutions that read the node's result."""
    y = a.node.outputs[0]
    uses = [(u.node, u.idx) for u in y.uses()]
    if not any(i == 0 and _is(n, *_CONVOLUTIONS) for n, i in uses):
        return None
    if y.is_graph_output():
        return False, f"{y.name} is an output of the graph"
    for node, index in uses:
        if index != 0 or not _is(node, *_CONVOLUTIONS) or node.graph is not a.node.graph:
            return False, f"{y.name} is also read by {label(node)}, which cannot take the constant in"
    users = [node for node, _ in uses]
    plan = _plan(state, a, users)
    if isinstance(plan, str):
        return _scale_past_offset(state, a, users) or (False, plan)
    name, op = label(a.node), a.node.op_type
    _carry_out(state, a, plan)
    for layer, _, _ in plan:
        layer.node.replace_input_with(0, a.x)
    state.editor.remove(a.node)
    state.drop(a.constant)
    return True, f"{name}: {op} folded into {_named(plan)} after it"


_Plan = list[tuple[_Layer, Array, Array | None]]
"""(layer, new weight, new bias or None) of every convolution that takes a constant in."""


def _plan(state: _Folding, a: Affine, users: list[ir.Node]) -> _Plan | str:
    """The plan, or why one of the convolutions cannot take the constant in."""
    plan: _Plan = []
    for node in users:
        got = _prepared(state, a, node)
        if isinstance(got, str):
            return got
        plan.append(got)
    return plan


def _carry_out(state: _Folding, a: Affine, plan: _Plan) -> None:
    for layer, weight, bias in plan:
        if a.scales:
            state.write(layer.node, 1, weight, layer.dtype, f"{label(layer.node)}_weight")
        if bias is not None:
            state.write(layer.node, 2, bias, layer.dtype, f"{label(layer.node)}_bias")


def _named(plan: _Plan) -> str:
    return ", ".join(f"{layer.node.op_type} {label(layer.node)}" for layer, _, _ in plan)


def _scale_past_offset(state: _Folding, a: Affine, users: list[ir.Node]) -> _Outcome:
    """s·x + t in front of padded convolutions: x + t/s, and s goes into their weights."""
    before = affine(a.x.producer())
    if before is None or a.node.op_type != "Add" or before.shifts or not before.scales or not np.all(before.scale):
        return None
    if sole_user(a.x) is not a.node or before.node.graph is not a.node.graph:
        return None
    scale = replace(before, node=a.node, x=a.node.outputs[0])  # as if it came last
    plan = _plan(state, scale, users)
    offset = np.asarray(a.shift / before.scale)
    if isinstance(plan, str) or cast_like(offset, np.empty(0, plan[0][0].dtype)) is None:
        return None
    name, op = label(before.node), before.node.op_type
    _carry_out(state, scale, plan)
    index = next(i for i, v in enumerate(a.node.inputs) if v is a.constant)
    state.write(a.node, index, offset, plan[0][0].dtype, f"{label(a.node)}_offset")
    a.node.replace_input_with(1 - index, before.x)
    state.editor.remove(before.node)
    state.drop(before.constant)
    return (
        True,
        f"{name}: {op} folded into {_named(plan)} after it, past {label(a.node)}, whose offset is divided by it",
    )


def _prepared(state: _Folding, a: Affine, node: ir.Node) -> tuple[_Layer, Array, Array | None] | str:
    """(layer, new weight, new bias or None) of one convolution, or why it cannot take the constant in."""
    layer = _layer(state, node)
    if layer is None:
        return f"{label(node)} has no constant weights"
    if a.shifts and (node.op_type == "ConvTranspose" or _padded(layer)):
        return f"{label(node)} pads its input with zeros, which would not get the offset"
    s = per_channel(a.scale, layer.inputs, layer.axis, layer.rank)
    t = per_channel(a.shift, layer.inputs, layer.axis, layer.rank)
    if s is None or t is None:
        return f"a constant with {a.rank} axes is not one number per channel ({layer.inputs}) that {label(node)} reads"
    if not _keeps_shape(a, layer):
        return f"the shape of {a.x.name} is unknown or grows by broadcasting"
    if a.scales and (reason := _too_large(state, node)):
        return reason
    weight, bias = layer.scaled_inputs(s), None
    if a.shifts:
        old = node.inputs[2] if len(node.inputs) > 2 else None
        b = state.read(old)
        if old is not None and b is None:
            return f"the bias of {label(node)} is not constant"
        bias = layer.offset(t) + (0 if b is None else b)
    if not layer.fits(weight) or (bias is not None and cast_like(bias, np.empty(0, layer.dtype)) is None):
        return f"{layer.dtype} cannot hold the weights of {label(node)} with the constant"
    return layer, weight, bias


def _padded(layer: _Layer) -> bool:
    """Whether a Conv sees zeros that are no part of its input."""
    if any(attribute(layer.node, "pads", ())):
        return True
    same = attribute(layer.node, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return same and any(d != 1 for d in layer.weight.shape[2:])


def _keeps_shape(a: Affine, layer: _Layer) -> bool:
    """Whether the node's result is certainly shaped like x: no axis of x grows to that of the constant."""
    single = a.scale.size == 1 and a.shift.size == 1
    if single and a.rank < layer.weight.ndim:
        return True
    shape = dims(a.x)
    return shape is not None and len(shape) == layer.weight.ndim and (single or shape[1] == layer.inputs)


def _too_large(state: _Folding, node: ir.Node) -> str | None:
    """Why a weight is not copied."""
    value = node.inputs[1]
    tensor = constant_tensor(value)
    if value is None or tensor is None or len(value.uses()) == 1 or tensor.nbytes <= state.copy_limit_bytes:
        return None
    return f"{value.name} ({tensor.nbytes:,} bytes) is shared by {len(value.uses())} nodes and would be copied"


def _floats(value: ir.Value | None) -> Array | None:
    """A constant of float16, float32 or float64."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype.name not in ("FLOAT16", "FLOAT", "DOUBLE"):
        return None
    return array(value)


def _is(node: ir.Node | None, *op_types: str) -> bool:
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


IMPL: type[Pass] = FoldAffine
