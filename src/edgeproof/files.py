"""Write files so that a reader sees the old content or the new one, never half of either.

Everything edgeproof keeps goes through `write_bytes` or `replacing`: a temporary name in the same folder, fsync,
rename. What the system refuses (full disk, read-only folder) becomes an error with a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InputError


def os_error(path: Path, error: OSError) -> InputError:
    """The user's view of an operating-system error on ``path``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(
            "files.disk_full",
            str(path),
            "no space left on the disk; nothing was half-written",
            "free some space or choose another folder with --out, then run the same command again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(
            "files.read_only",
            str(path),
            "cannot be written (permission denied)",
            "choose a writable folder with --out",
        )
    if error.errno == errno.ENOENT:
        return InputError("files.missing", str(path), "no such file or folder", "check the path")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return InputError(
            "files.wrong_kind",
            str(path),
            f"a file stands where a folder is needed, or the other way round ({error.strerror})",
            "remove it or choose another path",
        )
    return InputError(
        "files.os", str(path), f"the system refused: {error.strerror or error}", "check the path and disk"
    )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes the place of ``path``, on failure it is removed.

    Raises:
        InputError: files.disk_full, files.read_only, files.missing, files.os.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        temporary.chmod(0o644)
        yield temporary
        with temporary.open("rb") as f:
            os.fsync(f.fileno())
        temporary.replace(path)
        temporary = None
    except OSError as e:
        raise os_error(path, e) from e
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replace the content of ``path`` with UTF-8 text, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` with indented JSON that a person can read; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: files.missing, files.not_json.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise os_error(path, e) from e
    except (ValueError, RecursionError) as e:
        raise InputError("files.not_json", str(path), f"is not valid JSON: {e}", "restore or delete the file") from e
