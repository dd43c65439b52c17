"""Read a FlatBuffer that others made: every offset is checked before it is followed.

Source: FlatBuffers internals (tables, vtables, vectors, strings; all little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

MOST_ENTRIES = 10_000_000
"""Longest vector of tables or offsets that is followed."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The bytes and what to call them in errors."""

    data: memoryview
    subject: str

    def number(self, fmt: str, at: int) -> Any:
        """One number; ``fmt`` as in `struct`, without the byte order."""
        size = struct.calcsize(fmt)
        self.check(at, size)
        return struct.unpack_from("<" + fmt, self.data, at)[0]

    def check(self, at: int, size: int) -> None:
        """Refuse a range that the file does not have.

        Raises:
            InputError: structure.truncated.
        """
        if at < 0 or size < 0 or at + size > len(self.data):
            raise InputError(
                "structure.truncated",
                self.subject,
                f"refers to {size:,} bytes at {at:,}; it has {len(self.data):,}",
                "the file is truncated or damaged; download or export it again",
            )

    def root(self) -> Table:
        """The table that everything hangs from."""
        return self.table(self.number("I", 0))

    def table(self, at: int) -> Table:
        """The table at a place, with its vtable checked."""
        vtable = at - self.number("i", at)
        length = self.number("H", vtable)
        self.check(vtable, length)
        return Table(self, at, vtable, length)


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        buffer: Where it lies.
        at: Its position.
        vtable: Position of its vtable.
        length: Bytes of its vtable.
    """

    buffer: Buffer
    at: int
    vtable: int
    length: int

    def _place(self, field: int) -> int:
        """Position of a field; 0 when it has its default."""
        slot = 4 + 2 * field
        if slot + 2 > self.length:
            return 0
        offset = self.buffer.number("H", self.vtable + slot)
        return self.at + offset if offset else 0

    def number(self, field: int, fmt: str, default: Any = 0) -> Any:
        """A scalar field."""
        place = self._place(field)
        return self.buffer.number(fmt, place) if place else default

    def _follow(self, field: int) -> int:
        place = self._place(field)
        return place + int(self.buffer.number("I", place)) if place else 0

    def table(self, field: int) -> Table | None:
        """A table field."""
        target = self._follow(field)
        return self.buffer.table(target) if target else None

    def span(self, field: int, width: int = 1) -> tuple[int, int]:
        """Where the entries of a vector begin and how many bytes they take; (0, 0) when it is absent.

        Args:
            field: Its index.
            width: Bytes of an entry.
        """
        target = self._follow(field)
        if not target:
            return 0, 0
        size = int(self.buffer.number("I", target)) * width
        self.buffer.check(target + 4, size)
        return target + 4, size

    def raw(self, field: int) -> memoryview | None:
        """A vector of bytes; None when it is absent."""
        start, size = self.span(field)
        return self.buffer.data[start : start + size] if start else None

    def text(self, field: int) -> str:
        """A string; empty when it is absent. Bytes that are no UTF-8 are replaced."""
        raw = self.raw(field)
        return "" if raw is None else bytes(raw).decode("utf-8", "replace")

    def vector(self, field: int, dtype: str) -> NDArray[Any] | None:
        """A vector of numbers; None when it is absent.

        Args:
            field: Its index.
            dtype: NumPy type of an entry, little-endian.
        """
        start, size = self.span(field, np.dtype(dtype).itemsize)
        return np.frombuffer(self.buffer.data[start : start + size], dtype) if start else None

    def tables(self, field: int) -> Iterator[Table]:
        """A vector of tables."""
        target = self._follow(field)
        if not target:
            return
        length = self.buffer.number("I", target)
        self.buffer.check(target + 4, 4 * length)
        if length > MOST_ENTRIES:
            raise InputError(
                "structure.count", self.buffer.subject, f"has a vector of {length:,} tables", "get the file anew"
            )
        for i in range(length):
            place = target + 4 + 4 * i
            yield self.buffer.table(place + int(self.buffer.number("I", place)))
