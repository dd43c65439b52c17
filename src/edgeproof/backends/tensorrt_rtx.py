"""TensorRT for RTX: engines for GeForce and RTX graphics, built ahead of time without one.

Its builder needs no GPU, so that every graph meant for TensorRT can be parsed and built anywhere; kernels are chosen on
the device, when an engine is first loaded. It has no Jetson among its targets (compute capability 8.7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ..errors import UnsupportedError
from ..model import Model
from ..protocols import Backend, Built, Progress, Session
from ..quant.schemes import TENSORRT
from ..target import Target
from ..tensorrt.build import make_engine, write_engine
from ..tensorrt.device import find_device
from ..tensorrt.session import open_session
from ..tensorrt.settings import TensorRtRtxSettings, capability_of, rtx_plan
from ..toolchain import missing

DEVICES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121", "gpu")
"""Compute capabilities that it compiles for, and ``gpu``: its default, every one from 8.0 on."""


@dataclass(frozen=True, slots=True)
class TensorRtRtx:
    """The backend."""

    settings: ClassVar[type] = TensorRtRtxSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return missing("tensorrt_rtx")

    def targets(self) -> tuple[Target, ...]:
        """The GPU of this machine, where there is one that it supports."""
        device = find_device()
        if device is None or device.capability not in map(capability_of, DEVICES[:-1]):
            return ()
        return (_target("gpu"),)

    def planned(self) -> tuple[Target, ...]:
        """What it compiles for, with or without a GPU here."""
        return tuple(_target(d) for d in DEVICES)

    def compile(self, model: Model, target: Target) -> Session:
        """Build an engine for this machine's GPU and load it.

        Raises:
            UnsupportedError: target.not_here, backend.…, tensorrt.….
        """
        import tensorrt_rtx

        device = find_device()
        if device is None or target.device not in ("gpu", f"sm{device.capability.replace('.', '')}"):
            here = "has no NVIDIA GPU" if device is None else f"has compute capability {device.capability}"
            raise UnsupportedError(
                "target.not_here",
                target.name,
                f"this machine {here}",
                f"run 'edgeproof build MODEL --target {target.name}' here, and measure on the device",
            )
        plan = replace(rtx_plan(target), capabilities=("current",))
        return open_session(tensorrt_rtx, make_engine(tensorrt_rtx, model, plan).data, model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write an engine, and ``OUT.json`` beside it.

        Raises:
            UnsupportedError: backend.…, tensorrt.…, naming the node or the demand.
            InputError: tensorrt.shapes, tensorrt.setting, files.….
        """
        import tensorrt_rtx

        return write_engine(make_engine(tensorrt_rtx, model, rtx_plan(target), progress), model, out)


def _target(device: str) -> Target:
    return Target(f"tensorrt_rtx:{device}", "tensorrt_rtx", device, TENSORRT)


IMPL: type[Backend] = TensorRtRtx
