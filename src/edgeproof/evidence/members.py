"""What an evidence file holds, member by member, in format 1.

```
request.json                what was asked: frozen before the first measurement
policy.json                 the rules
analysis-baseline.json      interface, operators, digest of every tensor and findings of the model before
analysis-candidate.json     and after
receipt-ROLE-KIND.json      raw samples: ROLE baseline, control or candidate; KIND runs, pipeline or quality
ledger.json                 every measuring run under the policy, hash-chained to what was frozen
decision.json               the verdict and every number derived from the samples; no prose
manifest.json               digest and size of every member above and below
dataset.json evaluator.json environment.json   what the digests in the receipts are digests of (optional in a review)
report.html review.json comparison.json record-NAME bom.cdx.json findings.sarif card.md   (optional)
attestation.json            signature: DSSE over an in-toto Statement (absent when unsigned)
```

All JSON is in RFC 8785 form with closed sets of keys, so a value has one spelling. A later format gets a module of its
own beside this one; this one stays as it is, since its files must verify for good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import EdgeproofError, InputError, TrustError
from ..evaluate import metric_units
from ..policy import Policy, policy_from
from ..receipt import Receipt
from ..strictjson import keys, loads
from ..structure import Structure

SCHEMA = "edgeproof.evidence/1"
REQUEST_SCHEMA = "edgeproof.request/1"
DATASET_SCHEMA = "edgeproof.dataset/1"
EVALUATOR_SCHEMA = "edgeproof.evaluator/1"
LEDGER_SCHEMA = "edgeproof.ledger/1"
DECISION_SCHEMA = "edgeproof.decision/1"

MANIFEST, ATTESTATION, DECISION = "manifest.json", "attestation.json", "decision.json"
ROLES = ("baseline", "control", "candidate")
REQUIRED = (
    "request.json",
    "policy.json",
    "analysis-baseline.json",
    "analysis-candidate.json",
    "ledger.json",
    DECISION,
    MANIFEST,
)
JSON_BYTES = 16 * 2**20
MOST_BYTES = 96 * 2**20
"""All members together; read as JSON, they take up to some twelve times as much memory."""
MOST_RULES, MOST_QUALITY_RULES = 64, 8
"""Each rule on quality costs a bootstrap when the decision is computed again."""
MOST_SAMPLES = 200_000
"""Scores of one metric; each is drawn about a thousand times when bounds are computed again."""
_OPTIONAL = {
    "dataset.json": JSON_BYTES,
    "evaluator.json": JSON_BYTES,
    "environment.json": JSON_BYTES,
    "review.json": JSON_BYTES,
    "comparison.json": JSON_BYTES,
    "bom.cdx.json": JSON_BYTES,
    "findings.sarif": JSON_BYTES,
    "card.md": 2**20,
    "report.html": 2 * JSON_BYTES,
    ATTESTATION: 2**16,
}
_RECEIPT = re.compile(r"receipt-(baseline|control|candidate)-(runs|pipeline|quality)(-[1-9][0-9]?)?\.json")
_RECORD = re.compile(r"record-[a-z0-9][a-z0-9._-]{0,60}[a-z0-9]")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_EVALUATOR_PARTS = ("preprocess", "decode", "metric", "evaluator", "source")
_SIDE = ("name", "recipe", "settings")
_PARTS = ("calibration", "search", "confirm")


@dataclass(frozen=True, slots=True)
class Content:
    """The members that the decision rests on, read and held against their types.

    Attributes:
        by: Who froze it: ``optimize`` or ``review``.
        frozen: What was frozen before the first measurement.
        metric: What ``quality`` stands for in the policy.
        quality: Its ``unit``, ``better`` and ``kind``.
        sides: ``baseline`` and ``candidate`` → their ``name``, ``recipe`` and ``settings``.
        change: The change in words; may be empty.
        policy: The rules.
        analyses: ``baseline`` and ``candidate`` → static analysis.
        receipts: Role → receipts, by member name.
        ledger: Lines, oldest first.
        dataset: Digest, count and the indices of each part; None when left out.
        evaluator: What its digest is a digest of; None when left out.
        environment: Stable facts of the machine with their digest; None when left out.
    """

    by: str
    frozen: Mapping[str, Any]
    metric: str
    quality: Mapping[str, str]
    sides: Mapping[str, Mapping[str, Any]]
    change: str
    policy: Policy
    analyses: Mapping[str, Structure]
    receipts: Mapping[str, Mapping[str, Receipt]]
    ledger: tuple[Mapping[str, Any], ...]
    dataset: Mapping[str, Any] | None
    evaluator: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None


def allowed(name: str) -> int:
    """Largest size of a member in bytes; 0 when it has no place in an evidence file."""
    if name in REQUIRED or _RECEIPT.fullmatch(name):
        return JSON_BYTES
    return _OPTIONAL.get(name, JSON_BYTES if _RECORD.fullmatch(name) else 0)


def receipt_name(role: str, receipt: Receipt, number: int = 1) -> str:
    """Name of the member for a receipt, e.g. ``receipt-candidate-quality.json``."""
    return f"receipt-{role}-{receipt.kind}{'' if number == 1 else f'-{number}'}.json"


def read_time(text: Any, subject: str) -> datetime:
    """A time such as ``2026-12-01T09:30:00Z``.

    Raises:
        InputError: evidence.time.
    """
    try:
        time = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except (TypeError, ValueError) as e:
        problem = f"is {text!r}; expected a time in UTC such as 2026-12-01T09:30:00Z"
        raise InputError("evidence.time", subject, problem, "write it so") from e
    if time.strftime(_TIME) != text:
        raise InputError("evidence.time", subject, f"is {text!r}; expected e.g. 2026-12-01T09:30:00Z", "write it so")
    return time


def content_of(members: Mapping[str, bytes]) -> Content:
    """Read the members that the decision rests on.

    Args:
        members: Name → bytes; decision, manifest and attestation are not looked at.

    Raises:
        TrustError: evidence.missing, evidence.receipt, evidence.value; and the codes of `strictjson`, `Receipt` and
            `policy_from`, for members that are not what their names say.
    """
    try:
        return _content(members)
    except InputError as e:
        # Whoever reads evidence did not write it: what is wrong with it is a matter of trust, not of their input.
        raise TrustError(e.code, e.subject, e.problem, "ask for the evidence anew, from who sealed it") from e


def read_json(members: Mapping[str, bytes], name: str) -> Any:
    """A JSON member in its RFC 8785 form.

    Raises:
        TrustError: evidence.missing.
        InputError: json.*.
    """
    if name not in members:
        raise refused("missing", name, "is not there")
    return loads(members[name], name, limit_bytes=JSON_BYTES, canonical=True)


def refused(rule: str, subject: str, problem: str) -> TrustError:
    """Evidence that does not hold."""
    return TrustError(f"evidence.{rule}", subject, problem, "ask for the evidence anew, from who sealed it")


def _content(members: Mapping[str, bytes]) -> Content:
    request = _request(read_json(members, "request.json"))
    policy = policy_from(read_json(members, "policy.json"), "policy.json", metric_units())
    by_example = [r for r in policy.rules if r.metric == "quality" or r.metric == request["metric"]]
    if len(policy.rules) > MOST_RULES or len(by_example) > MOST_QUALITY_RULES:
        problem = f"has {len(policy.rules)} rules, {len(by_example)} on quality; at most {MOST_RULES} and"
        raise refused("value", "policy.json", f"{problem} {MOST_QUALITY_RULES} are computed again")
    receipts: dict[str, dict[str, Receipt]] = {role: {} for role in ROLES}
    for name in sorted(members):
        match = _RECEIPT.fullmatch(name)
        if match:
            receipt = Receipt.from_json(read_json(members, name), name)
            if receipt.kind != match[2]:
                raise refused("receipt", name, f"holds a receipt of kind {receipt.kind!r}")
            _check_receipt(receipt, name)
            receipts[match[1]][name] = receipt
    ledger = keys(read_json(members, "ledger.json"), ("schema", "lines"), (), "ledger.json")
    _check_schema(ledger, LEDGER_SCHEMA, "ledger.json")
    lines = ledger["lines"]
    if not isinstance(lines, list) or not all(isinstance(v, dict) for v in lines):
        raise refused("value", "ledger.json", "has lines that are no objects")
    return Content(
        by=request["by"],
        frozen=request["frozen"],
        metric=request["metric"],
        quality=request["quality"],
        sides={side: request[side] for side in ("baseline", "candidate")},
        change=request["change"],
        policy=policy,
        analyses={side: _analysis(members, side) for side in ("baseline", "candidate")},
        receipts=receipts,
        ledger=tuple(lines),
        dataset=_dataset(members),
        evaluator=_evaluator(members),
        environment=_environment(members),
    )


def _request(value: Any) -> dict[str, Any]:
    name = "request.json"
    names = ("schema", "by", "frozen", "metric", "quality", "baseline", "candidate", "change")
    keys(value, names, (), name)
    _check_schema(value, REQUEST_SCHEMA, name)
    quality = keys(value["quality"], ("unit", "better", "kind"), (), f"{name}: quality")
    for side in ("baseline", "candidate"):
        keys(value[side], _SIDE, (), f"{name}: {side}")
    texts = [
        value["metric"],
        value["change"],
        *quality.values(),
        *(value[s]["name"] for s in ("baseline", "candidate")),
    ]
    if not all(isinstance(t, str) for t in texts) or not isinstance(value["frozen"], dict):
        raise refused("value", name, "has a value of another type than its key has")
    if value["by"] not in ("optimize", "review"):
        raise refused("value", name, f"is by {value['by']!r}; expected optimize or review")
    if quality["better"] not in ("higher", "lower") or quality["kind"] not in ("proportion", "mean", "pooled"):
        raise refused("value", f"{name}: quality", f"is {quality}, which is no quality metric")
    return value  # type: ignore[no-any-return]


def _check_receipt(receipt: Receipt, name: str) -> None:
    """What computing from a receipt costs, and whether it is one leg's."""
    if len({r.leg for r in receipt.runs}) > 1:
        raise refused("receipt", name, "has runs of several legs")
    if len({r.round for r in receipt.runs}) != len(receipt.runs):
        raise refused("receipt", name, "has two runs of one round")
    for scores in receipt.scores.values():
        if len(scores.samples) > MOST_SAMPLES:
            raise refused("receipt", name, f"has more than {MOST_SAMPLES} scores of {scores.metric}")


