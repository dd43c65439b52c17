"""The smallest things that can be removed, and which of them only go together.

An atom stands for one index along one axis of one tensor. Operators tie atoms of different tensors to each other: what
is tied is removed together or not at all. A tie to something that must stay (an input of the model, an operator that
nobody can follow) pins all that hangs on it, with the reason.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
"""Atoms along one axis, one per index."""


class Atoms:
    """Sets of atoms that go together (union by size, paths halved)."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._pins: dict[int, str] = {}
        self._loose: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int) -> Labels:
        """New atoms, tied to nothing; int64 [count]."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        self._size.extend([1] * count)
        return np.arange(first, first + count, dtype=np.int64)

    def unite(self, a: Labels, b: Labels) -> None:
        """Tie the atoms of two axes of the same length, index by index."""
        assert a.shape == b.shape
        if a is b:
            return
        for i, j in zip(a.tolist(), b.tolist(), strict=True):
            self._tie(i, j)

    def unite_rows(self, grid: Labels) -> Labels:
        """Tie all atoms of a row of [rows, columns] to each other; one atom of each row, [rows]."""
        first = grid[:, 0]
        distinct = np.nonzero((grid != first[:, None]).any(axis=1))[0]
        for row in distinct.tolist():
            atoms = set(grid[row].tolist())
            head = int(first[row])
            for atom in atoms:
                self._tie(head, atom)
        return np.ascontiguousarray(first)

    def pin(self, labels: Labels, reason: str) -> None:
        """These atoms stay; the first reason counts."""
        for i in np.unique(labels).tolist():
            self._pins.setdefault(self.find(i), reason)

    def loosen(self, labels: Labels, reason: str) -> None:
        """Taking these away changes what the others compute, even where they are zero (a mean over channels)."""
        for i in np.unique(labels).tolist():
            self._loose.setdefault(self.find(i), reason)

    def find(self, i: int) -> int:
        """The atom that stands for all that i is tied to."""
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def roots(self, labels: Labels) -> Labels:
        """`find` of every atom."""
        return np.fromiter((self.find(i) for i in labels.tolist()), np.int64, labels.size)

    def all_roots(self) -> Labels:
        """`find` of every atom that there is, int64 [len(self)]."""
        parent = np.asarray(self._parent, np.int64)
        while True:
            up = parent[parent]
            if np.array_equal(up, parent):
                return parent
            parent = up

    def pinned(self, root: int) -> str | None:
        """Why a set of atoms stays; None when it may go."""
        return self._pins.get(root)

    def loose(self, root: int) -> str | None:
        """Why removing zeros is not exact here; None when it is."""
        return self._loose.get(root)

    def _tie(self, i: int, j: int) -> None:
        a, b = self.find(i), self.find(j)
        if a == b:
            return
        if self._size[a] < self._size[b]:
            a, b = b, a
        self._parent[b] = a
        self._size[a] += self._size[b]
        for notes in (self._pins, self._loose):
            if b in notes:
                notes.setdefault(a, notes[b])
                del notes[b]
