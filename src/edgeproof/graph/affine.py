"""Read nodes as ``scale·x + shift`` with constant numbers: Add, Sub, Mul, Div and inference BatchNormalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from .dims import dims
from .rewrite import array, constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

Array = NDArray[Any]

MIN_OPSET = 7
"""Below this, arithmetic broadcasts by attributes instead of by NumPy's rules."""

_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True, slots=True)
class Affine:
    """A node that computes ``scale·x + shift``.

    Attributes:
        node: Add, Sub, Mul, Div or BatchNormalization.
        x: The operand that is not constant.
        constants: The other ones.
        scale: Float64, shaped like the constant, or a 0-d one; [C] for a batch norm.
        shift: Float64, shaped like the constant, or a 0-d zero; [C] for a batch norm.
        rank: Rank of the constant, which may exceed that of x.
        by_channel: The numbers lie along axis 1, counted from the front, whatever the rank of x.
    """

    node: ir.Node
    x: ir.Value
    constants: tuple[ir.Value, ...]
    scale: Array
    shift: Array
    rank: int
    by_channel: bool = False

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
        if self.by_channel or self.scale.size != 1 or self.shift.size != 1 or self.rank > len(shape or ()):
            return None
        return self.scale.item(), self.shift.item()

    def per_channel(self, channels: int, axis: int, rank: int | None) -> tuple[Array, Array] | None:
        """Scale and shift as one number per channel, float64 [channels] each.

        Args:
            channels: Size of the channel axis of x.
            axis: That axis, counted from the end (negative).
            rank: Rank of x; None when unknown, then a constant may reach only as far as the channel axis.

        Returns:
            None when a number varies along another axis, there are more or fewer channels, or the rank is raised.
        """
        if self.by_channel:
            fits = rank is not None and rank + axis == 1 and self.scale.size == channels
            return (self.scale, self.shift) if fits else None
        s, t = (_per_channel(c, channels, axis, rank) for c in (self.scale, self.shift))
        return None if s is None or t is None else (s, t)


def affine(node: ir.Node | None) -> Affine | None:
    """Read an arithmetic node as ``scale·x + shift``; None when it is not one, or both or neither operand is constant.

    >>> import numpy as np, onnx_ir as ir
    >>> c = ir.Value(name="c", const_value=ir.tensor(np.float32([4]), name="c"))
    >>> graph = ir.Graph([], [], nodes=[], initializers=[c])
    >>> a = affine(ir.node("Sub", [c, ir.Value(name="x")]))
    >>> float(a.scale), float(a.shift[0])
    (-1.0, 4.0)
    """
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in _ARITHMETIC:
        return None
    left, right = node.inputs
    a, b = floats(left), floats(right)
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
    return Affine(node, x, (constant,), scale, shift, c.ndim)


def batch_norm(node: ir.Node, opset: int) -> Affine | str:
    """Read an inference BatchNormalization: ``γ·(x − μ)/√(σ² + ε) + β``, one scale and one shift per channel.

    Returns:
        It, or why it is none. Source: ONNX BatchNormalization-15.
    """
    if attribute(node, "training_mode", 0) or (opset < 7 and not attribute(node, "is_test", 0)):
        return "it is in training mode"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "its running statistics are read"
    if attribute(node, "spatial", 1) == 0:
        return "its statistics are per element, not per channel"
    x, parameters = node.inputs[0], [v for v in node.inputs[1:5] if v is not None]
    shape = dims(x)
    if x is None or (shape is not None and len(shape) < 2):
        return "its input has no channel axis"
    numbers = [n.astype(np.float64) for v in parameters if (n := floats(v)) is not None and n.ndim == 1]
    if len(numbers) != 4:
        return "its parameters are not constant"
    gamma, beta, mean, variance = numbers
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return "its scale or shift is not finite"
    return Affine(node, x, tuple(parameters), scale, shift, 1, by_channel=True)


def floats(value: ir.Value | None) -> Array | None:
    """A constant of float16, float32 or float64."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype.name not in ("FLOAT16", "FLOAT", "DOUBLE"):
        return None
    return array(value)


def _per_channel(c: Array, channels: int, axis: int, rank: int | None) -> Array | None:
    if c.ndim > (-axis if rank is None else rank):
        return None
    others = [d for i, d in enumerate(c.shape, start=-c.ndim) if i != axis]
    size = c.shape[axis] if c.ndim >= -axis else 1
    if any(d != 1 for d in others) or size not in (1, channels):
        return None
    return np.broadcast_to(c.reshape(-1), (channels,))
