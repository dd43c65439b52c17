"""Safetensors: named tensors and nothing else, so interface and operators are unknown.

Source: the safetensors format: 8 bytes with the header's length, the header as JSON, the data without holes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..strictjson import keys, loads
from . import Assessment, Structure, Weight, part, weight_digest
from ._arrays import FINITE, bytes_needed, check_finite, numbers

HEADER_BYTES = 100_000_000
"""The format's own limit."""
_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: json.*, structure.malformed, structure.truncated.
    """
    assessed = Assessment()
    weights, unread = [], 0
    for name, dtype, shape, data in _tensors(path):
        weights.append(Weight(name, dtype, shape, weight_digest(dtype, shape, data)))
        array = numbers(dtype, shape, data)
        unread += array is None
        check_finite(assessed, name, array)
    partial = f"{unread} tensors of types that cannot be computed with here" if unread else ""
    assessed.check("finite_weights", FINITE, "partial" if partial else "assessed", partial)
    assessed.check("weight_digests", "Every tensor has a digest.", "assessed", f"{len(weights):,} tensors digested")
    assessed.check("operators", "Every operator is known.", "unavailable", "the format holds tensors only")
    file = part(path, path.parent)
    return Structure(
        "safetensors", path.stem, file.digest, (file,), None, None, None, tuple(weights), (), assessed.sorted(),
        tuple(assessed.checks),
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """Values of stored tensors."""
    wanted = set(names)
    found = {n: numbers(dtype, shape, data) for n, dtype, shape, data in _tensors(path) if n in wanted}
    return {n: array.astype(np.float32) for n, array in found.items() if array is not None}


def _tensors(path: Path) -> list[tuple[str, str, tuple[int, ...], memoryview]]:
    file = memoryview(path.read_bytes())
    length = int.from_bytes(file[:8], "little")
    if len(file) < 8 or length > len(file) - 8:
        raise InputError(
            "structure.truncated",
            str(path),
            f"announces a header of {length:,} bytes; {max(len(file) - 8, 0):,} follow",
            "the file is truncated; download it again",
        )
    header = loads(bytes(file[8 : 8 + length]), str(path), limit_bytes=HEADER_BYTES)
    if not isinstance(header, dict):
        raise _malformed(str(path), "has no object for a header")
    data = file[8 + length :]
    found, spans = [], []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        subject = f"{path}: tensor {name[:60]!r}"
        keys(entry, ("dtype", "shape", "data_offsets"), subject=subject)
        dtype = _TYPES.get(str(entry["dtype"]), "")
        shape, span = _whole(entry["shape"], subject), _whole(entry["data_offsets"], subject)
        if not dtype or len(span) != 2 or not span[0] <= span[1] <= len(data):
            problem = f"is {str(entry)[:80]}; expected a known dtype and offsets within {len(data):,} bytes"
            raise _malformed(subject, problem)
        if bytes_needed(dtype, shape) != span[1] - span[0]:
            raise _malformed(subject, f"holds {span[1] - span[0]:,} bytes; {dtype}{list(shape)} needs another number")
        spans.append(span)
        found.append((name, dtype, shape, data[span[0] : span[1]]))
    end = 0
    for low, high in sorted(spans):
        if low != end:
            raise _malformed(str(path), f"has {'a hole' if low > end else 'tensors that overlap'} at byte {end:,}")
        end = high
    if end != len(data):
        raise _malformed(str(path), f"has {len(data) - end:,} bytes after its last tensor")
    return found


def _whole(value: Any, subject: str) -> tuple[int, ...]:
    good = isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
    if not good:
        raise _malformed(subject, f"has {str(value)[:40]} where whole numbers are needed")
    return tuple(value)


def _malformed(subject: str, problem: str) -> InputError:
    return InputError("structure.malformed", subject, problem, "get the file anew from where it was made")
