"""The supervisor's end of the process that runs the model: start it, ask it, end it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import EdgeproofError, InputError, InternalError, TrustError, UnsupportedError
from ..frames import EndedError, Frame, receive, send
from .state import Slot

_KINDS: tuple[type[EdgeproofError], ...] = (InputError, UnsupportedError, TrustError)
STARTING_S = 120.0
"""How long loading a model may take; engines are built then."""


class CrashedError(Exception):
    """The process that runs the model is gone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One inference.

    Attributes:
        outputs: Name → array.
        latency_ms: Of the inference alone, inside its process.
        whole_ms: From the question to the answer, with both copies.
        nan_outputs: Outputs that hold a NaN.
    """

    outputs: Mapping[str, NDArray[Any]]
    latency_ms: float
    whole_ms: float
    nan_outputs: int


@final
class Serving:
    """A running model. Close it.

    Args:
        path: The bundle file.
        slot: What the device remembers of it.
        threads: Of one inference; 0 lets the runtime choose.

    Raises:
        EdgeproofError: What `child` says: device.swapped, device.format, device.refused, device.runtime_missing, …
        CrashedError: when it ends while loading.
    """

    def __init__(self, path: Path, slot: Slot, threads: int = 0) -> None:
        # -P: no module of the working folder takes the place of ours.
        command = [sys.executable, "-P", "-m", "edgeproof.device.child"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        try:
            self.interface = self._ask(
                Frame({"path": str(path), "slot": asdict(slot), "threads": threads}), STARTING_S
            ).head
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def infer(self, feeds: Mapping[str, NDArray[Any]], timeout_s: float) -> Answer:
        """Run one inference.

        Raises:
            InputError: serve.refused, serve.dtype.
            UnsupportedError: serve.failed.
            CrashedError: when the process ends, or does not answer in time; it is ended then.
        """
        start = time.perf_counter()
        answer = self._ask(Frame({}, feeds), timeout_s)
        whole_ms = (time.perf_counter() - start) * 1e3
        head = answer.head
        return Answer(answer.arrays, head["latency_ns"] / 1e6, whole_ms, head["nan_outputs"])

    def memory_bytes(self) -> int | None:
        """Resident memory of the process; None where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()
            return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, question: Frame, timeout_s: float) -> Frame:
        try:
            send(self._to, question, timeout_s)
            answer = receive(self._from, timeout_s)
        except EndedError as e:
            self._process.kill()
            raise CrashedError(f"the process that runs the model {e} (exit code {self._process.wait()})") from e
        if "error" in answer.head:
            raise _error(answer.head["error"])
        return answer


def finite_only(feeds: Mapping[str, NDArray[Any]]) -> None:
    """Refuse inputs that hold a NaN or an infinity: a NaN that comes out of them says nothing about the model.

    Raises:
        InputError: serve.input_nan, serve.input_infinite.
    """
    for name, array in feeds.items():
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        if np.isnan(array).any():
            raise InputError("serve.input_nan", name, "holds a NaN", "give numbers")
        hint = "give finite numbers; for a mask, the lowest that the type holds"
        raise InputError("serve.input_infinite", name, f"holds a number that is infinite as {array.dtype}", hint)


def _error(value: Mapping[str, Any]) -> EdgeproofError:
    """The error that the process told."""
    kind = next((k for k in _KINDS if k.exit_code == value.get("exit_code")), InternalError)
    return kind(*(str(value.get(key, "")) for key in ("code", "subject", "problem", "hint")))
