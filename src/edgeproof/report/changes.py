"""What the passes did to the graph, and what they left alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Column, Html, Node, code, details, h, join, sentence, table, tree
from .run import Run, as_list, as_map
from .units import count, number, show

MOST_LINES = 400
"""Lines listed per pass; the rest is in result.json."""


def section(run: Run) -> Html:
    """The subject's changes in full, the other candidates' folded."""
    subject = run.subject
    name = subject.get("name") if subject else None
    parts: list[Node] = []
    change = as_map(subject.get("change")) if subject else {}
    if change:
        parts += [h("h3", {}, str(name)), _change(change)]
    else:
        parts.append(sentence("The best candidate has no record of changes: its graph is the original's."))
    others = [r for r in run.rows if r.get("name") != name and as_map(r.get("change"))]
    if others:
        parts.append(h("h3", {}, "The other candidates"))
        parts += [details(str(r.get("name")), _change(as_map(r.get("change")))) for r in others]
    return join(*parts)


def _change(change: Mapping[str, Any]) -> Html:
    return join(
        _totals(as_map(change.get("before")), as_map(change.get("after"))),
        *(_step(as_map(s)) for s in as_list(change.get("steps"))),
    )


def operators(summary: Mapping[str, Any]) -> dict[str, int]:
    """Operator → count of a graph's summary, whatever that calls its histogram."""
    for key in ("ops", "operators", "op_counts", "histogram"):
        value = summary.get(key)
        if isinstance(value, dict):
            return {str(k): int(n) for k, v in value.items() if (n := number(v)) is not None}
    return {}


def _nodes(summary: Mapping[str, Any]) -> float | None:
    value = number(summary.get("nodes"))
    ops = operators(summary)
    return value if value is not None else float(sum(ops.values())) if ops else None


def _totals(before: Mapping[str, Any], after: Mapping[str, Any]) -> Html:
    if not before or not after:
        return sentence("The graph before and after is not recorded.")
    rows: list[Sequence[Node]] = []
    nodes = _nodes(before), _nodes(after)
    if nodes[0] is not None and nodes[1] is not None:
        rows.append(["all nodes", _count(nodes[0]), _count(nodes[1]), _difference(nodes[1] - nodes[0])])
    counts = operators(before), operators(after)
    changed = [op for op in {**counts[0], **counts[1]} if counts[0].get(op, 0) != counts[1].get(op, 0)]
    for op in sorted(changed, key=lambda op: (-abs(counts[1].get(op, 0) - counts[0].get(op, 0)), op)):
        one, two = counts[0].get(op, 0), counts[1].get(op, 0)
        rows.append([op, _count(one), _count(two), _difference(two - one)])
    scalars = [
        k for k in before if k != "nodes" and number(before.get(k)) is not None and number(after.get(k)) is not None
    ]
    for key in scalars:
        first, last = float(before[key]), float(after[key])
        rows.append([key.replace("_", " "), _amount(key, first), _amount(key, last), _change_of(first, last)])
    same = sum(1 for op in counts[0] if counts[0][op] == counts[1].get(op))
    columns = [
        Column("operator"),
        Column("before", "number"),
        Column("after", "number"),
        Column("difference", "number"),
    ]
    note = (
        h("p", {"class": "note"}, f"{same} kinds of operators have the same count before and after.") if same else None
    )
    return join(table(columns, rows, "Operators before and after"), note) if rows else join(note)


def _change_of(first: float, last: float) -> str:
    if first == last:
        return "same"
    return f"{(last / first - 1) * 100:+.1f}\u00a0%".replace("-", "−") if first else "–"


def _amount(key: str, value: float) -> Html:
    return show(value, "bytes") if key.endswith("bytes") else _count(value)


def _count(value: float) -> Html:
    return h("data", {"value": repr(value)}, f"{value:,.0f}" if value == int(value) else f"{value:,.4g}")


def _difference(value: float) -> str:
    return f"{value:+,.0f}".replace("-", "−") if value else "same"


def _step(step: Mapping[str, Any]) -> Html:
    applied = [str(a) for a in as_list(step.get("applied"))]
    declined = [as_list(d) for d in as_list(step.get("declined"))]
    facts = as_map(step.get("facts"))
    state = "changed the graph" if step.get("modified") else "changed nothing"
    return h(
        "div",
        {"class": "step"},
        h("h4", {}, code(str(step.get("pass"))), " ", h("span", {"class": "note"}, state)),
        details(f"{len(applied)} applied", _lines(applied)) if applied else None,
        details(f"{len(declined)} declined, with reasons", _reasons(declined)) if declined else None,
        details(count(len(facts), "fact"), tree(facts) if len(str(facts)) < 40_000 else _too_long()) if facts else None,
    )


def _too_long() -> Html:
    return sentence("Too long to show; they are in result.json, below.")


def _lines(lines: Sequence[str]) -> Html:
    rest = len(lines) - MOST_LINES
    items = [h("li", {}, text) for text in lines[:MOST_LINES]]
    more = sentence(f"{rest} more lines are in result.json, below.") if rest > 0 else None
    return join(h("ul", {"class": "lines"}, *items), more)


def _reasons(declined: Sequence[Sequence[Any]]) -> Html:
    """Declined nodes by reason: the reason is what a reader can act on."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for pair in declined:
        if len(pair) == 2:
            grouped[str(pair[1])].append(str(pair[0]))
    items = []
    for reason, nodes in sorted(grouped.items(), key=lambda kv: -len(kv[1])):
        names = ", ".join(nodes[:MOST_LINES]) + (
            f" and {len(nodes) - MOST_LINES} more" if len(nodes) > MOST_LINES else ""
        )
        items.append(h("li", {}, h("b", {}, reason), f" ({len(nodes)}): ", code(names)))
    return h("ul", {"class": "lines"}, *items)
