"""A device in this process: memory, a stream and an engine, so that what a session does with them can be checked.

`HostGpu` keeps the `Gpu` protocol strictly. Work that is queued runs at `wait` and not before; every copy must stay
within one live allocation; page-locked and device memory are different bytes unless mapped. `host_tensorrt` is as much
of TensorRT's Python API as a session uses, over one NumPy function. Neither says anything about speed or about CUDA.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgeproof.errors import UnsupportedError

HEADER = b"ftrt" + bytes(20) + bytes((10, 3, 0, 30)) + bytes(8)
Compute = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class HostGpu:
    """Memory and a stream in this process."""

    def __init__(self) -> None:
        self.stream = 7
        self.memory: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self.queue: list[Callable[[], None]] = []
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.counts = {"to_device": 0, "to_host": 0, "replay": 0, "capture": 0}
        self.closed = False
        self.capturable = True

    def allocate(self, size: int) -> int:
        block = (ctypes.c_uint8 * max(size, 1))()
        address = ctypes.addressof(block)
        self.memory[address] = block
        return address

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def allocate_host(self, size: int) -> tuple[int, int]:
        address = self.allocate(size)
        return address, address

    def free_host(self, pointer: int) -> None:
        self.free(pointer)

    def to_device(self, destination: int, source: int, size: int) -> None:
        self._copy(destination, source, size, "to_device")

    def to_host(self, destination: int, source: int, size: int) -> None:
        self._copy(destination, source, size, "to_host")

    def wait(self) -> None:
        work, self.queue = self.queue, []
        for step in work:
            step()

    def capture(self, work: Callable[[], None]) -> int:
        if not self.capturable:
            raise UnsupportedError("tensorrt.cuda", "cudaStreamEndCapture", "failed: cudaErrorStreamCaptureUnsupported")
        self.counts["capture"] += 1
        before, self.queue = self.queue, []
        work()
        recorded, self.queue = self.queue, before
        self.graphs[len(self.graphs) + 100] = recorded
        return len(self.graphs) + 99

    def replay(self, graph: int) -> None:
        self.counts["replay"] += 1
        self.queue += self.graphs[graph]

    def free_graph(self, graph: int) -> None:
        self.graphs[graph] = []

    def close(self) -> None:
        assert not self.queue
        self.closed = True

    def check(self, address: int, size: int) -> None:
        assert any(a <= address and address + size <= a + len(b) for a, b in self.memory.items()), "not in live memory"

    def _copy(self, destination: int, source: int, size: int, kind: str) -> None:
        self.counts[kind] += 1

        def step() -> None:
            self.check(destination, size)
            self.check(source, size)
            ctypes.memmove(destination, source, size)

        self.queue.append(step)


@dataclass
class HostEngine:
    """What an engine is, for the double.

    Attributes:
        inputs: Name → (TensorRT type, shape with -1 for open dimensions).
        outputs: Likewise; its shape is what ``compute`` gives.
        compute: From input arrays to output arrays.
        profiles: Input → (least, best, most), by profile.
        layers: What the inspector says.
        times: Layer → ms that the profiler is told after every run.
        late: Outputs whose shape is known only after a run.
        on_host: Inputs that the processor reads.
    """

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, str]
    compute: Compute
    profiles: Sequence[Mapping[str, tuple[tuple[int, ...], ...]]] = ()
    layers: Sequence[Any] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()


_NUMPY = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64", "BOOL": "bool"}


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine, self._spec, self._gpu = engine, engine.spec, engine.gpu
        self.active_optimization_profile = 0
        self.profiler: Any = None
        self.shapes: dict[str, tuple[int, ...]] = {n: s for n, (_, s) in self._spec.inputs.items() if -1 not in s}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == self._gpu.stream
        self.active_optimization_profile = index
        self._engine.selected.append(index)
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return bool(address)

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def infer_shapes(self) -> list[str]:
        return [n for n in self._spec.inputs if n not in self.shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self.shapes:
            return self.shapes[name]
        shape = self._compute({n: np.zeros(self.shapes[n], self._type(n)) for n in self._spec.inputs})[name].shape
        return (-1,) * len(shape) if name in self._spec.late else shape

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == self._gpu.stream
        addresses, shapes = dict(self.addresses), dict(self.shapes)
        self._gpu.queue.append(lambda: self._run(addresses, shapes))
        if self.profiler is not None:
            self._gpu.wait()
            for name, ms in self._spec.times.items():
                self.profiler.report_layer_time(name, ms)
        return True

    def _run(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        feeds = {n: self._array(addresses[n], self._type(n), shapes[n]).copy() for n in self._spec.inputs}
        for name, value in self._compute(feeds).items():
            address = addresses.get(name, 0)
            if name in self._spec.late:
                address = self.allocators[name].reallocate_output_async(name, 0, value.nbytes, 256, self._gpu.stream)
                self.allocators[name].notify_shape(name, value.shape)
            self._array(address, value.dtype, value.shape)[...] = value

    def _compute(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = self._spec.compute(feeds)
        return {n: made[n].astype(_NUMPY[t]) for n, t in self._spec.outputs.items()}

    def _type(self, name: str) -> np.dtype[Any]:
        return np.dtype(_NUMPY[self._spec.inputs[name][0]])

    def _array(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        size = prod(shape) * dtype.itemsize
        self._gpu.check(address, size)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)


class _Engine:
    def __init__(self, spec: HostEngine, gpu: HostGpu) -> None:
        self.spec, self.gpu = spec, gpu
        self.selected: list[int] = []
        self.num_io_tensors = len(spec.inputs) + len(spec.outputs)
        self.num_optimization_profiles = max(len(spec.profiles), 1)

    def get_tensor_name(self, index: int) -> str:
        return [*self.spec.inputs, *self.spec.outputs][index]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name in self.spec.inputs else "out"

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=self.spec.inputs[name][0] if name in self.spec.inputs else self.spec.outputs[name])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.spec.inputs[name][1]

    def get_tensor_location(self, name: str) -> str:
        return "host" if name in self.spec.on_host else "device"

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return list(self.spec.profiles[index][name])

    def create_execution_context(self) -> _Context:
        return _Context(self)

    def create_engine_inspector(self) -> Any:
        text = json.dumps({"Layers": list(self.spec.layers)})
        return SimpleNamespace(get_engine_information=lambda _form: text, execution_context=None)


class _Base:
    def __init__(self) -> None:
        """TensorRT's own constructor."""


def host_tensorrt(spec: HostEngine | None, gpu: HostGpu, *, cores: int = 0, version: str = "10.3.0.30") -> Any:
    """A module like ``tensorrt`` whose runtime loads this engine; with None, one that cannot load anything."""
    made: list[_Engine] = []

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger
            self.num_DLA_cores = cores
            self.DLA_core = -1

        def deserialize_cuda_engine(self, _data: bytes) -> _Engine | None:
            if spec is None:
                self._logger.log(SimpleNamespace(name="ERROR"), "Serialization assertion safeVersionRead == failed.")
                return None
            made.append(_Engine(spec, gpu))
            return made[-1]

    return SimpleNamespace(
        __name__="tensorrt",
        __version__=version,
        ILogger=_Base,
        IProfiler=_Base,
        IOutputAllocator=_Base,
        Runtime=Runtime,
        TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
        TensorLocation=SimpleNamespace(HOST="host", DEVICE="device"),
        LayerInformationFormat=SimpleNamespace(JSON="json"),
        init_libnvinfer_plugins=lambda _logger, _space: True,
        engines=made,
    )
