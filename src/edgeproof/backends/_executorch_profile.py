"""Times of ExecuTorch's profile, named after the model's nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..measurement import LayerTime
from ._executorch_lowering import Kernel, Lowered

TABLE = "Invalid Unary Op"
"""How XNNPACK's profile calls a float activation between codes, which it computes as a table of codes by itself."""

_KERNELS = {
    "Convolution": ("Conv2d", "DepthwiseConv2d"),
    "Deconvolution": ("ConvTranspose2d",),
    "Fully Connected": ("FullyConnected", "Conv2d"),
    "Mean": ("GlobalAvgPooling2d",),
    "Transpose": ("StaticTranspose",),
    "Copy": ("StaticReshape", "Concatenate", "StaticSlice"),
    "Resize Bilinear": ("StaticResizeBilinear2D",),
    "Global Average Pooling": ("GlobalAvgPooling2d",),
    "Average Pooling": ("AvgPooling2d",),
    "Static Constant Pad": ("StaticConstantPad",),
    "Constant Pad": ("StaticConstantPad",),
    TABLE: ("Hardswish", "Sigmoid", "Tanh", "Gelu", "ELU", "LeakyReLU", "Exp", "Abs", "SquareRoot", "Square"),
}
"""A kernel in XNNPACK's profile → the nodes of its graph that it can be, where the two are called differently."""


def matched(lowered: Lowered, events: Sequence[tuple[str, bool, tuple[int, ...]]]) -> tuple[LayerTime, ...]:
    """Times of the profile, named after the model's nodes: both lists are in order of execution.

    Args:
        lowered: The program.
        events: (the profile's name, whether it is XNNPACK's, nanoseconds per run), in order.
    """
    lines = [e for e in events if e[1] or e[0].startswith("native_call_")]  # not those that hold others
    found: list[LayerTime] = []
    for (name, delegated, times), kernel in zip(lines, _aligned(lines, lowered.kernels), strict=True):
        plain = _plain(name)
        if kernel is None and plain == "Clamp" and found:  # an activation of the node before, which its kernel lacks
            kernel = Kernel(found[-1].name, "Clamp", found[-1].precision, "XNNPACK")
        if kernel is not None and plain == TABLE:
            kernel = replace(kernel, precision="int8")
        if kernel is None:
            kernel = Kernel(name, plain, "", "XNNPACK" if delegated else "portable")
        found.append(LayerTime(kernel.name, kernel.op, kernel.device, kernel.precision, times, name))
    return tuple(found)


def _aligned(lines: Sequence[tuple[str, bool, tuple[int, ...]]], kernels: Sequence[Kernel]) -> list[Kernel | None]:
    """The kernel of each line of the profile: as many as can be, with both in order."""
    fits = [[_fits(name, delegated, k) for k in kernels] for name, delegated, _ in lines]
    longest = [[0] * (len(kernels) + 1) for _ in range(len(lines) + 1)]
    for i in reversed(range(len(lines))):
        for j in reversed(range(len(kernels))):
            through = longest[i + 1][j + 1] + 1 if fits[i][j] else 0
            longest[i][j] = max(through, longest[i + 1][j], longest[i][j + 1])
    found: list[Kernel | None] = [None] * len(lines)
    i = j = 0
    while i < len(lines) and j < len(kernels):
        if fits[i][j] and longest[i][j] == longest[i + 1][j + 1] + 1:
            found[i] = kernels[j]
            i, j = i + 1, j + 1
        elif longest[i][j] == longest[i][j + 1]:
            j += 1
        else:
            i += 1
    return found


def _plain(name: str) -> str:
    """What a line of the profile calls a kernel, without its precision and number."""
    return re.sub(r" #\d+$", "", name.partition(" (")[0]).removeprefix("native_call_")


def _fits(name: str, delegated: bool, kernel: Kernel) -> bool:
    """Whether a line of the profile can be a kernel."""
    plain = _plain(name)
    if not delegated:
        wanted = plain.partition(".")[0].lstrip("_")
        return kernel.device == "portable" and kernel.op.partition(".")[2].lstrip("_") == wanted
    if kernel.device != "XNNPACK":
        return False
    starts = _KERNELS.get(plain, (plain.replace(" ", ""),))
    return kernel.op.removeprefix("XNN").lower().startswith(tuple(s.lower() for s in starts))
