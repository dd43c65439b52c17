"""The graphics processor of this machine, asked through the driver's own library: no CUDA package is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR, _INTEGRATED = 75, 76, 18  # CUdevice_attribute, cuda.h


@dataclass(frozen=True, slots=True)
class Device:
    """A graphics processor.

    Attributes:
        name: As the driver calls it.
        capability: Compute capability, e.g. ``8.7``.
        memory_bytes: Its memory.
        integrated: It shares the processor's memory (Jetson).
        driver: Newest CUDA version that the driver knows, e.g. ``12.6``.
    """

    name: str
    capability: str
    memory_bytes: int
    integrated: bool
    driver: str


def find_device(index: int = 0, library: str = LIBRARY) -> Device | None:
    """A device of this machine; None where there is no driver or no such device.

    Args:
        index: Which.
        library: The driver's library.
    """
    try:
        cuda = ctypes.CDLL(library)
        ask = _asker(cuda)
        ask("cuInit", 0)
        count = _number(ask, "cuDeviceGetCount")
        if index >= count:
            return None
        handle = _number(ask, "cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        ask("cuDeviceGetName", name, len(name), handle)
        memory = ctypes.c_size_t()
        ask("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
        major, minor, integrated = (
            _number(ask, "cuDeviceGetAttribute", a, handle) for a in (_MAJOR, _MINOR, _INTEGRATED)
        )
        version = _number(ask, "cuDriverGetVersion")
    except (OSError, AttributeError):
        return None
    return Device(
        name.value.decode("utf-8", "replace"),
        f"{major}.{minor}",
        memory.value,
        bool(integrated),
        f"{version // 1000}.{version % 1000 // 10}",
    )


def _asker(cuda: ctypes.CDLL) -> Callable[..., None]:
    def ask(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            raise OSError(code, name)

    return ask


def _number(ask: Callable[..., None], name: str, *arguments: object) -> int:
    value = ctypes.c_int()
    ask(name, ctypes.byref(value), *arguments)
    return value.value
