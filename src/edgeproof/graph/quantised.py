"""Ask a quantised graph what it holds as codes, and which of its nodes a runtime can run in integers.

A real tensor is held as codes where a DequantizeLinear reads it back: of an activation the codes come from a
QuantizeLinear, of a weight or a bias they are stored. Nothing here depends on who quantised the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from .rewrite import array, label

if TYPE_CHECKING:
    import onnx_ir as ir

Kind = Literal["activation", "weight", "bias"]
DOMAINS = ("", "ai.onnx", "com.microsoft")
PAIR = ("QuantizeLinear", "DequantizeLinear")
ABSORBED = ("Relu", "Clip")
"""Activations that end where the codes do, so that an integer kernel does their work for nothing."""

OPERANDS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Concat")
"""Operators with integer kernels that want all their operands as codes: one float constant keeps them in float."""

CODES: Mapping[str, tuple[int, int]] = {
    "INT2": (-2, 1),
    "UINT2": (0, 3),
    "INT4": (-8, 7),
    "UINT4": (0, 15),
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT16": (-(2**15), 2**15 - 1),
    "UINT16": (0, 2**16 - 1),
    "INT32": (-(2**31), 2**31 - 1),
}
"""ONNX's integer types of codes, and the least and the greatest code of each."""

OPERATOR_FORM = ("ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
BLOCKED_FORM = ("MatMulNBits", "GatherBlockQuantized")


@dataclass(frozen=True, slots=True)
class Coded:
    """A real tensor that the graph holds as codes.

    Attributes:
        name: Of the real tensor; for a stored one, of its codes.
        kind: What it is.
        dtype: Of the codes, e.g. ``uint8`` or ``int4``.
        scale: Step between codes, float32 [], [C] or blocked.
        zero_point: Code of real zero, shaped like scale.
        axis: Of the channels or blocks; None for one scale.
        block: Numbers to a block; 0 when not blocked.
        codes: Stored codes; None for an activation.
        original: The float weight where the graph keeps it ahead of a pair; else None.
    """

    name: str
    kind: Kind
    dtype: str
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    axis: int | None
    block: int = 0
    codes: NDArray[Any] | None = None
    original: NDArray[np.float32] | None = None

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest real value that has a code, over all channels."""
        low, high = _ends(self.dtype)
        scale = self.scale.astype(np.float64)
        return float(((low - self.zero_point) * scale).min()), float(((high - self.zero_point) * scale).max())

    def real(self) -> NDArray[np.float32] | None:
        """What stored codes are read back as; None for an activation."""
        return None if self.codes is None else _dequantized(self, self.codes)

    def through(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Real values of a tensor with one scale after one trip through the codes."""
        low, high = _ends(self.dtype)
        codes = np.clip(np.rint(x / self.scale) + self.zero_point, low, high)
        return ((codes - self.zero_point) * self.scale).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Computed:
    """A computing node of a quantised graph.

    Attributes:
        node: The node.
        label: What to call it.
        input: Its first input, if that is read back from codes.
        weight: Its second input, if that is a stored tensor read back from codes.
        output: Its output, past an activation that is absorbed, if that is turned into codes.
        precision: ``float``, ``uint8×int8`` (integer input and weight), ``float×int4`` (weights only), ``uint8``
            (integer in and out), with ``→float`` where the result stays real.
    """

    node: ir.Node
    label: str
    input: Coded | None
    weight: Coded | None
    output: Coded | None
    precision: str

    @property
    def integer(self) -> bool:
        """Whether a runtime can run it in integers."""
        return self.precision != "float" and not self.precision.startswith("float")


def coded(graph: ir.Graph) -> dict[str, Coded]:
    """Every tensor of a main graph that is held as codes: name of the value read back → what it is."""
    found: dict[str, Coded] = {}
    for node in graph:
        if node.op_type == "DequantizeLinear" and node.domain in DOMAINS:
            made = _coded(node)
            if made is not None:
                found[node.outputs[0].name or ""] = made
    return found


def is_quantised(graph: ir.Graph) -> bool:
    """Whether a main graph holds anything as codes, in any form."""
    return any(n.op_type in (*PAIR, *OPERATOR_FORM, *BLOCKED_FORM) or n.op_type.startswith("QLinear") for n in graph)


def computed(graph: ir.Graph) -> tuple[Computed, ...]:
    """Every node of a main graph but Q/DQ pairs and constants, in order."""
    held = coded(graph)
    return tuple(_computed(n, held) for n in graph if n.op_type not in (*PAIR, "Constant"))


def _computed(node: ir.Node, held: dict[str, Coded]) -> Computed:
    reads = [held.get(v.name or "") if v is not None else None for v in node.inputs]
    first = reads[0] if reads else None
    activation = first if first is not None and first.kind == "activation" else None
    weight = next((c for c in reads[:2] if c is not None and c.kind == "weight"), None)
    output = _output(node, held)
    return Computed(node, label(node), activation, weight, output, _precision(node, activation, weight, output, reads))


def _precision(
    node: ir.Node, activation: Coded | None, weight: Coded | None, output: Coded | None, reads: list[Coded | None]
) -> str:
    if node.op_type in OPERATOR_FORM or node.op_type.startswith("QLinear"):
        return "integer operator"
    if node.op_type in BLOCKED_FORM:
        return f"float×{attribute(node, 'bits', 4)} bits"
    if weight is not None:
        if activation is None:
            return f"float×{weight.dtype}"
        return f"{activation.dtype}×{weight.dtype}" + ("" if output is not None else "→float")
    if node.op_type in OPERANDS and any((a := array(v)) is not None and a.dtype.kind == "f" for v in node.inputs):
        return "float"
    real = [v for v in node.inputs if v is not None and array(v) is None]
    known = [c for c in reads if c is not None]
    if output is None or not real:
        return "float"
    if activation is not None and len(known) >= len(real):
        return activation.dtype
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node.op_type in ABSORBED and before is not None and before.op_type not in PAIR:
        # The layer ahead of it writes codes that end where it clips.
        return output.dtype
    return "float"


def _output(node: ir.Node, held: dict[str, Coded]) -> Coded | None:
    """The codes that a node's result becomes."""
    if not node.outputs:
        return None
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type in ABSORBED and uses[0].idx == 0:
        uses = list(uses[0].node.outputs[0].uses())
    for use in uses:
        if use.node.op_type == "QuantizeLinear" and use.node.domain in DOMAINS and use.idx == 0:
            for reader in use.node.outputs[0].uses():
                if reader.node.op_type == "DequantizeLinear":
                    return held.get(reader.node.outputs[0].name or "")
    return None


def _coded(node: ir.Node) -> Coded | None:
    source, scale = node.inputs[0], array(node.inputs[1])
    if source is None or scale is None:
        return None
    zero = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    codes = array(source)
    quantize = source.producer()
    name, original = source.name or "", None
    kind: Kind = "activation"
    if codes is not None:
        dtype = codes.dtype.name
        kind = "bias" if dtype == "int32" else "weight"
    elif quantize is not None and quantize.op_type == "QuantizeLinear" and quantize.inputs[0] is not None:
        name = quantize.inputs[0].name or ""
        dtype = zero.dtype.name if zero is not None else _dtype(source, quantize)
        original = array(quantize.inputs[0])
        kind = "activation" if original is None else "weight"
    else:
        return None
    zeros = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    block = int(attribute(node, "block_size", 0))
    axis = int(attribute(node, "axis", 1)) if scale.size > 1 or block else None
    made = Coded(name, kind, dtype, scale.astype(np.float32), zeros, axis, block, codes, original)
    if original is not None and dtype in _RANGES:
        low, high = _ends(dtype)
        wide_scale, wide_zero = _wide(made, original.shape)
        made = Coded(
            name, kind, dtype, made.scale, zeros, axis, block,
            np.clip(np.rint(original / wide_scale) + wide_zero, low, high).astype(np.int64), original,
        )  # fmt: skip
    return made


def _dtype(codes: ir.Value, quantize: ir.Node) -> str:
    if codes.dtype is not None:
        name: str = codes.dtype.numpy().name
        return name
    import onnx_ir as ir

    given = attribute(quantize, "output_dtype", 0)
    return str(ir.DataType(given).numpy().name) if given else "uint8"


_RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "uint4": (0, 15),
    "int4": (-8, 7), "int32": (-(2**31), 2**31 - 1),
}  # fmt: skip


def _ends(dtype: str) -> tuple[int, int]:
    """Lowest and highest code; of the 8-bit float types, what they are good for stands in ``max``."""
    if dtype in _RANGES:
        return _RANGES[dtype]
    import ml_dtypes

    limits: Any = ml_dtypes.finfo
    top = int(float(limits(dtype).max))
    return -top, top


def _dequantized(tensor: Coded, codes: NDArray[Any]) -> NDArray[np.float32]:
    scale, zero = _wide(tensor, codes.shape)
    real: NDArray[np.float32] = ((codes.astype(np.float64) - zero) * scale).astype(np.float32)
    return real


def _wide(tensor: Coded, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scale and zero point shaped to broadcast over a tensor."""
    if tensor.axis is None or tensor.scale.size == 1:
        return tensor.scale.reshape(()), tensor.zero_point.reshape(())
    axis = tensor.axis % len(shape)
    if tensor.block:
        take = np.arange(shape[axis]) // tensor.block
        return tensor.scale.take(take, axis), tensor.zero_point.take(take, axis)
    spread = [-1 if i == axis else 1 for i in range(len(shape))]
    return tensor.scale.reshape(spread), tensor.zero_point.reshape(spread)
