"""How values are held, what a step makes, and what codes mean: the nouns of the lowering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..graph.rewrite import label
from .layout import Perm
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..graph.quantised import Coded

REMEDY = "leave this model to another runtime, or change the layer"
"""For what LiteRT cannot do at all."""

FUSED = {"NONE": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
"""Activations that operators take within them, by their number in the schema."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that holds a value.

    Attributes:
        tensor: Its index.
        perm: Stored axis → axis of the value.
        quant: What codes of the value mean; the tensor's own scale may be off by a factor.
    """

    tensor: int
    perm: Perm
    quant: Quant | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a step makes.

    Attributes:
        value: The real numbers: an output of the node, past an activation that the operator takes over.
        codes: Value of the codes that are written instead; None where the graph has none.
        quant: What they mean.
    """

    value: ir.Value
    codes: ir.Value | None = None
    quant: Quant | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """An ONNX node with what its operator takes over from those behind it.

    Attributes:
        node: The node.
        results: One for each output of the node.
        integer: Whether it runs in integers.
        fused: Activation within the operator, one of `FUSED`.
        bounds: Codes are cut to these real numbers behind the operator; None where they need not be.
        bias: Constant that an addition behind the node adds.
        covered: Nodes that need no lowering of their own.
        scaled: It makes up for factors of what it reads itself.
    """

    node: ir.Node
    results: tuple[Result, ...]
    integer: bool = False
    fused: str = "NONE"
    bounds: tuple[float, float] | None = None
    bias: ir.Value | None = None
    covered: tuple[ir.Node, ...] = ()
    scaled: bool = False

    @property
    def quant(self) -> Quant | None:
        """What the codes of the (first) result mean."""
        return self.results[0].quant

    @property
    def activation(self) -> int:
        """Number of the activation within the operator."""
        return FUSED[self.fused]


def off(quant: Quant | None, factor: float) -> Quant | None:
    """The scale of a tensor whose codes mean ``quant`` once a factor is made up for."""
    return quant if quant is None or factor == 1.0 else Quant((quant.scale[0] / factor,), quant.zero)


def stored_codes(code: Coded) -> tuple[NDArray[Any], Quant]:
    """Codes of a constant as LiteRT has them: int8 or int32, with scale and zero point."""
    assert code.codes is not None
    array, shift = code.codes, 0
    if code.dtype == "uint8":
        array, shift = (array.astype(np.int16) - 128).astype(np.int8), 128
    elif code.dtype != "int32":
        array = array.astype(np.int8)
    scale, zero = code.scale.reshape(-1), code.zero_point.reshape(-1) - shift
    axis = 0 if code.axis is None else code.axis % array.ndim
    return array, Quant(tuple(map(float, scale)), tuple(map(int, zero)), axis)


def activation_quant(code: Coded) -> Quant:
    """What codes of an activation mean, once they are int8."""
    shift = 128 if code.dtype == "uint8" else 0
    return Quant((float(code.scale.reshape(-1)[0]),), (int(code.zero_point.reshape(-1)[0]) - shift,))


def turned(quant: Quant, perm: Perm) -> Quant:
    """What codes mean once they are stored with ``perm``."""
    return Quant(quant.scale, quant.zero, perm.index(quant.axis) if len(quant.scale) > 1 else 0)


def is_read(value: ir.Value) -> bool:
    """Whether anything needs a value."""
    return bool(value.uses()) or value.is_graph_output()


def refuse(node: ir.Node, why: str, remedy: str) -> UnsupportedError:
    """The error for a node that cannot be expressed.

    Args:
        node: The node.
        why: The end of a sentence that begins with the node.
        remedy: What to do.
    """
    return UnsupportedError("tflite.operator", f"{label(node)} ({node.op_type})", why, remedy)


def name_of(value: ir.Value | None) -> str:
    """A value's name; unique in the main graph."""
    assert value is not None
    return value.name or ""
