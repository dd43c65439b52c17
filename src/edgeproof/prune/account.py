"""What pruning did to every layer: channels, multiply-accumulates and parameters, before and after."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..graph.cost import Cost, Layer, cost
from ..model import Model
from .channels import Channels
from .selection import Gone


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer.

    Attributes:
        name: Node name.
        op: Operator.
        channels: Channels that it makes, before and after.
        macs: Multiply-accumulates, before and after.
        parameters: Before and after.
    """

    name: str
    op: str
    channels: tuple[int, int]
    macs: tuple[int, int]
    parameters: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Account:
    """All layers, and the sums over the whole model at the traced size.

    Attributes:
        layers: Layers that multiply, in order.
        macs: Before and after.
        parameters: Before and after.
    """

    layers: tuple[LayerChange, ...]
    macs: tuple[int, int]
    parameters: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """As JSON; pairs are [before, after]."""
        return {
            "macs": list(self.macs),
            "parameters": list(self.parameters),
            "layers": [asdict(layer) for layer in self.layers],
        }


def account(channels: Channels, gone: Gone, after: Model) -> Account:
    """Compare a model with what is left of it; costs are counted on both graphs by `edgeproof.graph.cost`.

    Args:
        channels: What could be removed.
        gone: bool [units], what was.
        after: What `edgeproof.prune.removal.remove` made of it.
    """
    whole, rest = cost(channels.traced(), channels.shapes), cost(after, channels.shapes)
    by_name = {layer.name: layer for layer in rest.layers}
    own = {layer.name: layer for layer in whole.layers}
    lost = [*gone.tolist(), False]
    rows = []
    for task in channels.tasks:
        old, new = own.get(task.layer), by_name.get(task.layer)
        if old is None or new is None:
            continue
        if task.out is None:
            made = _last(old), _last(new)
        else:
            made = len(task.out), sum(not lost[u] for u in task.out.tolist())
        rows.append(LayerChange(task.layer, old.op, made, _pair(old, new, "macs"), _pair(old, new, "parameters")))
    return Account(tuple(rows), _totals(whole, rest, "macs"), _totals(whole, rest, "parameters"))


def _pair(old: Layer, new: Layer, what: str) -> tuple[int, int]:
    return _number(getattr(old, what)), _number(getattr(new, what))


def _totals(old: Cost, new: Cost, what: str) -> tuple[int, int]:
    return sum(_number(getattr(x, what)) for x in old.layers), sum(_number(getattr(x, what)) for x in new.layers)


def _number(amount: Any) -> int:
    return 0 if amount is None or amount.value is None else amount.value


def _last(layer: Layer) -> int:
    """Channels of a layer that nothing can be taken from: the second axis of a picture, the last of anything else."""
    if not layer.shape:
        return 1
    size = layer.shape[1] if layer.op in ("Conv", "ConvTranspose") else layer.shape[-1]
    return size if isinstance(size, int) else 0
