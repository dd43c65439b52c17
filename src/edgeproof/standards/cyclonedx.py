"""A CycloneDX 1.7 ML-BOM: the model with its hashes, origin, measured figures, and what was claimed and shown of it.

The policy is a standard in the BOM's sense (``definitions``), each rule a requirement, and the attestation maps each to
a claim, or to a counter-claim where the rule fails. An open rule has neither. Licence, author, intended use and
training data are not in evidence, so they are not in the BOM.
Source: CycloneDX 1.7, bom-1.7.schema.json (ECMA-424).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

from .. import __version__
from ..evidence.statement import PREDICATE_TYPE
from ..policy import Check
from ..structure import Part, Structure
from . import LEVEL, Figure, Verified, sha256, tensor

SCHEMA = "http://cyclonedx.org/schema/bom-1.7.schema.json"
MODEL, ORIGINAL, POLICY, EVIDENCE = "model", "original", "policy", "evidence"
"""References within the BOM."""


class CycloneDx:
    """The ML-BOM, as JSON."""

    suffix: ClassVar[str] = ".cdx.json"
    shows_differences: ClassVar[bool] = False

    def write(self, evidence: Verified) -> bytes:
        """One BOM; its serial number and time are the evidence's, so that the same evidence has the same BOM."""
        found = evidence.verification
        value = {
            "$schema": SCHEMA,
            "bomFormat": "CycloneDX",
            "specVersion": "1.7",
            "serialNumber": serial_number(found.digest),
            "version": 1,
            "metadata": {
                "timestamp": found.timestamp,
                "tools": {"components": [{"type": "application", "name": "edgeproof", "version": __version__}]},
                "component": _model(evidence),
            },
            "definitions": {"standards": [_standard(evidence)]},
            "declarations": _declarations(evidence),
        }
        return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def serial_number(digest: str) -> str:
    """A BOM's serial number, from the digest of the evidence. Source: RFC 9562, UUID version 5, namespace URL."""
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{PREDICATE_TYPE}:{sha256(digest)}')}"


def _model(evidence: Verified) -> dict[str, Any]:
    found = evidence.verification
    component: dict[str, Any] = {
        **_component(evidence.model, MODEL),
        "externalReferences": [
            {
                "type": "evidence",
                "url": f"{PREDICATE_TYPE}:{sha256(found.digest)}",
                "comment": "sealed evidence, checked with 'edgeproof verify'",
                "hashes": _hashes(found.digest),
            }
        ],
        "modelCard": _card(evidence),
        "properties": _properties(
            verdict=found.state,
            policy=found.policy,
            evidence=found.digest,
            expires=found.expires,
            signed_by=", ".join(found.signed_by),
            sealed_by=evidence.made_by,
            content=evidence.model.digest,
            recipe=evidence.recipe,
            target=", ".join(sorted({r.target for r in evidence.receipts("candidate") if r.target})),
            format=evidence.model.format,
        ),
    }
    if evidence.model.digest != evidence.original.digest:
        pedigree = {"ancestors": [_component(evidence.original, ORIGINAL)]}
        component["pedigree"] = pedigree | ({"notes": evidence.content.change} if evidence.content.change else {})
    return component


def _component(model: Structure, reference: str) -> dict[str, Any]:
    """A model by its files: its own hash, and those of the files beside it."""
    first, *others = model.files
    value: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": reference,
        "name": first.name,
        "hashes": _hashes(first.digest),
        "properties": _properties(content=model.digest, format=model.format),
    }
    if others:
        value["components"] = [_file(p, f"{reference}/{p.name}") for p in others]
    return value


def _file(part: Part, reference: str) -> dict[str, Any]:
    return {"type": "file", "bom-ref": reference, "name": part.name, "hashes": _hashes(part.digest)}


def _hashes(digest: str) -> list[dict[str, str]]:
    known = sha256(digest)
    return [{"alg": "SHA-256", "content": known}] if known else []


