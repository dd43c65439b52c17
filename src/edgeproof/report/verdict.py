"""What came out, in one sentence, and every rule with what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Column, Html, Node, code, details, h, join, sentence, table
from .run import ORIGINAL, Run, as_list, as_map, measured
from .units import factor, measurement, metric_name, number, percent, short, show

_ICONS = {
    "accept": "M5 12.5l4.5 4.5L19 7.5",
    "reject": "M6 6l12 12M18 6L6 18",
    "hold": "M8.5 6v12M15.5 6v12",
    "unknown": "M12 6v8M12 17v1",
}
_CHECK_STATES = {
    "pass": "pass",
    "fail": "fail",
    "missing": "missing",
    "incomparable": "not comparable",
    "invalid_environment": "invalid environment",
    "undecided": "undecided",
}


def icon(state: str) -> Html:
    """A sign for a state, beside its word."""
    shape = h("path", {"d": _ICONS.get(state, _ICONS["unknown"])})
    return h("svg", {"viewBox": "0 0 24 24", "class": "icon", "aria-hidden": "true"}, shape)


def chip(state: str) -> Html:
    """A state as a small label: its word, a colour and, in tables, a shape."""
    known = {"pass": "accept", "fail": "reject"}.get(state, state)
    style = known if known in ("accept", "reject", "screened", "failed") else "hold"
    sign = icon(style) if style in _ICONS else None
    return h("span", {"class": f"chip {style}"}, sign, _CHECK_STATES.get(state, state))


def section(run: Run) -> Html:
    """The verdict, the figures behind it, how to use the model, and the rules."""
    subject = run.subject
    return join(
        h(
            "div",
            {"class": f"verdict {run.state}"},
            h("p", {"class": "state"}, icon(run.state), run.state.upper()),
            h("p", {"class": "lead"}, _sentence(run)),
            h("p", {"class": "asked"}, _asked(run)),
        ),
        _int8(run),
        _figures(run, subject) if subject is not None and as_map(subject.get("measured")) else None,
        _use(run),
        h("h3", {}, "Rules"),
        _rules(run),
    )


def _int8(run: Run) -> Html | None:
    """Why INT8 does not pay here, and which layers cost most; nothing where it does or was not tried."""
    payoff = as_map(run.result.get("int8"))
    if not payoff:
        return None
    columns = [Column("layer"), Column("operator"), Column("in float", "number"), Column("in INT8", "number")]
    rows: list[list[Node]] = []
    for layer in (as_map(v) for v in as_list(payoff.get("layers"))):
        times = [number(layer.get(key)) for key in ("float_ms", "int8_ms")]
        cells = ["–" if t is None else show(t, "ms") for t in times]
        rows.append([code(str(layer.get("name"))), str(layer.get("op")), *cells])
    costly = table(columns, rows, "Layers that cost most in INT8") if rows else None
    return join(h("p", {}, f"{payoff.get('why')}."), costly)


def _asked(run: Run) -> Html:
    policy, target = as_map(run.request.get("policy")), as_map(run.request.get("target"))
    rules = [rule_words(as_map(r)) for r in as_list(policy.get("rules"))]
    return join(
        "Asked: the fastest variant of ",
        h("b", {}, str(run.request.get("model_name") or "the model")),
        " on ",
        h("b", {}, str(target.get("name") or "the target")),
        f" that meets policy {policy.get('name') or 'without a name'}: ",
        ", ".join(rules) or "no rules",
        ".",
    )


def rule_words(rule: Mapping[str, Any]) -> str:
    """A rule of the policy in words."""
    sign = {"<=": "≤", ">=": "≥"}.get(str(rule.get("op")), str(rule.get("op")))
    name, limit, unit = metric_name(str(rule.get("metric"))), rule.get("limit"), str(rule.get("unit") or "")
    if unit == "drop":
        return f"{name} drop {sign} {limit}"
    if unit == "ratio":
        return f"{name} {sign} {limit} × the original's"
    return f"{name} {sign} {limit} {unit}".removesuffix(" 1").replace(" 1/s", "/s")


def _sentence(run: Run) -> Html:
    best = run.row(run.result.get("best"))
    if best is None:
        return _no_winner(run)
    name = str(best.get("name"))
    if name == ORIGINAL:
        return join(h("b", {}, "The original"), " meets the policy itself, and no variant was accepted ahead of it.")
    parts: list[Node] = [h("b", {}, name)]
    faster = run.speedup(name)
    if faster:
        parts += [" is ", h("b", {}, factor(*faster)), " faster than the original at p50" if faster[0] >= 1 else
                  " the original's speed at p50"]  # fmt: skip
    else:
        parts.append(" was accepted; its rounds are not kept, so no speed-up can be shown")
    theirs, mine = measurement(measured(run.original, run.metric)), measurement(measured(best, run.metric))
    if mine is not None:
        parts += [f", {metric_name(run.metric)} ", mine]
        parts += [" against ", theirs] if theirs is not None else []
    parts += [f", {_smaller(run, best)}." if _smaller(run, best) else "."]
    return join(*parts)


def _no_winner(run: Run) -> Html:
    confirmed = [r for r in run.rows if as_map(r.get("measured")) and r.get("name") != ORIGINAL]
    if not confirmed:
        return join("No variant did well enough in the search to be confirmed; the table below says why for each.")
    tried = ", ".join(f"{r.get('name')}: {r.get('why') or r.get('state')}" for r in confirmed)
    head = (
        "It is not decided whether a variant meets the policy" if run.state == "hold" else "No variant met the policy"
    )
    return join(f"{head}. {tried}.")


def _smaller(run: Run, row: Mapping[str, Any]) -> str:
    before, after = size(run.original), size(row)
    if not before or after is None:
        return ""
    share = 1 - after / before
    if abs(share) < 0.005:
        return "the same size"
    return f"{percent(abs(share))} {'smaller' if share > 0 else 'larger'}"


def size(row: Mapping[str, Any] | None) -> float | None:
    """Size on disk in bytes."""
    if row is None:
        return None
    m = measured(row, "size")
    return number(m["value"]) if m else number(row.get("size_bytes"))


def _figures(run: Run, subject: Mapping[str, Any]) -> Html:
    """The four numbers that people look for: before, after."""
    name = str(subject.get("name"))
    faster = run.speedup(name)
    tiles: list[Node] = []
    if faster and name != ORIGINAL:
        tiles.append(_tile("speed-up at p50", factor(faster[0]), _range(faster)))
    for metric in ("latency_p50", "latency_p95", run.metric):
        mine, theirs = measured(subject, metric), measured(run.original, metric)
        if mine is not None:
            ends = measurement(mine)
            before = join("original ", measurement(theirs)) if theirs is not None and name != ORIGINAL else None
            tiles.append(_tile(metric_name(metric), ends, before))
    after, before_size = size(subject), size(run.original)
    if after is not None:
        was = join("original ", show(before_size, "bytes")) if before_size and name != ORIGINAL else None
        tiles.append(_tile("size", show(after, "bytes"), was))
    heading = None if run.result.get("best") == name else h("p", {"class": "note"}, f"Figures of {name}, not accepted:")
    return join(heading, h("dl", {"class": "tiles"}, *tiles))


def _range(faster: tuple[float, float | None, float | None]) -> Node:
    if faster[1] is None or faster[2] is None:
        return "one round, so no interval"
    return h("span", {"class": "interval"}, f"[{faster[1]:.2f}, {faster[2]:.2f}], 95 %")


def _tile(title: str, value: Node, note: Node) -> Html:
    return h("div", {}, h("dt", {}, title), h("dd", {}, value, h("small", {}, note) if note else None))


def _use(run: Run) -> Html:
    best = run.row(run.result.get("best"))
    if best is None:
        return sentence("Nothing was accepted, so there is no best.onnx. The original stays what it is.")
    kept = as_map(run.best_settings)
    settings = as_map(kept.get("settings")) or as_map(as_map(best.get("recipe")).get("runtime"))
    target = str(kept.get("target") or as_map(run.request.get("target")).get("name") or "")
    words_ = ", ".join(f"{k} = {v}" for k, v in settings.items()) or "the runtime's defaults"
    rows = [
        ("file", code("best.onnx")),
        ("digest", short(best.get("model"))),
        ("runs on", target),
        ("takes", str(kept.get("takes") or "what the original takes")),
        ("runtime settings", words_),
        ("made by", _recipe(as_map(best.get("recipe")))),
    ]
    pairs = [h("div", {}, h("dt", {}, k), h("dd", {}, v)) for k, v in rows]
    return join(h("h3", {}, "Use it"), h("dl", {"class": "facts"}, *pairs))


def _recipe(recipe: Mapping[str, Any]) -> Html:
    """A recipe's steps, in order, each with its settings."""
    steps = [as_map(s) for s in as_list(recipe.get("steps"))]
    if not steps:
        return join("no pass: the original graph")
    parts: list[Node] = []
    for i, step in enumerate(steps):
        settings = ", ".join(f"{k}={v}" for k, v in as_map(step.get("settings")).items())
        parts += [" → " if i else None, code(str(step.get("name"))), f" ({settings})" if settings else None]
    return join(*parts)


