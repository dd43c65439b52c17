"""What a DLA core cannot run.

Source: TensorRT developer guide, *DLA Supported Layers and Restrictions*: two precisions, no open dimensions; which
layers beyond that is for ``IBuilderConfig.can_run_on_DLA`` to say.
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from .dialect import Dialect
from .settings import Plan
from .shapes import Profile


def ask_for(trt: Any, config: Any, plan: Plan) -> None:
    """Have layers run on a DLA core.

    Args:
        trt: TensorRT.
        config: Its ``IBuilderConfig``.
        plan: With a core.
    """
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = plan.dla_core
    if plan.gpu_fallback:
        config.set_flag(trt.BuilderFlag.GPU_FALLBACK)


def check(dialect: Dialect, plan: Plan, cores: int, profiles: tuple[Profile, ...]) -> None:
    """Whether there is such a core, and whether a DLA can run such a model at all.

    Args:
        dialect: The version.
        plan: What is to be built.
        cores: DLA cores of this machine.
        profiles: Of the build.

    Raises:
        UnsupportedError: tensorrt.dla.
    """
    if plan.dla_core is None:
        return
    if not dialect.dla:
        raise _no(plan, f"{dialect.name} {dialect.text} knows no DLA", "install TensorRT 10, or 11.2 and later")
    if plan.dla_core >= cores:
        had = f"this machine has {cores} DLA core{'' if cores == 1 else 's'}"
        raise _no(plan, f"{had}, core {plan.dla_core} is asked for", "build for tensorrt:gpu (Orin Nano has no DLA)")
    for profile in profiles:
        for name, span in profile.items():
            if not span.least == span.best == span.most:
                problem = f"a DLA has no open dimensions, and input {name} has"
                raise _no(plan, problem, "run pass fix_shapes, or give one size for each input in --set shapes=…")


def fallbacks(network: Any, config: Any, plan: Plan) -> tuple[tuple[str, str], ...]:
    """(layer, why) for every layer that the DLA cannot run.

    Args:
        network: TensorRT's ``INetworkDefinition``.
        config: With the core set.
        plan: What is being built.

    Raises:
        UnsupportedError: tensorrt.dla, when there are such layers and the GPU is not to run them.
    """
    if plan.dla_core is None:
        return ()
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    found = tuple(
        (layer.name, f"{layer.type.name.lower()} does not run on the DLA; the GPU runs it")
        for layer in layers
        if layer.type.name != "CONSTANT" and not config.can_run_on_DLA(layer)
    )
    if found and not plan.gpu_fallback:
        some = ", ".join(name for name, _ in found[:5])
        problem = f"{len(found)} of {len(layers)} layers cannot run there ({some}{', …' if len(found) > 5 else ''})"
        raise _no(plan, problem, "set gpu_fallback=true, run pass fp16 or int8 first, or build for tensorrt:gpu")
    return found


def _no(plan: Plan, problem: str, hint: str) -> UnsupportedError:
    return UnsupportedError("tensorrt.dla", plan.target, problem, hint)
