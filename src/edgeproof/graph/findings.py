"""Look at a model without running it: every declared check, in order, with what it found and how far it got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import graph_checks, weight_checks
from .facts import Facts, Finding, Kind, Outcome, State

CHECKS: tuple[Callable[[Facts], Outcome], ...] = (
    graph_checks.onnx_checker,
    graph_checks.consistent_shapes,
    graph_checks.operators,
    graph_checks.opset,
    weight_checks.finite_weights,
    weight_checks.quantisation,
    graph_checks.training_mode,
    graph_checks.dynamic_inputs,
    graph_checks.interface_types,
    graph_checks.constant_subgraphs,
    weight_checks.unused_weights,
    weight_checks.duplicate_weights,
    weight_checks.float64_weights,
    weight_checks.fp16_range,
    weight_checks.dead_channels,
    weight_checks.channel_range,
    weight_checks.external_data,
    weight_checks.weight_digests,
    graph_checks.known_shapes,
    graph_checks.known_costs,
)
"""Every check; a check's name is its function's."""

KINDS: tuple[Kind, ...] = ("defect", "caution", "gap")


@dataclass(frozen=True, slots=True)
class Check:
    """How one declared check ended.

    Attributes:
        name: Name of the check.
        question: What it asks, one sentence.
        state: ``assessed``, ``partial`` or ``unavailable``.
        reason: Why it is not assessed in full, or a remark.
        findings: How many it found.
    """

    name: str
    question: str
    state: State
    reason: str
    findings: int

    def to_json(self) -> dict[str, str | int]:
        """As JSON."""
        return {"name": self.name, "state": self.state, "reason": self.reason, "findings": self.findings}


def find(facts: Facts) -> tuple[tuple[Finding, ...], tuple[Check, ...]]:
    """Run every check.

    Returns:
        Findings, defects first, and one entry per check. A check that fails of itself ends as unavailable: it never
        takes the others with it.
    """
    findings: list[Finding] = []
    checks = []
    for check in CHECKS:
        name = check.__name__
        try:
            outcome = check(facts)
        except Exception as e:  # a malformed model can break a check in any way; that is a gap, not a crash
            gap = Finding("gap", name, facts.model.name, f"the check failed: {type(e).__name__}: {e}", "report it")
            outcome = Outcome((gap,), "unavailable", str(e))
        findings.extend(outcome.findings)
        question = (check.__doc__ or "").split("\n")[0]
        checks.append(Check(name, question, outcome.state, outcome.reason, len(outcome.findings)))
    findings.sort(key=lambda f: KINDS.index(f.kind))
    return tuple(findings), tuple(checks)
