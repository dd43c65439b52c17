"""Read a run's folder for showing. What is missing or broken becomes a remark, never an end of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, isfinite, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..bounds import ratio_bounds
from ..errors import EdgeproofError, InputError
from ..files import read_json
from ..measurement import LegRun
from ..workspace import Workspace
from .units import number

ORIGINAL = "original"
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes:
        root: Its folder.
        request: What was asked.
        result: ``result.json``.
        rows: The candidates of the result, in its order.
        rounds: Every leg of the confirmation.
        searches: Candidate → legs of its short bench.
        environment: The machine; None when not kept.
        control: The A/A control's outcome; None when not kept.
        inspection: The original's inspection; None when not kept.
        best_settings: ``best.json``; None when nothing was accepted.
        ledger: Every measuring run.
        remarks: What could not be read, one sentence each.
    """

    root: Path
    request: dict[str, Any]
    result: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    rounds: tuple[LegRun, ...]
    searches: dict[str, tuple[LegRun, ...]]
    environment: Any
    control: Any
    inspection: Any
    best_settings: Any
    ledger: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]

    @property
    def state(self) -> str:
        """``accept``, ``reject`` or ``hold``; ``unknown`` when the file does not say."""
        state = self.result.get("state")
        return state if state in ("accept", "reject", "hold") else "unknown"

    @property
    def metric(self) -> str:
        """Name of the quality metric."""
        return str(self.result.get("metric") or self.request.get("metric") or "quality")

    def row(self, name: object) -> dict[str, Any] | None:
        """The candidate of that name."""
        return next((r for r in self.rows if r.get("name") == name), None)

    @property
    def original(self) -> dict[str, Any] | None:
        """The original's row."""
        return self.row(ORIGINAL)

    @property
    def subject(self) -> dict[str, Any] | None:
        """Whom the report is about: the best, else the fastest confirmed candidate, else the fastest of the search."""
        best = self.row(self.result.get("best"))
        if best is not None:
            return best
        others = [r for r in self.rows if r.get("name") != ORIGINAL]
        confirmed = [r for r in others if as_map(r.get("measured"))]
        searched = [r for r in others if number(as_map(r.get("search")).get("speedup")) is not None]
        pool = confirmed or searched
        return max(pool, key=lambda r: number(as_map(r.get("search")).get("speedup")) or 0.0, default=None)

    @property
    def legs(self) -> tuple[str, ...]:
        """Legs of the confirmation: the original, its control, then the finalists."""
        names = dict.fromkeys(r.leg for r in self.rounds)
        return tuple(sorted(names, key=lambda n: {ORIGINAL: 0, CONTROL: 1}.get(n, 2)))

    def samples_ms(self, leg: str) -> list[float]:
        """Every timed inference of a leg, in order."""
        return [ns / 1e6 for r in self.rounds if r.leg == leg for ns in r.latency_ns]

    def medians_ms(self, leg: str) -> dict[int, float]:
        """Round → median latency of a leg."""
        return {r.round: median(r.latency_ns) / 1e6 for r in self.rounds if r.leg == leg and r.latency_ns}

    def speedup(self, leg: str) -> tuple[float, float | None, float | None] | None:
        """How many times faster than the original, from the ratio of medians of each round, with a 95 % interval."""
        base, mine = self.medians_ms(ORIGINAL), self.medians_ms(leg)
        both = sorted(k for k in base.keys() & mine.keys() if base[k] > 0 and mine[k] > 0)
        if not both:
            return None
        point = exp(fmean(log(base[k] / mine[k]) for k in both))
        if len(both) < 2:
            return point, None, None
        low, high = ratio_bounds([mine[k] for k in both], [base[k] for k in both], 0.025, 0.025)
        return point, low, high if isfinite(high) else None


def read_run(root: Path) -> Run:
    """Read a run.

    Raises:
        InputError: workspace.missing, workspace.format, report.unfinished, files.not_json.
    """
    workspace = Workspace.open(root)
    if not (root / "result.json").is_file():
        raise InputError(
            "report.unfinished",
            str(root),
            "the run has no result yet (no result.json)",
            "run the same 'edgeproof optimize' command again; it goes on where it stopped",
        )
    result = read_json(root / "result.json")
    if not isinstance(result, dict):
        raise InputError(
            "report.result",
            str(root / "result.json"),
            f"holds a {type(result).__name__}; expected an object",
            "run the same 'edgeproof optimize' command again",
        )
    remarks: list[str] = []

    def kept(name: str) -> Any:
        return _attempt(remarks, lambda: workspace.read(name))

    rows = [as_map(r) for r in as_list(result.get("candidates"))]
    for row in rows:
        folder = f"candidates/{row.get('name')}"
        for key, name in (("layers", "layers"), ("change", "change"), ("fidelity", "fidelity")):
            if row.get(key) is None and _inside(root, f"{folder}/{name}.json"):
                row[key] = kept(f"{folder}/{name}.json")
    files = sorted((root / "confirm").glob("round-*.json"))
    rounds = [leg for f in files for leg in _legs(remarks, f"confirm/{f.name}", kept(f"confirm/{f.name}"))]
    searches = {}
    for row in rows:
        path = f"candidates/{row.get('name')}/bench-search.json"
        if _inside(root, path):
            searches[str(row.get("name"))] = tuple(_legs(remarks, path, kept(path)))
    return Run(
        root=root,
        request=workspace.request,
        result=result,
        rows=tuple(rows),
        rounds=tuple(rounds),
        searches=searches,
        environment=kept("environment.json"),
        control=kept("control.json") or result.get("control"),
        inspection=kept("inspection.json"),
        best_settings=kept("best.json"),
        ledger=tuple(_attempt(remarks, workspace.ledger) or ()),
        remarks=tuple(remarks),
    )


def as_map(value: object) -> dict[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The value when it is a list, else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def measured(row: Mapping[str, Any] | None, metric: str) -> dict[str, Any] | None:
    """A confirmed measurement of a candidate that has a value."""
    value = as_map(as_map(row.get("measured")).get(metric)) if row else {}
    return value if number(value.get("value")) is not None else None


def _inside(root: Path, name: str) -> bool:
    """A candidate's name comes from a file; a report reads nothing outside its run."""
    path = root / name
    return "\x00" not in name and path.resolve().is_relative_to(root.resolve()) and path.is_file()


def _attempt(remarks: list[str], read: Callable[[], Any]) -> Any:
    try:
        return read()
    except EdgeproofError as e:
        remarks.append(f"{e.subject}: {e.problem}")
        return None


def _legs(remarks: list[str], name: str, value: object) -> list[LegRun]:
    try:
        legs = [LegRun.from_json(v) for v in as_list(value)]
        if not all(isinstance(ns, int) and ns >= 0 for leg in legs for ns in leg.latency_ns):
            raise TypeError("a latency is no whole number of nanoseconds")
        return legs
    except (TypeError, KeyError, AttributeError) as e:
        remarks.append(f"{name}: is not a list of measured legs ({type(e).__name__}: {e})")
        return []
