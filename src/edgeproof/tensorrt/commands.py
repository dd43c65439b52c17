"""The line of ``trtexec`` (``tensorrt_rtx`` of TensorRT for RTX) that builds the same engine.

Source: the help texts of trtexec 8.6 to 11 (sampleOptions.cpp); TensorRT for RTX, *CPU-Only AOT*.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from .dialect import Dialect
from .settings import Plan
from .shapes import Profile, sizes

_PRECISIONS = {
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "int8": ("--int8", "--fp16"),
    "fp8": ("--fp8", "--fp16"),
    "best": ("--fp16", "--bf16", "--int8"),
}
_COMPATIBLE = {"ampere+": "ampere+", "same_capability": "sameComputeCapability"}


def command(
    dialect: Dialect, plan: Plan, profiles: Sequence[Profile], onnx: str, engine: str, timing: Path | None = None
) -> str:
    """The line.

    Args:
        dialect: The version.
        plan: What is built.
        profiles: Sizes of open dimensions.
        onnx: The model's file.
        engine: Where the engine goes.
        timing: The timing cache.
    """
    words = ["tensorrt_rtx" if dialect.rtx else "trtexec", f"--onnx={onnx}", f"--saveEngine={engine}"]
    words += ["--skipInference"]
    words += _shapes(profiles)
    if dialect.strong_flag and plan.precision == "typed":
        words.append("--stronglyTyped")
    words += _PRECISIONS.get(plan.precision, ())
    if plan.calibration_cache is not None:
        words.append(f"--calib={plan.calibration_cache}")
    if not plan.tf32:
        words.append("--noTF32")
    if plan.sparse:
        words.append("--sparsity=enable")
    if plan.workspace_bytes is not None:
        words.append(f"--memPoolSize=workspace:{plan.workspace_bytes >> 20}M")
    if plan.optimization_level is not None:
        words.append(f"--builderOptimizationLevel={plan.optimization_level}")
    if plan.compatible in _COMPATIBLE:
        words.append(f"--hardwareCompatibilityLevel={_COMPATIBLE[plan.compatible]}")
    if plan.version_compatible:
        words.append("--versionCompatible")
    if plan.dla_core is not None:
        words.append(f"--useDLACore={plan.dla_core}")
        words += ["--allowGPUFallback"] if plan.gpu_fallback else []
    if timing is not None:
        words.append(f"--timingCacheFile={timing}")
    if plan.layer_info:
        words.append("--profilingVerbosity=detailed")
    if dialect.rtx and plan.capabilities:
        current = plan.capabilities == ("current",)
        listed = ",".join(c.replace(".", "") for c in plan.capabilities)
        words.append("--useGpu" if current else f"--computeCapabilities={listed}")
    return shlex.join(words)


def _shapes(profiles: Sequence[Profile]) -> list[str]:
    words = []
    for i, profile in enumerate(profiles):
        if len(profiles) > 1:
            words.append(f"--profile={i}")
        for option, step in (("minShapes", "least"), ("optShapes", "best"), ("maxShapes", "most")):
            given = ",".join(f"{_quoted(name)}:{sizes(getattr(span, step))}" for name, span in profile.items())
            words.append(f"--{option}={given}")
    return words


def _quoted(name: str) -> str:
    """A name with a colon or comma stands in single quotes."""
    return f"'{name}'" if ":" in name or "," in name else name
