"""The plain method, for comparison: promote one layer at a time from INT8 to float until the quality is good.

The most sensitive layer goes first. Every step is a full evaluation, and time is not looked at: what is quantised stays
so, whether it pays or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ..protocols import Probe, Strategy
from ..quant.switched import keep_patterns
from ..recipe import Recipe, Step


@final
@dataclass(slots=True)
class Promote:
    """The search.

    Attributes:
        recipe: Ends with the step ``int8`` over all layers.
        max_drop: Quality drop that is still good.
        evaluations: Proposals at most; 0 sets no limit.
    """

    recipe: Recipe
    max_drop: float = 0.01
    evaluations: int = 0
    _probe: Probe | None = None
    _plan: Iterator[Recipe] | None = None
    _good: bool = False
    _layers: int = 0

    @property
    def expected(self) -> int:
        """Proposals at most: one per layer."""
        return self.evaluations or self._layers or 1

    def attach(self, probe: Probe) -> None:
        """Where the order of the layers comes from; without it nothing is proposed."""
        self._probe = probe

    def ask(self) -> Recipe | None:
        """The next recipe, or None when one was good or every layer is promoted."""
        if self._plan is None:
            self._plan = self._promotions()
        return next(self._plan, None)

    def tell(self, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """``ok`` (bool) and ``drop`` (quality)."""
        self._good = bool(result.get("ok")) and float(result["drop"]) <= self.max_drop

    def _promotions(self) -> Iterator[Recipe]:
        facts = self._probe.layers(self.recipe) if self._probe is not None else None
        if facts is None:
            return
        order = sorted(facts.layers, key=lambda layer: -layer.error)
        names = [layer.name for layer in facts.layers]
        self._layers = len(names)
        last = self.recipe.steps[-1]
        for n in range(min(len(order), self.evaluations or len(order))):
            quantised = {layer.name for layer in order[n:]}
            step = Step(last.name, {**last.settings, "keep": ",".join(keep_patterns(names, quantised))})
            reasons = {
                layer.label: f"quantising it adds {layer.error:.2g} of noise to signal at the outputs"
                for layer in order[:n]
            }
            name = f"int8-promote-{n}"
            yield replace(self.recipe, name=name, steps=(*self.recipe.steps[:-1], step), reasons=reasons)
            if self._good:
                return


IMPL: type[Strategy] = Promote
