"""Where a model is to run, as data: runtime, device, and the quantisation that it wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from .hardware import Hardware

T = TypeVar("T")

Setting = bool | int | float | str | None
"""A value that the command line, a recipe file and JSON can all carry."""


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How a runtime wants its Q/DQ graph.

    Attributes:
        activation: Activation dtype.
        weight: Weight dtype.
        activation_symmetric: Zero point fixed (0 for int8, 128 for uint8).
        weight_symmetric: Zero point 0.
        per_channel: Operators whose weights take one scale per output channel.
        ops: Operators that the runtime runs in integers when all their inputs and outputs are quantised.
        bias: ``int32`` (a DequantizeLinear of an int32 tensor) or ``float32``.
        weight_qdq: Keep float weights with a Q/DQ pair instead of storing integers.
        fused_output: Operators whose integer kernel exists only with a quantised output.
        follow: Operators that also run in integers, each output with a range of its own, when that saves a change of
            precision: an input is quantised already and an output is wanted so.
        residual: Sums that the kernel of the layer ahead of one operand computes: that operand stays in float.
        excite: Products with one factor per channel (squeeze-and-excitation) follow, too.
        attention: Both products around a Softmax run in integers, too, though neither has a weight.
        share: Operators that only move values: their output keeps the parameters of their first input.
        absorb: Activations that vanish into the quantisation of the layer before them.
        expand: Activations without an integer kernel that run as followers once spelled out as sums and products.
        fuse: Activations that the kernel of the layer before them computes in float, ahead of its quantised output.
        fuse_constants: Operators that it computes likewise when their other operand is a constant.
        gates: Operators g for which x · g(x) is such an activation.
        spell: Activations with a slow kernel of their own whose sums and products the runtime fuses, in float.
        no_zero_point: Operators whose fast kernel takes none: what they read is symmetric where it has negative values.
        fixed_output: Operator → (scale, zero point) that its output always has.
        one_scale: Followers whose inputs and output share one scale.
        narrow_weights: Weights use 7 bits: the processor sums pairs of 8-bit products in 16 bits, where they saturate.
        guard: The runtime quantises float layers between integers by itself unless a Clip is put ahead of them.
    """

    activation: Literal["uint8", "int8", "uint16", "int16"] = "uint8"
    weight: Literal["int8"] = "int8"
    activation_symmetric: bool = False
    weight_symmetric: bool = True
    per_channel: tuple[str, ...] = ("Conv", "ConvTranspose", "Gemm", "MatMul")
    ops: tuple[str, ...] = ("Conv", "Gemm", "MatMul")
    bias: Literal["int32", "float32"] = "int32"
    weight_qdq: bool = False
    fused_output: tuple[str, ...] = ("Conv",)
    follow: tuple[str, ...] = ("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu")
    residual: tuple[str, ...] = ()
    excite: bool = False
    attention: bool = False
    share: tuple[str, ...] = (
        "MaxPool",
        "Reshape",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Split",
        "Resize",
        "DepthToSpace",
        "SpaceToDepth",
    )
    absorb: tuple[str, ...] = ("Relu", "Clip")
    expand: tuple[str, ...] = ("HardSigmoid", "HardSwish")
    fuse: tuple[str, ...] = ()
    fuse_constants: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    spell: tuple[str, ...] = ()
    no_zero_point: tuple[str, ...] = ()
    fixed_output: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    one_scale: tuple[str, ...] = ()
    narrow_weights: bool = False
    guard: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A place to run.

    Attributes:
        name: ``backend:device``, e.g. ``onnxruntime:cpu``.
        backend: Name of the backend plug-in.
        device: Device within the backend.
        scheme: The quantisation it wants; None when it has no integer path.
        memory_bytes: Memory the model may use; None when not limited.
        settings: Values for the backend's settings dataclass that differ from its defaults.
        hardware: The device of the catalogue that it names, e.g. for ``orin-nx:dla0``; None for this machine.
    """

    name: str
    backend: str
    device: str
    scheme: QuantScheme | None = None
    memory_bytes: int | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    hardware: Hardware | None = None

    def with_settings(self, settings: Mapping[str, Setting]) -> Target:
        """The same place with more settings on top."""
        return replace(self, settings={**self.settings, **settings})

    def settings_as(self, kind: Callable[..., T]) -> T:
        """The settings as a backend's own dataclass, what is not set at its default."""
        return kind(**self.settings)
