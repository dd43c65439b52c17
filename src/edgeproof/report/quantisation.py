"""Quantisation by layer: what runs in integers, with which range, at what error, and why the rest does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Column, Html, Node, code, details, h, join, sentence, table
from .run import Run, as_list, as_map
from .units import count, number, plain, show

OPENED = 60
"""Rows of a table that is shown unfolded."""

NAMES = 40
"""Nodes named per reason."""


def section(run: Run) -> Html | None:
    """The subject's layers, the other finalists' folded; None when no candidate holds quantised tensors."""
    kept = {str(r.get("name")): _rows(r) for r in run.rows if _rows(r)}
    if not kept:
        return None
    subject = str(run.subject.get("name")) if run.subject else ""
    parts: list[Node] = [h("p", {"class": "note"}, _NOTE)]
    if subject in kept:
        parts += [h("h3", {}, subject), _candidate(kept[subject])]
    else:
        parts.append(sentence(f"{subject or 'The subject'} holds no quantised tensor."))
    parts += [details(name, _candidate(rows)) for name, rows in kept.items() if name != subject]
    return join(*parts)


_NOTE = (
    "Range: the real values that have a code; clipped: the share of values beyond it. SQNR: of the input after its own "
    "quantisation, of the input as it arrives with all errors before it, of the weight; 6 dB are about one bit. "
    "Times are of the layer with what follows it up to the next one, changes of precision included, from profiles "
    "under the candidate's own settings."
)


def _rows(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [as_map(r) for r in as_list(as_map(row.get("layers")).get("quantised")) if as_map(r).get("name") is not None]


def _candidate(rows: Sequence[Mapping[str, Any]]) -> Html:
    quantised = [r for r in rows if r.get("precision") != "float"]
    integer = [r for r in rows if r.get("integer")]
    times = [(number(r.get("before_ms")), number(r.get("after_ms"))) for r in rows]
    both = [(b, a) for b, a in times if b is not None and a is not None]
    slower = sum(1 for b, a in both if a > b)
    words = f"{len(integer)} of {count(len(rows), 'node')} can run in integers."
    if both:
        words += f" Of {count(len(both), 'layer')} with times, {len(both) - slower} became faster and {slower} slower."
    weighted = [r for r in quantised if r.get("weight") is not None]
    others = [r for r in quantised if r.get("weight") is None]
    shown = _layers(weighted, "Layers with quantised weights")
    return join(
        h("p", {}, words),
        shown if len(weighted) <= OPENED else details(f"{len(weighted)} layers with quantised weights", shown),
        details(f"{len(others)} more in integers", _layers(others, "Other nodes in integers")) if others else None,
        h("h4", {}, "Left in float"),
        _reasons([r for r in rows if r.get("reason")]),
    )


def _layers(rows: Sequence[Mapping[str, Any]], title: str) -> Html:
    columns = [
        Column("node"),
        Column("operator"),
        Column("precision"),
        Column("range of its input", "number"),
        Column("clipped", "number"),
        Column("SQNR alone", "number"),
        Column("arrived", "number"),
        Column("weight", "number"),
        Column("float", "number"),
        Column("now", "number"),
    ]
    times = [v for r in rows for k in ("before_ms", "after_ms") if (v := number(r.get(k))) is not None]
    typical = max(times, default=1.0) / 20
    body: list[Sequence[Node]] = [
        [
            code(str(r.get("name"))),
            str(r.get("op")),
            str(r.get("precision")),
            _range(r),
            _clipped(r),
            _db(r.get("input_db")),
            _db(r.get("arrived_db")),
            _weight(r),
            _ms(r.get("before_ms"), typical),
            _ms(r.get("after_ms"), typical),
        ]
        for r in rows
    ]
    return table(columns, body, title)


def _range(row: Mapping[str, Any]) -> Node:
    low, high = number(row.get("low")), number(row.get("high"))
    if low is None or high is None:
        return "–"
    return join(h("data", {"value": repr(low)}, _plain(low)), " … ", h("data", {"value": repr(high)}, _plain(high)))


def _plain(value: float) -> str:
    return plain(value).replace("-", "−")


def _clipped(row: Mapping[str, Any]) -> Node:
    share = number(row.get("clipped_share"))
    if share is None:
        return "–"
    words = "none" if share == 0 else f"{share * 100:.3f}\xa0%" if share >= 5e-6 else "below 0.001\xa0%"
    note = " in calibration" if row.get("clipped_from") == "calibration" else None
    return join(h("data", {"value": repr(share)}, words), h("span", {"class": "interval"}, note) if note else None)


def _weight(row: Mapping[str, Any]) -> Node:
    shown = _db(row.get("weight_db"))
    if shown == "–" or row.get("weight_from") != "estimated":
        return shown
    return join(shown, h("span", {"class": "interval"}, " estimated"))


def _db(value: object) -> Node:
    got = number(value)
    return show(got, "dB") if got is not None else "–"


def _ms(value: object, typical: float) -> Node:
    got = number(value)
    return show(got, "ms", like=typical) if got is not None else "–"


def _reasons(rows: Sequence[Mapping[str, Any]]) -> Html:
    if not rows:
        return sentence("None: every node can run in integers.")
    grouped: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        grouped[str(row.get("reason"))].append(f"{row.get('name')} ({row.get('op')})")
    items = []
    for reason, names in sorted(grouped.items(), key=lambda kv: -len(kv[1])):
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        items.append(h("li", {}, h("b", {}, reason), f" ({len(names)}): ", code(", ".join(names[:NAMES]) + more)))
    return h("ul", {"class": "lines"}, *items)
