"""The original model as it came: interface, totals, findings and the layers with the most arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Column, Html, Node, code, details, h, join, sentence, table
from .run import Run, as_list, as_map
from .units import count, number, plain, show
from .verdict import chip

HEAVIEST = 12
MOST_FINDINGS = 10
MOST_WORDS = 120

_TOTALS = (
    ("parameters", "parameters", ""),
    ("macs", "multiply-accumulates of one inference", ""),
    ("peak_activation_bytes", "peak activation memory", "bytes"),
    ("peak_layer", "reached at layer", "name"),
    ("weight_bytes", "stored tensors", "bytes"),
    ("file_bytes", "size on disk", "bytes"),
    ("ir_version", "file format (IR) version", "name"),
    ("producer", "written by", "name"),
)
_CHIPS = {"defect": "reject", "caution": "hold", "gap": "screened"}


def section(run: Run) -> Html:
    """The inspection that the run keeps."""
    value = as_map(run.inspection)
    if not value:
        return sentence(
            "This run keeps no inspection of the original (inspection.json). ",
            code("edgeproof inspect MODEL"),
            " shows it.",
        )
    return join(
        _facts(value),
        h("h3", {}, "Findings"),
        _findings([as_map(f) for f in as_list(value.get("findings"))]),
        _checks([as_map(c) for c in as_list(value.get("checks"))]),
        h("h3", {}, "Layers with the most arithmetic"),
        _heaviest([as_map(layer) for layer in as_list(value.get("layers"))]),
    )


def _facts(value: Mapping[str, Any]) -> Html:
    totals = {**as_map(value.get("cost")), **value}
    rows: list[tuple[str, Node]] = []
    for key, title in (("inputs", "inputs"), ("outputs", "outputs")):
        specs = [as_map(s) for s in as_list(value.get(key))]
        if specs:
            lines = [
                h("div", {}, code(str(s.get("name"))), f" {s.get('dtype')} {shape(s.get('shape'))}") for s in specs
            ]
            rows.append((title, join(*lines)))
    rows += [(title, _amount(totals[key], unit)) for key, title, unit in _TOTALS if totals.get(key) not in (None, "")]
    opsets = as_map(value.get("opsets"))
    if opsets:
        rows.append(("operator sets", ", ".join(f"{k} {v}" for k, v in opsets.items())))
    ops = as_map(value.get("ops"))
    if ops:
        rows.append(("operators", ", ".join(f"{v} {k}" for k, v in ops.items())))
    return h("dl", {"class": "facts"}, *(h("div", {}, h("dt", {}, k), h("dd", {}, v)) for k, v in rows))


def shape(value: object) -> str:
    """A shape as 1×3×H×W; dimensions may be numbers or symbols."""
    if value is None:
        return "of unknown shape"
    dims = as_list(value)
    return "×".join(str(d) for d in dims) if dims else "scalar"


def _amount(value: Any, unit: str) -> Node:
    exact = number(value)
    if exact is None or unit == "name":
        words = str(value)
        return words if len(words) <= MOST_WORDS else details("an expression in the open dimensions", code(words))
    if unit == "bytes":
        return show(exact, "bytes")
    short = next((f"{plain(exact / size)} {name}" for size, name in ((1e9, "G"), (1e6, "M")) if exact >= size), "")
    return h("data", {"value": repr(value)}, f"{exact:,.0f}" + (f" ({short})" if short else ""))


def _findings(findings: Sequence[Mapping[str, Any]]) -> Html:
    if not findings:
        return sentence("The checks found nothing.")
    items = []
    for f in findings:
        kind, hint = str(f.get("kind")), f.get("hint")
        items.append(
            h(
                "li",
                {},
                h("span", {"class": f"chip {_CHIPS.get(kind, 'screened')}"}, kind),
                " ",
                code(str(f.get("subject"))),
                f" {f.get('problem')}",
                h("div", {"class": "note"}, str(hint)) if hint else None,
            )
        )
    shown, rest = items[:MOST_FINDINGS], items[MOST_FINDINGS:]
    more = details(f"{len(rest)} more", h("ul", {"class": "findings"}, *rest)) if rest else None
    return join(h("ul", {"class": "findings"}, *shown), more)


def _checks(checks: Sequence[Mapping[str, Any]]) -> Html | None:
    if not checks:
        return None
    columns = [Column("check"), Column("state"), Column("findings", "number"), Column("remark")]
    rows = [
        [
            str(c.get("name", "–")).replace("_", " "),
            chip(str(c.get("state"))) if c.get("state") != "assessed" else "assessed",
            str(c.get("findings", "–")),
            str(c.get("reason") or "–"),
        ]
        for c in checks
    ]
    full = sum(c.get("state") == "assessed" for c in checks)
    return details(f"{count(len(checks), 'check')}, {full} assessed in full", table(columns, rows, "Checks"))


def _heaviest(layers: Sequence[Mapping[str, Any]]) -> Html:
    known = [(exact, layer) for layer in layers if (exact := number(layer.get("macs"))) is not None and exact > 0]
    if not known:
        open_ = any(isinstance(layer.get("macs"), str) for layer in layers)
        why = "its inputs have open dimensions; give --shape to edgeproof inspect" if open_ else "none is recorded"
        return sentence(f"No layer's arithmetic is a plain number: {why}.")
    total = sum(exact for exact, _ in known)
    known.sort(key=lambda k: -k[0])
    rows: list[Sequence[Node]] = [
        [
            code(str(layer.get("name"))),
            str(layer.get("op")),
            shape(layer.get("shape")),
            h("data", {"value": repr(exact)}, f"{exact / 1e6:,.3f} M"),
            f"{exact / total * 100:.1f}\u00a0%",
            _amount(layer.get("parameters"), ""),
            _amount(layer.get("output_bytes"), "bytes"),
        ]
        for exact, layer in known[:HEAVIEST]
    ]
    columns = [
        Column("layer"),
        Column("operator"),
        Column("output"),
        Column("MACs", "number"),
        Column("share", "number"),
        Column("parameters", "number"),
        Column("output", "number"),
    ]
    intro = f"The {len(rows)} heaviest of {len(known)} layers that multiply; {count(len(layers), 'layer')} in all."
    return join(h("p", {"class": "note"}, intro), table(columns, rows, "Layers with the most multiply-accumulates"))
