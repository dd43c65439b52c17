"""What a strategy may ask before it proposes: how far a recipe's outputs are off, and what each layer costs.

Answers are kept beside the candidate they are about, so an interrupted run does not work them out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, final

from .dataset import Feeds
from .errors import EdgeproofError
from .measurement import LayerFact, LayerFacts, LayerTime
from .model import Model, load_model
from .protocols import Progress, Session
from .quant import latency, sensitivity
from .quant.switched import Switched, keep_patterns, switched
from .recipe import Recipe, Step
from .runtimes import backend, compile_for, observer
from .trial import Setup, build, made

HELD_OUT = 8
"""Search samples on which outputs are compared; they calibrated nothing."""

SAMPLES = 4
"""Search samples on which sensitivities are measured, at most; they calibrated nothing either."""

SECONDS = 20.0
"""Fewer samples are taken where that many seconds would not do; one at least."""

VERIFIED = 3
"""Of so many most sensitive layers a true INT8 model is made, too."""

ROUNDS = 24
"""Profiled inferences per graph, interleaved."""


@final
@dataclass(slots=True)
class Prober:
    """The probe of a run.

    Attributes:
        setup: The run.
        progress: Told what is being worked out, and what it will cost.
    """

    setup: Setup
    progress: Progress = field(default=lambda _what, _share: None)

    def output_error(self, recipe: Recipe) -> float | None:
        """Output error of what a recipe makes, on search samples."""

        def work() -> dict[str, Any]:
            try:
                model = load_model(build(self.setup, recipe, self.progress).path)
                samples = [self.setup.dataset[i].feeds for i in self.setup.parts.search[:HELD_OUT]]
                self.progress(f"{recipe.name}: output error, {2 * len(samples)} inferences", 0.5)
                error = sensitivity.model_error(self._float(recipe), model, self._compile, samples)
            except EdgeproofError as e:
                return {"error": None, "why": str(e)}
            return {"error": error if error < float("inf") else None}

        kept = self.setup.workspace.once(f"candidates/{recipe.name}/output-error.json", work)
        return None if kept["error"] is None else float(kept["error"])

    def layers(self, recipe: Recipe) -> LayerFacts | None:
        """Error and time of every layer that the last step of a recipe quantises."""

        def work() -> dict[str, Any]:
            try:
                facts = self._facts(recipe)
            except EdgeproofError as e:
                return {"facts": None, "why": str(e)}
            return {"facts": facts.to_json() if facts is not None else None}

        kept = self.setup.workspace.once(f"candidates/{recipe.name}/layer-facts.json", work)
        return None if kept["facts"] is None else LayerFacts.from_json(kept["facts"])

    def _facts(self, recipe: Recipe) -> LayerFacts | None:
        plain = self._float(recipe)
        int8 = load_model(build(self.setup, recipe, self.progress).path)
        scheme = self.setup.target.scheme
        if scheme is None or int8.digest == plain.digest:
            return None
        simulation = switched(plain, int8, scheme)
        if not simulation.layers:
            return None
        samples = self._samples(simulation)
        total = sensitivity.cost(simulation, len(samples)) + 3 * ROUNDS
        self.progress(f"looking into {len(simulation.layers)} layers: {total} inferences", 0.0)
        errors = sensitivity.sensitivities(simulation, self._compile, samples, self.progress)
        worst = sorted(errors, key=errors.__getitem__, reverse=True)[:VERIFIED]
        true = {name: self._true_error(recipe, simulation, name, samples) for name in worst}
        times = self._times(recipe, simulation, int8)
        nodes = {n.outputs[0].name or "": n for n in plain.graph.graph if n.outputs}
        layers = tuple(
            LayerFact(
                name=name,
                label=nodes[name].name or name,
                op=nodes[name].op_type,
                error=true.get(name, errors[name]),
                float_ms=times.float_ms.get(name, 0.0),
                int8_ms=times.int8_ms.get(name, 0.0),
                verified=true.get(name),
            )
            for name in simulation.layers
        )
        crossings = latency.crossings(plain, simulation.layers, times.excess_ms, times.mixed)
        return LayerFacts(layers, crossings, times.timed, total + 2 * VERIFIED * len(samples), len(samples))

    def _samples(self, simulation: Switched) -> list[Feeds]:
        """As many samples that calibrated nothing as there is time for, told from one inference."""
        indices = (self.setup.parts.search or self.setup.parts.calibration)[:SAMPLES]
        first = self.setup.dataset[indices[0]].feeds
        session = self._compile(simulation.model)
        try:
            fixed = simulation.feeds(())
            session.run({**first, **fixed})
            start = perf_counter()
            session.run({**first, **fixed})
            spent = perf_counter() - start
        finally:
            session.close()
        count = max(1, min(len(indices), int(SECONDS / (spent * len(simulation.layers) + 1e-9))))
        return [self.setup.dataset[i].feeds for i in indices[:count]]

    def _true_error(self, recipe: Recipe, simulation: Switched, layer: str, samples: list[Feeds]) -> float:
        model = self._partly(recipe, simulation, (layer,))
        return sensitivity.model_error(simulation.plain, model, self._compile, samples)

    def _partly(self, recipe: Recipe, simulation: Switched, layers: tuple[str, ...]) -> Model:
        """The true INT8 model with only these layers quantised."""
        keep = ",".join(keep_patterns(simulation.layers, layers))
        last = Step("int8", {**recipe.steps[-1].settings, "keep": keep})
        return made(self.setup, Recipe(recipe.name, (*recipe.steps[:-1], last), recipe.runtime, recipe.seed))

    def _float(self, recipe: Recipe) -> Model:
        """What a recipe quantises."""
        return made(self.setup, Recipe(recipe.name, recipe.steps[:-1], recipe.runtime, recipe.seed))

    def _times(self, recipe: Recipe, simulation: Switched, int8: Model) -> _Times:
        """Profile the float model, the INT8 model, and one with every other layer in INT8, inference by inference."""
        every_other = simulation.layers[::2]
        models = (simulation.plain, int8, self._partly(recipe, simulation, every_other))
        plain_times, int8_times, mixed_times = self._profiles(models)
        if not plain_times or not int8_times:
            return _Times({}, {}, 0.0, every_other, False)
        float_ms, int8_ms, mixed_ms = (
            latency.layer_times(latency.owners(m.graph.graph, simulation.layers), times)
            for m, times in zip(models, (plain_times, int8_times, mixed_times), strict=True)
        )
        expected = sum((int8_ms if name in every_other else float_ms).get(name, 0.0) for name in simulation.layers)
        return _Times(float_ms, int8_ms, sum(mixed_ms.values()) - expected, every_other, True)

    def _profiles(self, models: tuple[Model, ...]) -> list[tuple[LayerTime, ...]]:
        fields = getattr(backend(self.setup.target.backend).settings, "__dataclass_fields__", {})
        if "profile" not in fields:
            return [() for _ in models]
        target = self.setup.target.with_settings({"profile": True})
        self.progress(f"timing layers: {len(models) * ROUNDS} inferences", 0.9)
        sessions = [compile_for(target, model) for model in models]
        try:
            feeds = self.setup.dataset[self.setup.parts.calibration[0]].feeds
            for _ in range(ROUNDS):
                for session in sessions:
                    session.run(feeds)
            return [session.layers() for session in sessions]
        finally:
            for session in sessions:
                session.close()

    @property
    def _compile(self) -> Callable[[Model], Session]:
        return partial(compile_for, observer(self.setup.target))


@dataclass(frozen=True, slots=True)
class _Times:
    float_ms: Mapping[str, float]
    int8_ms: Mapping[str, float]
    excess_ms: float
    mixed: tuple[str, ...]
    timed: bool
