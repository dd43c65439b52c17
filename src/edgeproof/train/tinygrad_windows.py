"""Convolutions, pools and resizes of tinygrad in ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from .onnx_writer import Emitter, Site


def _many(value: Any, count: int) -> list[int]:
    return [int(value)] * count if isinstance(value, int) else [int(v) for v in value]


def _pads(s: Site, count: int) -> list[int]:
    """ONNX's order (all begins, all ends) of tinygrad's: one, one per axis, or last axis first in pairs."""
    given = s.number("padding")
    if isinstance(given, int):
        return [given] * 2 * count
    if len(given) == count:
        return [*map(int, given), *map(int, given)]
    pairs = list(zip(given[::2], given[1::2], strict=True))[::-1]
    found = [int(a) for a, _ in pairs] + [int(b) for _, b in pairs]
    if min(found) < 0:
        raise s.refused("pads with less than nothing", "cut the tensor instead")
    return found


def _ranked(s: Site, count: int) -> None:
    if s.tensor().ndim != count + 2:
        raise s.refused(
            f"is given {s.tensor().ndim} axes for windows of {count}", "give it batch, channels and the window's axes"
        )


def _conv(s: Site, op: str = "Conv", **more: Any) -> Any:
    count = s.tensor("weight").ndim - 2
    return s.node(
        op,
        s.value(),
        s.value("weight"),
        s.value("bias") if s.has("bias") else None,
        kernel_shape=[int(d) for d in s.tensor("weight").shape[2:]],
        group=s.number("groups"),
        strides=_many(s.number("stride"), count),
        dilations=_many(s.number("dilation"), count),
        pads=_pads(s, count),
        **more,
    )


def _conv_transpose(s: Site) -> Any:
    count = s.tensor("weight").ndim - 2
    return _conv(s, "ConvTranspose", output_padding=_many(s.number("output_padding"), count))


def _pool(op: str) -> Emitter:
    def emit(s: Site) -> Any:
        kernel = _many(s.number("kernel_size"), 2)
        count = len(kernel)
        _ranked(s, count)
        stride = s.number("stride")
        facts: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": kernel if stride is None else _many(stride, count),
            "pads": _pads(s, count),
            "ceil_mode": int(bool(s.number("ceil_mode"))),
        }
        dilations = _many(s.number("dilation"), count)
        if op == "MaxPool":
            return s.node(op, s.value(), dilations=dilations, **facts)
        if any(d != 1 for d in dilations):
            raise s.refused("averages over windows with gaps", "use a depthwise convolution")
        return s.node(op, s.value(), count_include_pad=int(bool(s.number("count_include_pad"))), **facts)

    return emit


def _interpolate(s: Site) -> Any:
    mode, size = s.number("mode"), s.number("size")
    how: dict[str, Any] = {
        "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        "nearest-exact": {
            "mode": "nearest",
            "coordinate_transformation_mode": "half_pixel",
            "nearest_mode": "round_prefer_ceil",
        },
    }[mode]
    if s.number("align_corners"):
        how = {**how, "coordinate_transformation_mode": "align_corners"}
    before = s.shape("self")
    factors = [b / a for (a, _), b in zip(before[-len(size) :], size, strict=True)]
    if all(f == int(f) for f in factors):
        scales = s.writer.number([1.0] * (len(before) - len(size)) + factors, np.float32)
        return s.node("Resize", s.value(), None, scales, **how)
    return s.node("Resize", s.value(), None, None, s.writer.sizes(s.shape(), s), **how)


WINDOWS: dict[str, Emitter] = {
    "conv2d": _conv,
    "conv_transpose2d": _conv_transpose,
    "max_pool2d": _pool("MaxPool"),
    "avg_pool2d": _pool("AveragePool"),
    "interpolate": _interpolate,
}
"""Function → what writes it."""
