"""Take one guard away in a copy of the source, and run the test that must notice.

A trial runs in a child that is forked off a process which has the heavy third-party packages loaded already: starting
Python and importing them would take most of the time. Neither edgeproof nor python-tuf is loaded before the fork, so
that the child imports the copy. The checkout is never touched.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.guards.table import LIMIT_S, ROOT, Case, source_of

Outcome = Literal["noticed", "survived", "not found", "broken"]
_HEAVY = (
    "numpy", "onnx", "onnx_ir", "onnxruntime", "yaml", "rich", "pytest", "PIL.Image", "rfc8785",
    "cryptography.hazmat.primitives.asymmetric.ed25519", "securesystemslib.signer", "securesystemslib.dsse", "urllib3",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """How a trial ended.

    Attributes:
        outcome: ``noticed`` is what it must be. ``broken``: pytest could not run the test at all.
        how: Last line of what pytest said, or that the test did not end.
    """

    outcome: Outcome
    how: str


def load_heavy() -> None:
    """Import what every test imports, once."""
    for name in _HEAVY:
        importlib.import_module(name)


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy of the source, the tests and what they use, with python-tuf beside it.

    Args:
        folder: A new or empty folder.
    """
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(source_of("tuf/__init__.py").parent, folder / "lib" / "tuf", ignore=ignore)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def passing(tests: Sequence[str], tree: Path, log: Path) -> bool:
    """Whether tests pass in the copy with every guard in its place; otherwise their failing would say nothing."""
    return _forked(tests, LIMIT_S * 4, tree, log).outcome == "survived"


def run(case: Case, tree: Path, log: Path) -> Trial:
    """Take a case's guard away in the copy and run its test.

    Args:
        case: The case.
        tree: What `copied` gave; it is as before when this returns.
        log: Where pytest's output goes.
    """
    before: dict[Path, str] = {}
    try:
        for edit in case.edits:
            path = tree / ("src" if edit.ours else "lib") / edit.file
            text = path.read_text(encoding="utf-8")
            before.setdefault(path, text)
            if text.count(edit.guard) != 1:
                return Trial("not found", f"{edit.file} holds the fragment {text.count(edit.guard)} times")
            path.write_text(text.replace(edit.guard, edit.gone), encoding="utf-8")
        if case.needs:
            return _elsewhere(case, tree, log)
        return _forked((case.test,), case.limit_s, tree, log)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


def _elsewhere(case: Case, tree: Path, log: Path) -> Trial:
    """In the environment that a test needs, which scripts/test-NEEDS makes."""
    venv = Path(os.environ.get(f"EDGEPROOF_{case.needs.upper()}_VENV", ROOT / f".venv-{case.needs}"))
    command = [str(venv / "bin/python"), "-m", "pytest", "-x", "-rf", "-p", "no:cacheprovider", "--tb=short", case.test]
    env = {**os.environ, **_environment(tree)}
    try:
        with log.open("wb") as out:
            done = subprocess.run(command, cwd=tree, env=env, stdout=out, stderr=out, timeout=case.limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Trial("noticed", f"did not end within {case.limit_s:g} s")
    except FileNotFoundError:
        return Trial("broken", f"there is no {venv}: run scripts/test-{case.needs} first")
    return _said(done.returncode, log)


def _forked(tests: Sequence[str], limit_s: float, tree: Path, log: Path) -> Trial:
    child = os.fork()
    if not child:
        try:
            _child(tests, tree, log)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(70)
    ended = _wait(child, limit_s)
    if ended is None:
        return Trial("noticed", f"did not end within {limit_s:g} s")
    return _said(ended, log)


def _said(code: int, log: Path) -> Trial:
    """What pytest's exit code and its last words mean."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = next((line.partition(" - ")[2] or line for line in lines if line.startswith("FAILED")), "")
    if said and code:  # whatever else went wrong when pytest ended, the test had failed; an error in a fixture is none
        return Trial("noticed", said)
    return Trial("survived" if code == 0 else "broken", lines[-1] if lines else "")


def _environment(tree: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, _paths(tree)))
    return {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "400"}


def _paths(tree: Path) -> list[Path]:
    return [tree / "src", tree / "lib", tree]


def _child(tests: Sequence[str], tree: Path, log: Path) -> None:
    os.setpgid(0, 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for fd in (1, 2):
        os.dup2(out, fd)
    os.chdir(tree)
    sys.path[:0] = map(str, _paths(tree))
    os.environ.update(_environment(tree))
    sys.dont_write_bytecode = True
    for name in [n for n in sys.modules if n.partition(".")[0] in ("benchmarks", "edgeproof", "tuf")]:
        del sys.modules[name]  # this runner itself, and nothing else
    import pytest

    code = pytest.main(["-x", "-rf", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def _wait(child: int, limit_s: float) -> int | None:
    """Exit code; None when the limit came first, and then the child and its own children are ended."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
