"""Turn a float32 graph into a float16 one around islands that stay float32.

Every float32 value has one native precision, that of the node that makes it; a reader of the other precision gets it
through one Cast, shared by all such readers. Which operators exist in float16 comes from ONNX's schemas; on top of
them, `FULL_OPS` stay float32 because their result depends on exact values or their dtype is an attribute, and
`FULL_INPUTS` because they are coordinates. Nodes with subgraphs, of other domains and with values of unknown dtype are
islands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from .rewrite import Editor, array, constant_tensor, label, subgraphs

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

LARGEST = 65504.0
"""The largest float16."""

SMALLEST_NORMAL = 2.0**-14
"""Below this, float16 loses digits one by one."""

FLUSHED = 2.0**-25
"""Up to this, rounding to float16 gives zero."""

FULL_OPS = frozenset(
    """
    Bernoulli BlackmanWindow CumProd CumSum DFT DequantizeLinear DynamicQuantizeLinear EyeLike HammingWindow HannWindow
    MelWeightMatrix Multinomial NegativeLogLikelihoodLoss NonMaxSuppression QuantizeLinear RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike Range RoiAlign STFT SequenceEmpty SoftmaxCrossEntropyLoss TopK Upsample
    """.split()  # noqa: SIM905
)

FULL_INPUTS = {"Resize": (1, 2)}
"""Operator → inputs that stay float32."""

CLAMPED = frozenset({"Add", "Clip", "Concat", "Max", "Min", "Pad", "Sub", "Where"})
"""Operators for which a constant beyond float16 means "as large as can be" (attention masks write -3.4e38)."""


@dataclass(slots=True)
class Halving:
    """A graph on its way to float16.

    Attributes:
        editor: The clone that is changed in place.
        keep_io: Inputs and outputs of the model stay float32.
        islands: Key of a node → why it stays float32.
        clamped: (node, what) for constants that were cut to float16's range.
        halved: Keys of the nodes that compute in float16.
    """

    editor: Editor
    keep_io: bool
    islands: dict[str, str]
    clamped: list[tuple[str, str]] = field(default_factory=list)
    halved: list[str] = field(default_factory=list)
    _half: set[int] = field(default_factory=set)
    _casts: dict[tuple[int, bool], ir.Value] = field(default_factory=dict)

    def run(self) -> None:
        """Convert."""
        graph = self.editor.model.graph
        nodes = list(graph)
        halves = []
        for node in nodes:
            reason = self.islands.get(key(node)) or self._unfit(node) or self._weight_problem(node)
            if reason is None:
                halves.append(node)
                self._half.update(id(v) for v in node.outputs if is_float(v))
            elif any(is_float(v) for v in [*node.inputs, *node.outputs]):
                self.islands[key(node)] = reason
        if not self.keep_io:
            for value in graph.inputs:
                if is_float(value) and not value.is_initializer():
                    self._half.add(id(value))
        wanted = {id(n) for n in halves}
        for node in nodes:
            self._rewire(node, half=id(node) in wanted)
        self._outputs(graph)
        for value in [*graph.inputs, *(v for n in halves for v in n.outputs)]:
            if id(value) in self._half:
                value.type = _tensor_type(half=True)
        self.halved = [key(n) for n in halves if any(is_half(v) for v in [*n.inputs, *n.outputs])]

    def _unfit(self, node: ir.Node) -> str | None:
        """Why an operator cannot compute in float16, whatever its values are."""
        if node.domain not in ("", "ai.onnx"):
            return f"the operator is of domain {node.domain}"
        if node.op_type == "Constant":
            return "a constant that is an output keeps its dtype"
        if any(True for _ in subgraphs(node)):
            return "it holds a subgraph, which stays float32 as a whole"
        if node.op_type in FULL_OPS:
            return f"{node.op_type} stays float32: its result hangs on exact values, or its dtype is fixed"
        if any(v is not None and not _tensor(v) for v in [*node.inputs, *node.outputs] if v is None or v.name):
            return "the dtype of one of its values is unknown or not a tensor"
        types = _schema_types(node, self.editor.opset)
        if types is None:
            return "the operator is not in the ONNX standard of this opset"
        inputs, outputs = types
        shared = set()
        for out, (symbol, allowed) in zip(node.outputs, outputs, strict=False):
            if is_float(out) and "tensor(float16)" not in allowed:
                return f"{node.op_type} has no float16 form"
            shared.add(symbol)
        for value, (symbol, allowed) in zip(node.inputs, inputs, strict=False):
            if is_float(value) and "tensor(float16)" not in allowed and symbol in shared:
                return f"{node.op_type} has no float16 form"
        return None

    def _weight_problem(self, node: ir.Node) -> str | None:
        """Why a constant operand forbids float16; constants that may be clamped are none."""
        full = full_inputs(node, self.editor.opset)
        for i, value in enumerate(node.inputs):
            constant = array(value) if value is not None and is_float(value) and i not in full else None
            if constant is None or not constant.size or value is None:
                continue
            finite = np.abs(constant[np.isfinite(constant)])
            largest = float(finite.max()) if finite.size else 0.0
            if largest > LARGEST and node.op_type not in CLAMPED:
                return f"its constant {value.name} reaches {largest:.3g}, beyond float16's {LARGEST:.0f}"
            if 0 < largest <= FLUSHED:
                return f"its constant {value.name} is at most {largest:.3g}, which is 0 in float16"
            smallest_matters = node.op_type in ("Div", "Pow", "Log", "Reciprocal")
            if smallest_matters and bool(((finite > 0) & (finite <= FLUSHED)).any()):
                return f"its constant {value.name} has entries that are 0 in float16"
        return None

    def _rewire(self, node: ir.Node, *, half: bool) -> None:
        import onnx_ir as ir

        full = full_inputs(node, self.editor.opset) if half else set()
        for i, value in enumerate(node.inputs):
            if value is not None and is_float(value):
                node.replace_input_with(i, self._version(value, node, half=half and i not in full))
        for inner in subgraphs(node):
            self._rewire_subgraph(inner)
        if not half:
            return
        if node.op_type == "Cast" and attribute(node, "to", 0) == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT16))
        if node.op_type == "ConstantOfShape":
            value = attribute(node, "value", None)
            numbers = np.zeros(1, np.float16) if value is None else value.numpy()
            if numbers.dtype == np.float32 or value is None:
                node.attributes["value"] = ir.AttrTensor("value", ir.tensor(numbers.astype(np.float16)))

    def _rewire_subgraph(self, inner: ir.Graph) -> None:
        """Let a subgraph read the float32 version of what it takes from outside."""
        for node in inner:
            for i, value in enumerate(node.inputs):
                if value is not None and id(value) in self._half:
                    node.replace_input_with(i, self._version(value, node, half=False))
            for deeper in subgraphs(node):
                self._rewire_subgraph(deeper)
        for i, value in enumerate(inner.outputs):
            if id(value) in self._half:
                inner.outputs[i] = self._version(value, None, half=False)

    def _version(self, value: ir.Value, reader: ir.Node | None, *, half: bool) -> ir.Value:
        """The value in a precision, by one shared Cast or a converted constant."""
        if constant_tensor(value) is not None:
            return self._constant(value, reader) if half else value
        if (id(value) in self._half) == half:
            return value
        if (id(value), half) not in self._casts:
            self._casts[id(value), half] = self._cast(value, half=half)
        return self._casts[id(value), half]

    def _constant(self, value: ir.Value, reader: ir.Node | None) -> ir.Value:
        numbers, graph = array(value), self.editor.model.graph
        assert numbers is not None
        if (id(value), True) not in self._casts:
            self._casts[id(value), True] = self.editor.constant(graph, f"{value.name}_half", to_half(numbers))
            finite = np.abs(numbers[np.isfinite(numbers)])
            if reader is not None and finite.size and finite.max() > LARGEST:
                self.clamped.append((label(reader), f"constant {value.name} was cut to ±{LARGEST:.0f}"))
        return self._casts[id(value), True]

    def _cast(self, value: ir.Value, *, half: bool) -> ir.Value:
        import onnx_ir as ir

        graph = self.editor.model.graph
        name = self.editor.fresh(f"{value.name}_{'half' if half else 'full'}")
        shape = value.shape.copy() if value.shape is not None else None
        out = ir.Value(name=name, type=_tensor_type(half=half), shape=shape)
        to = int(ir.DataType.FLOAT16 if half else ir.DataType.FLOAT)
        node = ir.node("Cast", [value], {"to": to}, outputs=[out], name=name)
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, node)
        elif len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)
        return out

    def _outputs(self, graph: ir.Graph) -> None:
        """Give every output its declared dtype under its own name (float16 when the interface is converted too)."""
        for i, value in enumerate(list(graph.outputs)):
            if not is_float(value) or value.producer() is None or constant_tensor(value) is not None:
                continue
            half = id(value) in self._half
            if half != self.keep_io:
                continue
            name = value.name
            other = self._version(value, None, half=not half)
            value.name = self.editor.fresh(f"{name}_{'half' if half else 'full'}_out")
            other.name = name
            graph.outputs[i] = other


def key(node: ir.Node) -> str:
    """What identifies a node across clones: its first output."""
    return next((v.name for v in node.outputs if v.name), "") or label(node)


def full_inputs(node: ir.Node, opset: int) -> set[int]:
    """Positions whose operand stays float32 even when the node computes in float16."""
    full = set(FULL_INPUTS.get(node.op_type, ()))
    types = _schema_types(node, opset)
    if types is not None:
        full |= {i for i, (_, allowed) in enumerate(types[0]) if "tensor(float16)" not in allowed}
    return full


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    import onnx_ir as ir

    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT


def is_half(value: ir.Value | None) -> bool:
    """Whether a value is a float16 tensor."""
    import onnx_ir as ir

    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT16


def to_half(numbers: NDArray[Any]) -> NDArray[np.float16]:
    """Round to float16; finite values beyond its range become the largest, infinities stay.

    >>> to_half(np.float32([1e6, -np.inf, 0.1])).tolist()
    [65504.0, -inf, 0.0999755859375]
    """
    clipped = np.where(np.isfinite(numbers), np.clip(numbers, -LARGEST, LARGEST), numbers)
    return clipped.astype(np.float16)


def _tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.UNDEFINED


def _tensor_type(*, half: bool) -> ir.TensorType:
    import onnx_ir as ir

    return ir.TensorType(ir.DataType.FLOAT16 if half else ir.DataType.FLOAT)


def _schema_types(
    node: ir.Node, opset: int
) -> tuple[list[tuple[str, frozenset[str]]], list[tuple[str, frozenset[str]]]] | None:
    """(type symbol, allowed types) of every input and output of a node; None for an operator without a schema."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None

    def of(formals: Any, count: int) -> list[tuple[str, frozenset[str]]]:
        return [
            (formals[min(i, len(formals) - 1)].type_str, frozenset(formals[min(i, len(formals) - 1)].types))
            for i in range(count if formals else 0)
        ]

    return of(schema.inputs, len(node.inputs)), of(schema.outputs, len(node.outputs))
