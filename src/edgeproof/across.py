"""One model on several runtimes: each optimised by its own rules, then all measured against each other in one run.

1. `optimize` for every target, in a folder of its own. A target that cannot take the model is listed with the reason.
2. A check of every stage on the way to each target (`stages`), so that the step that lost accuracy is named.
3. One interleaved bench of the original and the best variant on every target, beside an A/A control.
4. Who is not beaten by anyone in both latency and quality: the Pareto front across runtimes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .bench import bench, measurements
from .bounds import speedup
from .dataset import DataSpec, Feeds, split
from .environment import control_check
from .errors import VERDICT_EXIT, EdgeproofError, State, UnsupportedError
from .evaluate import complete, open_dataset
from .files import read_json, write_json
from .job import CONTROL, Leg, feeds_digest
from .measurement import LegRun
from .model import file_digests, load_model
from .optimize import TRAINING_S, optimize
from .policy import Policy
from .protocols import Dataset, Progress, Strategy
from .runtimes import compile_for
from .stages import EXPORT, HALF, INTEGER, RUNTIME, Stage, check
from .target import Target
from .trial import FEEDS

FORMAT = "edgeproof.targets/1"
NAME = "targets.json"
CHECKED = 200
"""Search samples on which stages are scored, at most."""

OPTIMISING = 0.75
"""Share of the whole that the runs of the targets take."""


def across(
    path: str | Path,
    spec: DataSpec,
    policy: Policy,
    targets: Sequence[Target],
    out: str | Path,
    *,
    seed: int = 0,
    training_s: float = TRAINING_S,
    strategy: Callable[[], Strategy] | None = None,
    progress: Progress = lambda _what, _share: None,
    tell: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Find the best variant on every target, and compare them.

    Args:
        path: The ONNX file.
        spec: The samples and how they are read and scored.
        policy: The rules; each target's variant is held against the original on that target.
        targets: Where it may run; the original on the first is the baseline of the comparison.
        out: Folder; what was interrupted is continued.
        seed: Of the sample split and of every random choice.
        training_s: Longest time to train a candidate for, on each target; see `optimize`.
        strategy: Makes what proposes candidates for a target; the default one when left out.
        progress: Told what is happening and the share done.
        tell: Given lines about what will be done.

    Returns:
        The content of ``targets.json``.

    Raises:
        EdgeproofError: for unusable input, or when no target can run the model.
    """
    path, out = Path(path), Path(out)
    results: dict[str, dict[str, Any]] = {}
    refused: dict[str, EdgeproofError] = {}
    for i, target in enumerate(targets):
        part = _part(progress, target.name, i / len(targets) * OPTIMISING, OPTIMISING / len(targets))
        try:
            results[target.name] = optimize(
                path,
                spec,
                policy,
                target,
                out / folder(target.name),
                seed=seed,
                training_s=training_s,
                strategy=strategy() if strategy is not None else None,
                progress=part,
                tell=tell,
            )
        except EdgeproofError as e:
            if not (isinstance(e, UnsupportedError) or e.code.startswith(("target.", "bench.", "session."))):
                raise  # nothing about this target, and no other would fare better
            refused[target.name] = e
            tell(f"{target.name}: {e}".splitlines()[0])
    running = [t for t in targets if t.name in results]
    if not running:
        raise next(iter(refused.values()))
    original = load_model(path)
    dataset = open_dataset(spec, original)
    spec = complete(spec, original, dataset)
    parts = split(len(dataset), seed)
    runs, legs = _together(
        path, policy, running, results, out, [dataset[i].feeds for i in parts.search[:FEEDS]], progress
    )
    indices = parts.search[:CHECKED]
    rows = []
    for i, target in enumerate(running):
        part = _part(progress, target.name, 0.9 + 0.1 * i / len(running), 0.1 / len(running))
        checked = _stages(path, target, running[0], results[target.name], out, dataset, indices, spec, part)
        rows += _rows(target, results[target.name], legs, runs, checked)
    _mark_front(rows)
    states = [r["state"] for r in results.values()]
    state: State = next((s for s in ("accept", "hold") if s in states), "reject")
    result = {
        "format": FORMAT,
        "state": state,
        "metric": spec.metric,
        "better": next(iter(results.values()))["quality"]["better"],
        "baseline": f"original on {running[0].name}",
        "control": control_check(runs, legs[0].name, CONTROL).to_json(),
        "variants": rows,
        "refused": {name: e.to_json() for name, e in refused.items()},
    }
    write_json(out / NAME, result)
    progress("done", 1.0)
    return result


def exit_code(result: Mapping[str, Any]) -> int:
    """Exit code of a command that ends with this."""
    return VERDICT_EXIT[result["state"]]


def folder(target: str) -> str:
    """Name of a target's folder."""
    return re.sub(r"[^\w.-]", "-", target)


