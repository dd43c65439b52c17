"""Which nodes a DLA of a Jetson module runs, by the limits that NVIDIA documents: layer, sizes, precision.

Only what a node and its shapes show is decided here. TensorRT's own answer (``can_run_on_DLA``) is the last word, and
is asked when an engine is built on the device.

Source: TensorRT documentation, *DLA Supported Layers and Restrictions*, whose clauses are named below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.rewrite import array
from ..model import attribute

if TYPE_CHECKING:
    import onnx_ir as ir

    from . import Precision

Shape = tuple[int | str, ...] | None
DOCUMENT = "TensorRT documentation, DLA Supported Layers and Restrictions"
MOST_BATCH, MOST_DIM = 4096, 8192


@dataclass(frozen=True, slots=True)
class Seen:
    """One node as a DLA would see it.

    Attributes:
        node: The node.
        inputs: Shapes of its inputs.
        outputs: Shapes of its outputs.
        precision: That it is to run in.
        generation: Of the DLA: ``NVDLA 1`` on Xavier, ``NVDLA 2`` on Orin; empty when unknown.
    """

    node: ir.Node
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    precision: Precision
    generation: str = ""

    def sizes(self, name: str, default: int) -> list[int]:
        """Two values of an attribute, or so many defaults."""
        return list(attribute(self.node, name, [])) or [default] * 2

    @property
    def kernel(self) -> list[int]:
        """Height and width of the window."""
        given = list(attribute(self.node, "kernel_shape", []))
        if given:
            return given
        weight = self.inputs[1] if len(self.inputs) > 1 else None
        return [d for d in (weight or ())[2:] if isinstance(d, int)]


@dataclass(frozen=True, slots=True)
class Limit:
    """Why a node does not run on a DLA, and what would change that; empty when it does.

    Attributes:
        why: The clause that it breaks.
        hint: The remedy.
        sure: Whether that holds for every version of the DLA's software.
    """

    why: str = ""
    hint: str = ""
    sure: bool = True


ON_GPU = "let it run on the GPU; every switch costs a copy, so keep such nodes together or at the ends"


def limit(seen: Seen) -> Limit:
    """What keeps a node off a DLA; an empty limit when nothing that can be seen does."""
    rule = RULES.get(seen.node.op_type) if seen.node.domain in ("", "ai.onnx") else None
    if seen.node.op_type in RECENT:
        return Limit("only later DLA software has a layer for it", "build on the device, which tells", sure=False)
    if rule is None:
        return Limit(f"a DLA has no layer for {seen.node.op_type}", ON_GPU)
    return next((found for found in (_general(seen), *rule(seen)) if found.why), Limit())


def _general(seen: Seen) -> Limit:
    """General restrictions."""
    for shape in (*seen.inputs[:1], *seen.outputs[:1]):
        if shape is None:
            return Limit("its shape is not known; a DLA needs fixed shapes", "run pass fix_shapes")
        if any(isinstance(d, str) for d in shape):
            return Limit("its shape has open dimensions; a DLA needs fixed ones", "run pass fix_shapes")
        sizes = [d for d in shape if isinstance(d, int)]
        if any(d > MOST_DIM for d in sizes[1:]):
            return Limit(f"a dimension exceeds {MOST_DIM}", "split the tensor, or lower the resolution")
        batch = 1
        for d in sizes[:-3] if len(sizes) > 3 else sizes[:1]:
            batch *= d
        if batch > MOST_BATCH:
            return Limit(f"a batch of {batch} exceeds {MOST_BATCH}", "lower the batch")
    return Limit()


def _flat(seen: Seen) -> Limit:
    """Two spatial dimensions."""
    shape = seen.inputs[0] if seen.inputs else None
    if shape is not None and len(shape) != 4:
        hint = "reshape to N×C×H×W around it, or let it run on the GPU"
        return Limit(f"its input has {len(shape)} dimensions; a DLA layer takes N×C×H×W", hint)
    return Limit()


def _within(values: Sequence[int], low: int, high: int, what: str) -> Limit:
    outside = [v for v in values if not low <= v <= high]
    if outside:
        return Limit(f"{what} {outside[0]} lies outside {low}..{high}", "choose a size within these, or use the GPU")
    return Limit()


def _convolution(seen: Seen) -> list[Limit]:
    kernel, pads = seen.kernel, list(attribute(seen.node, "pads", []))
    weight = seen.node.inputs[1] if len(seen.node.inputs) > 1 else None
    found = [_flat(seen), _constant(weight, "its weight")]
    found += [_within(kernel, 1, 32, "kernel size"), _within(pads, 0, 31, "padding")]
    found += [_within(seen.sizes("strides", 1), 1, 8, "stride"), _within(seen.sizes("dilations", 1), 1, 32, "dilation")]
    found.append(_within([attribute(seen.node, "group", 1)], 1, MOST_DIM, "number of groups"))
    spans = kernel + kernel
    if pads and len(pads) == len(spans) and any(p >= k for p, k in zip(pads, spans, strict=True)):
        found.append(Limit("padding is not smaller than the kernel", "pad with a layer of its own on the GPU"))
    return found


def _deconvolution(seen: Seen) -> list[Limit]:
    kernel = seen.kernel
    strip = len(kernel) == 2 and min(kernel) == 1 and max(kernel) in (64, 96, 128)
    found = [_flat(seen)]
    if not strip:
        found += [_within(kernel, 1, 32, "kernel size"), _within(seen.sizes("strides", 1), 1, 32, "stride")]
    if len(set(kernel)) == 1 and kernel[0] >= 23:
        found.append(Limit("square kernels from 23 on are switched off for DLA", "use a smaller kernel, or the GPU"))
    resize = "replace it by Resize and Conv, or let it run on the GPU"
    if any(attribute(seen.node, "pads", [])):
        found.append(Limit("a deconvolution on a DLA has no padding", "crop with Slice instead, or use the GPU"))
    if attribute(seen.node, "group", 1) != 1:
        found.append(Limit("a deconvolution on a DLA has one group", resize))
    if any(d != 1 for d in seen.sizes("dilations", 1)):
        found.append(Limit("a deconvolution on a DLA is not dilated", resize))
    return found


def _pooling(seen: Seen) -> list[Limit]:
    found = [_flat(seen), _within(seen.kernel, 1, 8, "window")]
    found += [_within(attribute(seen.node, "pads", []), 0, 7, "padding")]
    found.append(_within(seen.sizes("strides", 1), 1, 16, "stride"))
    excludes = seen.node.op_type == "AveragePool" and not attribute(seen.node, "count_include_pad", 0)
    if excludes and any(attribute(seen.node, "pads", [])):
        hint = "set count_include_pad=1 and fine-tune, or let it run on the GPU"
        found.append(Limit("an average that leaves out the padding is not computed", hint))
    if any(d != 1 for d in seen.sizes("dilations", 1)):
        found.append(Limit("windows are not dilated", "use the GPU"))
    return found


def _global_pooling(seen: Seen) -> list[Limit]:
    shape = seen.inputs[0] if seen.inputs else None
    window = [d for d in (shape or ())[2:] if isinstance(d, int)]
    return [_flat(seen), _within(window, 1, 8, "window (all of the input)")]


def _activation(seen: Seen) -> list[Limit]:
    return [_flat(seen)]


def _clip(seen: Seen) -> list[Limit]:
    node = seen.node
    ends = [array(v) for v in node.inputs[1:3]]
    low, high = (float(e.reshape(-1)[0]) if e is not None else None for e in (*ends, None, None)[:2])
    low, high = attribute(node, "min", low), attribute(node, "max", high)  # attributes until opset 10
    found = [_flat(seen)]
    if low != 0:
        found.append(Limit("only clips from 0 are ReLU-like activations of a DLA", "use Relu, or the GPU"))
    if high is not None and not 1 <= high <= 127:
        found.append(Limit("clips end between 1 and 127", "use Relu, or the GPU"))
    return found


def _prelu(seen: Seen) -> list[Limit]:
    slope = seen.node.inputs[1] if len(seen.node.inputs) > 1 else None
    return [_flat(seen), _constant(slope, "its slope")]


def _elementwise(seen: Seen) -> list[Limit]:
    """The result has two spatial dimensions; an operand may be one number, or one a channel."""
    shape = seen.outputs[0] if seen.outputs else None
    whole = Seen(seen.node, (shape,), seen.outputs, seen.precision)
    return [_flat(whole)]


def _lrn(seen: Seen) -> list[Limit]:
    size = attribute(seen.node, "size", 0)
    bad = (
        Limit(f"a window of {size} is none of 3, 5, 7 and 9", "use one of these")
        if size not in (3, 5, 7, 9)
        else Limit()
    )
    return [_flat(seen), bad]


def _concat(seen: Seen) -> list[Limit]:
    rank = len(seen.inputs[0] or (0, 0, 0, 0)) if seen.inputs else 4
    axis = attribute(seen.node, "axis", 1) % rank
    bad = (
        Limit("joins along another axis than the channels", "transpose around it, or use the GPU")
        if axis != 1
        else Limit()
    )
    return [_flat(seen), bad]


def _resize(seen: Seen) -> list[Limit]:
    mode = attribute(seen.node, "mode", "nearest")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if mode not in ("nearest", "linear"):
        return [Limit(f"mode {mode} is not computed", "use nearest or linear")]
    before, after = seen.inputs[0], seen.outputs[0]
    found = [_flat(seen)]
    if before is None or after is None or len(before) != 4 or len(after) != 4:
        return found
    most = 32 if mode == "nearest" else 4
    for a, b in zip(before[2:], after[2:], strict=True):
        if isinstance(a, int) and isinstance(b, int) and (b % a or not 1 <= b // a <= most):
            hint = "choose sizes that are whole multiples, or use the GPU"
            found.append(Limit(f"scale {b}/{a} is no whole number of 1..{most} ({mode})", hint))
    return found


def _slice(seen: Seen) -> list[Limit]:
    found = [_flat(seen), _half_only(seen)]
    found += [_constant(v, "its limits") for v in seen.node.inputs[1:] if v is not None]
    return found


def _softmax(seen: Seen) -> list[Limit]:
    shape = [d for d in (seen.inputs[0] or ()) if isinstance(d, int)]
    axis = attribute(seen.node, "axis", -1)
    found = [_flat(seen), _half_only(seen)]
    if seen.generation == "NVDLA 1":
        found.append(Limit("runs on the DLA of Orin, not of Xavier", "use the GPU"))
    if len(shape) == 4 and axis % 4 == 0:
        found.append(Limit("takes its axis from the batch", "transpose around it, or use the GPU"))
    elif len(shape) == 4:
        others = [d for i, d in enumerate(shape) if i not in (0, axis % 4)]
        if shape[axis % 4] > 1024 and any(d > 1 for d in others):
            found.append(Limit("an axis beyond 1024 needs all others to be 1", "use the GPU"))
    return found


def _half_only(seen: Seen) -> Limit:
    return Limit("runs in FP16 only", "keep it in float: int8 --keep") if seen.precision == "int8" else Limit()


def _constant(value: ir.Value | None, what: str) -> Limit:
    if value is None or array(value) is not None:
        return Limit()
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        return Limit()
    return Limit(f"{what} is no constant", "run pass freeze_weights or fold_constants")


Rule = Callable[[Seen], list[Limit]]
RULES: Mapping[str, Rule] = {
    "Conv": _convolution,
    "Gemm": lambda seen: [_constant(seen.node.inputs[1], "its weight")],
    "ConvTranspose": _deconvolution,
    "MaxPool": _pooling,
    "AveragePool": _pooling,
    "GlobalAveragePool": _global_pooling,
    "GlobalMaxPool": _global_pooling,
    "Relu": _activation,
    "Sigmoid": _activation,
    "Tanh": _activation,
    "LeakyRelu": _activation,
    "Clip": _clip,
    "PRelu": _prelu,
    "Add": _elementwise,
    "Sub": _elementwise,
    "Mul": _elementwise,
    "Max": _elementwise,
    "Min": _elementwise,
    "Abs": _elementwise,
    "BatchNormalization": _activation,
    "LRN": _lrn,
    "Concat": _concat,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
}
"""Operator → what its layer demands. Scale layers are BatchNormalization, and Mul and Add of constants."""

RECENT = (
    "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Div", "Pow", "Equal", "Greater", "Less", "Sin", "Cos",
    "Atan", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
)  # fmt: skip
"""Operators whose layers (shuffle, reduce, comparison, more unary and element-wise ones) came in later releases."""