def _card(evidence: Verified) -> dict[str, Any]:
    parameters: dict[str, Any] = {"task": evidence.task} if evidence.task else {}
    datasets = list(_datasets(evidence))
    parameters |= {"datasets": datasets} if datasets else {}
    for name, specs in (("inputs", evidence.model.inputs), ("outputs", evidence.model.outputs)):
        if specs is not None:
            parameters[name] = [{"format": tensor(s)} for s in specs]
    card: dict[str, Any] = {
        "modelParameters": parameters,
        "quantitativeAnalysis": {
            "performanceMetrics": [_metric(f) for f in evidence.figures if f.value is not None],
        },
    }
    limits = [f"{f.kind}: {f.subject}: {f.problem}" for f in evidence.model.findings]
    costs = [f"{c.rule}: {c.reason}" for c in evidence.checks if c.rule.relative_to]
    considerations = {"technicalLimitations": limits, "performanceTradeoffs": costs}
    kept = {k: v for k, v in considerations.items() if v}
    return card | ({"considerations": kept} if kept else {})


def _datasets(evidence: Verified) -> Iterator[dict[str, Any]]:
    """The samples by digest: with their parts where those are told, else what the receipts say."""
    data = evidence.content.dataset
    if data is not None:
        parts = {f"{p}_samples": str(len(data[p])) for p in ("calibration", "search", "confirm")}
        yield _dataset("samples", "calibrated, searched and confirmed on parts that share none with the last",
                       digest=data["digest"], samples=str(data["count"]), **parts)  # fmt: skip
        return
    for digest in sorted({r.dataset for r in evidence.receipts("candidate") if r.dataset and r.kind == "quality"}):
        yield _dataset("samples", "scored", digest=digest)


def _dataset(name: str, description: str, **facts: str) -> dict[str, Any]:
    contents = {"properties": _properties(**facts)}
    return {"type": "dataset", "name": name, "contents": contents, "description": description}


def _metric(figure: Figure) -> dict[str, Any]:
    where = ", ".join(filter(None, (figure.on, figure.dataset)))
    value = {"type": figure.label, "value": repr(figure.value), "slice": where}
    if figure.low is None or figure.high is None:
        return value
    return {**value, "confidenceInterval": {"lowerBound": repr(figure.low), "upperBound": repr(figure.high)}}


def _standard(evidence: Verified) -> dict[str, Any]:
    policy = evidence.content.policy
    rules = [
        {"bom-ref": f"{POLICY}/{i}", "identifier": str(i), "title": c.rule.metric, "text": str(c.rule)}
        for i, c in enumerate(evidence.checks)
    ]
    strictness = f"one-sided error probability {policy.alpha}, shared by {policy.looks} looks; figures: {LEVEL}"
    return {
        "bom-ref": POLICY,
        "name": policy.name,
        "version": policy.digest,
        "description": f"{strictness} two-sided",
        "requirements": rules,
    }


def _declarations(evidence: Verified) -> dict[str, Any]:
    found = evidence.verification
    decided = [(i, c) for i, c in enumerate(evidence.checks) if c.state in ("pass", "fail")]
    sealed = {
        "bom-ref": EVIDENCE,
        "propertyName": PREDICATE_TYPE,
        "description": f"raw samples and decision, {found.digest}",
        "created": found.timestamp,
        **({"expires": found.expires} if found.expires else {}),
    }
    attestation = {
        "summary": f"{found.state}: {found.verdict.why}",
        "map": [_mapped(i, c) for i, c in enumerate(evidence.checks)],
    }
    return {
        "attestations": [attestation],
        "claims": [_claim(i, c) for i, c in decided],
        "evidence": [sealed],
    }


def _mapped(i: int, check: Check) -> dict[str, Any]:
    """A rule to its claim; what is open has neither a claim nor a score."""
    conformance: dict[str, Any] = {"rationale": check.reason}
    value: dict[str, Any] = {"requirement": f"{POLICY}/{i}"}
    if check.state in ("pass", "fail"):
        is_met = check.state == "pass"
        value["claims" if is_met else "counterClaims"] = [f"claim/{i}"]
        conformance["score"] = 1 if is_met else 0
    return {**value, "conformance": conformance}


def _claim(i: int, check: Check) -> dict[str, Any]:
    says = "meets" if check.state == "pass" else "does not meet"
    predicate = f"{says} {check.rule}"
    return {"bom-ref": f"claim/{i}", "target": MODEL, "predicate": predicate, "reasoning": check.reason,
            "evidence": [EVIDENCE]}  # fmt: skip


def _properties(**values: str) -> list[dict[str, str]]:
    return [{"name": f"edgeproof:{k}", "value": v} for k, v in values.items() if v]


IMPL = CycloneDx
