"""Where the time goes, node by node, and where the error comes from, tensor by tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .axes import NARROW, Axis, both, chart, line, span, text, tick_text
from .markup import Attribute, Column, Html, Node, code, details, h, join, sentence, table
from .run import ORIGINAL, Run, as_list, as_map
from .units import count, number, percent, plain, show
from .units import text as words

HEAVIEST = 12
WORST = 8


def section(run: Run) -> Html:
    """Times of the original and the subject side by side, then the subject's errors."""
    rows = [r for r in (run.original, run.subject) if r is not None]
    names = list(dict.fromkeys(str(r.get("name")) for r in rows))
    reports = {n: as_map(as_map(run.row(n)).get("layers")) for n in names}
    reports = {n: r for n, r in reports.items() if _times(r)}
    parts: list[Node] = []
    if reports:
        most = max(t["time_ms"] for r in reports.values() for t in _times(r))
        parts.append(
            h(
                "p",
                {"class": "note"},
                "Times come from the runtime's own profile, one process at a time. Profiling slows inference down, so "
                "read shares here and latencies above. All bars share one scale.",
            )
        )
        columns = [_heaviest(n, r, most) for n, r in reports.items()]
        parts.append(h("div", {"class": "columns"}, *columns))
        parts += [h("h3", {}, "Time by operator"), _by_operator(reports)]
    else:
        parts.append(sentence("This run holds no times of single layers (the runtime gave no profile)."))
    name = str(run.subject.get("name")) if run.subject else ORIGINAL
    if name != ORIGINAL:
        parts += [h("h3", {}, f"Error by tensor: {name}"), _errors(as_map(as_map(run.subject).get("layers")))]
    return join(*parts)


def _times(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [as_map(t) for t in as_list(report.get("layers"))]
    return [{**t, "time_ms": number(t.get("time_ms"))} for t in rows if number(t.get("time_ms")) is not None]


def _total(report: Mapping[str, Any]) -> float:
    return number(report.get("total_ms")) or sum(t["time_ms"] for t in _times(report))


def _heaviest(name: str, report: Mapping[str, Any], most: float) -> Html:
    times = sorted(_times(report), key=lambda t: -t["time_ms"])
    total = _total(report)
    shown = times[:HEAVIEST]
    share = sum(t["time_ms"] for t in shown) / total if total else 0.0
    repeats = report.get("repeats")
    intro = (
        f"{count(len(times), 'node')}, {words(total, 'ms')} in all (medians of {repeats} profiled inferences); "
        f"the {len(shown)} heaviest take {percent(share)}."
    )
    rest = times[HEAVIEST:]
    more = details(count(len(rest), "more node"), h("ol", {"class": "bars"}, *(_bar(t, most) for t in rest)))
    return h(
        "div",
        {},
        h("h3", {}, name),
        h("p", {"class": "note"}, intro),
        h("ol", {"class": "bars"}, *(_bar(t, most) for t in shown)),
        more if rest else None,
        _placement(as_map(report.get("placement"))),
    )


def _bar(layer: Mapping[str, Any], most: float) -> Html:
    precision = str(layer.get("precision") or "")
    integer = "int8" in precision or precision in ("uint8", "int32")
    share = 100 * layer["time_ms"] / most if most else 0.0
    rect = h(
        "rect",
        {"width": f"{share:.2f}%", "height": 8, "rx": 1.5, "class": "bar integer" if integer else "bar"},
    )
    device = str(layer.get("device") or "")
    return h(
        "li",
        {"title": f"{layer.get('name')} on {device}" if device else str(layer.get("name"))},
        h("span", {"class": "bar-name"}, str(layer.get("name"))),
        h("span", {"class": "bar-value"}, show(layer["time_ms"], "ms", like=_typical(most))),
        h("svg", {"class": "bar-track", "height": 8, "aria-hidden": "true"}, rect),
        h("span", {"class": "bar-note"}, f"{layer.get('op')} · {precision or 'precision not known'}"),
    )


def _placement(placement: Mapping[str, Any]) -> Html:
    devices = as_map(placement.get("by_device"))
    if not devices:
        return sentence("The runtime did not say which node ran where.")
    where = ", ".join(f"{count(int(number(n) or 0), 'node')} on {device}" for device, n in devices.items())
    source = placement.get("source")
    fallbacks = [as_list(f) for f in as_list(placement.get("fallbacks"))]
    items = [h("li", {}, code(str(f[0])), ": ", str(f[1])) for f in fallbacks if len(f) == 2]
    return join(
        h("p", {"class": "note"}, f"Placement: {where}", f" (from {source})." if source else "."),
        details(count(len(items), "fallback"), h("ul", {}, *items)) if items else None,
    )


def _by_operator(reports: Mapping[str, Mapping[str, Any]]) -> Html:
    sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in reports}
    counts: dict[str, dict[str, int]] = {name: defaultdict(int) for name in reports}
    for name, report in reports.items():
        for t in _times(report):
            sums[name][str(t.get("op"))] += t["time_ms"]
            counts[name][str(t.get("op"))] += 1
    known = {op for s in sums.values() for op in s}
    # By name where times are equal: the order of a set differs from process to process.
    ops = sorted(known, key=lambda op: (-max(s.get(op, 0.0) for s in sums.values()), op))
    most = max((v for s in sums.values() for v in s.values()), default=0.0)
    columns = [Column("operator"), *(Column(name, "number") for name in reports)]
    body: list[Sequence[Node]] = []
    for op in ops:
        cells: list[Node] = [op]
        for name, report in reports.items():
            time = sums[name].get(op)
            if time is None:
                cells.append("–")
                continue
            share = time / _total(report) if _total(report) else 0.0
            cells.append(
                join(
                    show(time, "ms", like=_typical(most)),
                    _detail(f"{percent(share)}, {count(counts[name][op], 'node')}"),
                )
            )
        body.append(cells)
    return table(columns, body, "Time by operator")


