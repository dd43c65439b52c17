"""What others serve a model with: repositories for Triton, container files for whole devices.

Whatever is written here is a folder that is there as a whole or not at all, made of the very bytes that were given.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..files import os_error, plain


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``out``, which becomes ``out`` when nothing failed.

    Raises:
        InputError: serving.exists, files.*.
    """
    if out.exists() or out.is_symlink():
        hint = "remove it, or choose another place with --out or another name with --name"
        raise InputError("serving.exists", str(out), "is there already; nothing is written over it", hint)
    made: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
        made.chmod(0o755)
        yield made
        made.rename(out)
        made = None
    except OSError as e:
        raise os_error(out, e) from e
    except InputError as e:
        if made is None or str(made) not in e.subject:
            raise
        # People know the folder that they asked for, not the one that it is until it is whole.
        raise InputError(e.code, e.subject.replace(str(made), str(out)), e.problem, e.hint) from e
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def copied(source: Path, to: Path) -> Path:
    """Copy one file, making its folder.

    Raises:
        InputError: files.*.
    """
    if to.exists():
        hint = "rename it, and save the model with its new name"
        raise InputError("serving.name", str(source), f"would take the place of {to.name} in the folder", hint)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(plain(source), to)
    except OSError as e:
        raise os_error(source, e) from e
    return to


def written(folder: Path) -> tuple[Path, ...]:
    """All files below a folder, sorted."""
    return tuple(sorted(p for p in folder.rglob("*") if p.is_file()))
