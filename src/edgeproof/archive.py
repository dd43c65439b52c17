"""One canonical ZIP: the same members always give the same bytes, and any other bytes are refused.

Members are stored, sorted by name, dated 1980-01-01, of mode 0644, without comment, extra field, descriptor or zip64.
Opening rebuilds every header from (name, size, CRC-32) and demands byte equality with the file, so prepended,
trailing, hidden and overlapping data have no place to be; what differs is named where that is possible. Reading a
member checks its CRC-32. Nothing is decompressed, so a file costs what its length says.
Source: APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12, 4.3.16.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, final

from .digest import PREFIX, digest_file
from .errors import InputError, TrustError
from .files import os_error, replacing

MOST_MEMBERS = 4096
MOST_BYTES = 2**32 - 2
"""Largest member and largest file; beyond it ZIP needs zip64."""
_PART = "[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?"
_NAME = re.compile(f"{_PART}(?:/{_PART})*")
_LONGEST_NAME, _MOST_ENTRY = 200, 1024
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_SIGN, _CENTRAL_SIGN, _END_SIGN = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_ZIP64_SIGN, _ZIP64_SIZE = b"PK\x06\x07", 20
_NEEDED = 10
_MADE_BY = 3 << 8 | _NEEDED
_DATE = 1 << 5 | 1
_MODE = stat.S_IFREG | 0o644
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class _Member:
    """Where a member lies: name, bytes, CRC-32, and the offset of its header."""

    name: str
    size: int
    crc: int
    offset: int

    @property
    def start(self) -> int:
        """Offset of the content."""
        return self.offset + _LOCAL.size + len(self.name)

    @property
    def local(self) -> bytes:
        """Its header before the content. Source: APPNOTE 4.3.7."""
        name = self.name.encode("ascii")
        fields = (_LOCAL_SIGN, _NEEDED, 0, 0, 0, _DATE, self.crc, self.size, self.size, len(name), 0)
        return _LOCAL.pack(*fields) + name

    @property
    def central(self) -> bytes:
        """Its entry in the directory. Source: APPNOTE 4.3.12."""
        name = self.name.encode("ascii")
        head = (_CENTRAL_SIGN, _MADE_BY, _NEEDED, 0, 0, 0, _DATE, self.crc, self.size, self.size)
        return _CENTRAL.pack(*head, len(name), 0, 0, 0, 0, _MODE << 16, self.offset) + name


def write_archive(path: Path, members: Mapping[str, bytes | Path]) -> str:
    """Write a canonical archive; it takes the place of ``path`` only when whole.

    Args:
        path: The file to write.
        members: Name → content, or the file that holds it, which is copied in a stream.

    Returns:
        Digest of the file written.

    Raises:
        InputError: archive.name, archive.twin, archive.member_count, archive.zip64, and what `files.replacing` raises.
    """
    names = sorted(members)
    _check_names(names, str(path), InputError)
    if len(names) > MOST_MEMBERS:
        raise InputError("archive.member_count", str(path), f"{len(names)} members; at most {MOST_MEMBERS}", "")
    written: list[_Member] = []
    with replacing(path) as temporary:
        with temporary.open("wb") as f:
            written.extend(_append(f, name, members[name]) for name in names)
            f.write(_directory(written, f.tell()))
        return digest_file(temporary)


def open_archive(path: Path, *, allowed: Callable[[str], int], max_total: int) -> Archive:
    """Open an archive after checking all of its structure.

    Time and memory are bounded by the number of members, never by a size that the file only claims.

    Args:
        path: The file.
        allowed: Largest size, in bytes, that a member of this name may have; 0 when there may be none.
        max_total: Largest size of all members together, in bytes.

    Raises:
        TrustError: archive.not_file, archive.no_end, archive.comment, archive.zip64, archive.trailing, archive.gap,
            archive.member_count, archive.directory_size, archive.directory, archive.name, archive.duplicate,
            archive.twin, archive.order, archive.extra_field, archive.compressed, archive.encrypted,
            archive.descriptor, archive.symlink, archive.size_mismatch, archive.not_allowed, archive.member_size,
            archive.total_size, archive.overlap, archive.local_header, archive.not_canonical.
        InputError: files.missing, files.read_only, files.os.
    """
    try:
        # Non-blocking, so that a pipe without a writer does not hang.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise os_error(path, e) from e
    try:
        return Archive(path, handle, _checked(path, handle, allowed, max_total))
    except BaseException:
        os.close(handle)
        raise


@final
class Archive:
    """An opened archive; close it, or use it as a context.

    Attributes:
        path: The file.
        names: The members' names, sorted.
    """

    def __init__(self, path: Path, handle: int, members: tuple[_Member, ...]) -> None:
        self.path = path
        self.names: tuple[str, ...] = tuple(m.name for m in members)
        self._handle = handle
        self._members = {m.name: m for m in members}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """Bytes of a member."""
        return self._member(name).size

    def read(self, name: str) -> bytes:
        """A member's content, in memory once.

        Raises:
            TrustError: archive.missing, archive.crc, archive.truncated.
        """
        member = self._member(name)
        data = _exactly(self._handle, member.size, member.start)
        self._check(member, len(data), zlib.crc32(data))
        return data

    def file_digest(self) -> str:
        """Digest of the whole file, as it was opened."""
        h, at, buffer = hashlib.sha256(), 0, memoryview(bytearray(_CHUNK))
        while got := os.preadv(self._handle, [buffer], at):
            h.update(buffer[:got])
            at += got
        return PREFIX + h.hexdigest()

    def digest(self, name: str) -> str:
        """Digest of a member's content, read in a stream.

        Raises:
            TrustError: archive.missing, archive.crc, archive.truncated.
        """
        h = hashlib.sha256()
        for chunk in self._chunks(name):
            h.update(chunk)
        return PREFIX + h.hexdigest()

    def extract(self, name: str, to: Path) -> str:
        """Copy a member into a file; the file appears only when whole.

        Returns:
            Digest of the bytes that were written.

        Raises:
            TrustError: archive.missing, archive.crc, archive.truncated.
            InputError: What `files.replacing` raises.
        """
        h = hashlib.sha256()
        with replacing(to) as temporary, temporary.open("wb") as f:
            for chunk in self._chunks(name):
                h.update(chunk)
                f.write(chunk)
        return PREFIX + h.hexdigest()

    def _member(self, name: str) -> _Member:
        found = self._members.get(name)
        if found is None:
            raise _refused("missing", self.path, f"has no member {name!r}")
        return found

    def _chunks(self, name: str) -> Iterator[memoryview]:
        """A member's content through one buffer: a chunk is gone when the next one is asked for."""
        member = self._member(name)
        buffer = memoryview(bytearray(min(member.size, _CHUNK)))
        read = crc = 0
        while read < member.size:
            got = os.preadv(self._handle, [buffer[: member.size - read]], member.start + read)
            if not got:
                break
            chunk = buffer[:got]
            crc, read = zlib.crc32(chunk, crc), read + got
            yield chunk
        self._check(member, read, crc)

    def _check(self, member: _Member, read: int, crc: int) -> None:
        """What was read is all of the member, and what its header says."""
        name = member.name
        if read < member.size:
            raise _refused("truncated", self.path, f"ended within {name!r} while it was read")
        if crc != member.crc:
            raise _refused("crc", self.path, f"{name!r} has the CRC-32 {crc:08x}; its header says {member.crc:08x}")


