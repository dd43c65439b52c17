"""What each of tinygrad's functions is in ONNX. A function that is not here is written as those that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .onnx_writer import Emitter, Site, numpy_dtype
from .recorder import Known, code_of
from .tinygrad_layers import LAYERS, layer_norm
from .tinygrad_windows import WINDOWS

UNARY = {
    "abs": "Abs",
    "ceil": "Ceil",
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "hardswish": "HardSwish",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow"}
EITHER = {"maximum": "Max", "minimum": "Min"}
COMPARED = {"__lt__": "Less", "__gt__": "Greater", "__le__": "LessOrEqual", "__ge__": "GreaterOrEqual", "eq": "Equal"}
END = np.iinfo(np.int64).min


def known() -> list[Known]:
    """All that is recorded whole."""
    from tinygrad import Tensor, nn
    from tinygrad.mixin.movement import MovementMixin

    wants: dict[str, Any] = {"__getitem__": _one_table, "max_pool2d": lambda a: not a["return_indices"]}
    special = {"layer_pad": MovementMixin.pad, "pad_to": MovementMixin.pad_to}
    found = [
        Known(op, code_of(special[op] if op in special else getattr(Tensor, op)), wants.get(op, _always))
        for op in FUNCTIONS
    ]
    tracked = {"BatchNorm": lambda a: a["self"].track_running_stats}
    layers = [Known(op, getattr(nn, op).__call__.__code__, tracked.get(op, _always)) for op in LAYERS]
    return found + layers


def _always(_args: Mapping[str, Any]) -> bool:
    return True


def _unary(op: str) -> Emitter:
    return lambda s: s.node(op, s.cast(s.value(), s.tensor(), s.result))


def operand(s: Site, name: str, like: Any) -> Any:
    """An operand of arithmetic, a tensor or a number, in a type."""
    if s.is_tensor(name):
        return s.cast(s.value(name), s.tensor(name), like)
    return s.writer.number(s.number(name), numpy_dtype(like))


def _binary(op: str) -> Emitter:
    def emit(s: Site) -> Any:
        pair = [operand(s, "self", s.result), operand(s, "x", s.result)]
        return s.node(op, *(pair[::-1] if s.call.args.get("reverse") else pair))

    return emit


def _compared(op: str, negated: bool = False) -> Emitter:
    def emit(s: Site) -> Any:
        like = s.tensor()
        if s.is_tensor("x"):
            like = _wider(like, s.tensor("x"))
        elif isinstance(s.number("x"), float) and not like.is_floating_point():
            from tinygrad import dtypes

            like = dtypes.float32
        made = s.node(op, operand(s, "self", like), operand(s, "x", like))
        return s.node("Not", made) if negated else made

    return emit


def _wider(a: Any, b: Any) -> Any:
    from tinygrad.dtype import least_upper_dtype

    return least_upper_dtype(a.dtype, b.dtype)


def _div(s: Site) -> Any:
    rounding = s.number("rounding_mode")
    if rounding not in (None, "floor") or (rounding and not s.result.is_floating_point()):
        raise s.refused(f"divides whole numbers (rounding {rounding})", "divide floats")
    made = _binary("Div")(s)
    return s.node("Floor", made) if rounding else made


def _where(s: Site) -> Any:
    return s.node("Where", s.value(), operand(s, "x", s.result), operand(s, "y", s.result))


def _cast(s: Site) -> Any:
    return s.cast(s.value(), s.tensor(), s.result)


def _clamp(s: Site) -> Any:
    found = s.value()
    for name, op in (("min_", "Max"), ("max_", "Min")):
        if s.has(name) and s.is_tensor(name):
            found = s.node(op, found, operand(s, name, s.result))
    ends = [operand(s, n, s.result) if s.has(n) and not s.is_tensor(n) else None for n in ("min_", "max_")]
    return s.node("Clip", found, *ends) if any(e is not None for e in ends) else found


def _gelu(s: Site) -> Any:
    x, like = s.value(), numpy_dtype(s.result)
    w = s.writer
    if s.number("approximate") == "none":
        inner = s.node("Erf", s.node("Div", x, w.number(math.sqrt(2), like)))
    else:
        cube = s.node("Mul", s.node("Mul", x, x), x)
        sum_ = s.node("Add", x, s.node("Mul", cube, w.number(0.044715, like)))
        inner = s.node("Tanh", s.node("Mul", sum_, w.number(math.sqrt(2 / math.pi), like)))
    return s.node("Mul", s.node("Mul", x, w.number(0.5, like)), s.node("Add", inner, w.number(1, like)))


def _silu(s: Site) -> Any:
    x = s.value()
    return s.node("Mul", x, s.node("Sigmoid", x))


def _softmax(op: str) -> Emitter:
    return lambda s: s.node(op, s.cast(s.value(), s.tensor(), s.result), axis=s.number("axis"))


def _reduce(op: str) -> Emitter:
    def emit(s: Site) -> Any:
        axes, kept = _axes(s), int(bool(s.number("keepdim")))
        x = s.cast(s.value(), s.tensor(), s.result)
        if op == "ReduceSum":
            return s.node(op, x, s.ints(axes), keepdims=kept)
        return s.node(op, x, axes=axes, keepdims=kept)

    return emit


def _axes(s: Site) -> list[int]:
    axis, rank = s.number("axis"), s.tensor().ndim
    given = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    return sorted({a % rank for a in given})


def _argmax(s: Site) -> Any:
    from tinygrad import dtypes

    if s.number("axis") is None:
        raise s.refused("looks for the largest of all values", "flatten the tensor and give an axis")
    found = s.node("ArgMax", s.value(), axis=s.number("axis"), keepdims=int(bool(s.number("keepdim"))))
    return s.cast(found, dtypes.int64, s.result)


def _dot(s: Site) -> Any:
    return s.node("MatMul", operand(s, "self", s.result), operand(s, "w", s.result))


def _linear(s: Site) -> Any:
    """A Gemm on the layer's own weight where it is one; else a product and a sum."""
    weight = s.call.args["weight"]
    made_of = s.writer.first.calls[weight.call] if weight.kind == "made" else None
    source = made_of.args.get("self") if made_of is not None and made_of.op == "permute" else None
    bias = s.value("bias") if s.has("bias") else None
    flat = s.tensor().ndim == 2 and weight.tensor.ndim == 2
    if flat and source is not None and source.kind == "stored":
        return s.node("Gemm", s.value(), s.writer.value(source, source, s), bias, transB=1)
    if flat:
        return s.node("Gemm", s.value(), s.value("weight"), bias)
    made = s.node("MatMul" if weight.tensor.ndim > 1 else "Mul", s.value(), s.value("weight"))
    return made if bias is None else s.node("Add", made, bias)


