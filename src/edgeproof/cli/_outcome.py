"""How the end of a run is shown: a table that fits the terminal, the verdict in one sentence, and the paths."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import VERDICT_EXIT
from .show import Show, quantity

WITH_REASONS = 150
"""Columns of a terminal that holds the reasons beside the numbers; below they stand under the table."""

WITH_INTERVALS = 110
"""Columns of a terminal that holds intervals; below, result.json and the report have them."""


def finish(result: Mapping[str, Any], out: Path, show: Show) -> int:
    """The table, the report and the exit code."""
    from ..report import write_report

    table(result, show)
    best = next((c for c in result["candidates"] if c["name"] == result["best"]), None)
    for warning in result["warnings"]:
        show.text(f"  warning: {warning}")
    show.text(headline(result, best))
    if result["int8"]:
        from ..payoff import costliest

        show.text(result["int8"]["why"])
        if costly := costliest(result["int8"]):
            show.text(f"  {costly}")
    page = write_report(out)
    if best is not None:
        show.text(f"  model   {out / 'best.onnx'}  (settings in {out / 'best.json'})")
        if result["takes"]:
            show.text(f"          takes only {result['takes']}; the original left it open")
    show.text(f"  report  {page}")
    show.text(f"  raw     {out / 'result.json'}, {out / 'confirm'}")
    show.result({**result, "run": str(out), "report": str(page)})
    return VERDICT_EXIT[result["state"]]


def command(*words: str | Path) -> str:
    """A command line that can be pasted: this program by the name under which it can be found."""
    program = "edgeproof" if shutil.which("edgeproof") else sys.argv[0]
    return shlex.join([program, *map(str, words)])


def table(result: Mapping[str, Any], show: Show) -> None:
    """One row per candidate; ``≈`` marks what only the search measured."""
    intervals = show.width >= WITH_INTERVALS
    reasons = show.width >= WITH_REASONS
    ends = " [95 %]" if intervals else ""
    columns = ["candidate", "size", f"p50{ends}", f"{result['metric']}{ends}", f"speed-up{ends}", "verdict"]
    rows = [_row(c, result["metric"], intervals) for c in result["candidates"]]
    if reasons:
        columns.append("why")
        rows = [[*row, c["why"]] for row, c in zip(rows, result["candidates"], strict=True)]
    show.table(columns, rows, right=" rrrr  ")
    if not reasons:
        for c in result["candidates"]:
            show.text(f"  {c['name']}: {c['why']}")
        show.text()


def headline(result: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """The outcome in one sentence."""
    state = result["state"].upper()
    if best is None:
        open_ = [c for c in result["candidates"] if c["state"] == result["state"]]
        said = "; ".join(f"{c['name']}: {c['why']}" for c in open_) or "no candidate could be confirmed"
        return f"{state}: {said}"
    if best["name"] == "original":
        return f"{state}: the original is already the fastest that meets the policy"
    smaller = 1 - best["size_bytes"] / result["candidates"][0]["size_bytes"]
    change = f"{abs(smaller):.0%} {'smaller' if smaller >= 0 else 'larger'}"
    value, low, high = best["speedup"]
    # An accept without a rule on time stands all the same, but then nobody should quote the time.
    unfit = " (not to be quoted: the machine was not fit to measure times on)" if result["control"]["problems"] else ""
    times = f"{value:.2f}× as fast as the original [{low:.2f}, {high:.2f}]"
    return f"{state}: {best['name']} is {times} and {change}{unfit}"


def _row(candidate: Mapping[str, Any], metric: str, intervals: bool) -> list[str]:
    from ..report.units import text

    measured, search, size = candidate["measured"], candidate["search"], candidate.get("size_bytes")
    if measured:
        cells = [_value(measured["latency_p50"], intervals), _value(measured[metric], intervals)]
    elif search:
        cells = [f"≈ {text(search['p50_ms'], 'ms')}", f"≈ {search['quality']:.4f}"]
    else:
        cells = ["", ""]
    return [
        candidate["name"],
        text(size, "bytes") if size else "",
        *cells,
        _speedup(candidate, intervals),
        candidate["state"],
    ]


def _value(measurement: Mapping[str, Any], intervals: bool) -> str:
    value, unit, low, high = (measurement[k] for k in ("value", "unit", "low", "high"))
    return quantity(value, unit, low, high, intervals=intervals)


def _speedup(candidate: Mapping[str, Any], intervals: bool) -> str:
    if candidate["speedup"]:
        value, low, high = candidate["speedup"]
        return f"{value:.2f}×" + (f" [{low:.2f}, {high:.2f}]" if intervals else "")
    return f"≈ {candidate['search']['speedup']:.2f}×" if candidate["search"] else ""
