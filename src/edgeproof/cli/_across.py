"""How a comparison of several runtimes is shown: who stands where, which stage lost accuracy, and the paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .show import Show, quantity

WITH_INTERVALS = 120
"""Columns of a terminal that holds intervals."""


def finish(result: Mapping[str, Any], out: Path, show: Show) -> int:
    """The tables, the sentence and the exit code."""
    from ..across import NAME, exit_code

    _variants(result, show)
    _stages(result, show)
    for name, error in result["refused"].items():
        show.text(f"  {name}: {error['problem']}; {error['hint']}")
    for problem in result["control"]["problems"]:
        show.text(f"  warning: {problem}")
    show.text(headline(result))
    show.text(f"  all     {out / NAME}")
    show.result({**result, "run": str(out)})
    return exit_code(result)


def headline(result: Mapping[str, Any]) -> str:
    """The outcome in one sentence."""
    accepted = [v for v in result["variants"] if v["state"] == "accept"]
    if not accepted:
        return f"{result['state'].upper()}: on no target could a variant be accepted"
    best = max(accepted, key=lambda v: v["speedup"][0])
    value, low, high = best["speedup"]
    times = f"{value:.2f}× as fast as the {result['baseline']} [{low:.2f}, {high:.2f}]"
    return f"{result['state'].upper()}: {best['name']} is {times}"


def _variants(result: Mapping[str, Any], show: Show) -> None:
    from ..report.units import text

    intervals = show.width >= WITH_INTERVALS
    rows = []
    for v in sorted(result["variants"], key=lambda v: v["measured"]["latency_p50"]["value"]):
        speed = f"{v['speedup'][0]:.2f}×"
        if intervals:
            speed += f" [{v['speedup'][1]:.2f}, {v['speedup'][2]:.2f}]"
        rows.append(
            [
                f"{'●' if v['front'] else ' '} {v['name']}",
                text(v["size_bytes"], "bytes"),
                _value(v["measured"]["latency_p50"], intervals),
                _value(v["quality"], intervals),
                speed,
                v["state"],
            ]
        )
    ends = " [95 %]" if intervals else ""
    columns = ["variant", "size", f"p50{ends}", f"{result['metric']}{ends}", f"speed-up{ends}", "verdict"]
    show.table(columns, rows, right=" rrrr ")
    show.text("  ● not beaten by any other in both latency and quality")


def _stages(result: Mapping[str, Any], show: Show) -> None:
    rows = [[v["target"], s["name"], s["state"], s["reason"]] for v in result["variants"] for s in v["stages"]]
    if rows:
        show.table(["target", "stage", "check", "found"], rows)


def _value(measurement: Mapping[str, Any], intervals: bool) -> str:
    value, unit, low, high = (measurement[k] for k in ("value", "unit", "low", "high"))
    return quantity(value, unit, low, high, intervals=intervals)