def _reshape(s: Site) -> Any:
    return s.reshaped(s.value(), s.shape())


def _permute(s: Site) -> Any:
    given = s.number("order")
    order = given if isinstance(given, tuple) else (given, *s.number("args"))
    return s.node("Transpose", s.value(), perm=[o % len(order) for o in order])


def _expand(s: Site) -> Any:
    return s.node("Expand", s.value(), s.writer.sizes(s.shape(), s))


def _shrink(s: Site) -> Any:
    one, other = s.both("arg")
    found = []
    for axis, (size, a, b) in enumerate(zip(s.shape("self"), one, other, strict=True)):
        if a is None or (tuple(a) == (0, size[0]) and tuple(b) == (0, size[1])):
            continue
        if tuple(a) != tuple(b):
            raise s.refused("cuts at a place that follows the batch", "cut along other axes")
        found.append((axis, *map(int, a)))
    axes, starts, ends = zip(*found, strict=True)
    return s.node("Slice", s.value(), s.ints(starts), s.ints(ends), s.ints(axes))


def _flip(s: Site) -> Any:
    given, rank = s.number("axis"), s.tensor().ndim
    axes = [a % rank for a in (given if isinstance(given, tuple) else (given, *s.number("args")))]
    n = len(axes)
    return s.node("Slice", s.value(), s.ints([-1] * n), s.ints([END] * n), s.ints(axes), s.ints([-1] * n))


def _pad(s: Site) -> Any:
    given, mode = s.number("padding"), s.number("mode")
    rank = s.tensor().ndim
    if any(p is None or isinstance(p, tuple) for p in given):
        pairs = [(0, 0) if p is None else p for p in given]
    else:
        flat = list(zip(given[::2], given[1::2], strict=True))[::-1]
        pairs = [(0, 0)] * (rank - len(flat)) + flat
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if mode not in modes:
        raise s.refused(f"pads in mode {mode!r}", f"use one of {', '.join(modes)}")
    return padded(s, pairs, modes[mode], s.number("value"))


