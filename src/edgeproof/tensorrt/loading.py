"""Open a serialised engine, choose among its profiles, and hear from it while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .cuda import Gpu
from .dialect import Dialect
from .log import Said
from .shapes import Span

if TYPE_CHECKING:
    from ..target import Target


def runtime_of(trt: Any, logger: Any, dialect: Dialect, target: Target) -> Any:
    """A runtime for a target's device.

    Args:
        trt: The module.
        logger: TensorRT's.
        dialect: The version.
        target: E.g. ``tensorrt:dla0``.

    Raises:
        UnsupportedError: target.not_here, for a DLA core that is not here.
    """
    if not dialect.rtx:
        trt.init_libnvinfer_plugins(logger, "")
    runtime = trt.Runtime(logger)
    if target.settings.get("version_compatible"):  # such an engine brings a runtime of its own, which is code
        runtime.engine_host_code_allowed = True
    if target.device.startswith("dla"):
        core = int(target.device.removeprefix("dla") or 0)
        if core >= runtime.num_DLA_cores:
            problem = f"asks for DLA core {core}; TensorRT finds {runtime.num_DLA_cores} on this machine"
            raise UnsupportedError("target.not_here", target.name, problem, "use tensorrt:gpu")
        runtime.DLA_core = core
    return runtime


def loaded(runtime: Any, engine: bytes, said: Said, subject: str) -> Any:
    """The engine in these bytes.

    Args:
        runtime: ``IRuntime``.
        engine: The bytes.
        said: What the runtime's logger hears.
        subject: For messages.

    Raises:
        UnsupportedError: tensorrt.engine, with the runtime's reason.
    """
    loaded = runtime.deserialize_cuda_engine(engine)
    if loaded is None:
        problem = f"does not load: {' '.join(said.errors)[:400] or 'the runtime gives no reason'}"
        hint = "build it on this device, with this TensorRT: 'edgeproof build'"
        raise UnsupportedError("tensorrt.engine", subject, problem, hint)
    return loaded


def context_of(trt: Any, engine: Any, dialect: Dialect, graph: bool) -> Any:
    """An execution context.

    Args:
        trt: The module.
        engine: ``ICudaEngine``.
        dialect: TensorRT for RTX compiles kernels when they are first needed, and so records graphs itself.
        graph: Whether it should.
    """
    if not dialect.rtx:
        return engine.create_execution_context()
    settings = engine.create_runtime_config()
    if graph:
        settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    return engine.create_execution_context(settings)


def profiles_of(engine: Any, inputs: Sequence[str]) -> tuple[Mapping[str, Span], ...]:
    """Sizes that an engine takes, by profile; empty when all its shapes are fixed.

    Args:
        engine: ``ICudaEngine``.
        inputs: Those on the device.
    """
    if not any(-1 in tuple(engine.get_tensor_shape(n)) for n in inputs):
        return ()
    return tuple(
        {n: Span(*(tuple(d) for d in engine.get_tensor_profile_shape(n, i))) for n in inputs}
        for i in range(engine.num_optimization_profiles)
    )


def choose_profile(
    profiles: Sequence[Mapping[str, Span]], shapes: Mapping[str, tuple[int, ...]], active: int
) -> int | None:
    """The profile for shapes: the one whose best sizes are nearest, in ratio; on a tie the active one stays.

    Args:
        profiles: Input → sizes.
        shapes: Of the inputs.
        active: Index of the profile in use.

    Returns:
        None when no profile takes these shapes.

    >>> small, large = {"x": Span((1, 8), (1, 8), (4, 8))}, {"x": Span((1, 8), (16, 8), (32, 8))}
    >>> [choose_profile((small, large), {"x": (n, 8)}, 0) for n in (1, 4, 12, 33)]
    [0, 1, 1, None]
    """

    def distance(index: int) -> float:
        pairs = [(a, b) for n, s in profiles[index].items() for a, b in zip(shapes[n], s.best, strict=True)]
        return sum(abs(log(max(a, 1) / max(b, 1))) for a, b in pairs)

    def takes(profile: Mapping[str, Span]) -> bool:
        return all(
            len(shapes[n]) == len(s.best)
            and all(lo <= d <= hi for lo, d, hi in zip(s.least, shapes[n], s.most, strict=True))
            for n, s in profile.items()
        )

    fitting = [i for i, p in enumerate(profiles) if takes(p)]
    return min(fitting, key=lambda i: (distance(i), i != active, i)) if fitting else None


def profiler(trt: Any) -> Any:
    """An ``IProfiler`` whose ``times`` keep every time that is reported, in nanoseconds, by layer.

    Args:
        trt: The module.
    """

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, list[int]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.setdefault(layer_name, []).append(round(ms * 1e6))

    return Profiler()


def allocator(trt: Any, gpu: Gpu) -> Any:
    """An ``IOutputAllocator`` for an output whose size is known only when it is made.

    Args:
        trt: The module.
        gpu: Where memory comes from.

    Returns:
        With ``pointer`` and ``shape`` once a run is done, and ``close``.
    """

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.pointer = self.capacity = 0
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            if size > self.capacity or not self.pointer:
                self.close()
                self.pointer, self.capacity = gpu.allocate(size), size
            return self.pointer

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def close(self) -> None:
            if self.pointer:
                gpu.free(self.pointer)
            self.pointer = self.capacity = 0

    return Allocator()
