"""Run a driver as a child process, watch the memory of it and its descendants, and keep what it cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .environments import python_of
from .tools import Tool

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.05


def run(tool: Tool, job: Mapping[str, Any], log: Path, limit_gb: float, limit_s: float) -> dict[str, Any]:
    """One job in a fresh process.

    Args:
        tool: Whose driver to run.
        job: The fields of `driving.Job`.
        log: Where everything that it prints goes.
        limit_gb: It is stopped when it and its descendants hold more resident memory.
        limit_s: It is stopped after so much time.

    Returns:
        What the driver told, and ``peak_mb``; or ``failed``: one line.
    """
    try:
        python = python_of(tool.peer)
    except RuntimeError as e:
        return {"failed": str(e)}
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as printed:
        given, told = Path(folder) / "job.json", Path(folder) / "told.json"
        given.write_text(json.dumps(dict(job)))
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | dict.fromkeys(THREADS, "1")
        child = subprocess.Popen(
            [python, tool.script, given, told], stdout=printed, stderr=subprocess.STDOUT, cwd=folder, env=environ,
            start_new_session=True,
        )  # fmt: skip
        try:
            peak_mb, stopped = _watch(child, limit_gb, limit_s)
        finally:
            _end(child)
        if stopped or child.returncode or not told.is_file():
            return {"failed": stopped or _last_line(log, child.returncode), "peak_mb": peak_mb}
        found: dict[str, Any] = json.loads(told.read_text())
        return {**found, "peak_mb": peak_mb}


def _watch(child: subprocess.Popen[bytes], limit_gb: float, limit_s: float) -> tuple[float, str]:
    """Wait for it; its peak memory in MB, and why it was stopped."""
    peak, start = 0, time.monotonic()
    while child.poll() is None:
        peak = max(peak, resident(child.pid))
        late = time.monotonic() - start > limit_s
        if late or peak > limit_gb * 2**30:
            return peak / 2**20, f"stopped after {limit_s:g} s" if late else f"stopped above {limit_gb:g} GB"
        time.sleep(LOOK_S)
    return peak / 2**20, ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind, whatever ends this process."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def resident(pid: int) -> int:
    """Peak of a process's own resident bytes so far, plus what its descendants hold now."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            if one == pid:
                status = Path(f"/proc/{one}/status").read_text()
                total += next(int(s.split()[1]) * 1024 for s in status.splitlines() if s.startswith("VmHWM"))
            else:
                total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * PAGE
            left += [int(c) for c in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except (OSError, StopIteration):  # it has ended
            continue
    return total


def _last_line(log: Path, code: int | None) -> str:
    """The line that says what went wrong: the last one that names an error, else the last."""
    if code is not None and code < 0:
        return f"ended by signal {-code}"
    lines = [s.strip() for s in log.read_text(errors="replace").splitlines() if s.strip()]
    named = [s for s in lines if "Error" in s or "Exception" in s]
    return (named or lines or [f"exit code {code}"])[-1][:200]
