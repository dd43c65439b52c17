"""Element by element: arithmetic, comparison, logic, bits, rounding, and conversion between types."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import at_run_time
from .call import Call, Handler, One, as_sizes, from_sizes
from .dtypes import torch_dtype
from .values import Constant, Size, Sizes, Value

CLAMPS = {"maximum": "min", "minimum": "max"}
"""With a number, these are a bound."""
EITHER_WAY = ("add", "mul", "eq", *CLAMPS)
WITH_NUMBERS = ("add", "sub", "mul", "div", "eq", "gt", "ge", "lt", "le", *CLAMPS)
"""Functions of torch whose second argument may be a Python number."""


def unary(name: str) -> One:
    """A function of torch with one argument."""

    def handler(n: Call) -> Value:
        return n.call(getattr(n.torch, name), n[0])

    return handler


def operand(n: Call, i: int, other: int) -> Any:
    """Input ``i`` of arithmetic with input ``other``: a Python number where it is one constant element.

    Torch computes in the dtype of the tensor then, so the result is the same, and exports see the number.
    """
    value = n[i]
    if not isinstance(value, Constant) or value.tensor.numel() != 1 or (value.name and n.options.scalars):
        return value
    beside = n[other]
    if isinstance(beside, Constant) and not (beside.name and beside.tensor.numel() != 1):
        return Constant(value.tensor)
    shape = n.shape(other)
    number = value.tensor.reshape(()).item()
    fits = shape is not None and len(shape) >= value.tensor.dim() and n.dtype(i) == n.dtype(other)
    return number if fits and not isinstance(number, bool) else Constant(value.tensor)


def both(n: Call) -> tuple[Any, Any]:
    """Inputs 0 and 1; at most one of them as a number."""
    left = operand(n, 0, 1)
    return left, (operand(n, 1, 0) if not isinstance(left, int | float) else n[1])


def on_sizes(n: Call, function: Callable[..., Any]) -> Value | None:
    """The operation on integers that are followed one by one; None when these are not."""
    pairs = _paired(n) if len(n.inputs) == 2 else None
    if pairs is None:
        return None
    made = [n.build.number(function, a, b) for a, b in pairs]
    return from_sizes(n.build, made, scalar=all(n.shape(i) == () for i in (0, 1)))


def binary(name: str, on_size: Callable[..., Any] | None = None) -> One:
    """A function of torch with two arguments that broadcast as in ONNX."""

    def handler(n: Call) -> Value:
        followed = on_sizes(n, on_size) if on_size else None
        if followed is not None:
            return followed
        if name not in WITH_NUMBERS:
            return n.call(getattr(n.torch, name), n[0], n[1])
        left, right = both(n)
        if isinstance(left, int | float) and name in EITHER_WAY:
            left, right = right, left
        elif isinstance(left, int | float):
            left = Constant(n.known(0))
        if name in CLAMPS and isinstance(right, int | float):
            return n.call(n.torch.clamp, left, **{CLAMPS[name]: right})
        return n.call(getattr(n.torch, name), left, right)

    return handler


def div(n: Call) -> Value:
    """Div: truncates integers."""
    if n.floating():
        return binary("div")(n)
    followed = on_sizes(n, operator.floordiv)
    return followed if followed is not None else n.call(n.torch.div, n[0], n[1], rounding_mode="trunc")


def mod(n: Call) -> Value:
    """Mod: the sign of the divisor, or of the dividend with fmod."""
    if n.attr("fmod", 0):
        return n.call(n.torch.fmod, n[0], n[1])
    followed = on_sizes(n, operator.mod)
    return followed if followed is not None else n.call(n.torch.remainder, n[0], n[1])


def power(n: Call) -> Value:
    """Pow: the type of the base."""
    left, right = n[0], operand(n, 1, 0)
    same = isinstance(right, float | int) or n.dtype(0) == n.dtype(1)
    made = n.call(n.torch.pow, left, right)
    return made if same else n.call("to", made, n.dtype(0))


def variadic(name: str) -> One:
    """A function of two arguments over any number of inputs."""
    single = binary(name, _ON_SIZES.get(name))

    def handler(n: Call) -> Value:
        if len(n.inputs) == 2:
            return single(n)
        made = n[0]
        for i in range(1, len(n.inputs)):
            made = n.call(getattr(n.torch, name), made, n[i])
        return made

    return handler


_ON_SIZES = {"maximum": at_run_time.larger, "minimum": at_run_time.smaller, "add": operator.add}


def mean(n: Call) -> Value:
    """Mean of all inputs."""
    return n.call(n.torch.div, variadic("add")(n) if len(n.inputs) > 1 else n[0], float(len(n.inputs)))


def equal(n: Call) -> Value:
    """Equal; of sizes decided at import where it can be: a size is itself, and it is not negative."""
    followed = _paired(n)
    if followed is None:
        return binary("eq")(n)
    decided = [_same(a, b) for a, b in followed]
    if None in decided:
        return binary("eq")(n)
    scalar = all(n.shape(i) == () for i in (0, 1))
    tensor = n.torch.tensor(decided)
    return Constant(tensor[0] if scalar else tensor)


def _same(a: int | Size, b: int | Size) -> bool | None:
    """Whether two sizes are equal; None when only run time knows."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, Size) and isinstance(b, Size):
        return True if a.node is b.node else None
    number = a if isinstance(a, int) else b
    return False if isinstance(number, int) and number < 0 else None