def _analysis(members: Mapping[str, bytes], side: str) -> Structure:
    name = f"analysis-{side}.json"
    value = read_json(members, name)
    try:
        found = Structure.from_json(value)
        again = found.to_json()
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise refused("value", name, f"is no analysis of a model ({type(e).__name__}: {e})") from e
    if again != value or not found.files or any(type(p.size) is not int or p.size < 0 for p in found.files):
        raise refused("value", name, "is no analysis of a model")
    return found


def _dataset(members: Mapping[str, bytes]) -> dict[str, Any] | None:
    name = "dataset.json"
    if name not in members:
        return None
    value = keys(read_json(members, name), ("schema", "digest", "count", *_PARTS), (), name)
    _check_schema(value, DATASET_SCHEMA, name)
    for part in _PARTS:
        if not isinstance(value[part], list) or not all(type(i) is int and i >= 0 for i in value[part]):
            raise refused("value", name, f"has a part {part} that is no list of indices")
    return value


def _evaluator(members: Mapping[str, bytes]) -> dict[str, Any] | None:
    name = "evaluator.json"
    if name not in members:
        return None
    value = keys(read_json(members, name), ("schema", *_EVALUATOR_PARTS), (), name)
    _check_schema(value, EVALUATOR_SCHEMA, name)
    return value


def _environment(members: Mapping[str, bytes]) -> dict[str, Any] | None:
    name = "environment.json"
    if name not in members:
        return None
    value = read_json(members, name)
    if not isinstance(value, dict) or not isinstance(value.get("digest"), str):
        raise refused("value", name, "is no record of a machine with its digest")
    return value


def _check_schema(value: Mapping[str, Any], schema: str, name: str) -> None:
    if value["schema"] != schema:
        raise refused("schema", name, f"has schema {value['schema']!r}; expected {schema!r}")


def as_refused(error: EdgeproofError, name: str) -> TrustError:
    """An error met while computing from the members, as one about the evidence."""
    return TrustError(error.code, f"{name}: {error.subject}", error.problem, "the evidence does not hold")
