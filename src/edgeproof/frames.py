"""Messages to and from a process that runs a model: a JSON head, then raw arrays.

A frame is the head's length (4 bytes, big-endian), the head, and the arrays' bytes one after the other in C order and
little-endian. The head lists name, dtype and shape of each; nothing in a frame can name code.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import strictjson
from .errors import InputError

LIMIT_BYTES = 1 << 30
"""Most bytes of arrays in one frame."""
_HEAD_LIMIT = 1 << 20
KINDS = "biuf"
"""Booleans, integers, floats: what numpy calls ``dtype.kind``."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        head: JSON object.
        arrays: Name → array.
    """

    head: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class EndedError(Exception):
    """The other end is gone, or did not answer in time."""


def send(fd: int, frame: Frame, timeout_s: float = math.inf) -> None:
    """Write a frame to a pipe.

    Raises:
        EndedError: when the other end is gone or does not read in time.
        InputError: serve.dtype.
    """
    arrays = {name: _plain(name, array) for name, array in frame.arrays.items()}
    listed = [{"name": n, "dtype": a.dtype.str, "shape": list(a.shape)} for n, a in arrays.items()]
    head = strictjson.canonical({"head": dict(frame.head), "arrays": listed})
    end = time.monotonic() + timeout_s
    for part in (len(head).to_bytes(4, "big") + head, *(a.tobytes() for a in arrays.values())):
        view = memoryview(part)
        while view:
            _wait([], [fd], end)
            try:
                view = view[os.write(fd, view[:65536]) :]
            except OSError as e:
                raise EndedError(f"cannot be written to: {e.strerror}") from e


def receive(fd: int, timeout_s: float = math.inf) -> Frame:
    """Read a frame from a pipe.

    Raises:
        EndedError: when the other end is gone, does not answer in time, or says what is no frame.
    """
    end = time.monotonic() + timeout_s
    length = int.from_bytes(_exactly(fd, 4, end), "big")
    if length > _HEAD_LIMIT:
        raise EndedError(f"announced a head of {length} bytes")
    try:
        value = strictjson.loads(_exactly(fd, length, end), "frame", limit_bytes=_HEAD_LIMIT)
        arrays: dict[str, NDArray[Any]] = {}
        left = LIMIT_BYTES
        for entry in value["arrays"]:
            dtype, shape = np.dtype(str(entry["dtype"])), tuple(int(n) for n in entry["shape"])
            size = dtype.itemsize * math.prod(shape)
            if dtype.kind not in KINDS or min(shape, default=0) < 0 or size > left:
                raise EndedError(f"announced an array of {size} bytes of {dtype}")
            left -= size
            arrays[str(entry["name"])] = np.frombuffer(_exactly(fd, size, end), dtype).reshape(shape)
        return Frame(value["head"], arrays)
    except (InputError, KeyError, TypeError, ValueError) as e:
        raise EndedError(f"said what is no frame: {e}") from e


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in KINDS:
        raise InputError("serve.dtype", name, f"has the type {array.dtype}", "give numbers or booleans")
    return np.asarray(array, array.dtype.newbyteorder("<"))


def _exactly(fd: int, count: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        _wait([fd], [], end)
        try:
            chunk = os.read(fd, min(count - len(data), 1 << 20))
        except OSError as e:
            raise EndedError(f"cannot be read from: {e.strerror}") from e
        if not chunk:
            raise EndedError("ended")
        data += chunk
    return bytes(data)


def _wait(read: list[int], write: list[int], end: float) -> None:
    left = None if math.isinf(end) else max(end - time.monotonic(), 0.0)
    if not any(select.select(read, write, [], left)):
        raise EndedError("did not answer in time")
