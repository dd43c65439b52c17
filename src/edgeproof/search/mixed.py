"""Mixed precision: the fastest choice of layers for INT8 that keeps the quality, in a handful of full evaluations.

Before the first proposal the strategy asks its probe what each layer's quantisation costs in output error and saves in
time, both measured. The fastest assignment by these times comes first: layers that are slower in INT8 are in float from
the start. From there layers return to float, the one with the most error per millisecond saved ahead, which gives an
ordered list of ever safer and slower assignments. A bisection of that list, by the quality measured on the search
samples, finds the fastest one that is good. It can stop at any time: every assignment tried is a candidate of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from ..measurement import LayerFact, LayerFacts
from ..protocols import Probe, Strategy
from ..quant.switched import keep_patterns
from ..recipe import Recipe, Step

STEP = 0.75
"""Neighbours in the list that is bisected differ by this factor in estimated error, or more."""

WORTHWHILE = 0.98
"""An assignment must take less than this share of the float model's time, by the layers' times."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A choice of layers for INT8.

    Attributes:
        quantised: Their names.
        ms: Estimated time of all layers.
        error: Estimated output error: the sum of the layers'.
        reasons: Every other layer → why it stays in float.
    """

    quantised: frozenset[str]
    ms: float
    error: float
    reasons: Mapping[str, str]


@final
@dataclass(slots=True)
class Mixed:
    """The search.

    Attributes:
        recipe: Ends with the step ``int8`` over all layers; proposals add the setting ``keep`` to it.
        max_drop: Quality drop that is still good.
        evaluations: Proposals at most.
        prefix: Proposals are called ``PREFIX-1`` and so on.
    """

    recipe: Recipe
    max_drop: float = 0.01
    evaluations: int = 5
    prefix: str = "int8-mixed"
    _probe: Probe | None = None
    _plan: Iterator[Recipe] | None = None
    _good: dict[str, bool] = field(default_factory=dict)

    @property
    def expected(self) -> int:
        """Most proposals there can be."""
        return self.evaluations

    def attach(self, probe: Probe) -> None:
        """Where layers' errors and times come from; without it nothing is proposed."""
        self._probe = probe

    def ask(self) -> Recipe | None:
        """The next assignment, or None when the fastest good one is found."""
        if self._plan is None:
            self._plan = self._bisection()
        return next(self._plan, None)

    def tell(self, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """``ok`` (bool) and ``drop`` (quality)."""
        self._good[recipe.name] = bool(result.get("ok")) and float(result["drop"]) <= self.max_drop

    def _bisection(self) -> Iterator[Recipe]:
        facts = self._probe.layers(self.recipe) if self._probe is not None else None
        if facts is None:
            return
        path = thinned(assignments(facts))
        low, high, place = 0, len(path), 0  # below `low` all are bad; `high` is good, or the float model behind the end
        for n in range(1, self.evaluations + 1):
            if low >= high:
                return
            recipe = self._proposal(f"{self.prefix}-{n}", path[place], facts)
            yield recipe
            if self._good.get(recipe.name, False):
                high = place
            else:
                low = place + 1
            place = (low + high) // 2

    def _proposal(self, name: str, chosen: Assignment, facts: LayerFacts) -> Recipe:
        last = self.recipe.steps[-1]
        keep = ",".join(keep_patterns([layer.name for layer in facts.layers], chosen.quantised))
        step = Step(last.name, {**last.settings, "keep": keep})
        labels = {layer.name: layer.label for layer in facts.layers}
        reasons = {labels[layer]: why for layer, why in chosen.reasons.items()}
        return replace(self.recipe, name=name, steps=(*self.recipe.steps[:-1], step), reasons=reasons)


def assignments(facts: LayerFacts) -> list[Assignment]:
    """Ever safer and slower assignments, the fastest first; each is a part of the one before it.

    Those that take as long as the float model are left out, so the list is empty where INT8 does not pay.
    """
    clock = _Clock(facts)
    limit = clock.ms(frozenset()) * (WORTHWHILE if facts.timed else 1.0)
    left = clock.fastest()
    reasons = {layer.name: clock.slower(layer, left) for layer in facts.layers if layer.name not in left}
    errors = {layer.name: layer.error for layer in facts.layers}
    found: list[Assignment] = []
    while left:
        found.append(Assignment(left, clock.ms(left), sum(errors[n] for n in left), dict(reasons)))
        saved = {name: clock.ms(left - {name}) - found[-1].ms for name in left}
        # A layer that saves nothing any more, since its neighbours have left, goes first.
        name = max(left, key=lambda n: (errors[n] / saved[n] if saved[n] > 0 else math.inf, errors[n], n))
        saving = f" and saves {saved[name]:.3f} ms" if facts.timed else ""
        reasons[name] = f"quantising it adds {errors[name]:.2g} of noise to signal at the outputs{saving}"
        left = left - {name}
    return [a for a in found if a.ms < limit]


def thinned(path: Sequence[Assignment]) -> list[Assignment]:
    """Those of the assignments that differ in error; a bisection cannot tell the others apart."""
    kept: list[Assignment] = []
    for one in path:
        if not kept or one.error <= kept[-1].error * STEP:
            kept.append(one)
    return kept


class _Clock:
    """Estimates the time of an assignment from its layers' times and the changes of precision between them."""

    def __init__(self, facts: LayerFacts) -> None:
        self.facts = facts
        self.times = {
            layer.name: (layer.float_ms, layer.int8_ms) if facts.timed else (1.0, 0.0) for layer in facts.layers
        }
        self.beside: dict[str, list[int]] = {name: [] for name in self.times}
        for i, crossing in enumerate(facts.crossings):
            for name in {crossing.maker, *crossing.readers}:
                self.beside[name].append(i)

    def ms(self, quantised: frozenset[str]) -> float:
        """Time of all layers."""
        layers = sum(times[name in quantised] for name, times in self.times.items())
        return layers + sum(self._crossing(i, quantised) for i in range(len(self.facts.crossings)))

    def gain(self, name: str, quantised: frozenset[str]) -> float:
        """Time that the other precision of a layer would save, its neighbours left as they are."""
        other = quantised ^ {name}
        times = self.times[name]
        gain = times[name in quantised] - times[name in other]
        return gain + sum(self._crossing(i, quantised) - self._crossing(i, other) for i in self.beside[name])

    def fastest(self) -> frozenset[str]:
        """The fastest assignment that flipping one layer at a time reaches, from all or from none."""
        ends = [self._descend(frozenset(start)) for start in (self.times, ())]
        return min(ends, key=self.ms)

    def slower(self, layer: LayerFact, quantised: frozenset[str]) -> str:
        """Why the fastest assignment leaves a layer in float."""
        if layer.int8_ms >= layer.float_ms:
            return f"slower in INT8: {layer.int8_ms:.3f} ms against {layer.float_ms:.3f} ms in float"
        cost = -self.gain(layer.name, quantised)
        return (
            f"INT8 takes {layer.int8_ms:.3f} ms against {layer.float_ms:.3f} ms in float, "
            f"but with the changes of precision around it {max(cost, 0.0):.3f} ms more"
        )

    def _descend(self, quantised: frozenset[str]) -> frozenset[str]:
        for _ in range(4 * len(self.times)):
            name = max(self.times, key=lambda n: self.gain(n, quantised), default=None)
            if name is None or self.gain(name, quantised) <= 1e-9:
                break
            quantised = quantised ^ {name}
        return quantised

    def _crossing(self, index: int, quantised: frozenset[str]) -> float:
        crossing = self.facts.crossings[index]
        made = crossing.maker in quantised
        return crossing.ms if any((name in quantised) != made for name in crossing.readers) else 0.0


IMPL: type[Strategy] = Mixed