def _append(f: BinaryIO, name: str, content: bytes | Path) -> _Member:
    """Write one member at the end; its header is written last, when size and CRC-32 are known."""
    member = _Member(name, 0, 0, f.tell())
    f.write(member.local)
    size = crc = 0
    for chunk in _read(content) if isinstance(content, Path) else (content,):
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        if member.start + size > MOST_BYTES - MOST_MEMBERS * (_CENTRAL.size + _LONGEST_NAME):
            problem = f"the archive would be larger than a plain ZIP can be ({MOST_BYTES} bytes)"
            raise InputError("archive.zip64", name, problem, "leave out what is not needed, or use smaller files")
        f.write(chunk)
    member = _Member(name, size, crc, member.offset)
    f.seek(member.offset)
    f.write(member.local)
    f.seek(0, os.SEEK_END)
    return member


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as f:
            while chunk := f.read(_CHUNK):
                yield chunk
    except OSError as e:
        raise os_error(path, e) from e


def _directory(members: list[_Member], at: int) -> bytes:
    """The directory and its end. Source: APPNOTE 4.3.12, 4.3.16."""
    entries = b"".join(m.central for m in members)
    return entries + _END.pack(_END_SIGN, 0, 0, len(members), len(members), len(entries), at, 0)


def _check_names(names: list[str], subject: str, error: type[InputError] | type[TrustError]) -> None:
    """Refuse a name that some system would read as another one."""
    twins: dict[str, str] = {}
    for name in names:
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
            shown = repr(name if len(name) <= 60 else name[:57] + "...")
            problem = f"has a member named {shown}; expected relative paths of letters, digits and . _ + -"
            raise error("archive.name", subject, problem, "rename the file")
        twin = twins.setdefault(name.lower(), name)
        if twin != name:
            raise error("archive.twin", subject, f"{twin!r} and {name!r} differ in case only", "rename one")
    for name in names:
        folders = name.lower().split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            if "/".join(folders[:depth]) in twins:
                raise error("archive.twin", subject, f"{name!r} lies in a folder that is also a file", "rename one")


