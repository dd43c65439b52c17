"""What the numbers rest on: the machine, the control, the split, the ledger, and every raw number as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..digest import digest_json
from ..measurement import LegRun
from .markup import Column, Html, Node, details, h, join, sentence, table, tree
from .run import Run, as_list, as_map
from .units import count, number, short
from .verdict import chip

MOST_LINES = 12
"""Ledger lines shown unfolded."""


def environment(run: Run) -> Html:
    """The machine, with whatever its record says."""
    if not run.environment:
        return sentence("This run keeps no record of its machine (environment.json).")
    return tree(run.environment)


def control(run: Run) -> Html:
    """The original against itself: what the machine's noise alone does."""
    value = as_map(run.control)
    if not value:
        return sentence("This run keeps no A/A control (control.json), so the noise of its machine is not known.")
    ratio, low, high, tolerance = (number(value.get(k)) for k in ("ratio", "low", "high", "tolerance"))
    problems, warnings = as_list(value.get("problems")), as_list(value.get("warnings"))
    parts: list[Node] = []
    if ratio is not None:
        ends = f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
        band = (
            f"; the whole interval must lie within {1 / (1 + tolerance):.3f} to {1 + tolerance:.3f}"
            if tolerance
            else ""
        )
        exact = h("data", {"value": repr(ratio)}, f"{ratio:.3f}×{ends}")
        parts.append(
            h(
                "p",
                {},
                chip("fail" if problems else "pass"),
                " The same model twice: control ÷ original is ",
                exact,
                band,
                ".",
            )
        )
    for title, lines in (("Problems", problems), ("Warnings", warnings)):
        if lines:
            parts += [h("h4", {}, title), h("ul", {}, *(h("li", {}, str(line)) for line in lines))]
    rest = {k: v for k, v in value.items() if k not in ("ratio", "low", "high", "tolerance", "problems", "warnings")}
    return join(*parts, tree(rest) if rest else None)


def samples(run: Run) -> Html:
    """How the samples were split."""
    split = as_map(run.result.get("samples"))
    purposes = {
        "calibration": "ranges of INT8",
        "search": "ranking candidates",
        "confirm": "the verdict; never seen by the search",
    }
    if not split:
        return sentence("The result does not say how the samples were split.")
    rows = [[str(k), tree(v), purposes.get(str(k), "–")] for k, v in split.items()]
    return table([Column("part"), Column("samples", "number"), Column("used for")], rows, "Sample split")


def digests(run: Run) -> Html:
    """What was asked, by digest."""
    request = run.request
    policy = as_map(request.get("policy"))
    rows: list[Sequence[Node]] = [
        [name, short(request[key])]
        for name, key in (
            ("original model", "model"),
            ("data set", "dataset"),
            ("evaluator", "evaluator"),
            ("machine", "machine"),
        )
        if request.get(key)
    ]
    if policy:
        rows.append(["policy", short(digest_json(policy))])
    rows += [[f"candidate {r.get('name')}", short(r["model"])] for r in run.rows if r.get("model")]
    return table([Column("of"), Column("digest")], rows, "Digests") if rows else sentence("No digest is recorded.")


def ledger(run: Run) -> Html:
    """Every measuring run, in order: nothing was tried again in silence."""
    if not run.ledger:
        return sentence("There is no ledger to show (ledger.jsonl is missing, empty or does not hold together).")
    columns = [Column("no.", "index"), Column("kind"), Column("candidate"), Column("model"), Column("result")]
    rows = [
        [
            str(line.get("n", i)),
            str(line.get("kind", "–")),
            str(line.get("candidate", "–")),
            short(line.get("model", "–")),
            short(line.get("result", "–")),
        ]
        for i, line in enumerate(run.ledger)
    ]
    runs = table(columns, rows, "Ledger of measuring runs")
    return runs if len(rows) <= MOST_LINES else details(count(len(rows), "measuring run"), runs)


def latency_csv(rounds: Sequence[LegRun]) -> str:
    """Raw latencies, in nanoseconds: one line per round and inference, one column per leg.

    A leg that has fewer inferences in a round leaves its cell empty.
    """
    legs = list(dict.fromkeys(r.leg for r in rounds))
    numbers = sorted({r.round for r in rounds})
    lines = [",".join(["round", "inference", *(_quoted(f"{leg} (ns)") for leg in legs)])]
    kept = {(r.leg, r.round): r.latency_ns for r in rounds}
    for index in numbers:
        columns = [kept.get((leg, index), ()) for leg in legs]
        for i, values in enumerate(zip_longest(*columns, fillvalue="")):
            lines.append(",".join([str(index), str(i), *map(str, values)]))
    return "\r\n".join(lines) + "\r\n"


def _quoted(text: str) -> str:
    """A CSV field (RFC 4180). A leading sign is kept from being read as a formula by a leading apostrophe."""
    safe = f"'{text}" if text[:1] in "=+-@" else text
    return '"' + safe.replace('"', '""') + '"'


def downloads(run: Run) -> Html:
    """Every raw number, embedded in the page and saved by a button; it works without any network."""
    files: dict[str, Any] = {
        "result.json": run.result,
        "latency-confirm.csv": latency_csv(run.rounds) if run.rounds else None,
        "latency-search.csv": _search_csv(run.searches),
        "confirm-rounds.json": [r.to_json() for r in run.rounds] if run.rounds and _has_more(run.rounds) else None,
        "request.json": run.request,
        "environment.json": run.environment,
        "control.json": run.control,
        "inspection.json": run.inspection,
        "ledger.json": list(run.ledger) or None,
    }
    about = {
        "result.json": "verdicts, measurements with their samples, changes, layers",
        "latency-confirm.csv": "every timed inference of the confirmation, in ns",
        "latency-search.csv": "every timed inference of the search, in ns",
        "confirm-rounds.json": "cold start, memory and sensors of every round",
        "request.json": "what was asked, frozen before measuring",
        "environment.json": "the machine",
        "control.json": "the A/A control",
        "inspection.json": "the original's inspection",
        "ledger.json": "every measuring run, hash-chained",
    }
    items, data = [], []
    for i, (name, value) in enumerate((n, v) for n, v in files.items() if v):
        content = embedded(value)
        items.append(
            h(
                "li",
                {},
                h("button", {"type": "button", "data-source": f"file-{i}", "data-name": name}, name),
                " ",
                h("small", {}, about[name]),
            )
        )
        data.append(Html(f'<script type="application/json" id="file-{i}" data-name="{name}">{content}</script>'))
    return join(
        h("ul", {"class": "downloads"}, *items),
        Html("<noscript>"),
        sentence("Saving needs the page's own script; without it, the data still lie in this file's source."),
        Html("</noscript>"),
        *data,
    )


def embedded(value: Any) -> str:
    r"""JSON that cannot end the element that it stands in.

    >>> embedded("</script>")
    '"\\u003c/script>"'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _has_more(rounds: Sequence[LegRun]) -> bool:
    return any(r.cold_start_ns is not None or r.peak_rss_bytes is not None or r.sensors for r in rounds)


def _search_csv(searches: Mapping[str, Sequence[LegRun]]) -> str | None:
    """As `latency_csv`, in long form: every candidate ran beside an original of its own."""
    lines = [
        f"{_quoted(name)},{_quoted(run.leg)},{run.round},{i},{ns}"
        for name, runs in searches.items()
        for run in runs
        for i, ns in enumerate(run.latency_ns)
    ]
    return "\r\n".join(["candidate,leg,round,inference,latency_ns", *lines]) + "\r\n" if lines else None
