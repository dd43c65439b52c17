"""Run an engine: buffers, profiles, CUDA graphs, and what was executed where.

One stream, one context. Buffers are page-locked and kept, and grow when a shape needs more. As long as shapes stay,
copies and kernels are one recorded graph that is replayed; TensorRT for RTX records its own. Where the device has no
memory of its own (Jetson), inputs and outputs are not copied at all: both processors address the same bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedError
from ..measurement import LayerTime, Placement
from .arrays import DeviceArray, device_array
from .cuda import Cuda, Gpu
from .device import Device, find_device
from .dialect import dialect_of
from .header import check_header
from .layers import Layer, from_inspector
from .loading import allocator, choose_profile, context_of, loaded, profiler, profiles_of, runtime_of
from .log import Said, recorder
from .settings import common_settings

if TYPE_CHECKING:
    from ..dataset import Feeds
    from ..model import Model
    from ..protocols import Outputs
    from ..target import Target

_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""TensorRT's types that NumPy has."""
_WARM = 2
"""Plain inferences for new shapes before one is recorded: the first ones may still allocate or compile kernels.
Source: TensorRT developer guide, *CUDA Graphs*."""


def open_session(
    trt: Any, engine: bytes, model: Model, target: Target, *, gpu: Gpu | None = None, device: Device | None = None
) -> EngineSession:
    """Load an engine.

    Args:
        trt: The module, ``tensorrt`` (10 or 11) or ``tensorrt_rtx``.
        engine: The serialised engine.
        model: What it was built from, for messages and for the order of outputs.
        target: Where it runs, with the backend's settings.
        gpu: Memory and stream; None opens CUDA's.
        device: What it runs on; None asks the driver.

    Raises:
        UnsupportedError: target.not_here without a device, target.not_installed without the CUDA bindings,
            tensorrt.engine for an engine that does not load here, tensorrt.type for one whose inputs NumPy lacks.
    """
    dialect = dialect_of(trt)
    here = device or find_device()
    if here is None:
        raise UnsupportedError(
            "target.not_here", target.name, "this machine has no NVIDIA GPU that its driver answers for",
            f"run 'edgeproof build MODEL --target {target.name}' here, and measure on the device",
        )  # fmt: skip
    check_header(engine, dialect, here, f"engine of {model.name}")
    return EngineSession(trt, engine, model, target, here, gpu or Cuda())


@dataclass(slots=True)
class _Buffer:
    """Memory of one input or output.

    Attributes:
        capacity: Bytes.
        host: Page-locked address for the processor; 0 when the device's owner gave the memory.
        device: Address that TensorRT is given.
        copied: The two are different memory.
    """

    capacity: int
    host: int
    device: int
    copied: bool


