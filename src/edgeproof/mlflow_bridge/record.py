"""What a tracking server is given of one evaluation, from its evidence alone: the same evidence, the same record.

MLflow itself is not imported here. Hashes stand in full in params, which MLflow lets nobody write twice, and in tags,
by which runs are found. MLflow cuts digests of datasets at 36 characters, so ours stand beside them in tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archive import open_archive
from ..digest import PREFIX, canonical_json, digest_bytes
from ..errors import TrustError
from ..evidence.members import ATTESTATION, DECISION, MANIFEST, MOST_BYTES, allowed, content_of, read_time
from ..evidence.verify import Verification, verify
from ..strictjson import loads

if TYPE_CHECKING:
    from securesystemslib.signer import Key

    from ..evidence.members import Content

OURS = "edgeproof."
KIND, EVIDENCE, TRAINING = OURS + "kind", OURS + "evidence", OURS + "training_run"
"""Names of tags: what a run is, the digest of the evidence file that it is of, and the training run it is linked to."""
EVALUATION = "deployment evaluation"
ARCHIVE = "evidence.zip"
RECEIPTS = "receipts"
_PLAIN = (DECISION, MANIFEST, "policy.json", "report.html")
_NAME_LENGTH, _NOTE_LENGTH, _DATASET_DIGEST = 250, 4000, 36
"""What MLflow's fields hold; the last is where it cuts digests of datasets."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data that an evaluation used.

    Attributes:
        name: What was measured on it, e.g. ``quality``.
        digest: Ours, in full.
    """

    name: str
    digest: str

    @property
    def cut(self) -> str:
        """As much of the digest as MLflow's own field holds."""
        return self.digest.removeprefix(PREFIX)[:_DATASET_DIGEST]


@dataclass(frozen=True, slots=True)
class Record:
    """One evaluation as MLflow keeps it.

    Attributes:
        name: Of the run: the candidate's.
        note: The verdict in words, for the page of the run.
        time_ms: When it was sealed, in milliseconds since 1970.
        params: Written once.
        tags: Also written when the run is made.
        metrics: Values and bounds.
        datasets: What it was measured on.
        artifacts: Path → bytes.
        verification: What the evidence amounts to.
    """

    name: str
    note: str
    time_ms: int
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    datasets: tuple[Dataset, ...]
    artifacts: Mapping[str, bytes]
    verification: Verification


def record_of(evidence: Path, keys: Sequence[Key] = ()) -> Record:
    """Make the record of an evidence file.

    Args:
        evidence: The file; it is verified first.
        keys: Public keys that may have sealed it; with none, nobody's signature is asked for.

    Raises:
        TrustError: mlflow.evidence, when something in it differs or no key of those signed it; what `verify` raises.
        InputError: What `verify` raises.
    """
    found = verify(evidence, keys=keys)
    problem = str(found.differences[0]) if found.differences else ""
    if keys and not found.trusted:
        problem = problem or found.untrusted[1]
    if problem:
        hint = f"see all of it with 'edgeproof verify {evidence}'; MLflow only records evidence that holds"
        raise TrustError("mlflow.evidence", str(evidence), problem, hint)
    with open_archive(evidence, allowed=allowed, max_total=MOST_BYTES) as archive:
        members = {name: archive.read(name) for name in archive.names}
        whole = archive.path.read_bytes()
    if digest_bytes(whole) != found.digest:
        raise TrustError("mlflow.evidence", str(evidence), "was changed while it was read", "run it again")
    content, decision = content_of(members), loads(members[DECISION], DECISION)
    name = content.sides["candidate"]["name"]
    return Record(
        name=name[:_NAME_LENGTH],
        note=_note(content, found),
        time_ms=round(read_time(found.timestamp, MANIFEST).timestamp() * 1000),
        params=_params(content, decision, found, members),
        tags={
            KIND: EVALUATION,
            EVIDENCE: found.digest,
            OURS + "state": found.state,
            OURS + "candidate": found.candidate,
            OURS + "model": found.candidate_model,
            OURS + "policy": found.policy,
            OURS + "manifest": digest_bytes(members[MANIFEST]),
            OURS + "signed": "yes" if ATTESTATION in members else "no",
        },
        metrics=_metrics(decision),
        datasets=_datasets(content),
        artifacts=_artifacts(members, whole),
        verification=found,
    )


