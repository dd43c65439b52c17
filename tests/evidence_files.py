"""Evidence made from nothing but arithmetic, the same on every machine: for tests of sealing and verifying."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from edgeproof.archive import open_archive, write_archive
from edgeproof.digest import canonical_json, digest_bytes, digest_json
from edgeproof.evidence.checks import part_digest
from edgeproof.evidence.decision import derive
from edgeproof.evidence.members import MOST_BYTES, allowed, content_of
from edgeproof.evidence.seal import Sealed, seal_members
from edgeproof.measurement import LegRun
from edgeproof.model import TensorSpec
from edgeproof.policy import Policy, Rule
from edgeproof.receipt import Receipt, Scores
from edgeproof.strictjson import loads
from edgeproof.structure import Part, Structure, Weight

TIME, LATER = "2026-12-01T09:30:00Z", "2027-12-01T09:30:00Z"
RUNS, INFERENCES, EXAMPLES = 10, 20, 300
POLICY = Policy(
    "small",
    (
        Rule("quality", "<=", Decimal("0.05"), "drop", "baseline"),
        Rule("latency_p95", "<=", Decimal("0.9"), "ratio", "baseline"),
        Rule("size", "<=", Decimal(12_000), "bytes"),
    ),
    runs=RUNS,
    inferences=INFERENCES,
)
BASE_NS = {"baseline": 2_000_000, "control": 2_000_000, "candidate": 1_200_000}
LEGS = {"baseline": "original", "control": "control", "candidate": "int8"}
MACHINE = {"system": "Linux", "cpu": "test", "cores": 2, "packages": {"onnxruntime": "1.32.0"}}
Values = dict[str, Any]


def number(text: str, below: int) -> int:
    """A whole number below ``below`` that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % below


def digest(text: str) -> str:
    return digest_bytes(text.encode())


def structure(name: str, size: int, weight: str, classes: int = 10) -> Structure:
    return Structure(
        "onnx",
        name,
        digest(f"model {name} {weight}"),
        (Part(f"{name}.onnx", size, digest(f"file {name} {weight}")),),
        (TensorSpec("x", "float32", (1, 3, 16, 16)),),
        (TensorSpec("y", "float32", (1, classes)),),
        {"Conv": 3, "Relu": 3},
        (Weight("w1", "float32", (8, 3, 3, 3), digest(weight)),),
    )


