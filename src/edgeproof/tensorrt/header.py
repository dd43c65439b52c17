"""The first bytes of an engine: what can be told of it before it is given to a runtime.

Sources: NVIDIA/TensorRT issue 3073 (version in bytes 24 to 27); engines of TensorRT for RTX 1.7 for each of its targets
and for several at once, compared: byte 32 holds one bit per compute capability.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedError
from .device import Device
from .dialect import Dialect

BYTES = 36
"""How many are looked at."""
MAGIC = {b"ftrt": False, b"ptrt": False, b"vtrt": True}
"""First four bytes → whether the engine is for TensorRT for RTX."""
_BITS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


@dataclass(frozen=True, slots=True)
class Header:
    """What an engine says of itself.

    Attributes:
        rtx: It is for TensorRT for RTX.
        version: What built it, e.g. ``(10, 3, 0, 30)``; empty when it does not look like a version.
        capabilities: Compute capabilities that it was compiled for, where the header says (RTX only).
    """

    rtx: bool
    version: tuple[int, ...]
    capabilities: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))


def read_header(data: bytes) -> Header | None:
    """The header of an engine; None for what does not begin as one does.

    Args:
        data: The engine, or its first `BYTES`.
    """
    if len(data) < BYTES or data[:4] not in MAGIC:
        return None
    rtx = MAGIC[data[:4]]
    version = tuple(data[24:28]) if (1 if rtx else 5) <= data[24] <= 30 else ()
    mask = int.from_bytes(data[32:36], "little") if rtx else 0
    return Header(rtx, version, tuple(c for i, c in enumerate(_BITS) if mask >> i & 1))


def check_header(data: bytes, dialect: Dialect, device: Device, subject: str) -> None:
    """Refuse an engine that this runtime or device cannot load, with the reason that the runtime would keep to itself.

    Args:
        data: The engine.
        dialect: The runtime here.
        device: The device here.
        subject: For messages.

    Raises:
        UnsupportedError: tensorrt.engine.
    """
    header = read_header(data)
    if header is None:
        raise _refused(subject, f"begins with {data[:4]!r}, not as an engine does", "build it again")
    rebuild = f"build it with {dialect.name} {dialect.text}, on or for {device.name} ({device.capability})"
    if header.rtx != dialect.rtx:
        kind = "TensorRT for RTX" if header.rtx else "TensorRT"
        raise _refused(subject, f"was built by {kind}; {dialect.name} cannot load it", rebuild)
    if header.version and (header.version[0] != dialect.version[0] or header.version > dialect.version):
        problem = f"was built by {dialect.name} {header.text}; here is {dialect.text}"
        raise _refused(subject, f"{problem}, and engines load in their own version, or in later ones at best", rebuild)
    if header.capabilities and device.capability in _BITS and device.capability not in header.capabilities:
        built = ", ".join(header.capabilities)
        raise _refused(subject, f"is for compute capability {built}; {device.name} has {device.capability}", rebuild)


def _refused(subject: str, problem: str, hint: str) -> UnsupportedError:
    return UnsupportedError("tensorrt.engine", subject, problem, hint)
