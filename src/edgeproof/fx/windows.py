"""Where the windows of convolutions and pools lie: kernel, stride, dilation and padding of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import at_run_time
from .call import Call
from .values import Size, Value


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial axes.

    Attributes:
        kernel: Size per axis.
        stride: Step per axis.
        dilation: Distance of taps per axis.
        begin: Padding before, per axis.
        end: Padding behind, per axis.
    """

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    begin: list[int | Size]
    end: list[int | Size]

    @property
    def symmetric(self) -> bool:
        """Whether as much is padded before as behind, in numbers known now."""
        return self.begin == self.end and all(isinstance(p, int) for p in self.begin)

    @property
    def narrow(self) -> bool:
        """Whether torch's pools take the padding: as `symmetric`, and at most half of the kernel."""
        halves = zip(self.begin, self.kernel, strict=True)
        return self.begin == self.end and all(isinstance(p, int) and p <= k // 2 for p, k in halves)

    def how(self, last: Any) -> tuple[Any, ...]:
        """All fields and one more setting, as plain values a graph can print."""
        return (self.kernel, self.stride, self.begin, self.end, self.dilation, last)


def windows(n: Call, kernel: Sequence[int]) -> Windows:
    """The windows of a node whose kernel has this size."""
    axes = len(kernel)
    stride, dilation = n.attr("strides", [1] * axes), n.attr("dilations", [1] * axes)
    auto = n.attr("auto_pad", "NOTSET")
    pads = [0] * (2 * axes) if auto == "VALID" else n.attr("pads", [0] * (2 * axes))
    begin: list[int | Size] = list(pads[:axes])
    end: list[int | Size] = list(pads[axes:])
    if auto.startswith("SAME"):
        small: list[int | Size] = []
        large: list[int | Size] = []
        for i in range(axes):
            reach = (kernel[i] - 1) * dilation[i] + 1
            size = 0 if stride[i] == 1 else n.size(0, i + 2)
            total = reach - 1 if stride[i] == 1 else n.build.number(at_run_time.same_padding, size, reach, stride[i])
            small.append(n.build.number(at_run_time.half, total))
            large.append(n.build.number(at_run_time.larger_half, total))
        begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Windows(list(kernel), stride, dilation, begin, end)


def pad(n: Call, x: Value, begin: Sequence[int | Size], end: Sequence[int | Size], value: Any = 0.0) -> Value:
    """Pad the last axes with a constant."""
    flat = [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    return x if all(p == 0 for p in flat) else n.call(n.functional.pad, x, flat, "constant", value)
