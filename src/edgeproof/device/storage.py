"""Everything the device writes goes through this seam, so that a power cut can be played at every step of it.

What was written is on the disk only after `Storage.sync`, and a name only after `Storage.sync_folder`: POSIX promises
no more. `replace` is the one way in which a file changes: temporary name, sync, rename, sync of the folder.
Source: POSIX.1-2017, fsync() and rename(); Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, final

from ..errors import InputError
from ..files import os_error

PART = ".part"
"""Ending of a file that is being written; whatever carries it at the start is left over from a crash."""


class Storage(Protocol):
    """The operations that change a device's folder."""

    def folder(self, path: Path) -> None:
        """Make a folder whose parent exists; one that is there already is left alone."""

    def write(self, path: Path, chunks: Iterable[bytes]) -> None:
        """Make or overwrite a file with the chunks, in order. Nothing of it is on the disk yet."""

    def adopt(self, path: Path, write: Callable[[Path], None]) -> None:
        """Have somebody else write a file, such as a download. Nothing of it is on the disk yet."""

    def sync(self, path: Path) -> None:
        """Bring a file's content onto the disk."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same folder; one that has this name already is replaced."""

    def sync_folder(self, path: Path) -> None:
        """Bring a folder's names onto the disk."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is left alone."""


@final
class Disk:
    """The real one.

    Raises:
        InputError: files.disk_full and others of `edgeproof.files.os_error`, from every method.
    """

    def folder(self, path: Path) -> None:
        """Make one folder, for its owner alone."""
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            raise os_error(path, e) from e

    def write(self, path: Path, chunks: Iterable[bytes]) -> None:
        """Write through a plain descriptor, for its owner alone; a link in its place is not followed."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                for chunk in chunks:
                    _write_all(fd, chunk)
            finally:
                os.close(fd)
        except OSError as e:
            raise os_error(path, e) from e

    def adopt(self, path: Path, write: Callable[[Path], None]) -> None:
        """Let ``write`` make the file."""
        try:
            write(path)
        except OSError as e:
            raise os_error(path, e) from e

    def sync(self, path: Path) -> None:
        """Fsync of a file."""
        _sync(path, os.O_RDONLY)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one folder."""
        if source.parent != target.parent:
            raise InputError(
                "device.rename", str(source), f"would leave its folder for {target}", "rename within a folder"
            )
        try:
            source.replace(target)
        except OSError as e:
            raise os_error(target, e) from e

    def sync_folder(self, path: Path) -> None:
        """Fsync of a folder."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def remove(self, path: Path) -> None:
        """Unlink."""
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise os_error(path, e) from e


def replace(storage: Storage, path: Path, data: bytes) -> None:
    """Change a file so that a crash leaves either the old content or the new one."""
    part = path.with_name(path.name + PART)
    storage.write(part, (data,))
    storage.sync(part)
    storage.rename(part, path)
    storage.sync_folder(path.parent)


def _write_all(fd: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


def _sync(path: Path, flags: int) -> None:
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as e:
        raise os_error(path, e) from e