def _paired(n: Call) -> list[tuple[int | Size, int | Size]] | None:
    """Inputs 0 and 1 element by element, when at least one is a list of sizes and both can be followed."""
    left, right = as_sizes(n[0]), as_sizes(n[1])
    if left is None or right is None or not any(isinstance(v, Sizes) for v in n.inputs[:2]):
        return None
    a, b = left.items, right.items
    length = max(len(a), len(b))
    if len(a) not in (1, length) or len(b) not in (1, length):
        return None
    return list(zip(a * length if len(a) == 1 else a, b * length if len(b) == 1 else b, strict=False))


def shift(n: Call) -> Value:
    """BitShift."""
    name = "bitwise_left_shift" if n.attr("direction", "LEFT") == "LEFT" else "bitwise_right_shift"
    return n.call(getattr(n.torch, name), n[0], n[1])


def clip(n: Call) -> Value:
    """Clip: bounds as numbers where they are constant."""
    bounds = limits(n)
    if bounds == [None, None]:
        return n[0]
    made: Value = n[0]
    if any(isinstance(b, Value) for b in bounds):  # the upper bound wins where they cross, in torch as in ONNX
        for bound, function in zip(bounds, (n.torch.maximum, n.torch.minimum), strict=True):
            if bound is not None:
                one = bound if isinstance(bound, Value) else Constant(n.torch.tensor(bound, dtype=n.dtype()))
                made = n.call(function, made, one)
        return made
    return n.call(n.torch.clamp, made, *bounds)


def limits(n: Call) -> list[Any]:
    """Clip's bounds: numbers where they are constant, None where there is none."""
    if n.opset < 11:
        return [n.attr("min"), n.attr("max")]
    return [None if not n.has(i) else n.number(i) for i in (1, 2)]


def cast(n: Call) -> Value:
    """Cast."""
    return convert(n, n.attr("to"))


def cast_like(n: Call) -> Value:
    """CastLike."""
    like = n.node.inputs[1]
    assert like is not None
    if like.dtype is None:
        return n.call("to", n[0], n.dtype(1))
    return convert(n, int(like.dtype))


def bit_cast(n: Call) -> Value:
    """BitCast: the same bits as another type."""
    return n.call("view", n[0], torch_dtype(n.torch, n.attr("to"), n.build.onnx_node))


def convert(n: Call, number: int) -> Value:
    """Input 0 as another ONNX type; sizes stay sizes."""
    import onnx_ir as ir

    value, name = n[0], ir.DataType(number).name
    dtype, saturate = torch_dtype(n.torch, number, n.build.onnx_node), bool(n.attr("saturate", 1))
    if name in ("INT4", "UINT4", "INT2", "UINT2"):
        return n.call(at_run_time.to_bits, value, int(name[-1]), name[0] == "I")
    if isinstance(value, Sizes) and dtype in (n.torch.int32, n.torch.int64):
        return value
    if n.build.dtype(value) == dtype:
        return value
    if isinstance(value, Constant) and value.name:
        value = Constant(value.tensor) if not dtype.is_floating_point else value
    if "float8" in str(dtype):
        return n.call(at_run_time.to_float8, value, dtype, saturate)
    return n.call("to", value, dtype)