def _rules(run: Run) -> Html:
    shown = [r for r in run.rows if as_map(r.get("verdict"))]
    subject = run.subject
    shown.sort(key=lambda r: (r is not subject, r.get("name") == ORIGINAL))
    if not shown:
        return sentence("No candidate reached the gate, so no rule was checked.")
    parts: list[Node] = []
    for row in shown:
        name = str(row.get("name"))
        title = "original, its A/A control in the candidate's place" if name == ORIGINAL else name
        checks = [as_map(c) for c in as_list(as_map(row.get("verdict")).get("checks"))]
        heading = join(title, " ", chip(str(as_map(row.get("verdict")).get("state"))))
        body = _checks(checks, f"Rules for {name}") if checks else sentence("The policy has no rules.")
        parts += [h("h4", {}, heading), body] if row is subject or len(shown) == 1 else [details(heading, body)]
    return join(*parts)


def _checks(checks: Sequence[Mapping[str, Any]], label: str) -> Html:
    columns = [
        Column("rule"),
        Column("state"),
        Column("got", "number"),
        Column("bound", "number"),
        Column("limit", "number"),
        Column("reason"),
    ]
    return table(columns, [_check(c) for c in checks], label, cards=True)


def _check(check: Mapping[str, Any]) -> list[Node]:
    unit = {"drop": "", "ratio": "×"}.get(str(check.get("unit")), str(check.get("unit") or ""))
    rule = str(check.get("rule"))
    low, high, got = (number(check.get(k)) for k in ("low", "high", "got"))
    bound, side = (low, "at least ") if ">=" in rule else (high, "at most ")
    if check.get("state") == "fail":
        bound, side = (high, "at most ") if ">=" in rule else (low, "at least ")
    more = check.get("more_runs")
    reason = str(check.get("reason") or "")
    return [
        rule.replace("<=", "≤").replace(">=", "≥").replace(" 1/s", "/s"),
        chip(str(check.get("state"))),
        _bare(got, unit) if got is not None else "missing" if check.get("state") == "missing" else "–",
        join(side, _bare(bound, unit)) if bound is not None and bound != got else "exact" if got is not None else "–",
        f"{check.get('limit')}{_space(unit)}",
        join(reason, f"; about {more} more would decide" if more is not None and str(more) not in reason else None),
    ]


def _bare(value: float, unit: str) -> Html:
    if unit in ("", "1"):
        return h("data", {"value": repr(value)}, f"{value:.4f}")
    return h("data", {"value": repr(value)}, f"{value:.3f}×") if unit == "×" else show(value, unit)


def _space(unit: str) -> str:
    return "" if unit in ("", "1") else unit if unit == "×" else "/s" if unit == "1/s" else f"\u00a0{unit}"
