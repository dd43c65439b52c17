"""Hash bytes, files, arrays and JSON values canonically.

A digest is written ``sha256:`` + 64 hex digits. JSON is hashed in its RFC 8785 form, arrays as dtype, shape and
little-endian bytes in C order, so the same value has the same digest on every machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rfc8785

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFIX = "sha256:"


def digest_bytes(data: bytes | memoryview) -> str:
    """Digest of raw bytes."""
    return PREFIX + hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Digest of a file's bytes, read in a stream."""
    with path.open("rb") as f:
        return PREFIX + hashlib.file_digest(f, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """A JSON value as RFC 8785 bytes; NaN, infinities and integers of 2^53 or more are refused."""
    return rfc8785.dumps(value)


def digest_json(value: Any) -> str:
    """Digest of a JSON value in its canonical form.

    >>> digest_json({"b": 1, "a": 2.0}) == digest_json({"a": 2, "b": 1})
    True
    """
    return digest_bytes(canonical_json(value))


def digest_array(array: NDArray[Any]) -> str:
    """Digest of an array: dtype, shape and values, whatever its byte order or strides."""
    import numpy as np

    flat: np.ndarray[Any, Any] = np.ascontiguousarray(array)
    if flat.dtype.byteorder == ">":
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    h = hashlib.sha256(f"{array.dtype.name}:{','.join(map(str, array.shape))}:".encode())
    if flat.size:
        h.update(flat.reshape(-1).view(np.uint8).data)
    return PREFIX + h.hexdigest()
