"""TensorRT on NVIDIA's GPUs and DLAs, built on the very device: kernels are chosen by measuring them there.

Models are strongly typed: they run in the precision that they are written in (our FP16 and Q/DQ graphs). TensorRT 10
may also choose by itself, with the setting ``precision``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..model import Model
from ..protocols import Backend, Built, Progress, Session
from ..quant.schemes import TENSORRT
from ..quant.trt_cache import read_cache
from ..target import Target
from ..tensorrt.build import Engine, make_engine, write_engine
from ..tensorrt.device import find_device
from ..tensorrt.dialect import dialect_of
from ..tensorrt.log import recorder
from ..tensorrt.session import open_session
from ..tensorrt.settings import TensorRtSettings, tensorrt_plan
from ..toolchain import missing


@dataclass(frozen=True, slots=True)
class TensorRt:
    """The backend."""

    settings: ClassVar[type] = TensorRtSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return missing("tensorrt")

    def targets(self) -> tuple[Target, ...]:
        """This machine's GPU and DLA cores; none without a driver, or with a GPU that TensorRT is too new for."""
        import tensorrt

        device, dialect = find_device(), dialect_of(tensorrt)
        if device is None or float(device.capability) < float(dialect.oldest_capability):
            return ()
        cores = tensorrt.Builder(recorder(tensorrt)[0]).num_DLA_cores if dialect.dla else 0
        return tuple(
            Target(f"tensorrt:{d}", "tensorrt", d, TENSORRT) for d in ("gpu", *(f"dla{i}" for i in range(cores)))
        )

    def compile(self, model: Model, target: Target) -> Session:
        """Build an engine and load it.

        Raises:
            UnsupportedError: backend.…, tensorrt.….
        """
        import tensorrt

        return open_session(tensorrt, _engine(model, target).data, model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write an engine, and ``OUT.json`` beside it.

        Raises:
            UnsupportedError: backend.…, tensorrt.…, naming the node or the demand.
            InputError: tensorrt.shapes, tensorrt.setting, trt_cache.…, files.….
        """
        return write_engine(_engine(model, target, progress), model, out)


def _engine(model: Model, target: Target, progress: Progress = lambda _what, _share: None) -> Engine:
    import tensorrt

    plan = tensorrt_plan(target)
    if plan.calibration_cache is not None:
        read_cache(plan.calibration_cache)  # TensorRT takes what it cannot read for no cache at all
    wanted = target.hardware.compute_capability or None if target.hardware else None
    return make_engine(tensorrt, model, plan, progress, wanted)


IMPL: type[Backend] = TensorRt
