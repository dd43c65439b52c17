"""The default strategy: one rung at a time, each built on the best of the rungs below.

Rungs, in order: a clean float graph; INT8 of the inner layers without depthwise convolutions, by the range methods
whose outputs come closest to the float model's on held-out samples; the better of them with corrected biases and chosen
rounding, if that brings the outputs closer; mixed precision with whichever lost least (`Mixed`); where a faster INT8
model loses too much, all layers in INT8 taught by the float model, if there is time to train; FP16; more or fewer
threads. A rung is left out when the target cannot use it. The strategy sees only speed-ups and quality drops on the
search samples, and what its probe tells of layers; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from ..protocols import Probe, Strategy
from ..recipe import Recipe, Step
from ..target import Target
from .mixed import Mixed

FLOAT_STEPS: tuple[str, ...] = ("simplify",)
"""What makes the clean float graph, in order."""

RANGE_METHODS: tuple[str, ...] = ("percentile", "minmax", "entropy", "mse")

MEASURED_METHODS = 2
"""Range methods that are measured in full; the others lose by the error of their outputs."""

REFINED: Mapping[str, Any] = {"bias_correction": True, "rounding": "gptq"}
"""Settings of ``int8`` that cost time once and nothing where the model runs. What they find is kept by layer, so that
the rung of mixed precision does not pay for it again."""

WORTH_TRAINING = 1.1
"""How many times faster a model that lost too much must be than the fastest good one, to be trained."""

EPOCHS = 12
"""Passes over the calibration samples, as far as the time allows."""

EVALUATIONS = 4
"""Full evaluations of the rung of mixed precision, at most."""


@final
@dataclass(slots=True)
class Ladder:
    """Asks for recipes and learns which did best.

    Attributes:
        target: What is optimised for.
        shapes: ``name=1,3,224,224;…`` to fix the inputs to; empty leaves them as they are.
        max_drop: Quality drop that a candidate may have to count as good.
        threads: Thread counts worth trying; empty when the target's are given.
        training_s: Longest time to train for; 0 for never, or where nothing is installed that can.
        seed: For every recipe.
    """

    target: Target
    shapes: str = ""
    max_drop: float = 0.01
    threads: tuple[int, ...] = ()
    training_s: float = 0.0
    seed: int = 0
    results: dict[str, tuple[Recipe, Mapping[str, Any]]] = field(default_factory=dict)
    _plan: Iterator[Recipe] | None = None
    _probe: Probe | None = None
    _mixed: Mixed | None = None

    @property
    def expected(self) -> int:
        """The number of rungs, at most."""
        int8 = len(RANGE_METHODS) if self._probe is None else MEASURED_METHODS + 1 + EVALUATIONS
        return 2 + len(self.threads) + (int8 + (self.training_s > 0) if self.target.scheme else 0)

    def attach(self, probe: Probe) -> None:
        """Where errors and times come from. Without it, all range methods are measured and none is mixed."""
        self._probe = probe

    def ask(self) -> Recipe | None:
        """The next recipe, or None when all rungs are climbed."""
        if self._plan is None:
            self._plan = self._rungs()
        return next(self._plan, None)

    def tell(self, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """Results are ``ok`` (bool), ``speedup`` (baseline / candidate) and ``drop`` (quality)."""
        self.results[recipe.name] = (recipe, result)
        if self._mixed is not None:
            self._mixed.tell(recipe, result)

    def best(self, *prefixes: str) -> Recipe | None:
        """The fastest good recipe whose name starts with one of ``prefixes``; the least bad one when none is good."""
        rows = [(r, v) for n, (r, v) in self.results.items() if n.startswith(prefixes) and v.get("ok")]
        if not rows:
            return None
        good = [(r, v) for r, v in rows if v["drop"] <= self.max_drop]
        if good:
            return max(good, key=lambda rv: float(rv[1]["speedup"]))[0]
        return min(rows, key=lambda rv: float(rv[1]["drop"]))[0]

    def _rungs(self) -> Iterator[Recipe]:
        fixed = (Step("fix_shapes", {"shapes": self.shapes}),) if self.shapes else ()
        base = (*fixed, *(Step(name) for name in FLOAT_STEPS), *self._spelling())
        yield Recipe("float", base, seed=self.seed)
        clean = self.results.get("float", (None, {}))[1].get("ok", False)
        if not clean:
            base = fixed
        if self.target.scheme is not None:
            inner = {"depthwise": False, "first_last": False}
            yield from self._closest([self._int8(f"int8-{m}", base, method=m, **inner) for m in RANGE_METHODS])
            best = self.best("int8-")
            if best is not None and self._probe is not None:
                yield from self._refined(best)
                settings = self._least_lost("int8-").steps[-1].settings
                whole = {name: value for name, value in settings.items() if name not in inner}
                everything = self._int8("int8-all", base, **whole)
                yield from self._mix(everything)
                yield from self._taught(everything)
        yield Recipe("fp16", (*base, Step("fp16")), seed=self.seed)
        best = self.best("float", "int8-", "fp16")
        if best is not None:
            for count in self.threads:
                name = f"{best.name}-{count}-thread" + ("s" if count > 1 else "")
                yield Recipe(name, best.steps, {**best.runtime, "threads": count}, self.seed, best.reasons)

    def _spelling(self) -> tuple[Step, ...]:
        """The step that writes hard activations as the target fuses them, where it wants them so."""
        scheme = self.target.scheme
        return (Step("spell_activations"),) if scheme is not None and scheme.spell else ()

    def _closest(self, recipes: list[Recipe]) -> list[Recipe]:
        """The recipes whose outputs are least off; all of them without a probe."""
        if self._probe is None:
            return recipes
        errors = {recipe.name: self._probe.output_error(recipe) for recipe in recipes}
        made = [recipe for recipe in recipes if errors[recipe.name] is not None]
        made.sort(key=lambda recipe: errors[recipe.name] or 0.0)
        # One that cannot be made is still proposed when none can, so that its reason is shown.
        return made[:MEASURED_METHODS] or recipes[:1]

    def _refined(self, plain: Recipe) -> Iterator[Recipe]:
        """A recipe with `REFINED` settings, if its outputs are closer to the float model's than the plain one's."""
        assert self._probe is not None
        last = plain.steps[-1]
        steps = (*plain.steps[:-1], Step(last.name, {**last.settings, **REFINED}))
        recipe = replace(plain, name=f"{plain.name}-refined", steps=steps)
        before, after = self._probe.output_error(plain), self._probe.output_error(recipe)
        if after is not None and (before is None or after < before):
            yield recipe

    def _least_lost(self, prefix: str) -> Recipe:
        """The recipe that lost least quality; of equals the one measured last, whose outputs are closer."""
        rows = [(float(v["drop"]), r) for n, (r, v) in self.results.items() if n.startswith(prefix) and v.get("ok")]
        return min(reversed(rows), key=lambda row: row[0])[1]

    def _mix(self, whole: Recipe) -> Iterator[Recipe]:
        assert self._probe is not None
        self._mixed = Mixed(whole, self.max_drop, EVALUATIONS)
        self._mixed.attach(self._probe)
        while (recipe := self._mixed.ask()) is not None:
            yield recipe
        self._mixed = None

    def _taught(self, whole: Recipe) -> Iterator[Recipe]:
        """All layers in INT8, trained, where that is worth it: something fast is spoilt by its accuracy alone."""
        rows = [v for n, (_, v) in self.results.items() if n.startswith("int8-") and v.get("ok")]
        good = [float(v["speedup"]) for v in rows if v["drop"] <= self.max_drop]
        spoilt = [float(v["speedup"]) for v in rows if v["drop"] > self.max_drop]
        if self.training_s > 0 and max(spoilt, default=0.0) > WORTH_TRAINING * max([1.0, *good]):
            last = Step("distil", {"seconds": self.training_s, "epochs": EPOCHS})
            yield replace(whole, name="int8-distilled", steps=(*whole.steps, last))

    def _int8(self, name: str, base: tuple[Step, ...], **settings: Any) -> Recipe:
        return Recipe(name, (*base, Step("int8", settings)), seed=self.seed)


IMPL: type[Strategy] = Ladder