def is_inf(n: Call) -> Value:
    """IsInf, of either sign."""
    positive, negative = n.attr("detect_positive", 1), n.attr("detect_negative", 1)
    name = {(1, 1): "isinf", (1, 0): "isposinf", (0, 1): "isneginf"}.get((positive, negative))
    return n.call(getattr(n.torch, name), n[0]) if name else n.call(n.torch.zeros_like, n[0], dtype=n.torch.bool)


def where(n: Call) -> Value:
    """Where; of sizes, sizes."""
    condition = n.constant(0)
    sizes = [as_sizes(n[i]) for i in (1, 2)]
    if condition is not None and condition.dim() < 2 and any(isinstance(v, Sizes) for v in n.inputs[1:]):
        length = max(condition.numel(), *(len(s.items) for s in sizes if s))
        lists = [s.items * length if len(s.items) == 1 else s.items for s in sizes if s]
        chosen = condition.reshape(-1).expand(length).tolist() if condition.numel() in (1, length) else []
        if len(lists) == 2 and all(len(items) >= length for items in lists) and chosen:
            picked = [a if yes else b for yes, a, b in zip(chosen, *lists, strict=False)]
            return from_sizes(n.build, picked, scalar=condition.dim() == 0 and all(s.scalar for s in sizes if s))
    return n.call(n.torch.where, n[0], n[1], n[2])


def identity(n: Call) -> Value:
    """The value itself."""
    return n[0]


def unsigned(handler: Handler, *, decides: bool = False) -> Handler:
    """The same in a wider type for those unsigned ones that torch does not compute with.

    Args:
        handler: Imports one node.
        decides: Whether the result is a truth value.
    """

    def wider(n: Call) -> Value | Sequence[Value | None]:
        torch, dtype = n.torch, n.dtype() if n.inputs and n.inputs[0] is not None else None
        if dtype not in (torch.uint16, torch.uint32, torch.uint64):
            return handler(n)
        inputs = tuple(None if v is None else n.call("to", v, torch.int64) for v in n.inputs)
        made = handler(dataclasses.replace(n, inputs=inputs))
        return made if decides or not isinstance(made, Value) else n.call("to", made, dtype)

    return wider


_COMPUTING: dict[str, Handler] = {
    **{
        op: unary(op.lower())
        for op in """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Reciprocal Round
        Sigmoid Sign Sin Sinh Sqrt Tan Tanh""".split()  # noqa: SIM905
    },
    "Not": unary("logical_not"),
    "BitwiseNot": unary("bitwise_not"),
    "Add": binary("add", operator.add),
    "Sub": binary("sub", operator.sub),
    "Mul": binary("mul", operator.mul),
    "Div": div,
    "Mod": mod,
    "Pow": power,
    "And": binary("logical_and"),
    "Or": binary("logical_or"),
    "Xor": binary("logical_xor"),
    "BitwiseAnd": binary("bitwise_and"),
    "BitwiseOr": binary("bitwise_or"),
    "BitwiseXor": binary("bitwise_xor"),
    "BitShift": shift,
    "Max": variadic("maximum"),
    "Min": variadic("minimum"),
    "Sum": variadic("add"),
    "Mean": mean,
    "Clip": clip,
}
_DECIDING: dict[str, Handler] = {
    "Equal": equal,
    "Greater": binary("gt"),
    "GreaterOrEqual": binary("ge"),
    "Less": binary("lt"),
    "LessOrEqual": binary("le"),
}
OPERATORS: dict[str, Handler] = {
    **{op: unsigned(handler) for op, handler in _COMPUTING.items()},
    **{op: unsigned(handler, decides=True) for op, handler in _DECIDING.items()},
    "Cast": cast,
    "CastLike": cast_like,
    "BitCast": bit_cast,
    "IsInf": is_inf,
    "Where": where,
    "Identity": identity,
}
