"""Look into a candidate: the time of every node as the runtime executed it, and the error of every tensor.

Times come from the runtime's own profile in a process that profiles nothing else; so they show
shares, not the latency that the bench reports. Errors compare tensors that both graphs still have by name.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import EdgeproofError
from .graph.quantised import is_quantised
from .measurement import LayerTime, Placement
from .model import Model, load_model
from .protocols import Context
from .quant import explain
from .quant.calibration import observed
from .quant.latency import layer_times, owners
from .recipe import Recipe
from .runtimes import backend, compile_for, observer
from .target import Target
from .trial import Candidate, Setup, apply_recipe, calibration_feeds

REPEATS = 20
ERROR_EXAMPLES = 4
MOST_TENSORS = 400


def layer_report(setup: Setup, candidate: Candidate, clean: Candidate | None) -> dict[str, Any]:
    """Times, placement and errors of a candidate, as JSON.

    Args:
        setup: The run.
        candidate: Whom to look into.
        clean: The clean float graph; errors are taken against it where there is one, since its tensor names survive
            more passes than the original's.
    """
    model = load_model(candidate.path)
    against = clean if clean is not None and clean.name != candidate.name else None
    reference = load_model(against.path) if against is not None else setup.original
    errors: list[dict[str, Any]] = []
    if candidate.digest != setup.original.digest:
        errors = _errors(setup, reference, model)
    times, placement = _profile(setup, candidate, model)
    return {
        "repeats": REPEATS,
        "total_ms": sum(t["time_ms"] for t in times),
        "layers": times,
        "placement": placement,
        "errors": errors,
        "error_examples": ERROR_EXAMPLES if errors else 0,
        "error_against": against.name if against is not None else "original",
        "quantised": _quantised(setup, candidate, model, clean),
    }


def _quantised(setup: Setup, candidate: Candidate, model: Model, clean: Candidate | None) -> list[dict[str, Any]]:
    """One row per computing node of a quantised candidate: precision, range, error, time before and after, reason."""
    if not is_quantised(model.graph.graph):
        return []
    change = setup.workspace.read(f"candidates/{candidate.name}/change.json")
    reference = _unquantised(setup, candidate.recipe, change, clean)
    facts, reasons = explain.pass_facts(change)
    keys = explain.layer_keys(model)
    samples = (setup.dataset[index].feeds for index in setup.parts.search[:ERROR_EXAMPLES])
    try:
        seen = explain.measure(model, partial(compile_for, observer(setup.target)), samples, reference)
        after, before = (
            layer_times(owners(m.graph.graph, keys), _executed(setup, candidate.target, m)) for m in (model, reference)
        )
    except EdgeproofError:
        seen, before, after = {}, {}, {}
    rows = explain.explain(
        model,
        candidate.target.scheme,
        reference=reference,
        kept=facts,
        seen=seen,
        reasons=reasons,
        before_ms=before,
        after_ms=after,
    )
    return [row.to_json() for row in rows]


def _unquantised(setup: Setup, recipe: Recipe, change: Any, clean: Candidate | None) -> Model:
    """The float model that a recipe's quantising pass was given: folds before it changed weights and tensors.

    The clean float graph is it when it was made by the same steps; else the steps are run again.
    """
    steps = recipe.steps[: explain.quantising_step(change)]
    if clean is not None and clean.recipe.steps == steps:
        return load_model(clean.path)
    context = Context(
        partial(compile_for, observer(setup.target)),
        lambda: calibration_feeds(setup),
        len(setup.parts.calibration),
        setup.target,
        recipe.seed,
        calibration=setup.calibration,
    )
    return apply_recipe(setup.original, replace(recipe, steps=steps), context)[0]


def _executed(setup: Setup, target: Target, model: Model) -> tuple[LayerTime, ...]:
    """What the runtime executed for a model, with times; empty where it gives no profile."""
    if "profile" not in getattr(backend(target.backend).settings, "__dataclass_fields__", {}):
        return ()
    session = compile_for(target.with_settings({"profile": True}), model)
    try:
        feeds = setup.dataset[setup.parts.search[0]].feeds
        for _ in range(REPEATS):
            session.run(feeds)
        return session.layers()
    finally:
        session.close()


def _profile(setup: Setup, candidate: Candidate, model: Model) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    settings = backend(candidate.target.backend).settings
    fields = getattr(settings, "__dataclass_fields__", {})
    target = candidate.target.with_settings({"profile": True}) if "profile" in fields else candidate.target
    session = compile_for(target, model)
    try:
        feeds = setup.dataset[setup.parts.search[0]].feeds
        for _ in range(REPEATS):
            session.run(feeds)
        return _times(session.layers()), _placement(session.placement())
    finally:
        session.close()


def _times(layers: tuple[LayerTime, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": layer.name,
            "op": layer.op,
            "device": layer.device,
            "precision": layer.precision,
            "time_ms": median(layer.time_ns) / 1e6,
            **({"kernel": layer.kernel} if layer.kernel else {}),
        }
        for layer in layers
    ]


def _placement(placement: Placement) -> dict[str, Any]:
    return {
        "source": placement.source,
        "by_device": dict(Counter(device for _, _, device, _ in placement.nodes)),
        "fallbacks": [list(f) for f in placement.fallbacks],
    }


def _errors(setup: Setup, reference: Model, model: Model) -> list[dict[str, Any]]:
    """Signal-to-noise ratio and largest deviation of every tensor that both graphs produce, in graph order."""
    ops = {v.name: n.op_type for n in model.graph.graph for v in n.outputs if v.name}
    theirs = {v.name for n in reference.graph.graph for v in n.outputs}
    names = [n for n in ops if n in theirs and ops[n] not in ("QuantizeLinear", "Constant")][:MOST_TENSORS]
    try:
        one, two = (
            compile_for(observer(setup.target), observed(reference, names)),
            compile_for(observer(setup.target), observed(model, names)),
        )
    except EdgeproofError:
        return []
    signal: dict[str, float] = dict.fromkeys(names, 0.0)
    noise: dict[str, float] = dict.fromkeys(names, 0.0)
    worst: dict[str, float] = dict.fromkeys(names, 0.0)
    seen: set[str] = set()
    try:
        for index in setup.parts.search[:ERROR_EXAMPLES]:
            feeds = setup.dataset[index].feeds
            want, got = one.run(feeds), two.run(feeds)
            for name in names:
                pair = _float_pair(want.get(name), got.get(name))
                if pair is None:
                    continue
                seen.add(name)
                difference = pair[1] - pair[0]
                signal[name] += float(np.square(pair[0]).sum())
                noise[name] += float(np.square(difference).sum())
                worst[name] = max(worst[name], float(np.abs(difference).max(initial=0.0)))
    finally:
        one.close()
        two.close()
    rows = []
    for name in names:
        if name not in seen or not math.isfinite(noise[name]) or not math.isfinite(signal[name]):
            continue
        sqnr = 10 * math.log10(signal[name] / noise[name]) if noise[name] > 0 and signal[name] > 0 else None
        rows.append({"tensor": name, "op": ops[name], "sqnr_db": sqnr, "max_abs": worst[name]})
    return rows


def _float_pair(want: Any, got: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    for array in (want, got):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            return None
    return (want.astype(np.float64), got.astype(np.float64)) if want.shape == got.shape else None
