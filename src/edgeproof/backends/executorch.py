"""ExecuTorch: programs for phones and other devices, with XNNPACK's kernels or with the portable ones only.

A model goes ONNX → torch.fx → ``torch.export`` → ``.pte``, and is run here by the same runtime that runs it on the
device. What went to XNNPACK is read back from the delegate's own graph in the program, dtype by dtype, since a delegate
that was asked for takes only what it likes: a layer whose integer pattern it does not recognise would otherwise
dequantise its weight at every inference.
"""

from __future__ import annotations

import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import toolchain
from ..errors import UnsupportedError
from ..files import write_bytes
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Backend, Built, Outputs, Progress
from ..quant.schemes import EXECUTORCH
from ..target import Target
from ._executorch_lowering import Lowered, kept, lower
from ._executorch_profile import matched
from ._feeds import bad_feeds, check_feeds
from ._torch_export import quiet

if TYPE_CHECKING:
    from ..dataset import Feeds

DEVICES = ("xnnpack", "portable")
"""Fastest first."""

_LIVE: weakref.WeakSet[ExecuTorchSession] = weakref.WeakSet()
"""Open sessions of this process: the runtime has one thread pool, and making another frees the one they use."""


@dataclass(frozen=True, slots=True)
class ExecuTorchSettings:
    """What can be set.

    Attributes:
        threads: Threads of the runtime's pool; 0 leaves it as it is (the processor's cores).
        profile: Record the time of every kernel (for reports; slows inference down).
    """

    threads: int = 0
    profile: bool = False


@dataclass(frozen=True, slots=True)
class ExecuTorch:
    """The backend."""

    settings: ClassVar[type] = ExecuTorchSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return toolchain.missing("executorch")

    def targets(self) -> tuple[Target, ...]:
        """XNNPACK, and the runtime's own kernels alone, which have no integer layers."""
        return tuple(
            Target(f"executorch:{d}", "executorch", d, EXECUTORCH if d == "xnnpack" else None) for d in DEVICES
        )

    def compile(self, model: Model, target: Target) -> ExecuTorchSession:
        """Load a model into the runtime."""
        return ExecuTorchSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write a ``.pte`` program.

        Raises:
            UnsupportedError: backend.refused, fx.*.
        """
        made = lower(model, target, progress)
        path = out if out.suffix == ".pte" else out.with_name(f"{out.name}.pte")
        start = time.perf_counter()
        write_bytes(path, made.program)
        facts = {**made.facts, "seconds": {**made.facts["seconds"], "write": time.perf_counter() - start}}
        return Built(path, (path,), "pte", placement=made.placement, fallbacks=made.placement.fallbacks, facts=facts)


class ExecuTorchSession:
    """A loaded program.

    Args:
        model: The model.
        target: Where it is to run.
    """

    def __init__(self, model: Model, target: Target) -> None:
        self._settings = target.settings_as(ExecuTorchSettings)
        self._model = model
        self._runs = 0
        self._lowered: Lowered = kept(model, target)
        self._program = self._method = None
        _pool(self._settings.threads, target)
        try:
            self._program = self._load(self._settings.profile)
            self._method = self._program.load_method("forward")
        except RuntimeError as e:
            raise UnsupportedError(
                "backend.refused",
                f"{model.name} on {target.name}",
                f"the runtime does not load what was built for it: {' '.join(str(e).split())[:300]}",
                "run 'edgeproof inspect' on the model for its findings",
            ) from e
        _LIVE.add(self)

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
        """
        import numpy as np
        import torch

        check_feeds(self._model, feeds)
        assert self._method is not None
        given = [torch.from_numpy(np.require(feeds[name], requirements=["C", "W"])) for name in self._lowered.inputs]
        try:
            found = self._method.execute(given)
        except RuntimeError as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[-200:]) from e
        self._runs += 1
        return {o.name: value.numpy() for o, value in zip(self._model.outputs, found, strict=True)}

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per executed kernel and run; XNNPACK keeps whole microseconds.

        Names are those of the model where the kernel is one of its nodes'; what XNNPACK added (changes of layout and
        precision) keeps the kernel's.
        """
        if not self._settings.profile or not self._runs or self._program is None:
            return ()
        with quiet(), tempfile.TemporaryDirectory(prefix="edgeproof-executorch-") as folder:
            from executorch.devtools import Inspector

            dump = Path(folder, "dump.etdp")
            self._program.write_etdump_result_to_file(str(dump), str(Path(folder, "debug.bin")))
            blocks = Inspector(etdump_path=str(dump)).event_blocks
        events = [
            (e.name, bool(e.is_delegated_op), tuple(int(t * 1e6) for t in e.perf_data.raw))
            for block in blocks
            if block.name == "Execute"
            for e in block.events
            if e.perf_data is not None
        ]
        return matched(self._lowered, events)

    def placement(self) -> Placement:
        """Where every node runs: what XNNPACK's graph in the program holds, and the kernels that remain."""
        return self._lowered.placement

    def close(self) -> None:
        """Free the program."""
        self._method = self._program = None
        _LIVE.discard(self)

    def _load(self, profile: bool) -> Any:
        with quiet():
            from executorch.runtime import Runtime

        return Runtime.get().load_program(self._lowered.program, enable_etdump=profile)


def _pool(threads: int, target: Target) -> None:
    """Give the runtime's thread pool its size.

    Raises:
        UnsupportedError: executorch.threads, when open sessions use a pool of another size: it cannot change under them
            (measured, 1.5.1: the process ends with a segmentation fault).
    """
    with quiet():
        from executorch.extension.pybindings import portable_lib

    now = portable_lib._threadpool_get_thread_count()
    if not threads or threads == now:
        return
    if len(_LIVE):
        raise UnsupportedError(
            "executorch.threads",
            target.name,
            f"asks for threads={threads}, and this process has sessions open with {now}; ExecuTorch has one pool",
            "close them first, or ask for the same number of threads",
        )
    portable_lib._unsafe_reset_threadpool(threads)


IMPL: type[Backend] = ExecuTorch
