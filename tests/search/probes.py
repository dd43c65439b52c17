"""A probe that answers from tables, and a driver for strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgeproof.measurement import Crossing, LayerFact, LayerFacts
from edgeproof.recipe import Recipe, Step

ALL = Recipe("int8-all", (Step("simplify"), Step("int8", {"method": "mse"})))


def facts(rows: dict[str, tuple[float, float, float]], *crossings: Crossing, timed: bool = True) -> LayerFacts:
    """Facts from name → (error, float ms, INT8 ms)."""
    layers = tuple(LayerFact(name, f"node {name}", "Conv", *row) for name, row in rows.items())
    return LayerFacts(layers, crossings, timed)


@dataclass
class Table:
    """A probe."""

    known: LayerFacts | None = None
    errors: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def output_error(self, recipe: Recipe) -> float | None:
        self.asked.append(recipe.name)
        return self.errors.get(recipe.name)

    def layers(self, recipe: Recipe) -> LayerFacts | None:
        self.asked.append(recipe.name)
        return self.known


def drive(strategy, drop: Callable[[frozenset[str]], float], known: LayerFacts) -> list[frozenset[str]]:
    """The sets of quantised layers that were proposed, each told its drop."""
    proposed = []
    while (recipe := strategy.ask()) is not None:
        kept = set(filter(None, str(recipe.steps[-1].settings["keep"]).split(",")))
        quantised = frozenset(layer.name for layer in known.layers) - kept
        proposed.append(quantised)
        strategy.tell(recipe, {"ok": True, "speedup": 1.0, "drop": drop(quantised)})
    return proposed