class EngineSession:
    """A loaded engine; see `open_session`."""

    def __init__(self, trt: Any, engine: bytes, model: Model, target: Target, device: Device, gpu: Gpu) -> None:
        self._trt, self._model, self._target, self._gpu = trt, model, target, gpu
        self._settings = common_settings(target)
        self._mapped = {"auto": device.integrated, "mapped": True, "copied": False}[self._settings.memory]
        dialect = dialect_of(trt)
        self._logger, self._said = recorder(trt)
        self._runtime = runtime_of(trt, self._logger, dialect, target)
        self._engine = loaded(self._runtime, engine, self._said, f"engine of {model.name}")
        self._own_graph = self._settings.cuda_graph and not self._settings.profile and not dialect.rtx
        self._context = context_of(trt, self._engine, dialect, self._settings.cuda_graph and not self._settings.profile)
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self._inputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        found = [n for n in names if n not in self._inputs]
        order = [o.name for o in model.outputs]
        self._outputs = sorted(found, key=lambda n: order.index(n) if n in order else len(order))
        self._dtypes = {n: _numpy_type(self._engine.get_tensor_dtype(n).name, n, model) for n in names}
        self._on_host = {n for n in names if self._engine.get_tensor_location(n) == trt.TensorLocation.HOST}
        self._profiles = profiles_of(self._engine, [n for n in self._inputs if n not in self._on_host])
        self._buffers: dict[str, _Buffer] = {}
        self._key: Any = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: set[str] = set()
        self._allocators: dict[str, Any] = {}
        self._same = 0
        self._graph: int | None = None
        self._profiler = None
        self.notes: list[str] = []
        """What did not go as asked, for people."""
        if self._settings.profile:
            self._profiler = profiler(trt)
            self._context.profiler = self._profiler

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the engine.
        """
        self._check({k: (v.dtype.name, v.shape) for k, v in feeds.items()})
        values = {n: feeds[n].tobytes() for n in self._inputs if n in self._on_host}
        self._prepare({k: v.shape for k, v in feeds.items()}, values, {})
        for name in self._inputs:
            _view(self._buffers[name].host, self._dtypes[name], feeds[name].shape)[...] = feeds[name]
        self._execute(copies=True)
        self._gpu.wait()
        return {name: self._fetch(name) for name in self._outputs}

    def run_on_device(self, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Run one batch that is on the device already, and leave the outputs there.

        Args:
            feeds: Input → an array with ``__dlpack__`` or ``__cuda_array_interface__``, ready to be read.

        Returns:
            Output → an array with ``__cuda_array_interface__``, complete; it is overwritten by the next run.

        Raises:
            InputError: session.feeds, session.device_array.
        """
        arrays = {k: device_array(v, f"{self._model.name}: {k}") for k, v in feeds.items()}
        self._check({k: (a.dtype, a.shape) for k, a in arrays.items()})
        if self._on_host & set(self._inputs):
            which = ", ".join(sorted(self._on_host & set(self._inputs)))
            raise self._bad(f"{which} is read by the processor; use run()", feeds)
        self._prepare({k: a.shape for k, a in arrays.items()}, {}, {k: a.pointer for k, a in arrays.items()})
        self._execute(copies=False)
        self._gpu.wait()
        return {n: DeviceArray(self._address(n), self._shape_of(n), self._dtypes[n].name, self) for n in self._outputs}

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per executed layer, one entry per profiled inference; empty unless set to ``profile``."""
        if self._profiler is None:
            return ()
        known = {layer.name: layer for layer in self._layers()}
        times: Mapping[str, list[int]] = self._profiler.times
        return tuple(_layer_time(name, known.get(name), spent) for name, spent in times.items())

    def placement(self) -> Placement:
        """Which layer runs on the GPU or the DLA, in which precision, as the engine's inspector says."""
        layers = self._layers()
        nodes = tuple((x.label, x.kind, x.place, x.precision) for x in layers)
        fallbacks: tuple[tuple[str, str], ...] = ()
        if self._target.device.startswith("dla"):
            left = [x for x in layers if x.place == "GPU" and not x.moves]
            why = f"asked for {self._target.device}; the DLA compiler did not take it, and it ran on the GPU"
            fallbacks = tuple((x.label, why) for x in left)
        return Placement(nodes, fallbacks, "TensorRT engine inspector")

    def close(self) -> None:
        """Free engine, buffers and stream."""
        self._gpu.wait()
        self._forget_graph()
        for buffer in self._buffers.values():
            self._release(buffer)
        for held in self._allocators.values():
            held.close()
        self._buffers, self._allocators = {}, {}
        self._context = self._engine = self._runtime = None
        self._gpu.close()

    def _layers(self) -> tuple[Layer, ...]:
        inspector = self._engine.create_engine_inspector()
        inspector.execution_context = self._context
        return from_inspector(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def _check(self, given: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        for name in (*self._inputs, *given):
            if (name in self._inputs) != (name in given):
                raise self._bad(f"{name} is {'missing' if name in self._inputs else 'no input'}", given)
        for name, (dtype, shape) in given.items():
            if dtype != self._dtypes[name].name:
                raise self._bad(f"{name} is {dtype}; the engine takes {self._dtypes[name].name}", given)
            wanted = tuple(self._engine.get_tensor_shape(name))
            if len(wanted) != len(shape) or any(w not in (-1, s) for w, s in zip(wanted, shape, strict=True)):
                raise self._bad(f"{name} has the shape {list(shape)}; the engine takes {list(wanted)}", given)

    def _prepare(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, bytes], given: Mapping[str, int]
    ) -> None:
        """Bind shapes and memory; does nothing while they stay.

        Args:
            shapes: Of the inputs.
            values: Of inputs that the processor reads, which decide shapes.
            given: Input → device memory that is the caller's.
        """
        key = (tuple(sorted(shapes.items())), tuple(sorted(values.items())), tuple(sorted(given.items())))
        if key == self._key:
            return
        self._key, self._same = None, 0
        self._forget_graph()
        self._choose(shapes)
        for name in self._inputs:
            if name not in given:
                self._hold(name, prod(shapes[name]) * self._dtypes[name].itemsize)
            if name not in self._on_host:
                if not self._context.set_input_shape(name, shapes[name]):
                    raise self._bad(f"the engine refuses {list(shapes[name])} for {name}", shapes)
            else:
                _view(self._buffers[name].host, self._dtypes[name], shapes[name]).reshape(-1)[...] = np.frombuffer(
                    values[name], self._dtypes[name]
                )
            self._bind(name, given.get(name) or self._buffers[name].device)
        missing = self._context.infer_shapes()
        if missing:
            raise self._bad(f"the engine lacks the shapes of {', '.join(missing)}", shapes)
        self._open = set()
        for name in self._outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            if any(d < 0 for d in shape):  # known only after the run: how many boxes there are, say
                self._open.add(name)
                self._allocators.setdefault(name, allocator(self._trt, self._gpu))
                self._context.set_output_allocator(name, self._allocators[name])
                continue
            self._shapes[name] = shape
            self._hold(name, prod(shape) * self._dtypes[name].itemsize)
            self._bind(name, self._buffers[name].device)
        self._key = key

    def _choose(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Select the optimisation profile for shapes."""
        if not self._profiles:
            return
        index = choose_profile(self._profiles, shapes, self._context.active_optimization_profile)
        if index is None:
            spans = " or ".join(
                ", ".join(f"{n} {list(s.least)} to {list(s.most)}" for n, s in p.items()) for p in self._profiles
            )
            raise self._bad(f"the engine was built for {spans}; build it with --set shapes=…", shapes)
        if index != self._context.active_optimization_profile:
            self._context.set_optimization_profile_async(index, self._gpu.stream)
            self._gpu.wait()

    def _hold(self, name: str, size: int) -> None:
        """Have a buffer of at least ``size`` bytes."""
        held = self._buffers.get(name)
        if held is not None and held.capacity >= size:
            return
        if held is not None:
            self._release(self._buffers.pop(name))
        host, shared = self._gpu.allocate_host(size)
        if name in self._on_host:
            self._buffers[name] = _Buffer(size, host, host, False)
        elif self._mapped:
            self._buffers[name] = _Buffer(size, host, shared, False)
        else:
            self._buffers[name] = _Buffer(size, host, self._gpu.allocate(size), True)

    def _release(self, buffer: _Buffer) -> None:
        if buffer.copied:
            self._gpu.free(buffer.device)
        self._gpu.free_host(buffer.host)

    def _bind(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise _failed(self._model, self._said, f"{name} could not be bound")

    def _execute(self, *, copies: bool) -> None:
        """Queue one inference: as a graph once shapes and memory have stayed for a while."""
        if self._graph is not None:
            self._gpu.replay(self._graph)
            return
        self._same += 1
        if self._own_graph and not self._open and self._same > _WARM:
            try:
                self._graph = self._gpu.capture(lambda: self._queue(copies=copies))
            except UnsupportedError as e:  # a layer that waits for the processor cannot be recorded
                self._own_graph = False
                self.notes.append(f"no CUDA graph: {e.problem}")
            else:
                self._gpu.replay(self._graph)
                return
        self._queue(copies=copies)

    def _queue(self, *, copies: bool) -> None:
        if copies:
            for name in self._inputs:
                buffer = self._buffers[name]
                if buffer.copied:
                    self._gpu.to_device(buffer.device, buffer.host, self._bytes(name))
        if not self._context.execute_async_v3(self._gpu.stream):
            raise _failed(self._model, self._said, "the engine did not run")
        if copies:
            for name in self._outputs:
                held = self._buffers.get(name)
                if name not in self._open and held is not None and held.copied:
                    self._gpu.to_host(held.host, held.device, self._bytes(name))

    def _bytes(self, name: str) -> int:
        return int(prod(tuple(self._context.get_tensor_shape(name))) * self._dtypes[name].itemsize)

    def _fetch(self, name: str) -> NDArray[Any]:
        """A copy of an output that the next run leaves alone."""
        shape, dtype = self._shape_of(name), self._dtypes[name]
        if name not in self._open:
            return _view(self._buffers[name].host, dtype, shape).copy()
        size = prod(shape) * dtype.itemsize
        host, _ = self._gpu.allocate_host(size)
        self._gpu.to_host(host, self._allocators[name].pointer, size)
        self._gpu.wait()
        value = _view(host, dtype, shape).copy()
        self._gpu.free_host(host)
        return value

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return self._allocators[name].shape if name in self._open else self._shapes[name]

    def _address(self, name: str) -> int:
        return int(self._allocators[name].pointer if name in self._open else self._buffers[name].device)

    def _forget_graph(self) -> None:
        if self._graph is not None:
            self._gpu.free_graph(self._graph)
            self._graph = None

    def _bad(self, why: str, given: Mapping[str, Any]) -> InputError:
        expected = ", ".join(map(str, self._model.inputs))
        problem = f"could not run on {', '.join(given) or 'nothing'}; expected {expected} ({why})"
        return InputError("session.feeds", self._model.name, problem, "check the data's shape, dtype and preprocessing")


def _layer_time(name: str, layer: Layer | None, spent: Sequence[int]) -> LayerTime:
    if layer is None:
        return LayerTime(name, "", "GPU", "", tuple(spent))
    return LayerTime(layer.label, layer.kind, layer.place, layer.precision, tuple(spent), layer.tactic)


def _numpy_type(name: str, tensor: str, model: Model) -> np.dtype[Any]:
    if name not in _TYPES:
        problem = f"is {name} in the engine, which NumPy does not have"
        hint = "put a Cast to float32 or float16 at the model's edge"
        raise UnsupportedError("tensorrt.type", f"{model.name}: {tensor}", problem, hint)
    return np.dtype(_TYPES[name])


def _view(address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Page-locked memory as an array."""
    count = prod(shape)
    if not count:
        return np.empty(shape, dtype)
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype).reshape(shape)


def _failed(model: Model, said: Said, what: str) -> UnsupportedError:
    text = " ".join(said.errors)[-400:] or "TensorRT gives no reason"
    return UnsupportedError("backend.refused", model.name, f"{what}: {text}", "look at the device's memory and driver")
