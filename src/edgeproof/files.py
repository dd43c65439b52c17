"""Write files so that a reader sees the old content or the new one, never half of either.

Everything edgeproof keeps goes through `write_bytes` or `replacing`: a temporary name in the same folder, fsync,
rename. What the system refuses (full disk, read-only folder) becomes an error with a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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


def cache_folder(name: str = "") -> Path:
    """Where what can be made again is kept: ``$EDGEPROOF_CACHE``, else ``~/.cache/edgeproof``; a part of it by name."""
    root = Path(os.environ.get("EDGEPROOF_CACHE") or Path.home() / ".cache" / "edgeproof")
    return root / name if name else root


def ended(path: Path, ending: str) -> Path:
    """``path`` with an ending such as ``.tflite``, which is added to a name that lacks it."""
    return path if path.name.endswith(ending) else path.with_name(path.name + ending)


def plain(path: Path) -> Path:
    """``path`` itself, where a plain file (or a link to one) is there: a device or a pipe may never end.

    Raises:
        InputError: files.missing, files.wrong_kind, files.os.
    """
    try:
        mode = path.stat().st_mode
    except OSError as e:
        raise os_error(path, e) from e
    if not stat.S_ISREG(mode):
        raise InputError("files.wrong_kind", str(path), "is no plain file", "choose another path")
    return path


@contextlib.contextmanager
def only_one(lock: Path, busy: InputError) -> Iterator[None]:
    """Keep other processes out until this one leaves; the kernel ends the lock with the process. Source: flock(2).

    Args:
        lock: A file that is locked and left behind; made where it is missing, with its folder.
        busy: What is raised where another process is in.

    Raises:
        InputError: ``busy``.
        OSError: The file cannot be made or locked.
    """
    import fcntl  # of POSIX systems only

    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise busy from e
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes the place of ``path``, on failure it is removed.

    Raises:
        InputError: files.disk_full, files.read_only, files.missing, files.os.
    """
    temporary: Path | None = None
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A rename would take the place of a device, a pipe or a socket that others need.
            raise InputError("files.wrong_kind", str(path), "is no plain file", "choose another path")
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


def check_record(kind: type, value: Any, subject: str) -> None:
    """Hold the fields of a record that was read from JSON against the types that its dataclass declares.

    Fields that are missing or unknown are left to the constructor.

    Raises:
        InputError: files.value, naming the field.
    """
    if not isinstance(value, Mapping):
        raise _no_record(subject, value, kind)
    hints = get_type_hints(kind)
    for name, item in value.items():
        if name in hints and not _is_a(item, hints[name]):
            raise _no_record(f"{subject}: {kind.__name__}.{name}", item, hints[name])


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type; tuples and sequences are lists, numbers are finite."""
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_a(value, h) for h in of)
    if origin is Literal:
        return value in of
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint in (int, bool, str, type(None)):
        return type(value) is hint
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_is_a(v, of[1]) for v in value.values())
    return isinstance(value, list) and all(_is_a(v, of[0]) for v in value)


def _no_record(subject: str, value: Any, hint: Any) -> InputError:
    got, wanted = repr(value), getattr(hint, "__name__", str(hint)) if not get_args(hint) else str(hint)
    got = got if len(got) <= 60 else got[:57] + "..."
    return InputError("files.value", subject, f"is {got}; expected {wanted}", "restore the file, or measure again")


_YAML = (
    ("could not find expected ':'", "a key without a ':'"),
    (
        "mapping values are not allowed",
        "a ':' where none may be; indent the line like its neighbours, or quote the text",
    ),
    ("cannot start any token", "a character that no value starts with: indent with spaces, and quote such text"),
    ("found unexpected end of stream", "a quote is never closed: {open}"),
    ("but found '<stream end>'", "the end of the file, before {open} is closed"),
    ("but got '<stream end>'", "the end of the file, before {open} is closed"),
    ("expected ',' or ']'", "a ',' or ']' is missing, in {open}"),
    ("expected ',' or '}'", "a ',' or '}' is missing, in {open}"),
    ("expected <block end>", "an indentation that fits neither this entry nor the one before"),
    ("found duplicate anchor", "an anchor of a name that is used already"),
    ("found undefined alias", "an alias of an anchor that is not there"),
)
"""What PyYAML says, and what is meant."""


YAML_VALUES = 1_000_000
"""Most values in a YAML text, with its aliases written out."""


def read_yaml(text: str) -> Any:
    """The value of a YAML text, at a bounded price: a few lines of aliases can stand for billions of values.

    Raises:
        yaml.YAMLError: no YAML, a tag that makes objects, or more than `YAML_VALUES` values.
        RecursionError: nested too deeply.
        ValueError: a date or a number that is none.
    """
    import yaml

    value = yaml.safe_load(text)
    if _values(value, {}) > YAML_VALUES:
        raise yaml.YAMLError(f"its aliases stand for more than {YAML_VALUES:,} values")
    return value


def _values(value: Any, known: dict[int, float]) -> float:
    """How many values it has when written out; infinite for one that holds itself."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # what is met again before it is counted holds itself
        items = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_values(v, known) for v in items)
    return known[id(value)]


def yaml_problem(error: Exception) -> str:
    """Where a YAML text stops making sense, and what is missing there, as one clause.

    Args:
        error: What PyYAML raised: its own errors, or any other for a value that it could not make.
    """
    mark = getattr(error, "problem_mark", None)
    said = str(getattr(error, "problem", None) or error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    start = getattr(error, "context_mark", None)
    kind = "the list" if "sequence" in str(getattr(error, "context", "")) else "the mapping"
    kind = "the one" if "quoted" in str(getattr(error, "context", "")) else kind
    opened = f"{kind} begun in line {start.line + 1}" if start is not None else "a bracket"
    meant = next((text for part, text in _YAML if part in said), " ".join(said.split()))
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return where + meant.replace("{open}", opened)
