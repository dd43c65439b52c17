"""A plan as TensorRT's builder configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UnsupportedError
from .calibration import calibrator
from .dialect import Dialect
from .dla import ask_for
from .settings import Plan
from .shapes import Profile

_COMPATIBLE = {"ampere+": "AMPERE_PLUS", "same_capability": "SAME_COMPUTE_CAPABILITY"}


def options(trt: Any, dialect: Dialect, builder: Any, network: Any, plan: Plan, profiles: Sequence[Profile]) -> Any:
    """An ``IBuilderConfig``.

    Args:
        trt: The module.
        dialect: Its version.
        builder: Its ``Builder``.
        network: What is to be built, for the calibration profile.
        plan: What is asked for.
        profiles: Sizes of open dimensions.

    Raises:
        UnsupportedError: tensorrt.capability, for one that TensorRT for RTX does not compile for.
        InputError: files.…, for a calibration cache that cannot be read.
    """
    config = builder.create_builder_config()
    flags = trt.BuilderFlag
    (config.set_flag if plan.tf32 else config.clear_flag)(flags.TF32)
    if plan.sparse:
        config.set_flag(flags.SPARSE_WEIGHTS)
    if plan.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan.workspace_bytes)
    if plan.optimization_level is not None:
        config.builder_optimization_level = plan.optimization_level
    if plan.compatible in _COMPATIBLE:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.__members__[_COMPATIBLE[plan.compatible]]
    if plan.version_compatible:
        config.set_flag(flags.VERSION_COMPATIBLE)
    verbosity = trt.ProfilingVerbosity
    config.profiling_verbosity = verbosity.DETAILED if plan.layer_info else verbosity.LAYER_NAMES_ONLY
    made = [_profile(builder, p) for p in profiles]
    for profile in made:
        config.add_optimization_profile(profile)
    if dialect.rtx:
        _capabilities(trt, config, plan)
    if dialect.weak_types and plan.precision != "typed":
        _precisions(trt, dialect, config, plan, made)
    if plan.dla_core is not None:
        ask_for(trt, config, plan)
    return config


def _profile(builder: Any, profile: Profile) -> Any:
    made = builder.create_optimization_profile()
    for name, span in profile.items():
        made.set_shape(name, span.least, span.best, span.most)
    return made


def _capabilities(trt: Any, config: Any, plan: Plan) -> None:
    if not plan.capabilities:
        return
    known = trt.ComputeCapability.__members__
    config.num_compute_capabilities = len(plan.capabilities)
    for i, capability in enumerate(plan.capabilities):
        name = "CURRENT" if capability == "current" else f"SM{capability.replace('.', '')}"
        if name not in known or not config.set_compute_capability(known[name], i):
            have = ", ".join(f"{n[2:-1]}.{n[-1]}" for n in known if n.startswith("SM"))
            raise UnsupportedError(
                "tensorrt.capability",
                plan.target,
                f"TensorRT for RTX does not compile for compute capability {capability}; it does for {have}",
                "build on the device with TensorRT (Jetson is not among them)",
            )


def _precisions(trt: Any, dialect: Dialect, config: Any, plan: Plan, profiles: Sequence[Any]) -> None:
    """Precisions that TensorRT 10 may choose kernels of."""
    flags = trt.BuilderFlag
    chosen = {
        "fp16": (flags.FP16,),
        "bf16": (flags.BF16,),
        "int8": (flags.INT8, flags.FP16),  # a layer without an 8-bit kernel is better in half precision than in single
        "fp8": (flags.FP8, flags.FP16),
        "best": (flags.FP16, flags.BF16, flags.INT8),
    }[plan.precision]
    for flag in chosen:
        config.set_flag(flag)
    if plan.calibration_cache is not None and flags.INT8 in chosen:
        config.int8_calibrator = calibrator(trt, plan.calibration_cache, dialect)
        if profiles:
            config.set_calibration_profile(profiles[0])
