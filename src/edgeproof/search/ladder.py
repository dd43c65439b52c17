"""The default strategy: one rung at a time, each built on the best of the rungs below.

Rungs, in order: a clean float graph; INT8 by each range method; the best INT8 again with more and with fewer operators
in integers; FP16; more or fewer threads. A rung is left out when the target cannot use it. The strategy sees only
speed-ups and quality drops on the search samples; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ..protocols import Strategy
from ..recipe import Recipe, Step
from ..target import Target

FLOAT_STEPS: tuple[str, ...] = ("simplify", "fuse_activation", "fold_affine")
"""What makes the clean float graph, in order."""

RANGE_METHODS: tuple[str, ...] = ("percentile", "minmax", "entropy", "mse")


@final
@dataclass(slots=True)
class Ladder:
    """Asks for recipes and learns which did best.

    Attributes:
        target: What is optimised for.
        shapes: ``name=1,3,224,224;…`` to fix the inputs to; empty leaves them as they are.
        max_drop: Quality drop that a candidate may have to count as good.
        threads: Thread counts worth trying; empty when the target's are given.
        seed: For every recipe.
    """

    target: Target
    shapes: str = ""
    max_drop: float = 0.01
    threads: tuple[int, ...] = ()
    seed: int = 0
    results: dict[str, tuple[Recipe, Mapping[str, Any]]] = field(default_factory=dict)
    _plan: Iterator[Recipe] | None = None

    @property
    def expected(self) -> int:
        """The number of rungs."""
        return 2 + len(self.threads) + (len(RANGE_METHODS) + 3 if self.target.scheme else 0)

    def ask(self) -> Recipe | None:
        """The next recipe, or None when all rungs are climbed."""
        if self._plan is None:
            self._plan = self._rungs()
        return next(self._plan, None)

    def tell(self, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """Results are ``ok`` (bool), ``speedup`` (baseline / candidate) and ``drop`` (quality)."""
        self.results[recipe.name] = (recipe, result)

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
        base = (*fixed, *(Step(name) for name in FLOAT_STEPS))
        yield Recipe("float", base, seed=self.seed)
        clean = self.results.get("float", (None, {}))[1].get("ok", False)
        if not clean:
            base = fixed
        if self.target.scheme is not None:
            for method in RANGE_METHODS:
                yield self._int8(f"int8-{method}", base, method=method, depthwise=False)
            best = self.best("int8-")
            if best is not None:
                settings = dict(best.steps[-1].settings)
                yield self._int8(f"{best.name}-depthwise", base, **{**settings, "depthwise": True})
                yield self._int8(f"{best.name}-conv", base, **{**settings, "ops": "Conv"})
                yield self._int8(f"{best.name}-inner", base, **{**settings, "first_last": False})
        yield Recipe("fp16", (*base, Step("fp16")), seed=self.seed)
        best = self.best("float", "int8-", "fp16")
        if best is not None:
            for count in self.threads:
                name = f"{best.name}-{count}-thread" + ("s" if count > 1 else "")
                yield Recipe(name, best.steps, {**best.runtime, "threads": count}, self.seed)

    def _int8(self, name: str, base: tuple[Step, ...], **settings: Any) -> Recipe:
        return Recipe(name, (*base, Step("int8", settings)), seed=self.seed)


IMPL: type[Strategy] = Ladder
