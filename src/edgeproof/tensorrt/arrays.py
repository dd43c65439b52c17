"""Arrays that stay on the device: what other libraries hand over without a copy, and what a session gives back.

Two protocols carry a device pointer between libraries: DLPack, and ``__cuda_array_interface__``.
Sources: DLPack 1.0, ``dlpack.h``; Numba, *CUDA Array Interface* (version 3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import InputError

_DEVICES = (2, 3, 13)  # kDLCUDA, kDLCUDAHost, kDLCUDAManaged: what a CUDA device can address
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}  # DLDataTypeCode: kDLInt, kDLUInt, kDLFloat, kDLBool


@runtime_checkable
class CudaArray(Protocol):
    """What CuPy, Numba and PyTorch arrays are."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Pointer, shape and type."""


@runtime_checkable
class DlPacked(Protocol):
    """What every array library's arrays are."""

    def __dlpack__(self) -> Any:
        """A capsule."""


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in memory that the device addresses, in C order.

    Attributes:
        pointer: Of its first element.
        shape: Elements per dimension.
        dtype: As NumPy writes it, e.g. ``float32``.
        owner: Keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any = None

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, Numba and PyTorch (``torch.as_tensor``), without a copy."""
        kind = np.dtype(self.dtype).str
        return {"shape": self.shape, "typestr": kind, "data": (self.pointer, False), "strides": None, "version": 3}


def device_array(value: Any, subject: str) -> DeviceArray:
    """Another library's array, without a copy.

    Args:
        value: Has ``__cuda_array_interface__`` or ``__dlpack__``.
        subject: For messages.

    Raises:
        InputError: session.device_array, for one that is not on a CUDA device or not in C order.
    """
    if isinstance(value, DeviceArray):
        return value
    if isinstance(value, CudaArray):
        told = value.__cuda_array_interface__
        dtype = np.dtype(told["typestr"])
        strides = told.get("strides")
        shape = tuple(told["shape"])
        if strides is not None and not _in_order(shape, strides, dtype.itemsize):
            raise _refused(subject, f"has the strides {tuple(strides)}; expected C order")
        return DeviceArray(int(told["data"][0]), shape, dtype.name, value)
    if isinstance(value, DlPacked):
        return from_capsule(value.__dlpack__(), subject, _DEVICES)
    raise _refused(subject, f"is {type(value).__name__}, which names no device memory")


class _DlTensor(ctypes.Structure):
    """``DLTensor``, with its ``DLDevice`` and ``DLDataType`` spelled out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def from_capsule(capsule: Any, subject: str, devices: Sequence[int]) -> DeviceArray:
    """The array in a DLPack capsule, which lives as long as what is returned.

    Args:
        capsule: Of ``__dlpack__()``.
        subject: For messages.
        devices: Device types (``DLDeviceType``) that are taken.

    Raises:
        InputError: session.device_array.
    """
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DlTensor.from_address(address(capsule, b"dltensor"))
    if tensor.device_type not in devices:
        raise _refused(subject, f"is on device type {tensor.device_type} of DLPack; expected one of {tuple(devices)}")
    kind = _KINDS.get(tensor.code)
    if kind is None or tensor.lanes != 1 or tensor.bits % 8:
        raise _refused(subject, f"has the type code {tensor.code} with {tensor.bits} bits, which NumPy does not name")
    dtype = np.dtype("bool" if kind == "b" else f"{kind}{tensor.bits // 8}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
        if not _in_order(shape, strides, dtype.itemsize):
            raise _refused(subject, f"has the strides {strides} bytes; expected C order")
    return DeviceArray((tensor.data or 0) + tensor.byte_offset, shape, dtype.name, capsule)


def _in_order(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether strides, in bytes, are those of C order; of a dimension of one element they say nothing.

    >>> _in_order((2, 3, 4), (48, 16, 4), 4), _in_order((2, 1), (4, 99), 4), _in_order((2, 3), (4, 8), 4)
    (True, True, False)
    """
    wanted = (prod(shape[i + 1 :]) * itemsize for i in range(len(shape)))
    return not prod(shape) or all(n == 1 or s == w for n, s, w in zip(shape, strides, wanted, strict=True))


def _refused(subject: str, problem: str) -> InputError:
    hint = "give a contiguous array on the CUDA device (PyTorch, CuPy, Numba), or use run() with NumPy arrays"
    return InputError("session.device_array", subject, problem, hint)
