"""What must agree within evidence before its decision means anything, and how each disagreement is named.

A decision can be computed from samples of anything. These checks bind the samples to the models, the data, the
evaluator, the machine and the policy that were frozen before, and to the ledger of everything that was run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..digest import digest_json
from ..receipt import Receipt
from ..workspace import broken_line
from .members import Content

TOLERANCE = 1e-9
"""Relative difference allowed between a number in the evidence and the same number computed again: sums differ in
their last bits between processors. Text, whole numbers and states must be equal."""
_LEGS = {"baseline": "original", "control": "control"}


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in the evidence that does not agree with the rest of it.

    Attributes:
        code: Which check found it.
        member: The member that holds it.
        what: Where in it.
        got: What it holds.
        expected: What follows from the rest.
    """

    code: str
    member: str
    what: str
    got: Any
    expected: Any

    def __str__(self) -> str:
        """One line."""
        return f"{self.member}: {self.what} is {_short(self.got)}; expected {_short(self.expected)}  [{self.code}]"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"code": self.code, "member": self.member, "what": self.what, "got": self.got, "expected": self.expected}


def differences(content: Content) -> Iterator[Difference]:
    """Every disagreement between the members that the decision rests on."""
    yield from _frozen(content)
    for role, receipts in content.receipts.items():
        for name, receipt in receipts.items():
            yield from _receipt(content, role, name, receipt)
    yield from _replayed(content)
    yield from _data(content)
    yield from _ledger(content)


def compared(member: str, got: Any, expected: Any, where: str = "") -> Iterator[Difference]:
    """Where a value in the evidence is not what was computed again."""
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        for key in sorted(got.keys() | expected.keys()):
            yield from compared(member, got.get(key), expected.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        for i, pair in enumerate(zip(got, expected, strict=True)):
            yield from compared(member, *pair, f"{where}[{i}]")
    elif not _same(got, expected):
        yield Difference("evidence.recomputed", member, where, got, expected)


def _same(got: Any, expected: Any) -> bool:
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, float) or isinstance(expected, float):
        numbers = isinstance(got, int | float) and isinstance(expected, int | float)
        return numbers and math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=0.0)
    return bool(got == expected)


def _frozen(content: Content) -> Iterator[Difference]:
    """The members against what was frozen before the first measurement."""
    frozen, baseline = content.frozen, content.analyses["baseline"]
    facts: dict[str, tuple[str, Any]] = {
        "policy": ("policy.json", content.policy.to_json()),
        "model": ("analysis-baseline.json", baseline.digest),
        "files": ("analysis-baseline.json", {p.name: p.digest for p in baseline.files}),
        "metric": ("request.json", content.metric),
    }
    if content.dataset is not None:
        facts["dataset"] = ("dataset.json", content.dataset["digest"])
        parts = [content.dataset[p] for p in ("calibration", "search", "confirm")]
        facts["split"] = ("dataset.json", digest_json(parts))
    if content.evaluator is not None:
        own = {k: v for k, v in content.evaluator.items() if k != "schema"}
        facts["evaluator"] = ("evaluator.json", digest_json(own))
    if content.environment is not None:
        facts["machine"] = ("environment.json", _machine(content))
    for key, (member, value) in facts.items():
        if key in frozen and frozen[key] != value:
            yield Difference(f"evidence.frozen_{key}", member, key, value, frozen[key])
        if key not in frozen and content.by == "optimize":
            yield Difference(f"evidence.frozen_{key}", "request.json", f"frozen.{key}", None, value)
    if content.environment is not None and content.environment["digest"] != _machine(content):
        found = content.environment["digest"]
        yield Difference("evidence.environment", "environment.json", "digest", found, _machine(content))
    if content.by == "optimize":
        for member, value in (
            ("dataset.json", content.dataset),
            ("evaluator.json", content.evaluator),
            ("environment.json", content.environment),
        ):
            if value is None:
                yield Difference(
                    "evidence.unbound", member, "member", None, "what the receipts' digests are digests of"
                )


def _machine(content: Content) -> str:
    """Digest of the machine's facts, computed again."""
    return digest_json({k: v for k, v in (content.environment or {}).items() if k != "digest"})


def _receipt(content: Content, role: str, name: str, receipt: Receipt) -> Iterator[Difference]:
    """A receipt against the model that it stands for, and against what was frozen."""
    analysis = content.analyses["candidate" if role == "candidate" else "baseline"]
    if receipt.model != analysis.digest:
        yield Difference("evidence.other_model", name, "model", receipt.model, analysis.digest)
    files = {p.name: p.digest for p in analysis.files}
    if receipt.files and sorted(receipt.files.values()) != sorted(files.values()):
        yield Difference("evidence.other_files", name, "files", dict(receipt.files), files)
    if content.by != "optimize":
        return  # of measurements made elsewhere, the gate itself asks whether they can be compared
    bound = {"policy": content.policy.digest, "environment": content.frozen.get("machine")}
    if receipt.kind == "quality":
        bound["evaluator"] = content.frozen.get("evaluator")
    for key, expected in bound.items():
        if getattr(receipt, key) != expected:
            yield Difference(f"evidence.other_{key}", name, key, getattr(receipt, key), expected)


