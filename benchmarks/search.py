"""Mixed precision: evaluations, time and result of the search beside promoting one layer at a time and fixed scopes.

    python benchmarks/search.py MODEL --data DATA [--max-drop 0.01] [--samples N] [--rounds 200] [--promote N]

One thread of ONNX Runtime's CPU provider. Ranges come from the calibration samples, choices from the search samples,
and the quality shown from the confirmation samples, which no search saw. Latencies are medians of inferences that are
interleaved in one process. ``inner`` is INT8 without depthwise convolutions and without the first and last layers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from edgeproof.dataset import load_spec, split
from edgeproof.evaluate import complete, open_dataset
from edgeproof.model import load_model
from edgeproof.optimize import _fixed_shapes
from edgeproof.policy import default_policy
from edgeproof.probe import Prober
from edgeproof.protocols import Strategy
from edgeproof.recipe import Recipe, Step
from edgeproof.runtimes import compile_for, find_target
from edgeproof.search.ladder import FLOAT_STEPS
from edgeproof.search.mixed import Mixed
from edgeproof.search.promote import Promote
from edgeproof.trial import Candidate, Setup, build, original_candidate, quality
from edgeproof.workspace import Workspace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", default="mse")
    parser.add_argument("--max-drop", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--evaluations", type=int, default=4, help="of the search")
    parser.add_argument(
        "--promote", type=int, default=0, help="evaluations of the plain method at most; 0: one a layer"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        setup = prepare(args.model, args.data, Path(folder))
        print(f"{len(setup.parts.search)} samples to search, {len(setup.parts.confirm)} to confirm")
        compare(setup, args)


def prepare(path: Path, data: str, folder: Path) -> Setup:
    model, spec = load_model(path), load_spec(data)
    dataset = open_dataset(spec, model)
    spec = complete(spec, model, dataset)
    target = find_target("onnxruntime:cpu", {"threads": 1})
    parts = split(len(dataset), 0)
    workspace = Workspace.create(folder / "run", {"model": model.digest})
    return Setup(workspace, path, model, dataset, spec, parts, spec.metric, default_policy(), target, "benchmark")


def compare(setup: Setup, args: argparse.Namespace) -> None:
    shapes = _fixed_shapes(setup)
    base = (*((Step("fix_shapes", {"shapes": shapes}),) if shapes else ()), *map(Step, FLOAT_STEPS))
    whole = Recipe("int8-all", (*base, Step("int8", {"method": args.method})))
    scope = {"method": args.method, "depthwise": False, "first_last": False}
    rows: dict[str, tuple[Candidate, str]] = {"original": (original_candidate(setup), "")}
    for recipe in (Recipe("float", base), whole, Recipe("int8-inner", (*base, Step("int8", scope)))):
        rows[recipe.name] = (build(setup, recipe, silent), "")
    strategies = {
        "mixed": Mixed(whole, args.max_drop, args.evaluations),
        "promote": Promote(whole, args.max_drop, args.promote),
    }
    for name, strategy in strategies.items():
        start = time.perf_counter()
        strategy.attach(Prober(setup))
        found, count = drive(setup, strategy, args.max_drop)
        spent = f"{count} evaluations, {time.perf_counter() - start:.0f} s"
        if found is None:
            print(f"{name}: float is the answer ({spent})")
        else:
            rows[name] = (found, spent)
    times = interleaved(setup, [candidate for candidate, _ in rows.values()], args.rounds)
    for (name, (candidate, spent)), latency in zip(rows.items(), times, strict=True):
        scores = [quality(setup, candidate, part, silent).value for part in ("search", "confirm")]
        ratio = np.divide(times[0], latency)
        low, high = np.percentile(
            [median(np.random.default_rng(i).choice(ratio, ratio.size)) for i in range(200)], [2.5, 97.5]
        )
        print(
            f"{name:<12} {setup.metric} {scores[0]:.4f} search {scores[1]:.4f} confirm  "
            f"{median(latency) * 1e3:7.2f} ms  {median(ratio):.2f}x [{low:.2f}, {high:.2f}]  {spent}",
            flush=True,
        )


def drive(setup: Setup, strategy: Strategy, max_drop: float) -> tuple[Candidate | None, int]:
    """The last good candidate of a search, and how many it evaluated in full."""
    better = quality(setup, original_candidate(setup), "search", silent)
    found, count = None, 0
    while (recipe := strategy.ask()) is not None:
        candidate = build(setup, recipe, silent)
        got = quality(setup, candidate, "search", silent)
        drop = better.value - got.value if better.better == "higher" else got.value - better.value
        count += 1
        if drop <= max_drop:
            found = candidate
        strategy.tell(recipe, {"ok": True, "drop": drop, "speedup": 1.0})
    return found, count


def interleaved(setup: Setup, candidates: list[Candidate], rounds: int) -> list[list[float]]:
    sessions = [compile_for(c.target, load_model(c.path)) for c in candidates]
    feeds = [setup.dataset[i].feeds for i in setup.parts.search[:8]]
    times: list[list[float]] = [[] for _ in sessions]
    for n in range(rounds + 10):
        for session, kept in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(feeds[n % len(feeds)])
            if n >= 10:
                kept.append(time.perf_counter() - start)
    for session in sessions:
        session.close()
    return times


def silent(_what: str, _share: float) -> None:
    """No progress."""


if __name__ == "__main__":
    main()
