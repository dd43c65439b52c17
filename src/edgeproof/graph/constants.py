"""Numbers that a model computes from nothing but constants and shapes.

A stored tensor, a Constant, a Shape of something whose shape is known, and what arithmetic makes of them: worked out by
ONNX's reference implementation, on small tensors only. Where dimensions are open, the entries of a shape computation
are symbols (`Constants.extents`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from .dims import dims, static
from .symbolic import Dim, product

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

SMALL = 4096
"""Elements of the largest tensor that is worked out."""

_ARITHMETIC = frozenset(
    """
    Shape Size Gather GatherND GatherElements Slice Concat Cast CastLike Squeeze Unsqueeze Add Sub Mul Div Mod Neg
    Abs Sign Floor Ceil Round Min Max Where Equal Less LessOrEqual Greater GreaterOrEqual Not And Or Reshape Flatten
    Transpose ReduceProd ReduceSum ReduceMax ReduceMin Identity Split ScatterElements ScatterND NonZero CumSum Pow
    Sqrt Clip
    """.split()  # noqa: SIM905
)
_GROWING = frozenset(
    """
    ConstantOfShape Expand Range Tile
    """.split()  # noqa: SIM905
)


class Constants:
    """The numbers of one model; remembers what it worked out."""

    def __init__(self, model: ir.Model) -> None:
        import onnx

        self._opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
        self._ir_version = model.ir_version or 10
        self._numbers: dict[int, NDArray[Any] | None] = {}

    def number(self, value: ir.Value | None) -> NDArray[Any] | None:
        """The constant behind a value: stored, or worked out from shapes and constants; None when there is none."""
        if value is None:
            return None
        key = id(value)
        if key not in self._numbers:
            self._numbers[key] = None  # ends a cycle in a malformed graph
            self._numbers[key] = self._work_out(value)
        return self._numbers[key]

    def _work_out(self, value: ir.Value) -> NDArray[Any] | None:
        import onnx_ir as ir

        if value.const_value is not None:
            return _small(value.const_value)
        node = value.producer()
        if node is None:
            return None
        if node.op_type == "Constant":
            for attr in node.attributes.values():
                if attr.is_ref():
                    return None
                if attr.type == ir.AttributeType.TENSOR:
                    return _small(attr.value)
                if attr.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
                    return np.asarray(attr.value, np.int64)
                if attr.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
                    return np.asarray(attr.value, np.float32)
            return None
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in ("Shape", "Size"):
            shape = static(node.inputs[0])
            if shape is None:
                return _part_of_shape(node)
            if node.op_type == "Size":
                return np.asarray(int(np.prod(shape)), np.int64)
            end = attribute(node, "end", None)
            return np.asarray(shape[attribute(node, "start", 0) : end], np.int64)
        if node.op_type in _GROWING:
            size = static(value)
            if size is None or int(np.prod(size)) > SMALL:
                return None
        elif node.op_type not in _ARITHMETIC:
            return None
        return self._evaluate(node, value)

    def _evaluate(self, node: ir.Node, value: ir.Value) -> NDArray[Any] | None:
        feeds: dict[str, NDArray[Any]] = {}
        for v in node.inputs:
            if v is None or not v.name:
                continue
            number = self.number(v)
            if number is None:
                return None
            feeds[v.name] = number
        import onnx
        import onnx_ir as ir
        from onnx.reference import ReferenceEvaluator

        proto = ir.to_proto(node)
        names = [o for o in proto.output if o]
        code = onnx.helper.np_dtype_to_tensor_dtype
        inputs = [onnx.helper.make_tensor_value_info(n, code(a.dtype), None) for n, a in feeds.items()]
        graph = onnx.helper.make_graph([proto], "g", inputs, [onnx.ValueInfoProto(name=n) for n in names])
        try:
            model = onnx.helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(model).run(None, feeds)
        except Exception:  # the reference implementation refuses in many ways; the value then stays open
            return None
        for v in node.outputs:
            if v.name in names:
                result = np.asarray(results[names.index(v.name)])
                self._numbers[id(v)] = result if result.size <= SMALL else None
        return self._numbers[id(value)]

    def extents(self, value: ir.Value | None, depth: int = 64) -> list[Dim | None] | None:
        """The entries of a one-dimensional shape computation; an entry is None where it is unknown.

        Args:
            value: What a Reshape or an Expand takes as its target.
            depth: Operators that are followed at most.
        """
        number = self.number(value)
        if number is not None:
            return [int(n) for n in number.reshape(-1)] if number.dtype.kind in "iu" else None
        node = None if value is None else value.producer()
        if node is None or not depth:
            return None
        if node.op_type == "Shape":
            shape = dims(node.inputs[0])
            return None if shape is None else list(shape[attribute(node, "start", 0) : attribute(node, "end", None)])
        inputs = [
            self.extents(v, depth - 1) for v in node.inputs[: len(node.inputs) if node.op_type == "Concat" else 1]
        ]
        if any(e is None for e in inputs) or not inputs:
            return None
        entries = [e for part in inputs for e in part or ()]
        if node.op_type in ("Concat", "Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"):
            return entries
        if node.op_type == "Gather":
            index = self.number(node.inputs[1])
            return (
                None if index is None else [entries[int(n)] for n in index.reshape(-1) if abs(int(n)) <= len(entries)]
            )
        if node.op_type == "Slice":
            bounds = [self.number(v) for v in node.inputs[1:5]]
            if len(bounds) >= 2 and bounds[0] is not None and bounds[1] is not None:
                step = int(bounds[3].reshape(-1)[0]) if len(bounds) > 3 and bounds[3] is not None else 1
                return entries[int(bounds[0].reshape(-1)[0]) : int(bounds[1].reshape(-1)[0]) : step]
            if "starts" in node.attributes:
                return entries[attribute(node, "starts", (0,))[0] : attribute(node, "ends", (None,))[0]]
        return None


def reshaped(data: tuple[Dim | None, ...] | None, target: list[Dim | None]) -> list[Dim | None]:
    """The result of a Reshape with open dimensions: 0 copies, -1 is the quotient where it is a plain product."""
    shape: list[Dim | None] = [
        (data[i] if data is not None and i < len(data) else None) if d == 0 else d for i, d in enumerate(target)
    ]
    if -1 not in shape:
        return shape
    at = shape.index(-1)
    shape[at] = None
    rest = shape[:at] + shape[at + 1 :]
    if data is None or None in data or None in rest:
        return shape
    (have, n), (need, k) = (
        next(iter(product([d for d in part if d is not None]).terms.items()), ((), 0)) for part in (data, rest)
    )
    left = list(have)
    for symbol in need:
        if symbol not in left:
            return shape
        left.remove(symbol)
    if k and n % k == 0:
        shape[at] = n // k if not left else str(product([n // k, *left]))
    return shape


def _small(tensor: ir.TensorProtocol) -> NDArray[Any] | None:
    import onnx_ir as ir

    if isinstance(tensor, ir.ExternalTensor) or tensor.size > SMALL:
        return None
    return tensor.numpy()


def _part_of_shape(node: ir.Node) -> NDArray[Any] | None:
    """``Shape`` with start and end may ask for the static dimensions only."""
    shape = dims(node.inputs[0])
    if shape is None or node.op_type != "Shape":
        return None
    part = shape[attribute(node, "start", 0) : attribute(node, "end", None)]
    numbers = [d for d in part if isinstance(d, int)]
    return np.asarray(numbers, np.int64) if len(numbers) == len(part) else None
