"""What a build demands of the device, checked before minutes are spent on it.

What each GPU computes stands in the catalogue of `hardware`. Source of the rest: TensorRT, *Version Compatibility and
Hardware Compatibility*: an engine runs on the capability that it was built on, unless asked otherwise, and ``ampere+``
begins at 8.0 and does not hold on Jetson.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..hardware import Demand, catalogue, precisions_of, refusals
from ..model import Model
from .device import Device
from .dialect import Dialect
from .settings import Plan


def check(
    dialect: Dialect, plan: Plan, model: Model, device: Device | None, wanted: str | None = None, line: str = "trtexec"
) -> None:
    """Refuse what cannot run, with what to do instead.

    Args:
        dialect: The version.
        plan: What is to be built.
        model: The model.
        device: The device of this machine, which TensorRT builds on (TensorRT for RTX needs none).
        wanted: Compute capability of the device that the engine is for; None for this one.
        line: What builds the engine elsewhere, for the hint.

    Raises:
        UnsupportedError: tensorrt.precision, tensorrt.capability, tensorrt.no_device.
    """
    if plan.precision != "typed" and not dialect.weak_types:
        raise UnsupportedError(
            "tensorrt.precision",
            f"{plan.target}: precision",
            f"is {plan.precision}; {dialect.name} {dialect.text} takes all types from the graph",
            "leave it at 'typed', and run pass fp16 or int8 on the model first",
        )
    if dialect.rtx:
        targets = [c for c in plan.capabilities if c != "current"]
    elif device is None:
        raise UnsupportedError(
            "tensorrt.no_device",
            plan.target,
            "TensorRT measures kernels on the device that it builds for, and this machine has none",
            f"on the device: {line}\n  or build for tensorrt_rtx:sm86 and the like, which needs none",
        )
    else:
        targets = [device.capability]
        _same(plan, device, wanted)
    for capability in targets:
        _enough(dialect, plan, model, capability)


def _same(plan: Plan, device: Device, wanted: str | None) -> None:
    """Whether an engine that is built on one capability runs on another."""
    if wanted is None or wanted == device.capability:
        return
    both = _number(device.capability) >= (8, 0) and _number(wanted) >= (8, 0)
    if plan.compatible == "ampere+" and both:
        return
    raise UnsupportedError(
        "tensorrt.capability",
        plan.target,
        f"is for compute capability {wanted}; an engine that is built here ({device.name}, {device.capability}) "
        "does not load there",
        "build on the device" + (", or set compatible=ampere+ (not for Jetson)" if both else ""),
    )


def _enough(dialect: Dialect, plan: Plan, model: Model, capability: str) -> None:
    if _number(capability) < _number(dialect.oldest_capability):
        raise UnsupportedError(
            "tensorrt.capability",
            plan.target,
            f"has compute capability {capability}; {dialect.name} {dialect.text} needs {dialect.oldest_capability}",
            "use the version of TensorRT that the device's JetPack or driver brings",
        )
    asked = (*precisions_of(model), plan.precision)
    for gpu in catalogue().values():
        if gpu.kind == "gpu" and gpu.compute_capability == capability:
            reasons = refusals(gpu, Demand(precisions=asked))
            if reasons:
                subject, hint = f"{model.name} on {plan.target}", "run pass fp16 or int8 on the float32 model instead"
                raise UnsupportedError("tensorrt.capability", subject, "; ".join(reasons), hint)


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(n) for n in capability.split("."))
