"""How often the gate itself accepts, for every kind of metric: exactly on a limit, and where nothing is wrong.

    python -m benchmarks.gate_kinds

Each row draws whole campaigns, makes measurements of them and asks `gate.decide` under a policy of that one rule. On
the limit the share of accepts must stay near α = 0.05 (bar: 0.07). `gate_simulations` holds the bounds against the
rules that people use instead; this is about the kinds, and about the path from samples to the verdict.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
from benchmarks.gate_simulations import iterations, true_p95
from numpy.typing import NDArray

from edgeproof import registry
from edgeproof.environment import Control
from edgeproof.gate import decide
from edgeproof.measurement import Better, Measurement
from edgeproof.policy import Policy, Rule
from edgeproof.protocols import Kind, Metric, Needs

Rng = np.random.Generator
Row = dict[str, Any]
Sides = tuple[Sequence[Any], Sequence[Any]]
RUNS, INFERENCES = 10, 200
PAIR_SD = 0.027
"""Run-to-run spread of the ratio of two interleaved models, measured on two shared cores."""
FIT = Control(1.0, 0.99, 1.01, 0.1)


class F1:
    """F1 from counts, pooled over examples; what a user's own evaluator of kind ``pooled`` may be."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "higher"
    needs: ClassVar[Needs] = "labels"
    kind: ClassVar[Kind] = "pooled"

    def score(self, got: Any, want: Any) -> list[int]:
        """[true positive, false positive, false negative]."""
        return [int(got and want), int(got and not want), int(want and not got)]

    def value(self, scores: Sequence[Any]) -> float:
        """The F1."""
        return self.resampled(scores)(np.arange(len(scores)))

    def resampled(self, scores: Sequence[Any]) -> Callable[[NDArray[np.intp]], float]:
        """On chosen examples."""
        counts = np.asarray(scores, np.int64)

        def value(chosen: NDArray[np.intp]) -> float:
            hit, extra, lost = counts[chosen].sum(axis=0)
            return float(2 * hit / (2 * hit + extra + lost)) if hit else 0.0

        return value


class Similarity:
    """The mean of a number per example."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "higher"
    needs: ClassVar[Needs] = "reference"
    kind: ClassVar[Kind] = "mean"

    def score(self, got: Any, want: Any) -> float:
        """The example's own number."""
        return float(got)

    def value(self, scores: Sequence[float]) -> float:
        """The mean."""
        return sum(scores) / len(scores)


class Energy:
    """Energy of an inference in a run, in J; a mean over runs as power is."""

    unit: ClassVar[str] = "J"
    better: ClassVar[Better] = "lower"
    needs: ClassVar[Needs] = "runs"
    kind: ClassVar[Kind] = "run"

    def score(self, got: Any, want: Any) -> float:
        """The run's own number."""
        return float(got)

    def value(self, scores: Sequence[float]) -> float:
        """Geometric mean."""
        return math.exp(sum(map(math.log, scores)) / len(scores))


