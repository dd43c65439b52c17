"""TVM: models become machine code of their own, for this processor or, cross-compiled, for an ARM one.

Without tuning TVM writes plain loops, many times slower than a runtime with kernels by hand; every session and build
says so. The setting ``trials`` tunes each kernel with MetaSchedule on this machine; what it found is kept and used
again. Q/DQ graphs run in float: TVM's importer spells out what the codes stand for, so INT8 buys nothing here.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import toolchain
from ..errors import UnsupportedError
from ..files import replacing
from ..graph.quantised import is_quantised
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Backend, Built, Outputs, Progress
from ..target import Target
from ._feeds import check_feeds
from ._tvm_lowering import Compiled, lowered

if TYPE_CHECKING:
    from ..dataset import Feeds

ARM: Mapping[str, str] = {
    "aarch64": "generic",
    "cortex-a72": "cortex-a72",
    "cortex-a76": "cortex-a76",
    "cortex-a78ae": "cortex-a78ae",
}
"""Device to build for → LLVM's name of its processor: any 64-bit ARM, Raspberry Pi 4 and 5, Jetson Orin."""

TRIPLE = "aarch64-linux-gnu"
LINKERS = ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc")

SLOW = "runs as plain loops, which took about 45 times as long as ONNX Runtime on a detector"
"""What an untuned kernel costs: 1144 ms of processor time against 25.6 ms on YOLOv8n."""


@dataclass(frozen=True, slots=True)
class TvmSettings:
    """What can be set.

    Attributes:
        threads: Threads that tuned kernels are made for; 0 takes the processor's. Plain loops use one.
        trials: How many variants of each kernel MetaSchedule tries on this machine; 0 tunes nothing. About a second
            each. Kernels that had as many trials before are not tuned again.
        cpu: LLVM's name of the processor; empty means this one, or the target's.
        profile: Record the time of every kernel (for reports; slows inference down).
    """

    threads: int = 0
    trials: int = 0
    cpu: str = ""
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Tvm:
    """The backend."""

    settings: ClassVar[type] = TvmSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return toolchain.missing("tvm")

    def targets(self) -> tuple[Target, ...]:
        """This processor."""
        return (Target("tvm:llvm", "tvm", "llvm"),)

    def planned(self) -> tuple[Target, ...]:
        """ARM processors that libraries are cross-compiled for."""
        return tuple(Target(f"tvm:{device}", "tvm", device) for device in ARM)

    def compile(self, model: Model, target: Target) -> TvmSession:
        """Compile a model for this processor."""
        if target.device != "llvm":
            raise UnsupportedError(
                "target.not_installed",
                target.name,
                "can only be built for on this machine",
                f"run 'edgeproof build MODEL --target {target.name}', and the library on the device",
            )
        return TvmSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write a shared library that TVM's runtime loads: function ``main`` of a Relax virtual machine."""
        settings = target.settings_as(TvmSettings)
        link = _linker(model, target)
        started = time.perf_counter()
        compiled = _lowered(model, target, settings, progress)
        path = out if out.suffix == ".so" else out.with_name(f"{out.name}.so")
        with replacing(path) as temporary:
            # TVM tells by the ending what to write.
            library = temporary.with_name(temporary.name + ".so")
            try:
                compiled.executable.export_library(str(library), **({"fcompile": link} if link else {}))
                shutil.copyfile(library, temporary)
            except Exception as e:
                raise _refused(model, target, e) from e
            finally:
                library.unlink(missing_ok=True)
        progress("written", 1.0)
        return Built(
            path,
            (path,),
            "tvm-library",
            fallbacks=_fallbacks(compiled, model),
            notes=(f"needs TVM's runtime {_version()} on the device; it holds the weights and the function main",),
            facts={
                "tvm": _version(),
                "target": compiled.target,
                "seconds": round(time.perf_counter() - started, 3),
                "kernels": len(compiled.kernels),
                "tuned": len(compiled.tuned),
                "tuned_before": compiled.reused,
            },
        )