def _together(
    path: Path,
    policy: Policy,
    targets: Sequence[Target],
    results: Mapping[str, Mapping[str, Any]],
    out: Path,
    feeds: Sequence[Feeds],
    progress: Progress,
) -> tuple[list[LegRun], list[Leg]]:
    """The original and the best variant on every target, in one interleaved bench that can be continued."""
    legs = [Leg(f"original on {targets[0].name}", path, targets[0]), Leg(CONTROL, path, targets[0])]
    for target in targets:
        if target is not targets[0]:
            legs.append(Leg(f"original on {target.name}", path, target))
        best = _best(results[target.name])
        if best is not None and best["name"] != "original":
            place = target.with_settings(best["recipe"]["runtime"])
            legs.append(Leg(f"{best['name']} on {target.name}", out / folder(target.name) / best["path"], place))
    file = out / "together.json"
    asked = {
        "legs": [{**leg.to_json(), "files": file_digests(leg.path)} for leg in legs],
        "feeds": feeds_digest(feeds),
        "inferences": policy.inferences,
    }
    kept = read_json(file) if file.is_file() else {}
    done = [LegRun.from_json(r) for r in kept["runs"]] if kept.get("asked") == asked else []

    def keep(_index: int, new: list[LegRun]) -> None:
        done.extend(new)
        write_json(file, {"asked": asked, "runs": [r.to_json() for r in done]})

    part = _part(progress, "all targets", OPTIMISING, 0.9 - OPTIMISING)
    runs = bench(
        legs,
        feeds,
        rounds=policy.runs,
        inferences=policy.inferences,
        progress=part,
        on_round=keep,
        done=tuple(done),
    )
    return runs, legs


def _best(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The accepted candidate of a run."""
    return next((c for c in result["candidates"] if c["name"] == result["best"]), None)


def _rows(
    target: Target, result: Mapping[str, Any], legs: Sequence[Leg], runs: Sequence[LegRun], checked: Sequence[Any]
) -> list[dict[str, Any]]:
    """The original and the best on a target: quality from its own run, latency from the common one."""
    base = measurements(runs, legs[0].name, ("latency_p50",), model="")["latency_p50"].samples
    rows = []
    best = _best(result)
    for candidate in [c for c in result["candidates"] if c["name"] == "original" or c is best]:
        name = f"{candidate['name']} on {target.name}"
        metrics = measurements(runs, name, ("latency_p50", "latency_p95", "peak_memory"), model=candidate["model"])
        rows.append(
            {
                "name": name,
                "target": target.name,
                "candidate": candidate["name"],
                "state": candidate["state"],
                "why": candidate["why"],
                "size_bytes": candidate["size_bytes"],
                "quality": candidate["measured"][result["metric"]],
                "measured": {n: m.to_json() for n, m in metrics.items()},
                "speedup": list(speedup(base, metrics["latency_p50"].samples)),
                "stages": [c.to_json() for c in checked] if candidate["name"] == "original" else [],
                "front": False,
            }
        )
    return rows


def _mark_front(rows: Sequence[dict[str, Any]]) -> None:
    """Mark the variants that no other beats in both latency and quality."""
    lower = bool(rows) and rows[0]["quality"]["better"] == "lower"
    best = float("inf") if lower else float("-inf")
    for row in sorted(
        rows, key=lambda r: (r["measured"]["latency_p50"]["value"], r["quality"]["value"] * (1 if lower else -1))
    ):
        value = row["quality"]["value"]
        if (value < best) if lower else (value > best):
            row["front"], best = True, value


def _stages(
    path: Path,
    target: Target,
    first: Target,
    result: Mapping[str, Any],
    out: Path,
    dataset: Dataset,
    indices: Sequence[int],
    spec: DataSpec,
    progress: Progress,
) -> Sequence[Any]:
    """Source → this runtime → clean graph → float16 → INT8, as far as the run made them."""
    made = {c["name"]: c for c in result["candidates"] if "path" in c}

    def stage(name: str, file: Path, place: Target, judged: Any, tolerance: float) -> Stage:
        model = load_model(file)
        return Stage(name, model, lambda: compile_for(place, model), judged, tolerance)

    root = out / folder(target.name)
    found = [stage(f"original on {first.name}", path, first, "outputs", 0.0)]
    if target is not first:
        found.append(stage(f"{first.name} → {target.name}", path, target, "outputs", RUNTIME))
    if "float" in made:
        found.append(
            stage("simplify", root / made["float"]["path"], target, "outputs", EXPORT if target is first else RUNTIME)
        )
    if "fp16" in made:
        found.append(stage("fp16", root / made["fp16"]["path"], target, "score", HALF))
    int8 = [c for c in result["candidates"] if c["name"].startswith("int8") and "path" in c]
    best = _best(result)
    chosen = best if best is not None and best in int8 else next(iter(sorted(int8, key=_lost)), None)
    if chosen is not None:
        place = target.with_settings(chosen["recipe"]["runtime"])
        found.append(stage(chosen["name"], root / chosen["path"], place, "score", INTEGER))
    return check(found, dataset, indices, spec, spec.metric, progress)


def _lost(candidate: Mapping[str, Any]) -> float:
    return float(candidate["search"].get("drop", float("inf")))


def _part(progress: Progress, what: str, start: float, share: float) -> Progress:
    return lambda detail, done: progress(f"{what}: {detail}", start + share * min(done, 1.0))