def _params(
    content: Content, decision: Mapping[str, Any], found: Verification, members: Mapping[str, bytes]
) -> dict[str, str]:
    """Everything that tells which evaluation this was; what is not known is left out."""
    sides = {side: content.sides[side] for side in ("baseline", "candidate")}
    values = {
        "evidence": found.digest,
        "manifest": digest_bytes(members[MANIFEST]),
        "state": found.state,
        "by": content.by,
        "candidate": found.candidate,
        "candidate_name": sides["candidate"]["name"][:_NAME_LENGTH],
        "candidate_settings": canonical_json(sides["candidate"]["settings"]).decode(),
        "baseline": found.baseline,
        "baseline_name": sides["baseline"]["name"][:_NAME_LENGTH],
        "baseline_model": content.analyses["baseline"].digest,
        "policy": found.policy,
        "policy_name": content.policy.name[:_NAME_LENGTH],
        "metric": content.metric,
        "looks": f"{decision['looks']['spent']} of {decision['looks']['declared']}",
        "sealed": found.timestamp,
        "expires": found.expires,
        "model": found.candidate_model,
        **_bound(content),
        **{f"unit.{name}": m["unit"] for name, m in decision["candidate"].items()},
        **{f"rule.{n}": f"{c['metric']} {c['op']} {c['limit']} {c['unit']}" for n, c in _numbered(decision)},
        **{f"rule.{n}.state": c["state"] for n, c in _numbered(decision)},
    }
    return {OURS + name: str(value) for name, value in values.items() if value}


def _bound(content: Content) -> dict[str, str]:
    """Data, evaluator, machine and target of the candidate's receipts, under the names that the importer reads."""
    found: dict[str, str] = {}
    for _, receipt in sorted(content.receipts["candidate"].items()):
        prefix = "" if receipt.kind == "runs" else f"{receipt.kind}."
        for name in ("dataset", "evaluator", "environment", "target"):
            found.setdefault(prefix + name, getattr(receipt, name))
    return found


def _metrics(decision: Mapping[str, Any]) -> dict[str, float]:
    """Values with their bounds: the candidate's under the plain names, so that runs compare."""
    values: dict[str, float | None] = {}
    for prefix, side in (("", "candidate"), ("baseline.", "baseline")):
        for name, m in decision[side].items():
            values |= {
                f"{prefix}{name}": m["value"],
                f"{prefix}{name}.low": m["low"],
                f"{prefix}{name}.high": m["high"],
            }
            values[f"{prefix}{name}.samples"] = m["samples"]
    for n, check in _numbered(decision):
        values |= {f"rule.{n}.{end}": check[end] for end in ("got", "low", "high")}
    if decision["speedup"] is not None:
        values |= dict(zip(("speedup", "speedup.low", "speedup.high"), decision["speedup"], strict=True))
    if decision["control"] is not None:
        values |= {f"control.{end}": decision["control"][end] for end in ("ratio", "low", "high")}
    return {name: float(value) for name, value in values.items() if value is not None}


def _numbered(decision: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(f"{n:02d}", check) for n, check in enumerate(decision["checks"], 1)]


def _datasets(content: Content) -> tuple[Dataset, ...]:
    receipts = [r for role in ("baseline", "candidate") for r in content.receipts[role].values()]
    return tuple(Dataset(kind, digest) for kind, digest in sorted({(r.kind, r.dataset) for r in receipts}) if digest)


def _artifacts(members: Mapping[str, bytes], whole: bytes) -> dict[str, bytes]:
    """The evidence file, and beside it what people want to open without taking it apart."""
    plain = {name: members[name] for name in _PLAIN if name in members}
    receipts = {f"{RECEIPTS}/{name}": data for name, data in members.items() if name.startswith("receipt-")}
    return {ARCHIVE: whole, **plain, **receipts}


def _note(content: Content, found: Verification) -> str:
    rows = [f"- **{c.state}** {c.rule}: {c.reason}" for c in found.verdict.checks]
    change = [f"Change: {content.change}"] if content.change else []
    head = f"Deployment evaluation: **{found.state}**. A record of the evidence {found.digest}, which is what counts."
    return "\n\n".join([head, *change, "\n".join(rows)])[:_NOTE_LENGTH]