def padded(s: Site, pairs: Any, mode: str = "constant", value: float = 0.0) -> Any:
    """Pad, by (before, after) per axis."""
    sizes = s.ints([int(a) for a, _ in pairs] + [int(b) for _, b in pairs])
    fill = [s.writer.number(value, numpy_dtype(s.result))] if mode == "constant" else []
    return s.node("Pad", s.value(), sizes, *fill, mode=mode)


def _pad_arg(s: Site) -> Any:
    return padded(s, [(0, 0) if p is None else p for p in s.number("arg")])


def _pad_to(s: Site) -> Any:
    grown = [(0, b - a) for (a, _), (b, _) in zip(s.shape("self"), s.shape(), strict=True)]
    return padded(s, grown)


def _cat(s: Site) -> Any:
    parts = [operand(s, "self", s.result), *s.values("args")]
    return s.node("Concat", *parts, axis=s.number("dim"))


def _stack(s: Site) -> Any:
    axis = s.number("dim") % s.result.ndim
    parts = [s.node("Unsqueeze", v, s.ints([axis])) for v in (s.value(), *s.values("args"))]
    return s.node("Concat", *parts, axis=axis)


def _gather(s: Site) -> Any:
    return s.node("GatherElements", s.value(), s.value("index"), axis=s.number("dim"))


def _one_table(args: Mapping[str, Any]) -> bool:
    """Whether an index is one tensor along one axis."""
    from tinygrad import Tensor

    indices = args["indices"] if isinstance(args["indices"], tuple) else (args["indices"],)
    whole = [i == slice(None) for i in indices if not isinstance(i, Tensor)]
    return all(whole) and len(whole) == len(indices) - 1


def _getitem(s: Site) -> Any:
    indices = s.call.args["indices"]
    axis = next(i for i, v in enumerate(indices) if hasattr(v, "tensor")) if isinstance(indices, tuple) else 0
    other = s.both("indices")[1]
    pair = (indices[axis], other[axis]) if isinstance(indices, tuple) else (indices, other)
    return s.node("Gather", s.value(), s.writer.value(*pair, s), axis=axis)


def _einsum(s: Site) -> Any:
    operands = s.call.args["operands"]
    if len(operands) == 1 and isinstance(operands[0], tuple):
        raise s.refused("is called with a list of tensors", "give them one by one")
    return s.node("Einsum", *s.values("operands"), equation=s.number("formula").replace(" ", ""))


def _same(s: Site) -> Any:
    return s.value()


FUNCTIONS: dict[str, Emitter] = {
    **{name: _unary(op) for name, op in UNARY.items()},
    **{name: _binary(op) for name, op in {**BINARY, **EITHER}.items()},
    **{name: _compared(op) for name, op in COMPARED.items()},
    "ne": _compared("Equal", negated=True),
    "logical_not": lambda s: s.node("Not", operand(s, "self", s.result)),
    "div": _div,
    "where": _where,
    "cast": _cast,
    "clamp": _clamp,
    "square": lambda s: s.node("Mul", s.value(), s.value()),
    "rsqrt": lambda s: s.node("Reciprocal", s.node("Sqrt", s.value())),
    "gelu": _gelu,
    "silu": _silu,
    "swish": _silu,
    "leaky_relu": lambda s: s.node("LeakyRelu", s.value(), alpha=float(s.number("neg_slope"))),
    "elu": lambda s: s.node("Elu", s.value(), alpha=float(s.number("alpha"))),
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "sum": _reduce("ReduceSum"),
    "mean": _reduce("ReduceMean"),
    "max": _reduce("ReduceMax"),
    "min": _reduce("ReduceMin"),
    "argmax": _argmax,
    "dot": _dot,
    "linear": _linear,
    "einsum": _einsum,
    "layernorm": layer_norm,
    "reshape": _reshape,
    "permute": _permute,
    "_broadcast_to": _expand,
    "shrink": _shrink,
    "flip": _flip,
    "pad": _pad,
    "layer_pad": _pad_arg,
    "pad_to": _pad_to,
    "cat": _cat,
    "stack": _stack,
    "gather": _gather,
    "__getitem__": _getitem,
    "contiguous": _same,
    "detach": _same,
    **WINDOWS,
}
"""Function → what writes it."""
