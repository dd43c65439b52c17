"""A model card in Markdown: what the model is, what was decided and measured, on what, how it was made, its limits.

Names come from models and data that others made, so everything that Markdown or HTML would read is escaped.
Source: Mitchell et al., Model Cards for Model Reporting (2019), for the sections that evidence can fill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..errors import State
from ..strictjson import canonical
from . import LEVEL, Verified, tensor

_SAYS: dict[State, str] = {
    "accept": "every rule passes",
    "reject": "a rule fails",
    "hold": "the measurements do not decide every rule",
}
_MARKS = re.compile(r"([\\`*_\[\]<>|~&$])")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")


class ModelCard:
    """The card."""

    suffix: ClassVar[str] = ".md"
    shows_differences: ClassVar[bool] = False

    def write(self, evidence: Verified) -> bytes:
        """All sections, in UTF-8."""
        parts = (_head, _policy, _figures, _conditions, _making, _limits, _digests, _verifying)
        return ("\n".join(line for part in parts for line in (*part(evidence), "")).rstrip("\n") + "\n").encode()


def _head(evidence: Verified) -> Iterator[str]:
    found, model = evidence.verification, evidence.model
    size = f"{model.size_bytes:,} bytes".replace(",", " ")
    yield f"# {_md(model.files[0].name)}"
    yield ""
    yield f"**{found.state}** under the policy {_md(evidence.content.policy.name)}: {_SAYS[found.state]}."
    yield ""
    what = f"a model in format {_md(model.format)}, {size}"
    yield f"- What it is: {what}{', for ' + evidence.task if evidence.task else ''}"
    for name, specs in (("Inputs", model.inputs), ("Outputs", model.outputs)):
        told = "not told by this format" if specs is None else "; ".join(_md(tensor(s)) for s in specs) or "none"
        yield f"- {name}: {told}"
    if model.operators is not None:
        counts = sorted(model.operators.items(), key=lambda kv: (-kv[1], kv[0]))
        yield f"- Operators: {', '.join(f'{_md(op)} {n}' for op, n in counts)}"
    until = f", may be acted on until {found.expires}" if found.expires else ""
    yield f"- Sealed {found.timestamp}{until}; {_signature(evidence)}"


def _signature(evidence: Verified) -> str:
    found = evidence.verification
    if found.trusted:
        return f"signed by the key {', '.join(found.signed_by)}"
    if evidence.attestation is None:
        return "not signed"
    return "signed, but the signature was not checked when this card was written"


def _policy(evidence: Verified) -> Iterator[str]:
    policy = evidence.content.policy
    yield "## Decision"
    yield ""
    yield from _table(("rule", "outcome", "why"), [(str(c.rule), c.state, c.reason) for c in evidence.checks])
    yield ""
    looks = "1 look" if policy.looks == 1 else f"{policy.looks} looks"
    yield f"One-sided error probability {policy.alpha}, shared by {looks} declared in advance."


def _figures(evidence: Verified) -> Iterator[str]:
    rows = [
        (f.label, _number(*f.baseline), _number(f.value, f.low, f.high), f.on)
        for f in evidence.figures
        if f.value is not None
    ]
    yield "## Figures"
    yield ""
    yield from _table(("metric", "original", "this model", "measured on"), rows)
    faster = evidence.decision["speedup"]
    yield ""
    if faster:
        yield f"Speed-up of the median latency: {_number(*faster)}."
    yield f"In brackets: {LEVEL} intervals, where there is one. Units stand with the metric."


def _conditions(evidence: Verified) -> Iterator[str]:
    data, control = evidence.content.dataset, evidence.decision["control"]
    yield "## Data and device"
    yield ""
    if data is not None:
        parts = ", ".join(f"{len(data[p])} to {p}" for p in ("calibration", "search", "confirm"))
        parts = parts.replace("to calibration", "to calibrate")
        yield f"- Samples: {data['count']}, {parts}; those that confirm were used for nothing else. {data['digest']}"
    if evidence.content.evaluator is not None:
        kept = {k: v for k, v in evidence.content.evaluator.items() if k != "schema" and v not in ("", None)}
        yield f"- Scored with: {_code(kept)}"
    for device in _unique(r.device for r in evidence.receipts("candidate")):
        yield f"- Device: {_code(device)}"
    for settings in _unique([evidence.content.sides["candidate"]["settings"]]):
        yield f"- Runtime settings: {_code(settings)}"
    if control is not None:
        told = "fit to measure on" if control["ok"] else "not fit to measure on"
        ratio = _number(control["ratio"], control["low"], control["high"])
        yield f"- The same model against itself: {ratio}, allowed ±{control['tolerance']:.0%}: the machine was {told}"
    sources = sorted({r.source for r in evidence.receipts("candidate")} - {"edgeproof"})
    if sources:
        yield f"- Measured elsewhere; importers: {_md(', '.join(sources))}"


def _making(evidence: Verified) -> Iterator[str]:
    change = evidence.content.change
    yield "## How it was made"
    yield ""
    if evidence.model.digest == evidence.original.digest:
        yield "It is the original, unchanged."
        return
    yield f"From {_md(evidence.original.files[0].name)}{': ' + _md(change) if change else ''}."
    if evidence.recipe:
        yield ""
        yield f"Recipe: {_code(evidence.content.sides['candidate']['recipe'])}"


def _limits(evidence: Verified) -> Iterator[str]:
    yield "## Limits"
    yield ""
    for f in evidence.model.findings:
        yield f"- {f.kind}: {_md(f.subject)}: {_md(f.problem)}"
    partly = [c for c in evidence.model.checks if c.state != "assessed"]
    for c in partly:
        yield f"- not assessed in full: {_md(c.question)} {_md(c.reason)}".rstrip()
    if not evidence.model.checks:
        yield "- the model's structure was not assessed"
    yield "- The figures hold for these samples and this device; others were not measured."
    yield "- Intended use, licence, training data and fairness are not part of the evidence: ask who trained it."


def _digests(evidence: Verified) -> Iterator[str]:
    found = evidence.verification
    rows = [(p.name, p.digest) for p in evidence.model.files]
    rows += [(f"original: {p.name}", p.digest) for p in evidence.original.files]
    rows += [("content of the model", evidence.model.digest), ("policy", found.policy), ("evidence", found.digest)]
    yield "## Digests"
    yield ""
    yield from _table(("of", "digest"), rows)


def _verifying(evidence: Verified) -> Iterator[str]:
    yield "## Verify"
    yield ""
    yield "With the evidence file, the public key of who sealed it, and the model:"
    yield ""
    yield "```"
    yield "pip install edgeproof"
    yield "edgeproof verify EVIDENCE --key PUBLIC_KEY --model MODEL"
    yield "```"
    yield ""
    yield f"It decides again from the raw samples. Sealed by {_md(evidence.made_by)}."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(_md(cell) for cell in row)} |"


def _number(value: float | None, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return "–"
    text = f"{value:.0f}" if value == int(value) else f"{value:.6g}"
    return text + ("" if low is None or high is None else f" [{low:.6g}, {high:.6g}]")


def _unique(values: Any) -> list[Mapping[str, Any]]:
    """Each once, in order, without the empty ones."""
    return list({canonical(v, "card"): v for v in values if v}.values())


def _code(value: Any) -> str:
    """JSON as code, fenced by more backticks than it holds in a row. Source: CommonMark, code spans."""
    text = _UNSEEN.sub(" ", canonical(value, "card").decode())
    fence = "`" * (1 + max((len(m) for m in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _md(text: str) -> str:
    return _MARKS.sub(r"\\\1", _UNSEEN.sub(" ", text))


IMPL = ModelCard
