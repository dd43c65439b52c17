"""Evidence for tests of the standards: made from arithmetic, with findings, failed and open rules."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from edgeproof.graph.facts import Finding
from edgeproof.graph.findings import Check
from edgeproof.policy import Rule
from evidence_files import POLICY, golden_signer, structure, values, write

GOLDEN = Path(__file__).parents[1] / "golden" / "evidence-1-top1.zip"
PUBLIC = Path(__file__).parents[1] / "golden" / "evidence.pub"
KEY = golden_signer().public_key
TOO_SMALL = Rule("size", "<=", Decimal(1000), "bytes")
NO_SENSOR = Rule("power", "<=", Decimal(10), "W")
FINDINGS = (
    Finding("defect", "scales", "conv_1.scale", "is 0.0 in {3} of [64] channels", "drop them"),
    Finding("caution", "opset", "the model", "has opset 9", "convert it"),
    Finding("gap", "lineage", "the model", "names no checkpoint", ""),
)
CHECKS = (
    Check("scales", "Is every scale positive and finite?", "assessed", "", 1),
    Check("opset", "Is the opset recent?", "assessed", "", 1),
    Check("lineage", "Does it say where it comes from?", "unavailable", "no metadata", 1),
)


def sealed(path: Path, *rules: Rule, signed: bool = True, analysed: bool = False, name: str = "int8") -> Path:
    """Evidence under the usual rules and more; with findings where it was analysed."""
    found = values(replace(POLICY, rules=(*POLICY.rules, *rules)))
    if analysed:
        model = structure("int8", 12_000, "int8")
        found["analysis-candidate.json"] = replace(model, findings=FINDINGS, checks=CHECKS).to_json()
        before = structure("net", 40_000, "float")
        found["analysis-baseline.json"] = replace(before, findings=FINDINGS[1:2]).to_json()
    if name != "int8":
        files = found["analysis-candidate.json"]["files"]
        files[0]["name"] = f"{name}.onnx"
    write(found, path, [golden_signer()] if signed else [])
    return path