def _typical(most: float) -> float:
    """What chooses the unit of a list of times: below a millisecond, most of them are better read in microseconds."""
    return most / 20


def _detail(words_: str) -> Html:
    return h("span", {"class": "interval"}, " ", words_)


def _errors(report: Mapping[str, Any]) -> Html:
    rows = [as_map(e) for e in as_list(report.get("errors"))]
    known = [(i, e, value) for i, e in enumerate(rows) if (value := number(e.get("sqnr_db"))) is not None]
    against = str(report.get("error_against") or ORIGINAL)
    examples = report.get("error_examples")
    if not known:
        same = "every compared tensor is equal" if rows else "no tensor could be compared"
        return sentence(f"No error to plot: {same} (against {against}).")
    worst = sorted(known, key=lambda k: k[2])[:WORST]
    intro = (
        f"Signal-to-noise ratio of {len(known)} tensors in graph order, against {against}, over {examples} examples; "
        "higher is better, and 6 dB are about one bit. "
        + (f"{len(rows) - len(known)} more tensors are equal. " if len(rows) > len(known) else "")
        + f"The {len(worst)} worst are numbered."
    )
    body: list[Sequence[Node]] = [
        [
            str(n),
            code(str(e.get("tensor"))),
            str(e.get("op")),
            show(value, "dB"),
            _deviation(e),
        ]
        for n, (_, e, value) in enumerate(worst, 1)
    ]
    columns = [
        Column("no.", "index"),
        Column("tensor"),
        Column("made by"),
        Column("SQNR", "number"),
        Column("largest deviation", "number"),
    ]
    return join(
        h("figure", {}, h("figcaption", {}, intro), both(lambda w: _plot(known, worst, len(rows), w))),
        table(columns, body, "The tensors with the largest error"),
    )


def _deviation(error: Mapping[str, Any]) -> Node:
    value = number(error.get("max_abs"))
    return h("data", {"value": repr(value)}, plain(value)) if value is not None else "not known"


def _plot(
    known: Sequence[tuple[int, Mapping[str, Any], float]],
    worst: Sequence[tuple[int, Mapping[str, Any], float]],
    total: int,
    width: float,
) -> Html:
    height = 230.0 if width == NARROW else 260.0
    x = Axis(0, max(total - 1, 1), 44, width - 16)
    y = Axis(*span([v for _, _, v in known], 0.1), height - 30, 26)
    rows = y.ticks(5)
    parts: list[Node] = [text(4, 14, "SQNR, dB", "start", "axis")]
    for v in rows:
        parts.append(line(x.start, y.at(v), x.end, y.at(v), "grid"))
        parts.append(text(x.start - 6, y.at(v) + 4, tick_text(v, rows), "end", "tick"))
    ranks = {i: n for n, (i, _, _) in enumerate(worst, 1)}
    for i, error, value in known:
        cx, cy = x.at(i), y.at(value)
        title = f"{error.get('tensor')} ({error.get('op')}): {words(value, 'dB')}"
        parts.append(line(cx, y.start, cx, cy, "stem"))
        style = "mark filled little bad" if i in ranks else "mark filled little s2"
        dot: dict[str, Attribute] = {"cx": cx, "cy": cy, "r": 4.0 if i in ranks else 2.5, "class": style}
        parts.append(h("circle", dot, h("title", {}, title)))
    parts += _ranks(ranks, known, x, y)
    parts.append(text(x.end, height - 8, "tensors in graph order", "end", "axis"))
    low = min(v for _, _, v in known)
    return chart(width, height, "Error by tensor", f"The lowest is {words(low, 'dB')}", *parts)


def _ranks(
    ranks: Mapping[int, int], known: Sequence[tuple[int, Mapping[str, Any], float]], x: Axis, y: Axis
) -> list[Node]:
    """Numbers above the worst tensors' dots, moved up where they would meet."""
    placed: list[tuple[float, float]] = []
    parts: list[Node] = []
    for i, _, value in known:
        if i not in ranks:
            continue
        cx, top = x.at(i), y.at(value) - 9
        while any(abs(px - cx) < 10 and abs(py - top) < 12 for px, py in placed):
            top -= 12
        placed.append((cx, top))
        parts.append(text(cx, top, str(ranks[i]), "middle", "label strong"))
    return parts
