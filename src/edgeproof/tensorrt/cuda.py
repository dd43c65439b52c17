"""Device memory, copies, streams and graphs: the few calls of CUDA's runtime that a session makes.

`Gpu` is what a session needs, `Cuda` the real thing through NVIDIA's own bindings (``cuda-bindings``). Pointers are
plain integers, as TensorRT's Python API takes them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import UnsupportedError

PACKAGE = "cuda-bindings"
"""On PyPI; its major version is that of CUDA."""


class Gpu(Protocol):
    """A device that runs work in order on one stream."""

    @property
    def stream(self) -> int:
        """Handle of the stream."""

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes."""

    def free(self, pointer: int) -> None:
        """Give it back."""

    def allocate_host(self, size: int) -> tuple[int, int]:
        """Page-locked memory of ``size`` bytes: its address for the processor, and the device's for the same bytes."""

    def free_host(self, pointer: int) -> None:
        """Give it back, by the processor's address."""

    def to_device(self, destination: int, source: int, size: int) -> None:
        """Queue a copy from page-locked memory."""

    def to_host(self, destination: int, source: int, size: int) -> None:
        """Queue a copy into page-locked memory."""

    def wait(self) -> None:
        """Until everything queued is done."""

    def capture(self, work: Callable[[], None]) -> int:
        """Record what ``work`` queues, as a graph that `replay` takes, without running it."""

    def replay(self, graph: int) -> None:
        """Queue a recorded graph."""

    def free_graph(self, graph: int) -> None:
        """Forget a recorded graph."""

    def close(self) -> None:
        """Give the stream back."""


class Cuda:
    """The first device of this machine.

    Raises:
        UnsupportedError: target.not_installed without the bindings; tensorrt.cuda, with CUDA's own word, for every call
            that fails.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            raise UnsupportedError(
                "target.not_installed",
                "CUDA",
                f"package {PACKAGE} is not installed",
                f"run 'pip install {PACKAGE}' in the version of the driver's CUDA, e.g. '{PACKAGE}>=12.6,<13'",
            )
        self._cuda: Any = importlib.import_module("cuda.bindings.runtime")
        self._graphs: dict[int, Any] = {}
        self._stream = self._ask("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking)

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream)

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes."""
        return int(self._ask("cudaMalloc", max(size, 1)))

    def free(self, pointer: int) -> None:
        """Give it back."""
        self._ask("cudaFree", pointer)

    def allocate_host(self, size: int) -> tuple[int, int]:
        """Page-locked memory that the device can address too."""
        host = int(self._ask("cudaHostAlloc", max(size, 1), self._cuda.cudaHostAllocMapped))
        return host, int(self._ask("cudaHostGetDevicePointer", host, 0))

    def free_host(self, pointer: int) -> None:
        """Give it back."""
        self._ask("cudaFreeHost", pointer)

    def to_device(self, destination: int, source: int, size: int) -> None:
        """Queue a copy."""
        self._copy(destination, source, size, self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def to_host(self, destination: int, source: int, size: int) -> None:
        """Queue a copy."""
        self._copy(destination, source, size, self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def wait(self) -> None:
        """Until everything queued is done."""
        self._ask("cudaStreamSynchronize", self._stream)

    def capture(self, work: Callable[[], None]) -> int:
        """Record a graph. Other threads may go on using CUDA: only this thread's calls are held back."""
        self._ask(
            "cudaStreamBeginCapture", self._stream, self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        )
        try:
            work()
        finally:
            graph = self._ask("cudaStreamEndCapture", self._stream)
        made = self._ask("cudaGraphInstantiate", graph, 0)
        self._ask("cudaGraphDestroy", graph)
        self._graphs[int(made)] = made
        return int(made)

    def replay(self, graph: int) -> None:
        """Queue a recorded graph."""
        self._ask("cudaGraphLaunch", self._graphs[graph], self._stream)

    def free_graph(self, graph: int) -> None:
        """Forget a recorded graph."""
        self._ask("cudaGraphExecDestroy", self._graphs.pop(graph))

    def close(self) -> None:
        """Give the stream back."""
        self._ask("cudaStreamDestroy", self._stream)

    def _copy(self, destination: int, source: int, size: int, kind: Any) -> None:
        self._ask("cudaMemcpyAsync", destination, source, size, kind, self._stream)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a function; its result without the error code that the bindings put first."""
        code, *values = getattr(self._cuda, name)(*arguments)
        if int(code) != 0:
            raise UnsupportedError(
                "tensorrt.cuda",
                name,
                f"failed: {code.name}",
                "check with 'nvidia-smi' (on a Jetson: 'tegrastats') that the driver is there and memory is free",
            )
        return values[0] if values else None
