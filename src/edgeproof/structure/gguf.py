"""GGUF: a header of key-value pairs and tensor places, then the data. Interface and operators are unknown.

Source: the GGUF specification of ggml, versions 2 and 3. Every count is held against the bytes that are left before
anything is made of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from . import Assessment, Structure, Weight, part, weight_digest
from ._arrays import FINITE, check_finite, numbers

MOST_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
_BLOCKS = {  # type → (name, numbers to a block, bytes to a block)
    2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
}  # fmt: skip


@dataclass(slots=True)
class _Cursor:
    """A place in the file that only moves forward."""

    data: memoryview
    subject: str
    at: int = 0
    depth: int = field(default=0)

    def take(self, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise InputError(
                "structure.truncated",
                self.subject,
                f"announces {size:,} bytes at {self.at:,}; {len(self.data) - self.at:,} are left",
                "the file is truncated or damaged; download it again",
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, fmt: str) -> Any:
        return struct.unpack("<" + fmt, self.take(struct.calcsize(fmt)))[0]

    def count(self, what: str, least: int) -> int:
        """A count of things that take at least so many bytes each."""
        count = int(self.number("Q"))
        if count * least > len(self.data) - self.at:
            raise InputError(
                "structure.count",
                self.subject,
                f"announces {count:,} {what}; the {len(self.data) - self.at:,} bytes left cannot hold them",
                "the file is damaged or hostile; get it anew",
            )
        return count

    def text(self) -> str:
        return bytes(self.take(self.count("characters", 1))).decode("utf-8", "replace")


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: structure.truncated, structure.count, structure.malformed.
    """
    facts, tensors = _open(path)
    assessed = Assessment()
    weights, unknown = [], 0
    for name, kind, shape, data in tensors:
        dtype = _PLAIN.get(kind) or (_BLOCKS[kind][0] if kind in _BLOCKS else f"type_{kind}")
        unknown += data is None
        weights.append(Weight(name, dtype, shape, None if data is None else weight_digest(dtype, shape, data)))
        if data is not None and kind in _PLAIN:
            check_finite(assessed, name, numbers(dtype, shape, data))
    assessed.check("finite_weights", FINITE, "partial", "block-quantised tensors are digested, not decoded")
    reason = (
        f"{unknown} tensors are of a type whose size is unknown" if unknown else f"{len(weights):,} tensors digested"
    )
    assessed.check("weight_digests", "Every tensor has a digest.", "partial" if unknown else "assessed", reason)
    assessed.check("operators", "Every operator is known.", "unavailable", "the format holds tensors only")
    file = part(path, path.parent)
    return Structure(
        "gguf", path.stem, file.digest, (file,), None, None, None, tuple(weights), (), assessed.sorted(),
        tuple(assessed.checks), facts,
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """Values of tensors that are not in blocks."""
    wanted, found = set(names), {}
    for name, kind, shape, data in _open(path)[1]:
        if name in wanted and kind in _PLAIN and data is not None:
            array = numbers(_PLAIN[kind], shape, data)
            if array is not None:
                found[name] = array.astype(np.float32)
    return found


def _open(path: Path) -> tuple[dict[str, str | int | float], list[tuple[str, int, tuple[int, ...], memoryview | None]]]:
    file = memoryview(path.read_bytes())
    cursor = _Cursor(file, str(path), 4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise InputError("structure.malformed", str(path), f"is of GGUF version {version}", "versions 2 and 3 are read")
    tensor_count = cursor.count("tensors", 8 + 4 + 4 + 8)
    pairs = cursor.count("key-value pairs", 8 + 4 + 1)
    facts: dict[str, str | int | float] = {"gguf_version": version}
    alignment = 32
    for _ in range(pairs):
        key, value = cursor.text(), _value(cursor, cursor.number("I"))
        if key == "general.alignment" and isinstance(value, int) and value > 0:
            alignment = value
        if key in ("general.architecture", "general.name") and isinstance(value, str):
            facts[key] = value[:200]
    places = []
    for _ in range(tensor_count):
        name, rank = cursor.text(), cursor.number("I")
        if rank > MOST_DIMENSIONS:
            raise InputError(
                "structure.malformed", str(path), f"tensor {name[:60]!r} has {rank} dimensions", "at most 4"
            )
        shape = tuple(int(cursor.number("Q")) for _ in range(rank))[::-1]
        places.append((name, int(cursor.number("I")), shape, int(cursor.number("Q"))))
    start = -(-cursor.at // alignment) * alignment
    return facts, [(n, kind, shape, _data(file, start + at, kind, shape, str(path))) for n, kind, shape, at in places]


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.text()
    if kind != _ARRAY:
        raise InputError("structure.malformed", cursor.subject, f"holds a value of type {kind}", "get the file anew")
    inner = cursor.number("I")
    if inner in _SCALARS:
        cursor.take(cursor.count("entries", 1) * struct.calcsize(_SCALARS[inner]))
        return None
    cursor.depth += 1
    if cursor.depth > MOST_DIMENSIONS:
        raise InputError("structure.malformed", cursor.subject, "nests arrays more than 4 deep", "get the file anew")
    for _ in range(cursor.count("entries", 8)):
        _value(cursor, inner)
    cursor.depth -= 1
    return None


def _data(file: memoryview, at: int, kind: int, shape: tuple[int, ...], subject: str) -> memoryview | None:
    elements = 1
    for d in shape:
        elements *= d
    if kind in _PLAIN:
        size = elements * np.dtype("u2" if _PLAIN[kind] == "bfloat16" else _PLAIN[kind]).itemsize
    elif kind in _BLOCKS:
        _, per, each = _BLOCKS[kind]
        size = -(-elements // per) * each
    else:
        return None
    return _Cursor(file, subject, min(at, len(file))).take(size) if size else memoryview(b"")