METRICS = (
    *("latency_p50", "latency_p95", "throughput", "power", "energy", "peak_memory", "size"),
    *("top1", "similarity", "cer", "f1", "map50"),
)
"""What is simulated: every kind of metric, and those kinds that pool examples in several shapes."""
_OWN: dict[str, Metric] = {"f1": F1(), "energy": Energy(), "similarity": Similarity()}


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Attributes:
        name: What is simulated.
        metric: Name of the metric.
        rule: Operator, limit, unit and whether it is against the baseline.
        draw: From a generator to the samples of both sides.
        boundary: Whether the truth is exactly on the limit.
        cost: How many times dearer a campaign is than a plain one.
    """

    name: str
    metric: str
    rule: tuple[str, float, str, bool]
    draw: Callable[[Rng], Sides]
    boundary: bool
    cost: int = 1


def share(case: Case, sims: int, seed: int) -> float:
    """Share of campaigns that the gate accepts."""
    rng = np.random.default_rng(seed)
    op, limit, unit, relative = case.rule
    rule = Rule(case.metric, op, Decimal(repr(limit)), unit, "baseline" if relative else "")  # type: ignore[arg-type]
    policy = Policy("one rule", (rule,), runs=RUNS, inferences=INFERENCES)
    metric = find(case.metric)
    accepted = 0
    for _ in range(sims):
        base, cand = case.draw(rng)
        sides = [{case.metric: measurement(case.metric, metric, x, f"sha256:{n}")} for n, x in enumerate((base, cand))]
        verdict = decide(policy, *sides, quality_metric="", control=FIT, metrics=find)
        accepted += verdict.state == "accept"
    return accepted / sims


def find(name: str) -> Metric:
    """A metric by name."""
    metric: Metric = _OWN[name] if name in _OWN else registry.load("metrics", name)()
    return metric


def measurement(name: str, metric: Metric, samples: Sequence[Any], model: str) -> Measurement:
    """Of raw samples; everything that both sides must share is equal."""
    value = metric.value(samples)
    return Measurement(
        name, value, metric.unit, metric.better, None, None, samples, model, "sha256:d", "sha256:e", "cpu", "sha256:m"
    )


def runs() -> Iterator[Case]:
    """Percentiles of processes, absolute and against the baseline, and what else is one number a run."""
    median = float(np.median(iterations(np.random.default_rng(0), (5_000_000,))))
    for name, percent, truth in (("latency_p50", 50, median), ("latency_p95", 95, true_p95())):
        yield Case(f"{name}, absolute", name, ("<=", truth, "ms", False), absolute(percent), True)
        yield Case(f"{name}, 10 % inside", name, ("<=", truth * 1.1, "ms", False), absolute(percent), False)
        for ratio in (1.03, 1.0):
            what = f"{name} / baseline, " + ("on 1.03" if ratio > 1 else "A/A against 1.03")
            yield Case(what, name, ("<=", 1.03, "ratio", True), paired(percent, ratio), ratio > 1)
    for name, unit, mean, sd in (("power", "W", 7.5, 0.03), ("energy", "J", 0.2, 0.05)):
        yield Case(f"{name}, run means, absolute", name, ("<=", mean, unit, False), numbers(mean, sd), True)
        yield Case(f"{name} / baseline, on 1.03", name, ("<=", 1.03, "ratio", True), numbers(mean, sd, 1.03), True)
        yield Case(f"{name} / baseline, A/A", name, ("<=", 1.03, "ratio", True), numbers(mean, PAIR_SD, 1.0), False)
    yield Case("throughput, at least", "throughput", (">=", 50.0, "1/s", False), numbers(50.0, 0.03), True)


def exact() -> Iterator[Case]:
    """What is compared exactly: the file's size, and the largest of the runs."""
    yield Case("size, exactly on its limit", "size", ("<=", 12000.0, "bytes", False), lambda _: ([9], [12000]), False)
    yield Case("size, one byte over", "size", ("<=", 12000.0, "bytes", False), lambda _: ([9], [12001]), True)

    def peaks(over: float) -> Callable[[Rng], Sides]:
        def draw(rng: Rng) -> Sides:
            cand = np.where(rng.random(RUNS) < over, 101, 99) * 10**6
            return [10**8] * RUNS, cand.tolist()

        return draw

    for over in (0.25, 0.05):
        name = f"peak memory, {over:.0%} of runs over"
        yield Case(name, "peak_memory", ("<=", 1e8, "bytes", False), peaks(over), over > 0.2)


def proportions() -> Iterator[Case]:
    """Right or wrong: an absolute share, and a drop on the same examples."""

    def drop(n: int, lost: float, gained: float) -> Callable[[Rng], Sides]:
        def draw(rng: Rng) -> Sides:
            kind = rng.choice(4, n, p=[lost, gained, 0.85 - lost, 0.15 - gained])
            return np.isin(kind, (0, 2)).astype(int).tolist(), np.isin(kind, (1, 2)).astype(int).tolist()

        return draw

    def right(n: int, p: float) -> Callable[[Rng], Sides]:
        return lambda rng: ((x := (rng.random(n) < p).astype(int).tolist()), x)

    for n, cost in ((300, 4), (3000, 20)):
        yield Case(f"top1, at least 0.9, n = {n}", "top1", (">=", 0.9, "1", False), right(n, 0.9), True, cost)
        for lost, gained in ((0.02, 0.01), (0.05, 0.04)):
            name = f"top1 drop on 0.01, {lost:.0%} lost, n = {n}"
            yield Case(name, "top1", ("<=", 0.01, "drop", True), drop(n, lost, gained), True, cost)
    equal = drop(10_000, 0.002, 0.002)
    yield Case("top1, no true drop, n = 10000", "top1", ("<=", 0.01, "drop", True), equal, False, 20)


def pooled() -> Iterator[Case]:
    """Functions of all examples together; the limit is the drop of a population of 60,000."""
    for n in (300, 1000):
        yield from _on_population(f"CER rise, n = {n}", "cer", _lines, n)
        yield from _on_population(f"F1 drop, 10 % positive, n = {n}", "f1", _counts, n)
    yield from _on_population("mAP50 drop, pictures as clusters, n = 300", "map50", _pictures, 300)
    yield from _on_population("mean of per-example similarity, n = 300", "similarity", _similar, 300)


def _on_population(name: str, metric: str, make: Callable[[Rng, int], Sides], n: int) -> Iterator[Case]:
    m = find(metric)
    base, cand = make(np.random.default_rng(0), 60_000)
    fall = (m.value(base) - m.value(cand)) * (1 if m.better == "higher" else -1)
    yield Case(name, metric, ("<=", fall, "drop", True), lambda rng: make(rng, n), True, 20)


