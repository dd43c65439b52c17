"""tinygrad, on every device that it finds: it compiles each model into kernels of its own.

Nothing is taken for granted of a device: it is listed when a sum really runs on it. Shapes are fixed by the first
inference; each other set of shapes is compiled anew. Q/DQ graphs run as they are written, in kernels that read and
write integers where fusion leaves them, without integer arithmetic of a library's: right, and slower than in float.

tinygrad has no file that a device could load, so there is nothing to build.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import warnings
import weakref
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import toolchain
from ..errors import UnsupportedError
from ..graph.rewrite import array, label
from ..measurement import LayerTime, Placement
from ..model import Model, save_model
from ..protocols import Backend, Outputs
from ..target import Target
from ._feeds import check_feeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..dataset import Feeds

DEVICES = ("METAL", "AMD", "NV", "CUDA", "QCOM", "CL", "WEBGPU", "CPU", "PYTHON")
"""Devices of tinygrad that compute, fastest first. PYTHON interprets every kernel, for looking into it."""

_PRECISIONS = {
    "half": "float16",
    "__bf16": "bfloat16",
    "double": "float64",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "long": "int64",
}


@dataclass(frozen=True, slots=True)
class TinygradSettings:
    """What can be set.

    Attributes:
        threads: Threads of the processor; 0 takes all.
        beam: How many variants of each kernel are kept while the fastest is searched; 0 searches nothing. What is found
            is kept by tinygrad for the next time.
        workers: Processes that compile; 0 compiles in this one.
        profile: Record the time of every kernel (for reports; slows inference down).
    """

    threads: int = 0
    beam: int = 0
    workers: int = 0
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Tinygrad:
    """The backend."""

    settings: ClassVar[type] = TinygradSettings

    def missing(self) -> str | None:
        """The line that installs it, or the compiler that it needs."""
        return toolchain.missing("tinygrad") or (None if shutil.which("clang") else toolchain.CLANG)

    def targets(self) -> tuple[Target, ...]:
        """Devices on which a sum really runs here, fastest first."""
        return tuple(Target(f"tinygrad:{d.lower()}", "tinygrad", d.lower()) for d in DEVICES if _runs(d))

    def compile(self, model: Model, target: Target) -> TinygradSession:
        """Compile a model's kernels, where its shapes are fixed; else with the first inference."""
        return TinygradSession(model, target)


