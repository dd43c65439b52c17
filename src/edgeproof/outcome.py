"""What comes out of a run: the rows of its table, the best model, and the result as a file."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .errors import State
from .evaluate import metric_of
from .files import replacing
from .gate import only_guesses
from .layers import layer_report
from .measurement import Measurement
from .model import file_digests, load_model, save_model
from .payoff import Tried, int8_payoff
from .policy import Verdict
from .recipe import Recipe
from .trial import Candidate, Setup, fidelity, size_measurement


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result table.

    Attributes:
        candidate: The candidate; None when it could not be made.
        recipe: How it was to be made.
        state: ``accept``, ``reject``, ``hold``, ``screened`` (lost in the search) or ``failed``.
        why: One sentence.
        search: Search result: ``speedup``, ``drop``, ``p50_ms``.
        measured: Confirmed measurements by metric name; empty when not confirmed.
        verdict: The gate's verdict; None when not confirmed.
        speedup: Confirmed speed-up over the original at p50, with its 95 % interval (value, low, high).
    """

    candidate: Candidate | None
    recipe: Recipe
    state: str
    why: str
    search: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    verdict: Verdict | None = None
    speedup: tuple[float, ...] = ()


def finish(setup: Setup, rows: list[Row]) -> dict[str, Any]:
    """Pick the best, copy it, look into the layers and write the result."""
    accepted = [r for r in rows if r.state == "accept" and r.candidate is not None]
    best = min(accepted, key=lambda r: r.measured["latency_p50"].value, default=None)
    state: State = "accept" if best else ("hold" if any(r.state == "hold" for r in rows) else "reject")
    root = setup.workspace.root
    if best is not None and best.candidate is not None:
        _keep_best(best.candidate.path, root / "best.onnx")
        setup.workspace.write(
            "best.json",
            {
                "name": best.recipe.name,
                "model": best.candidate.digest,
                "recipe": best.recipe.to_json(),
                "target": setup.target.name,
                "takes": _takes(setup, best.candidate),
                "settings": dict(best.candidate.target.settings),
            },
        )
    else:
        (root / "best.onnx").unlink(missing_ok=True)
        (root / "best.json").unlink(missing_ok=True)
    original = next(r for r in rows if r.recipe.name == "original")
    clean = next((r.candidate for r in rows if r.recipe.name == "float"), None)
    metric = metric_of(setup.metric, setup.spec)
    result = {
        "format": "edgeproof.result/1",
        "state": state,
        "warnings": warnings(setup, original, rows),
        "takes": _takes(setup, best.candidate) if best and best.candidate else "",
        "best": best.recipe.name if best else None,
        "metric": setup.metric,
        "quality": {"unit": metric.unit, "better": metric.better, "kind": metric.kind},
        "samples": {
            "calibration": len(setup.parts.calibration),
            "search": len(setup.parts.search),
            "confirm": len(setup.parts.confirm),
        },
        "control": setup.workspace.read("control.json"),
        "int8": _payoff(setup, rows, clean),
        "candidates": [_row_json(setup, row, original, clean) for row in rows],
    }
    setup.workspace.write("result.json", result)
    return result


def _keep_best(path: Path, best: Path) -> None:
    """Copy the accepted model: the very bytes that were measured, so that evidence of them holds for the copy.

    A model with weight files beside it is written anew, since the copy's weights need another name.
    """
    if len(file_digests(path)) > 1:
        save_model(load_model(path), best)
    else:
        with replacing(best) as temporary:
            shutil.copyfile(path, temporary)


def _payoff(setup: Setup, rows: Sequence[Row], clean: Candidate | None) -> dict[str, Any] | None:
    """Why the answer is a float model although INT8 was tried; None when it is not so."""
    tried = [Tried(r.candidate, r.state, r.why, r.search) for r in rows if r.candidate is not None and r.search]
    rule = next((r for r in setup.policy.rules if r.metric == "quality" and r.unit == "drop"), None)
    return int8_payoff(setup, tried, float(rule.limit) if rule else math.inf, clean)


def guesses(setup: Setup, score: Measurement) -> str:
    """Why quality says nothing: the original itself does no better than guessing. Empty when it does.

    Args:
        setup: The run.
        score: The original's quality on the confirmation samples.
    """
    return only_guesses(setup.metric, setup.original.outputs[0].shape, score)


def warnings(setup: Setup, original: Row, rows: Sequence[Row]) -> list[str]:
    """What a reader of the verdict should know, one sentence each."""
    found = [guesses(setup, original.measured[setup.metric])]
    control = setup.workspace.read("control.json") or {}
    found += [*control.get("problems", ()), *control.get("warnings", ())]
    if any(r.state == "hold" and r is not original for r in rows):
        examples = len(setup.parts.confirm)
        found.append(
            f"a hold means not decided yet: the verdict rests on {setup.policy.runs} processes and {examples} samples "
            "(about half of all); on a quiet machine, with more runs in the policy or more samples, it may decide"
        )
    return [text for text in found if text]


def _takes(setup: Setup, candidate: Candidate) -> str:
    """Inputs that a candidate takes, where the original left open what it fixes; else empty."""
    closed = [s for s in load_model(candidate.path).inputs if not s.dynamic]
    was_open = {s.name for s in setup.original.inputs if s.dynamic}
    return ", ".join(str(s) for s in closed if s.name in was_open)


def _beside(setup: Setup, row: Row, original: Row) -> dict[str, float]:
    """A search result on the scale of the confirmed original: its latency and quality, changed as the search found.

    The search uses other samples and other minutes; only its ratios and differences carry over.
    """
    if "p50_ms" not in row.search:
        return dict(row.search)
    score = original.measured[setup.metric]
    drop = row.search["drop"] * (1 if score.better == "higher" else -1)
    return {
        **row.search,
        "measured_p50_ms": row.search["p50_ms"],
        "measured_quality": row.search["quality"],
        "p50_ms": original.measured["latency_p50"].value / row.search["speedup"],
        "quality": score.value - drop,
    }


def _row_json(setup: Setup, row: Row, original: Row, clean: Candidate | None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": row.recipe.name,
        "recipe": row.recipe.to_json(),
        "state": row.state,
        "why": row.why,
        "search": _beside(setup, row, original),
        "speedup": list(row.speedup) or None,
        "measured": {name: m.to_json() for name, m in row.measured.items()},
        "verdict": row.verdict.to_json() if row.verdict else None,
    }
    if row.candidate is not None:
        value["model"] = row.candidate.digest
        value["path"] = os.path.relpath(row.candidate.path, setup.workspace.root)
        value["size_bytes"] = size_measurement(setup, row.candidate).value
        if row.measured:
            value["fidelity"] = fidelity(setup, row.candidate)
            value["layers"] = setup.workspace.once(
                f"candidates/{row.recipe.name}/layers.json", partial(layer_report, setup, row.candidate, clean)
            )
    change = setup.workspace.read(f"candidates/{row.recipe.name}/change.json")
    if change is not None:
        value["change"] = {k: v for k, v in change.items() if k != "recipe"}
    return value
