"""Quantise and dequantise: ONNX's numbers exactly, or the calls that torch's own quantisers write.

``exact``: divide, round half to even, add the zero point, saturate. ``decomposed``: calls of
``torch.ops.quantized_decomposed``, which ExecuTorch's and other partitioners look for; they multiply by the reciprocal
of the scale, so a code may differ by one where a value lies within a rounding error of half a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.quantised import CODES
from . import quantising
from .call import Call, Handler
from .dtypes import TORCH
from .values import Constant, Value
from .windows import windows

if TYPE_CHECKING:
    import onnx_ir as ir


def quantize(n: Call) -> Value:
    """QuantizeLinear, per tensor, along an axis, or in blocks."""
    name = _code_type(n, 2, n.node.outputs[0])
    scale, zero = bare(n[1]), bare(n[2]) if n.has(2) else None
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    if name.startswith("FLOAT8"):
        dtype = getattr(n.torch, TORCH[name])
        return n.call(quantising.quantize_float8, n[0], scale, dtype, axis, block, bool(n.attr("saturate", 1)))
    low, high = _range(n, name)
    dtype = getattr(n.torch, TORCH[name])
    if n.options.quantised == "decomposed" and not block:
        made = _decomposed(n, "quantize", n[0], scale, zero, (axis, low, high, dtype))
        if made is not None:
            return made
    scale, zero = _aligned(n, scale, axis, block), None if zero is None else _aligned(n, zero, axis, block)
    wide = n.torch.float64 if name == "INT32" else n.torch.float32
    steps = n.build.emit(n.torch.round, n.build.emit(n.torch.div, _in(n, n[0], wide), _in(n, scale, wide)))
    if zero is not None and not _zero(zero):
        steps = n.build.emit(n.torch.add, steps, _in(n, zero, wide))
    return n.build.emit("to", n.build.emit(n.torch.clamp, steps, low, high), dtype)


def dequantize(n: Call) -> Value:
    """DequantizeLinear, per tensor, along an axis, or in blocks."""
    source = n.node.inputs[0]
    known = source.dtype.name if source is not None and source.dtype is not None else str(n.dtype())
    name = known.removeprefix("torch.").upper()
    scale, zero = bare(n[1]), bare(n[2]) if n.has(2) else None
    axis, block, codes = n.attr("axis", 1), n.attr("block_size", 0), n[0]
    if n.options.quantised == "decomposed" and not block and name in CODES and name != "INT32":
        low, high = CODES[name]
        made = _decomposed(n, "dequantize", codes, scale, zero, (axis, low, high, getattr(n.torch, TORCH[name])))
        if made is not None:
            return made
    # A bias in 32 bits is a number like any other to what runs the graph.
    call = n.call if n.options.quantised == "decomposed" and name == "INT32" else n.build.emit
    target = n.build.dtype(scale) or n.torch.float32
    scale = _aligned(n, scale, axis, block)
    made_of: Any = _in(n, codes, target) if n.floating() else call("to", codes, target)
    if zero is not None and not _zero(zero):
        zero = _aligned(n, zero, axis, block)
        wide = target if n.floating() else n.torch.int32
        made_of = call(n.torch.sub, _in(n, codes, wide), _in(n, zero, wide))
        made_of = made_of if wide == target else call("to", made_of, target)
    return call(n.torch.mul, made_of, scale)


def bare(value: Value) -> Value:
    """The same tensor, which is not to be trained."""
    return Constant(value.tensor, label=value.label) if isinstance(value, Constant) else value


def _code_type(n: Call, at: int, output: ir.Value) -> str:
    """Name of the ONNX type of the codes."""
    import onnx_ir as ir

    zero = n.node.inputs[at] if len(n.node.inputs) > at else None
    if zero is not None and zero.dtype is not None:
        return zero.dtype.name
    asked = n.attr("output_dtype", 0)
    if asked:
        return ir.DataType(asked).name
    if zero is not None and n.has(at) and n.dtype(at) is not None:
        return str(n.dtype(at)).removeprefix("torch.").upper()
    return output.dtype.name if output.dtype is not None and output.dtype.name in CODES else "UINT8"


def _range(n: Call, name: str) -> tuple[int, int]:
    if name not in CODES:
        raise n.refused(
            f"quantises to {name.lower()}, which torch does not have", f"quantise to one of {', '.join(CODES)}"
        )
    return CODES[name]


def _zero(value: Value) -> bool:
    return isinstance(value, Constant) and not any(value.tensor.reshape(-1).tolist())


def _in(n: Call, value: Value, dtype: Any) -> Value:
    return value if n.build.dtype(value) == dtype else n.call("to", value, dtype)


def _aligned(n: Call, value: Value, axis: int, block: int) -> Value:
    """A scale or zero point in a shape that broadcasts over the tensor."""
    shape = n.build.shape(value)
    if shape is None or block:
        return n.call(quantising.aligned, value, n[0], axis, block)
    if math.prod(s or 0 for s in shape) == 1:
        return value if not shape else n.call(n.torch.reshape, value, [])
    rank = n.rank()
    return n.call(n.torch.reshape, value, [-1 if i == axis % rank else 1 for i in range(rank)])


def _decomposed(
    n: Call, verb: str, x: Value, scale: Value, zero: Value | None, how: tuple[int, int, int, Any]
) -> Value | None:
    """A call of quantized_decomposed; None when the scale is not known at import or the tensor is not float32."""
    quantising.register()
    axis, low, high, dtype = how
    if not isinstance(scale, Constant) or (zero is not None and not isinstance(zero, Constant)):
        return None
    ops, torch = n.torch.ops.quantized_decomposed, n.torch
    if scale.tensor.dtype != torch.float32:
        return None
    if scale.tensor.numel() == 1:
        point = 0 if zero is None else int(zero.tensor.reshape(()))
        function = getattr(ops, f"{verb}_per_tensor").default
        return n.build.emit(function, bare(x), float(scale.tensor.reshape(())), point, low, high, dtype)
    points = torch.zeros(scale.tensor.shape, dtype=torch.int64) if zero is None else zero.tensor.to(torch.int64)
    function = getattr(ops, f"{verb}_per_channel").default
    held = bare(x) if verb == "dequantize" else x
    return n.build.emit(function, held, scale, Constant(points), axis % n.rank(), low, high, dtype)


def dynamic_quantize(n: Call) -> Sequence[Value]:
    """DynamicQuantizeLinear."""
    return n.calls(quantising.dynamic_quantize, 3, n[0])


def qlinear_matmul(n: Call) -> Value:
    """QLinearMatMul."""
    return n.call(quantising.qlinear_matmul, *(bare(n[i]) for i in range(8)))


def qlinear_conv(n: Call) -> Value:
    """QLinearConv, exact in float64."""
    w = windows(n, [int(s or 0) for s in (n.shape(3) or ())[2:]])
    bias = bare(n[8]) if n.has(8) else None
    return n.call(
        quantising.qlinear_conv,
        *(bare(n[i]) for i in range(8)),
        bias,
        w.how(n.attr("group", 1))[1:],
    )


def conv_integer(n: Call) -> Value:
    """ConvInteger, exact in float64."""
    w = windows(n, [int(s or 0) for s in (n.shape(1) or ())[2:]])
    zeros = [bare(n[i]) if n.has(i) else None for i in (2, 3)]
    return n.call(quantising.conv_integer, n[0], n[1], *zeros, w.how(n.attr("group", 1))[1:])


OPERATORS: dict[str, Handler] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
    "ConvInteger": conv_integer,
}