def _replayed(content: Content) -> Iterator[Difference]:
    """The same raw samples under two names; only a baseline that is its own candidate shares the control's."""
    one = content.analyses["baseline"].digest == content.analyses["candidate"].digest
    seen: dict[str, tuple[str, str]] = {}
    for role, receipts in content.receipts.items():
        for name, receipt in receipts.items():
            if not receipt.runs:
                continue
            samples = digest_json([[list(r.latency_ns) for r in receipt.runs]])
            before = seen.setdefault(samples, (role, name))
            if before[1] != name and not (one and {before[0], role} == {"control", "candidate"}):
                yield Difference("evidence.replayed", name, "runs", f"those of {before[1]}", "runs of its own")
    for role in ("control", "candidate"):
        shared = _shared_processes(content, role)
        if shared:
            yield Difference("evidence.replayed", f"receipt-{role}-runs.json", "rounds", shared, "each round once")


def _shared_processes(content: Content, role: str) -> list[int]:
    """Rounds of a role in which another round's timings stand again."""
    times: dict[tuple[int, ...], int] = {}
    runs = [r for receipt in content.receipts[role].values() for r in receipt.runs if len(r.latency_ns) > 1]
    return [r.round for r in runs if times.setdefault(r.latency_ns, r.round) != r.round]


def _data(content: Content) -> Iterator[Difference]:
    """Samples that were searched on, or calibrated on, are not those that confirm."""
    data = content.dataset
    if data is None:
        return
    confirm = set(data["confirm"])
    for part in ("calibration", "search"):
        both = sorted(confirm & set(data[part]))
        if both:
            yield Difference("evidence.shared_samples", "dataset.json", part, both[:5], "none of those that confirm")
    if any(i >= data["count"] for part in ("calibration", "search", "confirm") for i in data[part]):
        yield Difference("evidence.samples", "dataset.json", "indices", "beyond its count", f"below {data['count']}")
    expected = part_digest(data, "confirm")
    for receipts in content.receipts.values():
        for name, receipt in receipts.items():
            if receipt.kind == "quality" and content.by == "optimize" and receipt.dataset != expected:
                yield Difference("evidence.other_dataset", name, "dataset", receipt.dataset, expected)
    for n, line in enumerate(content.ledger):
        if line.get("kind") == "quality-search" and line.get("samples") != part_digest(data, "search"):
            found = line.get("samples")
            yield Difference("evidence.shared_samples", "ledger.json", f"lines[{n}].samples", found, "the search part")


def part_digest(data: Mapping[str, Any], part: str) -> str:
    """Digest of one part of the samples, as measurements carry it."""
    return digest_json([data["digest"], part, data[part]])


def _ledger(content: Content) -> Iterator[Difference]:
    """The chain, the policy of every line, and a line for every receipt."""
    member = "ledger.json"
    broken = broken_line(content.ledger, digest_json(content.frozen))
    if broken is not None:
        yield Difference(
            "evidence.ledger", member, f"lines[{broken}]", "does not follow", "the digest of the line before"
        )
    for n, line in enumerate(content.ledger):
        if line.get("policy") != content.policy.digest:
            found = line.get("policy")
            yield Difference("evidence.ledger_policy", member, f"lines[{n}].policy", found, content.policy.digest)
    if content.by != "optimize":
        return
    for role, receipts in content.receipts.items():
        for name, receipt in receipts.items():
            yield from _entered(content, role, name, receipt)


def _entered(content: Content, role: str, name: str, receipt: Receipt) -> Iterator[Difference]:
    """A receipt of a run is in the ledger: the last line of its kind has the digest of its raw numbers."""
    candidate = content.sides["candidate"]["name"]
    quality = receipt.kind == "quality"
    leg = _LEGS.get(role, "control" if candidate == "original" and not quality else candidate)
    kind = "quality-confirm" if quality else "bench-confirm"
    if quality:
        raw: Any = [list(s.samples) for s in receipt.scores.values()]
        raw = raw[0] if len(raw) == 1 else raw
    else:
        raw = [r.to_json() for r in receipt.runs]
    lines = [v for v in content.ledger if v.get("candidate") == leg and v.get("kind") == kind]
    expected = {"result": digest_json(raw), "model": receipt.model, "samples": receipt.dataset}
    if not lines:
        yield Difference("evidence.ledger_entry", "ledger.json", f"line of {kind} of {leg}", None, expected["result"])
        return
    for key, value in expected.items():
        if lines[-1].get(key) != value:
            yield Difference("evidence.ledger_entry", name, f"{key}, by the ledger's line {lines[-1].get('n')}",
                             value, lines[-1].get(key))  # fmt: skip


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 90 else text[:87] + "..."
