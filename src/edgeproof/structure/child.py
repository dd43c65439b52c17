"""Parse files that others made in a child process that cannot take the machine along.

`confined` is the one function: it runs a task of this module in a fresh interpreter under limits on memory,
processor time and wall time, and with no file to write. What the child answers is JSON. Run as
``python -m edgeproof.structure.child``, this module is that child.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import EdgeproofError, InputError, UnsupportedError, error_from

MEMORY_BYTES = 1 << 30
"""Memory that a child may write to besides what its files take."""
MEMORY_PER_BYTE = 6
"""Memory per byte of its files: the bytes, the parsed message, a working copy, arrays in float64."""
CPU_S = 20.0
CPU_S_PER_BYTE = 20 / 1e8
"""Processor time besides, and per byte: parsing and hashing run at some 100 MB/s and more (measured)."""
WALL_S = 30.0
"""Wall time besides three times the processor time: others may be using the processors."""
ANSWER_BYTES = 1 << 28


def confined(task: str, paths: Sequence[Path], arguments: Mapping[str, Any]) -> Any:
    """Run a task on files in a child process with limits.

    Args:
        task: ``structure`` or ``distances``.
        paths: The model files; the size of all that lies under their names sets the limits.
        arguments: Further arguments of the task, as JSON.

    Raises:
        EdgeproofError: What the task raised.
        InputError: structure.memory, structure.time, structure.stalled, structure.crashed: the file took more than its
            size allows.
    """
    size = sum(_size(p) for p in paths)
    memory, cpu = MEMORY_BYTES + MEMORY_PER_BYTE * size, CPU_S + CPU_S_PER_BYTE * size
    job = {"task": task, "paths": [str(p) for p in paths], "arguments": arguments, "memory": memory, "cpu": cpu}
    subject = " and ".join(map(str, paths))
    # One thread: every further one of a BLAS reserves memory of its own.
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, input=json.dumps(job).encode(), capture_output=True, timeout=3 * cpu + WALL_S, env=env, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise _too_much("stalled", subject, f"was still being read after {3 * cpu + WALL_S:.0f} s") from e
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _too_much("time", subject, f"took more than {cpu:.0f} s of processor time to read")
    try:
        answer = json.loads(done.stdout)
    except ValueError as e:
        if b"MemoryError" in done.stderr or b"bad_alloc" in done.stderr:
            raise _too_much("memory", subject, f"needs more than {memory:,} bytes of memory to be read") from e
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1][:200]
        raise _too_much("crashed", subject, f"ended the process that read it ({done.returncode}): {last}") from e
    if "error" in answer:
        raise error_from(answer["error"])
    return answer["result"]


def _size(path: Path) -> int:
    """Bytes of a model file and of the files beside it that may belong to it."""
    try:
        beside = [p for p in path.parent.iterdir() if p.suffix not in (".onnx", ".xml") or p == path]
        sizes = [p.stat().st_size for p in beside if p.is_file() and not p.is_symlink()]
        return path.stat().st_size + max(sizes, default=0)
    except OSError:
        return 0


def _too_much(rule: str, subject: str, problem: str) -> InputError:
    return InputError(f"structure.{rule}", subject, problem, "no sound model of this size needs that; get it anew")


def _limit(memory: int, cpu: float) -> None:
    # Not the address space: weights beside a model are mapped once per tensor, and mapped files cost nothing.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every tensor beside the model holds one open


def _run(task: str, paths: Sequence[Path], arguments: Mapping[str, Any]) -> Any:
    if task == "structure":
        from . import read_here

        return read_here(paths[0]).to_json()
    from .distance import distances

    return distances(paths[0], paths[1], arguments["names"])


def main() -> int:
    """Read a job on stdin, answer on stdout."""
    gc.disable()  # a short life; collecting again and again takes most of the time of a file with many parts
    job = json.loads(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the lines of the answer
    subject = " and ".join(job["paths"])
    over = _too_much("memory", subject, f"needs more than {job['memory']:,} bytes of memory to be read")
    no_memory = json.dumps({"error": over.to_json()}).encode()  # now, while there is some
    _limit(job["memory"], job["cpu"])
    try:
        answer = {"result": _run(job["task"], [Path(p) for p in job["paths"]], job["arguments"])}
        text = json.dumps(answer, allow_nan=False).encode()
        if len(text) > ANSWER_BYTES:
            raise _too_much("crashed", subject, f"is described by {len(text):,} bytes")
    except EdgeproofError as e:
        text = json.dumps({"error": e.to_json()}).encode()
    except MemoryError:
        text = no_memory
    except ModuleNotFoundError as e:
        missing = UnsupportedError(
            "package.missing",
            subject,
            f"needs the package {e.name}, which is not installed here",
            "pip install 'edgeproof[optimize]'",
        )
        text = json.dumps({"error": missing.to_json()}).encode()
    out.write(text)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
