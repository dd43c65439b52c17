"""A model of a disk that promises what POSIX does, and a storage that records what is done to it.

Content is there after fsync of the file, a name after fsync of its folder. Until then content may be there, missing,
the old one, cut in half or zeroed, and any subset of the names may have changed.
Source: POSIX.1-2017, fsync() and rename(); Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeproof.device.storage import Disk

Kind = Literal["write", "sync", "rename", "sync_folder", "remove"]
Image = Mapping[str, bytes]
"""Path below the root → content."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the disk."""

    kind: Kind
    path: str
    target: str = ""
    data: bytes = b""


@dataclass(slots=True)
class Recorder:
    """Storage that also writes down what it does.

    Args:
        root: Paths are recorded relative to it.
        forget: Kinds that are neither done nor recorded, as if the code had left them out.
        durable: Really sync; a model of a disk needs no real one.
    """

    root: Path
    forget: frozenset[str] = frozenset()
    durable: bool = False
    log: list[Operation] = field(default_factory=list)
    disk: Disk = field(default_factory=Disk)

    def folder(self, path: Path) -> None:
        self.disk.folder(path)

    def write(self, path: Path, chunks: Iterable[bytes]) -> None:
        self.disk.write(path, chunks)
        self._note("write", path, data=path.read_bytes())

    def adopt(self, path: Path, write: Callable[[Path], None]) -> None:
        self.disk.adopt(path, write)
        self._note("write", path, data=path.read_bytes())

    def sync(self, path: Path) -> None:
        if self.durable:
            self.disk.sync(path)
        self._note("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        self.disk.rename(source, target)
        self._note("rename", source, target=str(target.relative_to(self.root)))

    def sync_folder(self, path: Path) -> None:
        if self.durable:
            self.disk.sync_folder(path)
        self._note("sync_folder", path)

    def remove(self, path: Path) -> None:
        there = path.exists()
        self.disk.remove(path)
        if there:
            self._note("remove", path)

    def _note(self, kind: Kind, path: Path, target: str = "", data: bytes = b"") -> None:
        if kind not in self.forget:
            self.log.append(Operation(kind, str(path.relative_to(self.root)), target, data))


@dataclass(slots=True)
class _File:
    durable: bytes
    cached: bytes


class Platter:
    """A disk that promises what POSIX does: content after fsync, names after fsync of their folder."""

    def __init__(self, image: Image) -> None:
        self._files = [_File(data, data) for data in image.values()]
        self._names = {name: i for i, name in enumerate(image)}
        self._live = dict(self._names)
        self._pending: list[tuple[str, dict[str, int | None]]] = []

    def apply(self, operation: Operation) -> None:
        """Do one operation; its effect is cached until it is synced."""
        path, folder = operation.path, str(Path(operation.path).parent)
        if operation.kind == "write":
            if path not in self._live:
                self._files.append(_File(b"", b""))
                self._live[path] = len(self._files) - 1
                self._pending.append((folder, {path: self._live[path]}))
            self._files[self._live[path]].cached = operation.data
        elif operation.kind == "sync":
            file = self._files[self._live[path]]
            file.durable = file.cached
        elif operation.kind == "rename":
            moved = self._live.pop(path)
            self._live[operation.target] = moved
            self._pending.append((folder, {path: None, operation.target: moved}))
        elif operation.kind == "remove":
            self._live.pop(path)
            self._pending.append((folder, {path: None}))
        else:
            kept = [p for p in self._pending if p[0] != path]
            for _, effect in (p for p in self._pending if p[0] == path):
                _take(self._names, effect)
            self._pending = kept

    def images(self) -> Iterator[Image]:
        """Every way in which the disk may look after a power cut now."""
        for happened in itertools.product((True, False), repeat=len(self._pending)):
            names = dict(self._names)
            for (_, effect), done in zip(self._pending, happened, strict=True):
                if done:
                    _take(names, effect)
            contents = {i: _possible(self._files[i]) for i in sorted(set(names.values()))}
            for choice in itertools.product(*contents.values()):
                chosen = dict(zip(contents, choice, strict=True))
                yield {name: chosen[i] for name, i in names.items()}


def _take(names: dict[str, int], effect: Mapping[str, int | None]) -> None:
    for name, file in effect.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _possible(file: _File) -> list[bytes]:
    """Contents that a file may have: all, none, the old ones, half of it, or blocks that were never written."""
    new = file.cached
    if new == file.durable:
        return [new]
    return list(dict.fromkeys((new, file.durable, b"", new[: len(new) // 2], bytes(len(new)))))