class TvmSession:
    """A compiled model."""

    def __init__(self, model: Model, target: Target) -> None:
        import tvm
        from tvm import relax

        self._model, self._target = model, target
        self._settings = target.settings_as(TvmSettings)
        if self._settings.threads:
            os.environ["TVM_NUM_THREADS"] = str(self._settings.threads)  # read when its threads are first needed
        self._compiled = _lowered(model, target, self._settings, lambda _what, _share: None)
        self._device: Any = tvm.cpu()
        self._machine: Any = relax.VirtualMachine(self._compiled.executable, self._device)
        self._outputs = [o.name for o in model.outputs]
        self._times: dict[int, list[int]] = defaultdict(list)
        self._rows: list[tuple[str, str, str, str]] = []
        if not any(spec.dynamic for spec in model.inputs):
            import numpy as np

            zeros = {s.name: np.zeros([int(d) for d in s.shape or ()], s.dtype) for s in model.inputs}
            self._watched(self._arguments(zeros), time_it=False)

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
            UnsupportedError: backend.refused.
        """
        check_feeds(self._model, feeds)
        arguments = self._arguments(feeds)
        try:
            if self._settings.profile or not self._rows:
                result = self._watched(arguments, time_it=self._settings.profile)
            else:
                result = self._machine["main"](*arguments)
        except Exception as e:
            raise _refused(self._model, self._target, e) from e
        values = [result] if len(self._outputs) == 1 else list(result)
        return {name: value.numpy() for name, value in zip(self._outputs, values, strict=True)}

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per kernel, from TVM's own hook around every call."""
        return tuple(LayerTime(*self._rows[i], tuple(t), self._rows[i][0]) for i, t in sorted(self._times.items()))

    def placement(self) -> Placement:
        """The kernels that were called, in order; none before the first inference of open shapes."""
        return Placement(tuple(self._rows), _fallbacks(self._compiled, self._model), "calls of TVM's virtual machine")

    def close(self) -> None:
        """Free the model."""
        self._machine = None

    def _arguments(self, feeds: Feeds) -> list[Any]:
        import numpy as np
        import tvm

        return [tvm.runtime.tensor(np.ascontiguousarray(feeds[s.name]), self._device) for s in self._model.inputs]

    def _watched(self, arguments: list[Any], *, time_it: bool) -> Any:
        """Run with a hook around every call, which notes kernels and their times."""
        known = {k: self._compiled.kind_of(k) for k in self._compiled.kernels}
        rows: list[tuple[str, str, str, str]] = []
        times: list[int] = []
        began = 0

        def hook(_function: Any, symbol: str, before: bool, _result: Any, *values: Any) -> int:
            nonlocal began
            if symbol not in known:
                return 0
            if before:
                last = next((v for v in reversed(values) if hasattr(v, "dtype")), None)
                precision = str(getattr(last, "dtype", "")).replace("float32", "float")
                rows.append((symbol, known[symbol], f"CPU ({self._compiled.cpu})", precision))
                began = time.perf_counter_ns()
            else:
                times.append(time.perf_counter_ns() - began)
            return 0

        self._machine.set_instrument(hook)
        try:
            result = self._machine["main"](*arguments)
        finally:
            self._machine.set_instrument(lambda *_: 0)
        self._rows = rows
        if time_it:
            for i, spent in enumerate(times):
                self._times[i].append(spent)
        return result


def _lowered(model: Model, target: Target, settings: TvmSettings, progress: Progress) -> Compiled:
    """Machine code for a target.

    Raises:
        UnsupportedError: backend.unknown_operator, backend.refused, backend.tuning.
    """
    cross = target.device in ARM
    if cross and settings.trials:
        raise UnsupportedError(
            "backend.tuning",
            target.name,
            "kernels are tuned by timing them, and this machine is not that device",
            "leave trials at 0, or build on the device itself with target tvm:llvm",
        )
    return lowered(
        model,
        target.name,
        cpu=settings.cpu or ARM.get(target.device, ""),
        triple=TRIPLE if cross else "",
        threads=settings.threads or os.cpu_count() or 1,
        trials=settings.trials,
        progress=progress,
        refused=lambda e: _refused(model, target, e),
    )


def _fallbacks(compiled: Compiled, model: Model) -> tuple[tuple[str, str], ...]:
    found = []
    plain = [k for k in compiled.kernels if k not in compiled.tuned]
    if plain:
        few = ", ".join(plain[:3]) + (f" and {len(plain) - 3} more" if len(plain) > 3 else "")
        remedy = "build on the device with trials=64" if compiled.triple else "set trials=64 to tune it here"
        found.append((few, f"not tuned: {SLOW}; {remedy}"))
    if is_quantised(model.graph.graph):
        found.append(("Q/DQ", "TVM's importer computes in float between QuantizeLinear and DequantizeLinear"))
    return tuple(found)


def _linker(model: Model, target: Target) -> Any:
    """What links a library for another processor; None for this one."""
    if target.device not in ARM or platform.machine() == "aarch64":
        return None
    from tvm.support import cc

    found = next((path for name in LINKERS if (path := shutil.which(name))), None)
    if found is None:
        raise UnsupportedError(
            "backend.no_linker",
            f"{model.name} on {target.name}",
            f"there is no {LINKERS[0]} to link a library for {TRIPLE}",
            f"run '{toolchain.CROSS_COMPILER}'",
        )
    make: Callable[..., Any] = cc.cross_compiler(found)
    return make


def _version() -> str:
    import tvm

    return str(tvm.__version__)


def _refused(model: Model, target: Target, error: Exception) -> UnsupportedError:
    text = " ".join(str(error).split())
    return UnsupportedError(
        "backend.refused",
        f"{model.name} on {target.name}",
        text[-300:] or type(error).__name__,
        "run the passes 'fix_shapes' and 'simplify' first, and 'edgeproof inspect' for the model's findings",
    )


IMPL: type[Backend] = Tvm