def runs_of(role: str, rounds: int = RUNS) -> tuple[LegRun, ...]:
    """Interleaved runs: all legs of a round share its noise."""
    found = []
    for i in range(rounds):
        share = 1000 + number(f"round {i}", 60)
        times = (BASE_NS[role] * (share + number(f"{role} {i} {j}", 40)) // 1000 for j in range(INFERENCES))
        condition = {"load": [0.5, 0.5, 0.5], "throttled": 0}
        around = {"before": condition, "after": condition, "no_sensor": {"rapl": "no readings"}}
        found.append(LegRun(LEGS[role], i, tuple(times), 3_000_000 + number(f"{role} cold {i}", 1000), 5_000_000,
                            4_000_000, environment=around))  # fmt: skip
    return tuple(found)


def top1_scores(role: str) -> tuple[int, ...]:
    """Nine in ten right, and of the candidate one in a hundred other than of the baseline."""
    base = [int(number(f"example {i}", 10) > 0) for i in range(EXAMPLES)]
    if role == "candidate":
        return tuple(1 - s if number(f"flip {i}", 100) == 0 else s for i, s in enumerate(base))
    return tuple(base)


def values(
    policy: Policy = POLICY, metric: str = "top1", scores: Callable[[str], tuple[Any, ...]] = top1_scores
) -> Values:
    """Members of evidence that optimises a small classifier, as JSON values; the samples amount to an accept."""
    quality = {
        "top1": ("1", "higher", "proportion"),
        "cer": ("1", "lower", "pooled"),
        "map": ("1", "higher", "pooled"),
        "cosine": ("1", "higher", "pooled"),
        "sqnr": ("dB", "higher", "pooled"),
        "evaluator": ("1", "higher", "pooled"),
    }
    unit, better, kind = quality[metric]
    sides = {"baseline": structure("net", 40_000, "float"), "candidate": structure("int8", 12_000, "int8")}
    parts = {
        "calibration": list(range(60)),
        "search": list(range(60, 150)),
        "confirm": list(range(150, 150 + EXAMPLES)),
    }
    data = {"schema": "edgeproof.dataset/1", "digest": digest("data"), "count": 150 + EXAMPLES, **parts}
    evaluator = {"preprocess": None, "decode": {"kind": "classes"}, "metric": metric, "evaluator": "", "source": ""}
    machine = digest_json(MACHINE)
    frozen = {
        "format": "edgeproof.run/1",
        "model": sides["baseline"].digest,
        "model_name": "net.onnx",
        "files": {p.name: p.digest for p in sides["baseline"].files},
        "dataset": data["digest"],
        "split": digest_json([parts[p] for p in ("calibration", "search", "confirm")]),
        "evaluator": digest_json(evaluator),
        "metric": metric,
        "policy": policy.to_json(),
        "machine": machine,
    }
    found: Values = {
        "request.json": {
            "schema": "edgeproof.request/1",
            "by": "optimize",
            "frozen": frozen,
            "metric": metric,
            "quality": {"unit": unit, "better": better, "kind": kind},
            "baseline": {"name": "original", "recipe": None, "settings": {"threads": 1}},
            "candidate": {"name": "int8", "recipe": {"name": "int8"}, "settings": {"threads": 1}},
            "change": "simplify, int8",
        },
        "policy.json": policy.to_json(),
        "dataset.json": data,
        "evaluator.json": {"schema": "edgeproof.evaluator/1", **evaluator},
        "environment.json": {**MACHINE, "digest": machine},
        **{f"analysis-{side}.json": s.to_json() for side, s in sides.items()},
    }
    for role in LEGS:
        side = sides["candidate" if role == "candidate" else "baseline"]
        bound = Receipt(
            kind="runs",
            model=side.digest,
            files={p.name: p.digest for p in side.files},
            dataset=digest("feeds"),
            evaluator=digest("plan"),
            environment=machine,
            policy=policy.digest,
            target="onnxruntime:cpu",
            runs=runs_of(role),
            device={"module": "test", "os": "Linux"},
        )
        found[f"receipt-{role}-runs.json"] = bound.to_json()
        if role != "control":
            measured = {metric: Scores(metric, unit, better, scores(role))}
            scored = replace(
                bound, kind="quality", dataset=part_digest(data, "confirm"), evaluator=frozen["evaluator"], runs=(),
                scores=measured,
            )  # fmt: skip
            found[f"receipt-{role}-quality.json"] = scored.to_json()
    found["ledger.json"] = {"schema": "edgeproof.ledger/1", "lines": ledger(found)}
    return found


def ledger(found: Values) -> list[dict[str, Any]]:
    """The lines that a run with these receipts writes: a search, then the confirmation."""
    data, policy = found["dataset.json"], digest_json(found["policy.json"])
    entries = [
        {"kind": "quality-search", "candidate": name, "model": digest(name), "samples": part_digest(data, "search")}
        for name in ("original", "int8")
    ]
    for role, leg in LEGS.items():
        receipt = found[f"receipt-{role}-runs.json"]
        entries.append(entry("bench-confirm", leg, receipt, receipt["runs"]))
        if role != "control":
            receipt = found[f"receipt-{role}-quality.json"]
            entries.append(entry("quality-confirm", leg, receipt, receipt["scores"][0]["samples"]))
    return chained(
        found["request.json"]["frozen"], [{"result": digest("search"), **e, "policy": policy} for e in entries]
    )


def entry(kind: str, leg: str, receipt: Mapping[str, Any], raw: Any) -> dict[str, Any]:
    result = {"result": digest_json(raw), "samples": receipt["dataset"]}
    return {"kind": kind, "candidate": leg, "model": receipt["model"], **result}


def chained(frozen: Any, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines, each with the digest of the one before it."""
    lines: list[dict[str, Any]] = []
    for n, body in enumerate(entries):
        lines.append({"n": n, "previous": digest_json(lines[-1] if lines else frozen), **body})
    return lines


def reentered(found: Values) -> Values:
    """The same with a ledger that fits again: what a forger who rewrites everything would do."""
    return {**found, "ledger.json": {"schema": "edgeproof.ledger/1", "lines": ledger(found)}}


def write(found: Values, path: Path, signers: Any = (), expires: str | None = LATER, **extra: bytes) -> Sealed:
    """Seal JSON values."""
    members = {name: canonical_json(v) for name, v in found.items()}
    return seal_members({**members, **extra}, path, signers=list(signers), timestamp=TIME, expires=expires)


def read(path: Path) -> dict[str, bytes]:
    """All members."""
    with open_archive(path, allowed=allowed, max_total=MOST_BYTES) as archive:
        return {name: archive.read(name) for name in archive.names}


def tamper(path: Path, change: Callable[[Values], None], *, hashes: bool = True, decide: bool = False) -> None:
    """Change members of a sealed file and write it again as its maker would.

    Args:
        path: The file.
        change: Given the JSON members, changes them in place.
        hashes: Whether the manifest is made to fit again.
        decide: Whether the decision is made to fit again too.
    """
    members = read(path)
    found = {name: loads(data, name) for name, data in members.items() if name.endswith(".json")}
    change(found)
    members = {n: d for n, d in members.items() if not n.endswith(".json")}
    members |= {n: canonical_json(v) for n, v in found.items()}
    if decide:
        members["decision.json"] = canonical_json(derive(content_of(members)).value)
    if hashes:
        own = {n: d for n, d in members.items() if n not in ("manifest.json", "attestation.json")}
        listed = {n: {"digest": digest_bytes(d), "size": len(d)} for n, d in own.items()}
        members["manifest.json"] = canonical_json({**found["manifest.json"], "members": listed})
    write_archive(path, members)


def cer_scores(role: str) -> tuple[Any, ...]:
    """Lines of 5 to 30 characters, few of which are read wrongly; the candidate makes as many errors elsewhere."""
    lengths = [5 + number(f"length {i}", 26) for i in range(EXAMPLES)]
    side = "same" if role == "baseline" else "other"
    return tuple([int(number(f"{side if i % 9 == 0 else ''} {i}", 12) == 0), n] for i, n in enumerate(lengths))


def map_scores(role: str) -> tuple[Any, ...]:
    """Pictures with one to three boxes of three classes; a tenth of the detections is not matched."""
    found = []
    for i in range(EXAMPLES):
        boxes = [number(f"class {i} {b}", 3) for b in range(1 + number(f"boxes {i}", 3))]
        side = role if i % 20 == 0 else ""
        rows = [
            [c, (500 + number(f"score {i} {b}", 500)) / 1000, 1023 if number(f"{side} hit {i} {b}", 10) else 0, 0]
            for b, c in enumerate(boxes)
        ]
        found.append([rows, [[c, boxes.count(c)] for c in sorted(set(boxes))]])
    return tuple(found)


def golden() -> dict[str, Values]:
    """What the golden files hold, by name."""
    return {
        "evidence-1-top1.zip": values(),
        "evidence-1-cer.zip": values(metric="cer", scores=cer_scores),
        "evidence-1-map.zip": values(metric="map", scores=map_scores),
    }


def golden_signer() -> Any:
    """A key for tests; it is no secret."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner

    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"edgeproof golden files").digest()))