class TinygradSession:
    """A compiled model."""

    def __init__(self, model: Model, target: Target) -> None:
        self._model, self._target = model, target
        self._settings = target.settings_as(TinygradSettings)
        self._device = target.device.upper()
        self._folder = Path(tempfile.mkdtemp(prefix="edgeproof-tinygrad-"))
        self._clean = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._file = save_model(_without_empties(model), self._folder / "model.onnx")
        self._compiled: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._latest: Any = None
        self._times: dict[int, list[int]] = defaultdict(list)
        if not any(spec.dynamic for spec in model.inputs):
            import numpy as np

            shapes = {s.name: tuple(int(d) for d in s.shape or ()) for s in model.inputs}
            self._program({s.name: np.zeros(shapes[s.name], s.dtype) for s in model.inputs})

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch; the first of its shapes compiles the kernels.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
            UnsupportedError: backend.unknown_operator, backend.refused.
        """
        check_feeds(self._model, feeds)
        program = self._program(feeds)
        with self._context():
            tensors = self._tensors(feeds)
            if self._settings.profile:
                self._time(program, tensors)
            values = program(tensors)
            return {o.name: values[o.name].numpy() for o in self._model.outputs}

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per kernel, each waited for."""
        rows = self._rows()
        return tuple(LayerTime(*rows[i], tuple(times), rows[i][0]) for i, times in self._times.items())

    def placement(self) -> Placement:
        """The kernels that were captured, and the device of each; none before the first inference of open shapes."""
        return Placement(tuple(self._rows()), (), "tinygrad's captured kernels")

    def close(self) -> None:
        """Free the model."""
        self._compiled.clear()
        self._latest = None
        self._clean()

    @contextmanager
    def _context(self) -> Iterator[None]:
        from tinygrad.helpers import Context

        wanted: dict[str, Any] = {"DEV": self._device, "BEAM": self._settings.beam, "PARALLEL": self._settings.workers}
        if self._settings.threads:
            wanted["NUM_CPU_THREADS"] = self._settings.threads
        with Context(**wanted):
            yield

    def _tensors(self, feeds: Feeds) -> dict[str, Any]:
        import numpy as np
        from tinygrad import Tensor

        return {k: Tensor(np.ascontiguousarray(v), device=self._device).realize() for k, v in feeds.items()}

    def _program(self, feeds: Feeds) -> Any:
        """The captured kernels for shapes; captured now, where they are new."""
        key = tuple(feeds[s.name].shape for s in self._model.inputs)
        if key not in self._compiled:
            with self._context():
                self._compiled[key] = self._captured(feeds)
            self._times.clear()
        self._latest = self._compiled[key]
        return self._latest

    def _captured(self, feeds: Feeds) -> Any:
        from tinygrad import Tensor, TinyJit
        from tinygrad.nn.onnx import OnnxRunner

        try:
            runner = OnnxRunner(str(self._file)).to(self._device)
        except Exception as e:
            raise self._refused("", e) from e
        names = [o.name for o in self._model.outputs]

        def forward(tensors: dict[str, Any]) -> dict[str, Any]:
            values = runner(tensors)
            results = {n: values[n].contiguous() for n in names}
            Tensor.realize(*results.values())
            return results

        program = TinyJit(forward)
        try:
            weights = [v for v in runner.graph_values.values() if isinstance(v, Tensor)]
            if weights:
                Tensor.realize(*weights)
            for _ in range(2):  # the second call captures
                program(self._tensors(feeds))
        except Exception as e:
            made = runner.graph_values
            failed = next((n for n in runner.graph_nodes if any(o and o not in made for o in n.outputs)), None)
            raise self._refused(failed.outputs[0] if failed else "", e) from e
        return program

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """(kernel, what it is, device, precision) in order of execution."""
        if self._latest is None:
            return []
        found = []
        for call in self._latest.captured.linear.src:
            kind, first = call.src[0], call.src[1]
            name = re.sub(r"\x1b\[\d+m", "", getattr(kind.arg, "name", "") or str(kind.op).partition(".")[2].lower())
            precision = _PRECISIONS.get(first.dtype.name, first.dtype.name)
            found.append((name, _kind(name, kind), str(first.device), precision))
        return found

    def _time(self, program: Any, tensors: dict[str, Any]) -> None:
        """Run kernel by kernel, and note how long each took."""
        from tinygrad.engine.jit import _prepare_jit_inputs
        from tinygrad.engine.realize import run_linear
        from tinygrad.uop.ops import Ops, UOp

        inputs, values, _, _ = _prepare_jit_inputs((tensors,), {})
        for i, call in enumerate(program.captured.linear.src):
            single = UOp(Ops.LINEAR, src=(call,))
            before = time.perf_counter_ns()
            run_linear(single, values, input_uops=inputs, jit=True, wait=True)
            self._times[i].append(time.perf_counter_ns() - before)

    def _refused(self, output: str, error: Exception) -> UnsupportedError:
        """Our error for one of tinygrad's; ``output`` names the node whose result is lacking."""
        text = " ".join(str(error).split())[:300] or type(error).__name__
        node = next((n for n in self._model.graph.graph if output and any(v.name == output for v in n.outputs)), None)
        subject = f"{self._model.name} on {self._target.name}"
        if node is not None and isinstance(error, NotImplementedError):
            return UnsupportedError(
                "backend.unknown_operator",
                subject,
                f"operator {node.op_type} (node {label(node)}) is not known to the runtime",
                "write it in other operators, or leave this model to another runtime",
            )
        where = f"node {label(node)} ({node.op_type}): " if node is not None else ""
        return UnsupportedError(
            "backend.refused", subject, f"{where}{text}", "run 'edgeproof inspect' on the model for its findings"
        )


def _without_empties(model: Model) -> Model:
    """Empty constants of Resize become absent inputs, which mean the same; tinygrad's reader takes no empty tensor."""
    graph = model.graph.clone()
    for node in graph.graph:
        if node.op_type == "Resize":
            for i, value in enumerate(node.inputs):
                numbers = array(value)
                if numbers is not None and numbers.size == 0:
                    node.replace_input_with(i, None)
                    if value is not None and value.is_initializer() and not value.uses():
                        del graph.graph.initializers[value.name or ""]
    return Model.of(graph, model.name)


def _kind(name: str, kernel: Any) -> str:
    """What a kernel is, as tinygrad's names begin: ``r`` reduces, ``E`` computes value by value."""
    if str(kernel.op) != "Ops.PROGRAM":
        return str(kernel.op).partition(".")[2].lower()
    return {"r": "reduce", "E": "elementwise"}.get(name.partition("_")[0], "kernel")


def _runs(device: str) -> bool:
    """Whether a sum runs on a device."""
    from tinygrad import Tensor
    from tinygrad.helpers import Context

    try:
        with warnings.catch_warnings(), Context(DEV=device, PARALLEL=0, BEAM=0):
            warnings.simplefilter("ignore")
            found: list[float] = (Tensor([1.0, 2.0], device=device) + 1).tolist()
    except Exception:
        return False
    return found == [2.0, 3.0]


IMPL: type[Backend] = Tinygrad
