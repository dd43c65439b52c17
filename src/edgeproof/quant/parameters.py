"""From ranges to scales and zero points, with what kernels demand: shared, fixed, or without a zero point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..target import QuantScheme
from . import numerics
from .numerics import QParams
from .placement import Plan


def parameters(plan: Plan, scheme: QuantScheme, ranges: Mapping[str, tuple[float, float]]) -> dict[str, QParams]:
    """Parameters of every quantised tensor of a plan.

    Args:
        plan: The placement.
        scheme: What the target wants.
        ranges: Lowest and highest value of every tensor of ``plan.observe``.
    """
    bounds = dict(ranges)
    for group in plan.together * len(plan.together):  # groups may overlap: as often as it may take to pass a range on
        held = [bounds[name] for name in group]
        bounds |= dict.fromkeys(group, (min(low for low, _ in held), max(high for _, high in held)))
    found: dict[str, QParams] = {}
    for name, (low, high) in bounds.items():
        if name in plan.fixed:
            scale, zero = plan.fixed[name]
            found[name] = QParams(np.array(scale, np.float32), np.array(zero, scheme.activation))
        elif name in plan.signed and low < 0 and not scheme.activation_symmetric:
            signed: numerics.Dtype = "int16" if scheme.activation.endswith("16") else "int8"
            found[name] = numerics.params(low, high, signed, symmetric=True)
        else:
            found[name] = numerics.params(low, high, scheme.activation, symmetric=scheme.activation_symmetric)
    for name in plan.tensors:
        source, factor = plan.source(name)
        if name != source:
            p = found[source]
            found[name] = QParams(numerics.scaled(p.scale, factor), p.zero_point)
    return found
