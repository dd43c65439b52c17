"""The table of everything that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .markup import Column, Html, Node, h, join, sentence, table
from .run import ORIGINAL, Run, as_map, measured
from .units import factor, measurement, metric_name, number, percent, show
from .verdict import chip, size


def section(run: Run) -> Html:
    """Every candidate with what is known of it."""
    if not run.rows:
        return sentence("The result lists no candidate.")
    columns = [
        Column("no.", "index"),
        Column("candidate"),
        Column("state"),
        Column("size", "number"),
        Column("latency p50", "number"),
        Column("latency p95", "number"),
        Column(metric_name(run.metric), "number"),
        Column("speed-up", "number"),
        Column("why"),
    ]
    body = [_row(run, i, row) for i, row in enumerate(run.rows, 1)]
    note = (
        "Intervals are 95 %. A speed-up is the geometric mean over rounds of original ÷ candidate, from medians. "
        "Values marked “search” are the original's, changed by the speed-up and the drop that the shorter search found "
        "on other samples; they rank but do not prove."
    )
    return join(table(columns, body, "Candidates", cards=True), h("p", {"class": "note"}, note))


def _row(run: Run, index: int, row: Mapping[str, Any]) -> list[Node]:
    name = str(row.get("name"))
    search = as_map(row.get("search"))
    unit = str((measured(run.original, run.metric) or {}).get("unit") or "1")
    strong = "strong" if name == run.result.get("best") else None
    return [
        str(index),
        h("span", {"class": strong}, name, " (best)" if strong else None),
        chip(str(row.get("state"))),
        _size(run, row),
        measurement(measured(row, "latency_p50")) or _search(number(search.get("p50_ms")), "ms"),
        measurement(measured(row, "latency_p95")) or "–",
        measurement(measured(row, run.metric)) or _search(number(search.get("quality")), unit),
        _speedup(run, name, search),
        str(row.get("why") or "–"),
    ]


def _size(run: Run, row: Mapping[str, Any]) -> Node:
    mine, base = size(row), size(run.original)
    if mine is None:
        return "–"
    if not base or row.get("name") == ORIGINAL:
        return show(mine, "bytes")
    change = percent(mine / base - 1, signed=True)
    return join(show(mine, "bytes"), " ", h("span", {"class": "interval"}, change))


def _search(value: float | None, unit: str) -> Node:
    return join(show(value, unit), " ", h("span", {"class": "interval"}, "search")) if value is not None else "–"


def _speedup(run: Run, name: str, search: Mapping[str, Any]) -> Node:
    if name == ORIGINAL:
        return "1"
    faster = run.speedup(name)
    if faster:
        return factor(*faster)
    value = number(search.get("speedup"))
    return join(factor(value), " ", h("span", {"class": "interval"}, "search")) if value is not None else "–"