def _checked(path: Path, handle: int, allowed: Callable[[str], int], max_total: int) -> tuple[_Member, ...]:
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        raise _refused("not_file", path, "is no plain file")
    length = state.st_size
    count, size, at = _end(path, handle, length)
    entries = _exactly(handle, size, at)
    members = _entries(path, entries, count)
    _check_names([m.name for m in members], str(path), TrustError)
    _check_order(path, [m.name for m in members])
    _check_sizes(path, members, allowed, max_total)
    _check_places(path, handle, members, at)
    if b"".join(m.central for m in members) != entries:
        raise _refused("not_canonical", path, "its directory is not the one that its members give")
    return tuple(members)


def _end(path: Path, handle: int, length: int) -> tuple[int, int, int]:
    """Read the end record: number of members, bytes of the directory, and its offset."""
    tail = _exactly(handle, _END.size, length - _END.size) if length >= _END.size else b""
    if not tail.startswith(_END_SIGN):
        found = _exactly(handle, n := min(length, 2**16 + _END.size), length - n).rfind(_END_SIGN)
        if not 0 <= found <= n - _END.size:
            raise _refused("no_end", path, "is no ZIP archive, or was cut short")
        raise _refused(*_after_end(path, handle, length, length - n + found))
    _, disk, first, here, count, size, at, comment = _END.unpack(tail)
    if comment:
        raise _refused("comment", path, "its end announces a comment")
    unclaimed = length - at - size - _END.size
    zip64 = unclaimed >= _ZIP64_SIZE and _exactly(handle, 4, length - _END.size - _ZIP64_SIZE) == _ZIP64_SIGN
    if length > MOST_BYTES or zip64 or 0xFFFF in (here, count) or 0xFFFFFFFF in (size, at):
        raise _refused("zip64", path, "uses zip64, or is larger than a plain ZIP can be")
    if disk or first or here != count:
        raise _refused("not_canonical", path, "is a part of several")
    if count > MOST_MEMBERS:
        raise _refused("member_count", path, f"has {count} members; at most {MOST_MEMBERS} are read")
    if unclaimed > 0:
        raise _refused("gap", path, f"has {unclaimed} bytes that belong to no member")
    # Before it is read: a directory is as large as its entries, whatever the file claims.
    if unclaimed < 0 or size > count * (_CENTRAL.size + _MOST_ENTRY):
        raise _refused("directory_size", path, f"its directory of {count} members cannot have {size} bytes at {at}")
    return count, size, at


