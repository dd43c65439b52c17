"""Time of every layer, in float and in INT8, from the runtime's own profiles.

A runtime executes other nodes than the graph has: it fuses, reorders and renames. Executed nodes find back to the graph
by name, whole or by the part ahead of what the runtime appended (``conv1_nchwc``, ``conv1_token_7``, ``conv1/relu1``);
one without a name of the graph belongs where the node before it belongs. Every node of the graph belongs to the layer
whose result it carries on, so a layer's time includes its activation, and in INT8 its changes of precision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..measurement import Crossing, LayerTime
from ..model import Model
from .switched import key

if TYPE_CHECKING:
    import onnx_ir as ir

Owners = dict[str, str]
"""Name of a node or of one of its outputs → the layer that it belongs to."""

FIXED = 5_000
"""Elements whose conversion takes as long as starting the nodes that convert (about 5 µs on a desktop core)."""


def owners(graph: ir.Graph, layers: Collection[str]) -> Owners:
    """Which layer every node belongs to.

    A node belongs to the latest layer upstream of it; one that no layer precedes, to the first layer it leads to.

    Args:
        graph: A float graph, or one with Q/DQ in which the layers' nodes or outputs kept their names.
        layers: Names of the layers, first outputs of their nodes.
    """
    order = {name: i for i, name in enumerate(layers)}
    of: dict[ir.Node, str] = {}
    nodes = list(graph)
    for node in nodes:
        name = _layer(node, order)
        if name is None:
            upstream = [of[p] for v in node.inputs if v is not None and (p := v.producer()) is not None and p in of]
            name = max(upstream, key=lambda n: order[n], default=None)
        if name is not None:
            of[node] = name
    for node in reversed(nodes):
        if node not in of:
            ahead = [of[u.node] for v in node.outputs for u in v.uses() if u.node in of]
            if ahead:
                of[node] = min(ahead, key=lambda n: order[n])
    found: Owners = {}
    for node, name in of.items():
        for called in (node.name, *(v.name for v in node.outputs)):
            if called:
                found.setdefault(called, name)
    return found


def layer_times(owned: Owners, executed: Sequence[LayerTime]) -> dict[str, float]:
    """Time per layer in ms: the medians of what was executed for it, summed.

    Args:
        owned: From `owners`, for the graph that was profiled.
        executed: The profile, in order of execution.
    """
    total: dict[str, float] = {}
    waiting = 0.0
    last: str | None = None
    for node in executed:
        spent = median(node.time_ns) / 1e6
        last = _match(node.name, owned) or last
        if last is None:
            waiting += spent
            continue
        total[last] = total.get(last, 0.0) + spent + waiting
        waiting = 0.0
    return total


def crossings(model: Model, layers: Collection[str], excess_ms: float, mixed: Collection[str]) -> tuple[Crossing, ...]:
    """Tensors between layers, with what a change of precision in them costs.

    Args:
        model: The float model.
        layers: Names of the layers.
        excess_ms: How much longer a model took than its layers' times say.
        mixed: The layers that this model had in INT8. Its excess is spread over what changed precision in it, by the
            number of elements.
    """
    found = _between(model.graph.graph, layers)
    changed = sum(size for (maker, readers), size in found if any((maker in mixed) != (r in mixed) for r in readers))
    per_element = max(excess_ms, 0.0) / changed if changed else 0.0
    return tuple(Crossing(maker, readers, per_element * size) for (maker, readers), size in found)


def _between(graph: ir.Graph, layers: Collection[str]) -> list[tuple[tuple[str, tuple[str, ...]], int]]:
    owned = owners(graph, layers)
    found = []
    for node in graph:
        for value in node.outputs:
            maker = owned.get(value.name or "")
            readers = {owned.get(u.node.outputs[0].name or "") for u in value.uses() if u.node.outputs}
            others = tuple(sorted(r for r in readers if r is not None and r != maker))
            if maker is not None and others:
                found.append(((maker, others), _elements(value) + FIXED))
    return found


def _layer(node: ir.Node, order: Mapping[str, int]) -> str | None:
    name = key(node)
    for called in (name, name.removesuffix(".float")):
        if called in order:
            return called
    return None


def _match(name: str, owned: Owners) -> str | None:
    """The layer of an executed node, by its name or the longest beginning of it that the graph knows."""
    if name in owned:
        return owned[name]
    for end in reversed([m.start() for m in re.finditer(r"[^A-Za-z0-9]", name)]):
        if name[:end] in owned:
            return owned[name[:end]]
    return None


def _elements(value: ir.Value) -> int:
    """Elements of a tensor; open dimensions count as 1."""
    size = 1
    for dim in value.shape or ():
        size *= dim if isinstance(dim, int) else 1
    return size