def _lines(rng: Rng, n: int) -> Sides:
    """[edits, characters] of lines of log-normal length; 5 % get worse and 5 % better."""
    length = np.maximum(1, rng.lognormal(2.2, 0.7, n)).astype(int)
    before = rng.binomial(length, 0.05)
    worse = np.where(rng.random(n) < 0.05, rng.binomial(length - before, 0.4), 0)
    better = np.where(rng.random(n) < 0.05, rng.binomial(before, 0.5), 0)
    return np.stack([before, length], 1).tolist(), np.stack([before + worse - better, length], 1).tolist()


def _counts(rng: Rng, n: int) -> Sides:
    """[true positive, false positive, false negative] of a rare class."""
    want = rng.random(n) < 0.1
    got = np.where(want, rng.random(n) < 0.85, rng.random(n) < 0.02)
    other = np.where(want, rng.random(n) < 0.85, rng.random(n) < 0.02)
    again = np.where(rng.random(n) < 0.1, other, got)
    less = again & ~(want & (rng.random(n) < 0.03))
    return [np.stack([g & want, g & ~want, want & ~g], 1).astype(int).tolist() for g in (got, less)]  # type: ignore[return-value]


def _pictures(rng: Rng, n: int) -> Sides:
    """Detections of five classes; the boxes of a picture are hard or easy together."""
    every = (1 << 10) - 1
    sides: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(n):
        hard, boxes = rng.beta(4, 1), rng.integers(1, 5)
        classes = rng.integers(0, 5, boxes).tolist()
        truth = [[c, classes.count(c)] for c in sorted(set(classes))]
        base: list[list[float]] = []
        cand: list[list[float]] = []
        for c in classes:
            score = float(rng.beta(5, 2))
            if rng.random() < hard:
                base.append([c, score, every, 0])
                if rng.random() > 0.03:
                    cand.append([c, min(1.0, score * float(rng.lognormal(0, 0.02))), every, 0])
            if rng.random() < 0.2:
                false = [int(rng.integers(0, 5)), float(rng.beta(2, 4)), 0, 0]
                base.append(false)
                cand.append(false)
        sides[0].append([base, truth])
        sides[1].append([cand, truth])
    return sides


def _similar(rng: Rng, n: int) -> Sides:
    """Similarities near 1, a few of them far below."""
    far = np.where(rng.random(n) < 0.05, rng.beta(2, 6, n) * 0.2, rng.beta(1, 60, n) * 0.02)
    return [1.0] * n, (1 - far).tolist()


def absolute(percent: float, sd: float = 0.03) -> Callable[[Rng], Sides]:
    """Processes of one model; the typical one has the true percentile of `iterations`."""

    def draw(rng: Rng) -> Sides:
        times = rng.lognormal(0, sd, (RUNS, 1)) * iterations(rng, (RUNS, INFERENCES))
        found = np.percentile(times, percent, axis=1, method="median_unbiased").tolist()
        return found, found

    return draw


def paired(percent: float, ratio: float) -> Callable[[Rng], Sides]:
    """Two models interleaved: a process is slow for both, and its ratio has the spread that was measured."""

    def draw(rng: Rng) -> Sides:
        common, own = rng.lognormal(0, 0.2, (RUNS, 1)), rng.lognormal(0, PAIR_SD, (RUNS, 1))
        sides = [
            common * iterations(rng, (RUNS, INFERENCES)),
            common * ratio * own * iterations(rng, (RUNS, INFERENCES)),
        ]
        base, cand = (np.percentile(s, percent, axis=1, method="median_unbiased").tolist() for s in sides)
        return base, cand

    return draw


def numbers(mean: float, sd: float, ratio: float | None = None) -> Callable[[Rng], Sides]:
    """One number a run: around its mean, or against a baseline of the same runs."""

    def draw(rng: Rng) -> Sides:
        base = mean * rng.lognormal(0, sd, RUNS)
        cand = base if ratio is None else base * ratio * rng.lognormal(0, sd, RUNS)
        return base.tolist(), cand.tolist()

    return draw


PARTS = {"runs": runs, "exact": exact, "proportions": proportions, "pooled": pooled}


def rows(sims: int, parts: Sequence[str] = tuple(PARTS), *, seed: int = 11) -> Iterator[Row]:
    """Simulate; dear cases get as many campaigns fewer, at least 200."""
    for part in parts:
        for case in PARTS[part]():
            n = min(sims, max(200, sims // case.cost))
            accepted = share(case, n, seed)
            yield {"case": case.name, "boundary": case.boundary, "campaigns": n, "gate": accepted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sims", type=int, default=4000, help="campaigns per row (default: 4000)")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: list[Row] = []
    for row in rows(args.sims, tuple(args.part or PARTS)):
        found.append(row)
        if not args.json:
            mark = "limit" if row["boundary"] else ""
            print(f"{mark:7}{row['case']:48}{row['campaigns']:6}  {row['gate']:.3f}", flush=True)
    worst = max(r["gate"] for r in found if r["boundary"])
    print(json.dumps(found, indent=1) if args.json else f"\nworst on a limit: {worst:.3f}")


if __name__ == "__main__":
    main()
