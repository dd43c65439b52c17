"""SARIF 2.1.0: findings about the model, rules of the policy that do not pass, and what verifying disagreed with.

A defect is an error, a caution a warning, a gap a note. A rule that fails is an error; one that is open has kind
``open``, which has no level. Evidence that does not hold can be written too: each difference is an error.
Source: OASIS SARIF 2.1.0 with Errata 01; clauses are named where they decide something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from .. import __version__
from ..digest import digest_json
from ..graph.facts import Finding
from ..structure import Part
from . import Verified, sha256

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"defect": "error", "caution": "warning", "gap": "note"}
_ESCAPES = {"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"}


@dataclass(frozen=True, slots=True)
class _Row:
    """One result, before it is written.

    Attributes:
        rule: Id of its rule.
        asks: What the rule asks, one sentence.
        level: ``error``, ``warning``, ``note``, or ``none`` for what is open.
        text: What is the matter.
        subject: The tensor, node, rule or member.
        uri: File that holds it.
        properties: More, for machines.
    """

    rule: str
    asks: str
    level: str
    text: str
    subject: str
    uri: str
    properties: Mapping[str, Any]


class Sarif:
    """Findings, rules that do not pass, and differences."""

    suffix: ClassVar[str] = ".sarif"
    shows_differences: ClassVar[bool] = True

    def write(self, evidence: Verified) -> bytes:
        """One log with one run; sorted as found: model, policy, verification."""
        rows = [*_findings(evidence), *_policy(evidence), *_verification(evidence)]
        rules = list(dict.fromkeys(r.rule for r in rows))
        found = evidence.verification
        run = {
            "tool": {
                "driver": {
                    "name": "edgeproof",
                    "version": __version__,
                    "rules": [_rule(rule, next(r for r in rows if r.rule == rule)) for rule in rules],
                }
            },
            "automationDetails": {"id": f"edgeproof/{sha256(found.candidate)}/"},
            "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": list(_unassessed(evidence))}],
            "artifacts": [_artifact(p) for p in evidence.model.files],
            "results": [_result(r, rules.index(r.rule)) for r in rows],
            "properties": {
                "verdict": found.state,
                "policy": found.policy,
                "evidence": found.digest,
                "sealed": found.timestamp,
                "sealed_by": evidence.made_by,
                "signed_by": list(found.signed_by),
            },
        }
        log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
        return (json.dumps(log, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _findings(evidence: Verified) -> Iterator[_Row]:
    asks = {c.name: c.question for c in evidence.model.checks}
    before = {_identity(f) for f in evidence.original.findings}
    uri = quote(evidence.model.files[0].name)
    for f in evidence.model.findings:
        more = {"finding": f.kind, "in_baseline": _identity(f) in before}
        text = f"{f.subject}: {f.problem}" + (f". {f.hint}" if f.hint else "")
        yield _Row(f"model/{f.check}", asks.get(f.check) or f.check, LEVELS[f.kind], text, f.subject, uri, more)


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.check, finding.subject


def _policy(evidence: Verified) -> Iterator[_Row]:
    uri = quote(evidence.model.files[0].name)
    for c in evidence.checks:
        if c.state == "pass":
            continue
        level = "error" if c.state == "fail" else "none"
        more = {"state": c.state, "got": c.got, "low": c.low, "high": c.high, "unit": c.rule.unit}
        yield _Row(f"policy/{c.rule.metric}", "Does the model meet the policy?", level, f"{c.rule}: {c.reason}",
                   str(c.rule), uri, more)  # fmt: skip


def _verification(evidence: Verified) -> Iterator[_Row]:
    asks = "Does everything in the evidence agree?"
    for d in evidence.verification.differences:
        more = {"member": d.member, "what": d.what, "got": d.got, "expected": d.expected}
        yield _Row(f"verification/{d.code}", asks, "error", str(d), f"{d.member}: {d.what}", quote(d.member), more)
    code, why = evidence.verification.untrusted
    if code:
        level = "note" if code in ("evidence.no_key", "evidence.unsigned") else "error"
        yield _Row(f"verification/{code}", "Did a trusted key sign exactly this?", level, why, "attestation.json",
                   "attestation.json", {})  # fmt: skip


def _rule(name: str, first: _Row) -> dict[str, Any]:
    level = first.level if first.level != "none" else "error"
    return {"id": name, "shortDescription": {"text": _text(first.asks)}, "defaultConfiguration": {"level": level}}


def _result(row: _Row, rule: int) -> dict[str, Any]:
    identity = digest_json([row.rule, row.subject, row.text])
    return {
        "ruleId": row.rule,
        "ruleIndex": rule,
        # 3.27.9 and 3.27.10: a level stands beside no other kind than "fail".
        "kind": "open" if row.level == "none" else "fail",
        "level": row.level,
        "message": {"text": _text(row.text)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": row.uri}},
                "logicalLocations": [{"name": row.subject}],
            }
        ],
        "partialFingerprints": {"edgeproof/1": sha256(identity)},
        "properties": dict(row.properties),
    }


def _artifact(part: Part) -> dict[str, Any]:
    digest = sha256(part.digest)
    known = {"hashes": {"sha-256": digest}} if digest else {}
    return {"location": {"uri": quote(part.name)}, "length": part.size, "roles": ["analysisTarget"], **known}


def _unassessed(evidence: Verified) -> Iterator[dict[str, Any]]:
    """Checks that did not answer their question in full: no finding says less there."""
    for c in evidence.model.checks:
        if c.state != "assessed":
            text = f"{c.name} is {c.state}: {c.reason or c.question}"
            yield {"level": "note", "message": {"text": _text(text)}, "descriptor": {"id": f"check/{c.name}"}}


def _text(text: str) -> str:
    """Text in which nothing is read as a placeholder (3.11.5) or as a link (3.11.6)."""
    return "".join(_ESCAPES.get(c, c) for c in text)


IMPL = Sarif