def _after_end(path: Path, handle: int, length: int, at: int) -> tuple[str, Path, str]:
    """Say whether what follows the end record is its comment or foreign."""
    after = length - at - _END.size
    if _END.unpack(_exactly(handle, _END.size, at))[-1] == after:
        return "comment", path, f"has a comment of {after} bytes"
    return "trailing", path, f"has {after} bytes after its end"


def _entries(path: Path, data: bytes, count: int) -> list[_Member]:
    """Read the directory; what a canonical one cannot have is named here."""
    members: list[_Member] = []
    at = 0
    for index in range(count):
        if len(data) - at < _CENTRAL.size or not data.startswith(_CENTRAL_SIGN, at):
            raise _refused("directory", path, f"its directory ends after {index} of {count} members")
        fields = _CENTRAL.unpack_from(data, at)
        flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
        length, extra, comment, mode, offset = fields[10], fields[11], fields[12], fields[15] >> 16, fields[16]
        at += _CENTRAL.size
        raw = data[at : at + length]
        at += length + extra + comment
        name = raw.decode("ascii", errors="backslashreplace")
        if extra:
            raise _refused("extra_field", path, f"{name!r} has an extra field")
        if comment:
            raise _refused("comment", path, f"{name!r} has a comment")
        if flags & 1:
            raise _refused("encrypted", path, f"{name!r} is encrypted")
        if flags & 8:
            raise _refused("descriptor", path, f"{name!r} has a data descriptor")
        if method:
            raise _refused("compressed", path, f"{name!r} is compressed (method {method}); members are stored")
        if stat.S_ISLNK(mode):
            raise _refused("symlink", path, f"{name!r} is a symbolic link")
        if packed != size:
            raise _refused("size_mismatch", path, f"{name!r} has {packed} stored bytes and claims {size}")
        members.append(_Member(name, size, crc, offset))
    if at != len(data):
        raise _refused("directory", path, f"its directory has {len(data) - at} bytes too many")
    return members


def _check_order(path: Path, names: list[str]) -> None:
    for before, name in pairwise(names):
        if before == name:
            raise _refused("duplicate", path, f"has {name!r} twice")
        if before > name:
            raise _refused("order", path, f"has {name!r} after {before!r}; names are sorted")


def _check_sizes(path: Path, members: list[_Member], allowed: Callable[[str], int], max_total: int) -> None:
    for m in members:
        most = allowed(m.name)
        if most <= 0:
            raise _refused("not_allowed", path, f"has a member {m.name!r}, which has no place here")
        if m.size > most:
            raise _refused("member_size", path, f"{m.name!r} has {m.size} bytes; at most {most} are read")
    total = sum(m.size for m in members)
    if total > max_total:
        raise _refused("total_size", path, f"its members have {total} bytes; at most {max_total} are read")


def _check_places(path: Path, handle: int, members: list[_Member], directory: int) -> None:
    """Members follow each other without a gap, each behind the header that its directory entry gives."""
    at = 0
    for m in members:
        if m.offset > at:
            raise _refused("gap", path, f"has {m.offset - at} bytes before {m.name!r} that belong to no member")
        if m.offset < at:
            raise _refused("overlap", path, f"{m.name!r} overlaps the member before it")
        if _exactly(handle, len(m.local), at) != m.local:
            raise _refused("local_header", path, f"the header before {m.name!r} is not what the directory says")
        at = m.start + m.size
    if at < directory:
        raise _refused("gap", path, f"has {directory - at} bytes before its directory that belong to no member")
    if at > directory:
        raise _refused("overlap", path, "its last member reaches into the directory")


def _exactly(handle: int, size: int, at: int) -> bytes:
    """Read up to ``size`` bytes at an offset; fewer only where the file ends."""
    parts = []
    while size and (chunk := os.pread(handle, size, at)):
        parts.append(chunk)
        size, at = size - len(chunk), at + len(chunk)
    return b"".join(parts)


def _refused(rule: str, path: Path, problem: str) -> TrustError:
    return TrustError(f"archive.{rule}", str(path), problem, "get the file anew from where it was made")
