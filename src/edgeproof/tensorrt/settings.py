"""What can be set of the two TensorRT backends, and `Plan`: the same for one build, checked and spelled out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..target import Target

Precision = Literal["typed", "fp16", "bf16", "int8", "fp8", "best"]
"""``typed``: as the graph is written. The others let TensorRT 10 choose kernels of lower precision by itself."""

Compatible = Literal["none", "ampere+", "same_capability"]
"""On which other GPUs an engine runs, as trtexec's ``--hardwareCompatibilityLevel``."""


@dataclass(frozen=True, slots=True)
class CommonSettings:
    """What can be set of TensorRT for RTX as of TensorRT.

    Attributes:
        shapes: For open dimensions: ``INPUT=MIN:OPT:MAX``, e.g. ``images=1x3x320x320:4x3x640x640:8x3x640x640``;
            inputs are separated by ``;``, further profiles by ``|``. Empty: open batches of 1 to 8, best for 1.
        tf32: Let float32 layers multiply in TF32 (10 bits of mantissa).
        sparse: Try the kernels for 2:4 sparse weights.
        workspace_mib: Most scratch memory that a layer may use, in MiB; 0 means all of the device's.
        layer_info: Keep the names and types of layers in the engine.
        cuda_graph: Replay inferences as one CUDA graph where the shapes stay.
        memory: Inputs and outputs in memory that the GPU shares with the processor (``mapped``), or copied; ``auto``
            shares where the GPU has no memory of its own (Jetson).
        profile: Record the time of every layer (for reports; slows inference down).
    """

    shapes: str = ""
    tf32: bool = False
    sparse: bool = False
    workspace_mib: int = 0
    layer_info: bool = True
    cuda_graph: bool = True
    memory: Literal["auto", "copied", "mapped"] = "auto"
    profile: bool = False


@dataclass(frozen=True, slots=True)
class TensorRtSettings(CommonSettings):
    """What can be set of TensorRT besides.

    Attributes:
        precision: ``typed`` keeps to the types of the graph (our FP16 and Q/DQ graphs). The others are for TensorRT 10
            only, which then chooses by itself: ``int8`` needs a calibration cache or Q/DQ, ``best`` allows all.
        calibration_cache: File with the range of every tensor, for ``int8`` without Q/DQ.
        optimization_level: How long to search for fast kernels, 0 to 5.
        timing_cache: Where measured kernel times are kept: ``auto`` (the user's cache folder), ``off``, or a file.
        compatible: Other GPUs that the engine must run on.
        version_compatible: Let later TensorRT versions load it, for a larger file.
        gpu_fallback: On a DLA: let layers that it cannot run go to the GPU; they are told.
    """

    precision: Precision = "typed"
    calibration_cache: str = ""
    optimization_level: int = 3
    timing_cache: str = "auto"
    compatible: Compatible = "none"
    version_compatible: bool = False
    gpu_fallback: bool = True


@dataclass(frozen=True, slots=True)
class TensorRtRtxSettings(CommonSettings):
    """What can be set of TensorRT for RTX besides.

    Attributes:
        capabilities: More compute capabilities that the engine is to run on, e.g. ``8.9,12.0``.
    """

    capabilities: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One build.

    Attributes:
        target: Name of the target, for messages.
        precision: See the settings.
        calibration_cache: Or None.
        shapes: See the settings.
        tf32: See the settings.
        sparse: See the settings.
        workspace_bytes: None when not limited.
        optimization_level: None leaves it to the builder.
        timing_cache: ``auto``, ``off`` or a file.
        compatible: See the settings.
        version_compatible: See the settings.
        dla_core: Core to build for; None for the GPU.
        gpu_fallback: See the settings.
        capabilities: Compute capabilities that TensorRT for RTX compiles for, e.g. ``("8.6",)``; empty: its default.
        layer_info: See the settings.
    """

    target: str
    precision: Precision = "typed"
    calibration_cache: Path | None = None
    shapes: str = ""
    tf32: bool = False
    sparse: bool = False
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: str = "off"
    compatible: Compatible = "none"
    version_compatible: bool = False
    dla_core: int | None = None
    gpu_fallback: bool = True
    capabilities: tuple[str, ...] = ()
    layer_info: bool = True


def common_settings(target: Target) -> CommonSettings:
    """What either backend's target says, for a session.

    Args:
        target: Of either backend.
    """
    return target.settings_as(TensorRtRtxSettings if target.backend == "tensorrt_rtx" else TensorRtSettings)


def tensorrt_plan(target: Target) -> Plan:
    """The plan for a target of backend ``tensorrt``.

    Args:
        target: ``tensorrt:gpu``, ``tensorrt:dla0`` or ``tensorrt:dla1``.

    Raises:
        InputError: tensorrt.setting.
    """
    s = target.settings_as(TensorRtSettings)
    if s.optimization_level not in range(6):
        raise InputError(
            "tensorrt.setting",
            f"{target.name}: optimization_level",
            f"is {s.optimization_level}; expected 0 to 5",
            "3 is TensorRT's own choice; 5 searches longest",
        )
    return replace(
        _plan(target, s),
        precision=s.precision,
        calibration_cache=Path(s.calibration_cache) if s.calibration_cache else None,
        optimization_level=s.optimization_level,
        timing_cache=s.timing_cache,
        compatible=s.compatible,
        version_compatible=s.version_compatible,
        dla_core=int(target.device.removeprefix("dla")) if target.device.startswith("dla") else None,
        gpu_fallback=s.gpu_fallback,
    )


def rtx_plan(target: Target) -> Plan:
    """The plan for a target of backend ``tensorrt_rtx``.

    Args:
        target: ``tensorrt_rtx:sm86`` and the like, or ``tensorrt_rtx:gpu`` for the runtime's default set.

    Raises:
        InputError: tensorrt.setting.
    """
    s = target.settings_as(TensorRtRtxSettings)
    more = [c.strip() for c in s.capabilities.split(",") if c.strip()]
    own = [capability_of(target.device)] if target.device.startswith("sm") else []
    if target.hardware is not None and target.hardware.compute_capability:
        own = [target.hardware.compute_capability]
    return replace(_plan(target, s), capabilities=tuple(dict.fromkeys([*own, *more])))


def capability_of(device: str) -> str:
    """The compute capability behind ``sm86``.

    >>> capability_of("sm86"), capability_of("sm120")
    ('8.6', '12.0')
    """
    digits = device.removeprefix("sm")
    return f"{digits[:-1]}.{digits[-1]}"


def _plan(target: Target, s: CommonSettings) -> Plan:
    """What both backends say of a build."""
    if s.workspace_mib < 0:
        raise InputError(
            "tensorrt.setting",
            f"{target.name}: workspace_mib",
            f"is {s.workspace_mib}; expected MiB from 0",
            "0 leaves it unlimited; 1024 is usual on a Jetson Orin Nano",
        )
    return Plan(
        target.name,
        shapes=s.shapes,
        tf32=s.tf32,
        sparse=s.sparse,
        workspace_bytes=s.workspace_mib << 20 if s.workspace_mib else None,
        layer_info=s.layer_info,
    )
