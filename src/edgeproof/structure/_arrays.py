"""Stored bytes of any element type as numbers, and what can be said about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digest import digest_bytes
from . import Assessment, Quantisation

BITS: dict[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2, "uint1": 1, "bool": 8,
    "complex64": 64, "complex128": 128,
}  # fmt: skip
_MOST_DIMS, _MOST_ELEMENTS = 64, 2**59
FINITE = "NaN or infinity among the weights."


def bytes_needed(dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes that a tensor takes; None when its type has no fixed size."""
    bits = BITS.get(dtype)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


def numbers(dtype: str, shape: Sequence[int], data: bytes | memoryview) -> NDArray[Any] | None:
    """Stored bytes as an array of a type that NumPy computes with; None for types and shapes that it cannot hold.

    Args:
        dtype: NumPy's name of the type.
        shape: Dimensions.
        data: Little-endian, packed below 8 bits with the low bits first.
    """
    bits, count = BITS.get(dtype, 0), math.prod(shape)
    if len(shape) > _MOST_DIMS or math.prod(d or 1 for d in shape) > _MOST_ELEMENTS:  # also of an empty array
        return None
    raw = np.frombuffer(data, np.uint8)
    if dtype == "bfloat16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tuple(shape))
    if bits in (2, 4) and dtype.lstrip("u").startswith("int"):
        parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        codes = np.stack(parts, axis=-1).reshape(-1)[:count].astype(np.int16)
        if dtype[0] == "i":
            codes = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)
        return codes.reshape(tuple(shape))
    if dtype.startswith(("float8", "complex")) or bits < 8:
        return None
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(tuple(shape))


def check_finite(assessed: Assessment, name: str, array: NDArray[Any] | None) -> None:
    """A defect when a weight is not finite; a single infinite constant is a mask or a bound."""
    if array is None or array.dtype.kind != "f" or not array.size:
        return
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(array.min()) and np.isfinite(array.max())
    if finite:
        return
    nans, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    counts = " and ".join(f"{n:,} {what}" for n, what in ((nans, "NaN"), (infinite, "infinite")) if n)
    mask = array.size == 1 and not nans
    hint = "a mask or a bound" if mask else "train or export it again; no measurement of this model means anything"
    problem = f"holds {counts} of {array.size:,} values"
    assessed.found("caution" if mask else "defect", "finite_weights", name, problem, hint)


def quantised(name: str, dtype: str, axis: int | None, scale: NDArray[Any], zero_point: NDArray[Any]) -> Quantisation:
    """Parameters as a value: the digest covers every scale and zero point, the ends are for people."""
    scales = np.ascontiguousarray(scale, "<f8").reshape(-1)
    zeros = np.ascontiguousarray(zero_point, "<i8").reshape(-1)
    form = f"{dtype}:{axis}:{scales.size}:{zeros.size}:".encode()
    ends = (float(scales.min()), float(scales.max())) if scales.size and np.isfinite(scales).all() else (0.0, 0.0)
    digest = digest_bytes(form + scales.tobytes() + zeros.tobytes())
    return Quantisation(name, dtype, axis, int(scales.size), *ends, digest)


def check_scales(assessed: Assessment, name: str, scale: NDArray[Any]) -> None:
    """A defect when a scale cannot be one."""
    bad = int((~(np.isfinite(scale) & (scale > 0))).sum())
    if bad:
        problem = f"{bad} of {scale.size} scales are zero, negative or not finite; expected > 0"
        assessed.found("defect", "quantisation", name, problem, "quantise the float model again")
