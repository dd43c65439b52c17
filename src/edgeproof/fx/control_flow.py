"""Branches that are decided at import, and loops that are unrolled there.

A branch or a number of steps that only run time knows is refused: neither an export nor a gradient could follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .call import Call, Handler
from .values import Constant, Items, Tensor, Value

LONGEST_LOOP = 512
"""A loop of more steps would be a graph that nobody can compile."""


def branch(n: Call) -> Sequence[Value]:
    """If, of a condition known at import."""
    condition = n.constant(0)
    if condition is None:
        raise n.refused(
            "branches on a value computed at run time",
            "fix the shapes and simplify the model, or export it with one branch taken",
        )
    taken = n.attr("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
    return n.import_graph(taken, (), n.outside)


def loop(n: Call) -> Sequence[Value]:
    """Loop, unrolled: steps and condition have to be known at import."""
    torch, body = n.torch, n.attr("body")
    steps = n.integers(0) if n.has(0) else None
    if n.has(0) and steps is None:
        raise n.refused("loops as often as a value computed at run time says", "fix the shapes and simplify the model")
    going: Value = n[1] if n.has(1) else Constant(torch.tensor(True))
    state: list[Value] = [n[i] for i in range(2, len(n.inputs))]
    kept: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    step = 0
    while (steps is None or step < steps[0]) and _goes_on(n, going):
        if step == LONGEST_LOOP:
            raise n.refused(f"takes more than {LONGEST_LOOP} steps", "export the model without the loop")
        count = Constant(torch.tensor(step, dtype=torch.int64))
        going, *made = n.import_graph(body, (count, going, *state), n.outside)
        state = list(made[: len(state)])
        for values, value in zip(kept, made[len(state) :], strict=True):
            values.append(value)
        step += 1
    if kept and not step:
        raise n.refused("takes no step, so that the shape of what it collects is not known", "simplify the model")
    return [*state, *(n.call(torch.stack, list(values)) for values in kept)]


def _goes_on(n: Call, going: Value) -> bool:
    if not isinstance(going, Constant):
        raise n.refused("ends on a value computed at run time", "export the model without the loop")
    return bool(going.tensor.reshape(-1)[0])


def scan(n: Call) -> Sequence[Value]:
    """Scan along axes of known length, unrolled."""
    if n.opset < 9:
        raise n.refused("is of opset 8, which scans batches", "raise the model's opset to 9")
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    first = len(n.inputs) - count
    state: list[Value] = [n[i] for i in range(first)]
    scanned = [n[first + i] for i in range(count)]
    axes, backwards = n.attr("scan_input_axes", [0] * count), n.attr("scan_input_directions", [0] * count)
    steps = n.build.size(scanned[0], axes[0])
    if not isinstance(steps, int) or not 0 < steps <= LONGEST_LOOP:
        raise n.refused(f"scans an axis of {steps} steps, expected 1 to {LONGEST_LOOP}", "fix the shapes")
    kept: list[list[Value]] = [[] for _ in range(len(body.outputs) - first)]
    for step in range(steps):
        parts = [
            n.call(n.torch.select, x, axis, steps - 1 - step if back else step)
            for x, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        made = n.import_graph(body, (*state, *parts), n.outside)
        state = list(made[:first])
        for values, value in zip(kept, made[first:], strict=True):
            values.append(value)
    out_axes, reverse = n.attr("scan_output_axes", [0] * len(kept)), n.attr("scan_output_directions", [0] * len(kept))
    ordered = [values[::-1] if back else values for values, back in zip(kept, reverse, strict=True)]
    return [*state, *(n.call(n.torch.stack, v, axis) for v, axis in zip(ordered, out_axes, strict=True))]


def optional(n: Call) -> Value:
    """Optional: what it holds, or nothing."""
    return n[0] if n.has(0) else Items(())


def has_element(n: Call) -> Value:
    """OptionalHasElement; nothing is an empty sequence here."""
    value = n.inputs[0] if n.inputs else None
    if isinstance(value, Tensor):
        return n.call(present, value)
    holds = value is not None and not (isinstance(value, Items) and not value.items)
    return Constant(n.torch.tensor(holds))


def present(value: Any) -> Any:
    """Whether an optional input of the model is given."""
    import torch

    return torch.tensor(value is not None)


def element(n: Call) -> Value:
    """OptionalGetElement."""
    return n[0]


OPERATORS: dict[str, Handler] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "Optional": optional,
    "OptionalHasElement": has_element,
    "OptionalGetElement": element,
}
