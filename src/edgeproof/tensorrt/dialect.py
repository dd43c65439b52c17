"""Where TensorRT 10, TensorRT 11 and TensorRT for RTX differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError

OLDEST = (10, 0)
"""Before it, engines had bindings by index, an API of its own."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which of the two, and which version.

    Attributes:
        rtx: TensorRT for RTX.
        version: E.g. ``(10, 13, 0, 35)``.
    """

    rtx: bool
    version: tuple[int, ...]

    @property
    def name(self) -> str:
        """For people."""
        return "TensorRT for RTX" if self.rtx else "TensorRT"

    @property
    def text(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))

    @property
    def weak_types(self) -> bool:
        """Whether the builder may choose precisions itself. Source: *TensorRT 11 migration guide*: flags removed."""
        return not self.rtx and self.version < (11,)

    @property
    def strong_flag(self) -> bool:
        """Whether trtexec has to be told to keep the types of the graph."""
        return self.weak_types

    @property
    def dla(self) -> bool:
        """Whether it knows DLAs. Source: TensorRT 11.1, *Working with DLA*: neither 11.0 nor 11.1."""
        return not self.rtx and not (11, 0) <= self.version[:2] <= (11, 1)

    @property
    def timing_cache(self) -> bool:
        """Whether building measures kernels. TensorRT for RTX chooses them on the device that runs the engine."""
        return not self.rtx

    @property
    def oldest_capability(self) -> str:
        """Source: release notes of 10.5 (Volta removed); TensorRT for RTX, support matrix."""
        return "7.0" if not self.rtx and self.version < (10, 5) else "7.5"


def dialect_of(trt: Any) -> Dialect:
    """What an imported module is.

    Args:
        trt: ``tensorrt`` or ``tensorrt_rtx``.

    Raises:
        UnsupportedError: tensorrt.version, for TensorRT before 10.
    """
    found = Dialect(
        trt.__name__.startswith("tensorrt_rtx"), tuple(int(n) for n in re.findall(r"\d+", trt.__version__)[:4])
    )
    if not found.rtx and found.version < OLDEST:
        raise UnsupportedError(
            "tensorrt.version",
            f"TensorRT {found.text}",
            "is older than 10.0, the first with this API",
            "install TensorRT 10 or later (JetPack 6), or build with the trtexec of that version",
        )
    return found
