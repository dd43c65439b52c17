"""The linear algebra of a layer with constant weights: what a scale or an offset around it does to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from .affine import Array
from .dims import dims
from .rewrite import cast_like

if TYPE_CHECKING:
    import onnx_ir as ir

CONVOLUTIONS = ("Conv", "ConvTranspose")
LAYERS = (*CONVOLUTIONS, "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or matrix product with constant weights.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        weight: Its second input, float64.
        dtype: In which that is stored.
    """

    node: ir.Node
    weight: Array
    dtype: np.dtype[Any]

    @property
    def convolution(self) -> bool:
        """Whether it slides over a picture."""
        return self.node.op_type in CONVOLUTIONS

    @property
    def group(self) -> int:
        """Number of groups of channels that do not see each other."""
        return int(attribute(self.node, "group", 1)) if self.convolution else 1

    @property
    def axis(self) -> int:
        """Channel axis of input and output, from the end."""
        return 1 - self.weight.ndim if self.convolution else -1

    @property
    def rank(self) -> int | None:
        """Rank of the output; of the input too, but for MatMul."""
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
        """Number of input channels of a convolution or Gemm."""
        n: int = self.weight.shape[1 - self.output_axis]
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
        """Weights of a convolution or Gemm with each input channel multiplied; s is [inputs]."""
        w = self.weight
        if self.node.op_type != "Conv":
            return np.asarray(w * np.expand_dims(s, [i for i in range(w.ndim) if i != 1 - self.output_axis]))
        grouped = w.reshape(self.group, -1, *w.shape[1:])  # [group, outputs / group, inputs / group, …]
        return np.reshape(grouped * s.reshape(self.group, 1, -1, *[1] * (w.ndim - 2)), w.shape)

    def offset(self, t: Array) -> Array:
        """What an offset t [inputs] in front of an unpadded Conv or a Gemm adds to each output channel, [outputs]."""
        w = self.weight
        if self.node.op_type == "Gemm":
            return np.asarray(attribute(self.node, "alpha", 1.0) * (t @ (w.T if self.output_axis == 0 else w)))
        taps = w.reshape(self.group, -1, w.shape[1], int(np.prod(w.shape[2:]))).sum(-1)
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

    def padded(self) -> bool:
        """Whether a convolution sees zeros that are no part of its input; ConvTranspose does at its borders."""
        if self.node.op_type == "ConvTranspose" or any(attribute(self.node, "pads", ())):
            return self.convolution
        same = attribute(self.node, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
        return same and any(d != 1 for d in self.weight.shape[2:])
