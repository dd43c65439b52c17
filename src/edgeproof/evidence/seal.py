"""Seal a finished run, or ready members, into one evidence file.

What is sealed is decided anew from the raw samples; a result that says something else is refused, not sealed. The same
members, key and timestamp give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..archive import write_archive
from ..bench import plan_digest
from ..digest import digest_bytes, digest_file, digest_json
from ..errors import InputError, TrustError
from ..job import Plan
from ..measurement import LegRun, Measurement, Placement
from ..policy import Verdict
from ..receipt import Receipt, Scores
from ..strictjson import canonical
from ..structure import Structure
from ..workspace import Workspace
from .checks import Difference, differences
from .decision import derive
from .members import (
    ATTESTATION,
    DATASET_SCHEMA,
    DECISION,
    EVALUATOR_SCHEMA,
    LEDGER_SCHEMA,
    MANIFEST,
    REQUEST_SCHEMA,
    SCHEMA,
    allowed,
    content_of,
    read_time,
    receipt_name,
)
from .statement import envelope, statement
from .verify import predicate

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

ORIGINAL, CONTROL = "original", "control"
_CHANGING = {"cooling": "cooling", "throttling": "throttled", "temperatures_c": "temperatures_c"}
"""What a receipt says of a device before its first and after its last process → name of the condition."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """An evidence file that was written.

    Attributes:
        path: Where.
        digest: Of the file.
        verdict: What it holds, with reasons.
        candidate: Digest of the candidate's model file.
        differences: What in it disagrees; it verifies no better than this.
        signed: Whether it carries a signature.
    """

    path: Path
    digest: str
    verdict: Verdict
    candidate: str
    differences: tuple[Difference, ...]
    signed: bool


def seal(
    run: Path,
    out: Path,
    *,
    signer: Signer | None,
    timestamp: str,
    candidate: str | None = None,
    expires: str | None = None,
    report: bytes | None = None,
) -> Sealed:
    """Seal one candidate of a finished run.

    Args:
        run: Folder of ``edgeproof optimize``.
        out: The file to write.
        signer: Private key; None seals without a signature, which nobody else has a reason to trust.
        timestamp: When, e.g. ``2026-12-01T09:30:00Z``.
        candidate: Name of the candidate; the accepted one when left out, else the first that was confirmed.
        expires: Until when it may be acted on; None for no end.
        report: ``report.html`` of the run.

    Raises:
        InputError: evidence.unfinished, evidence.candidate, evidence.time, evidence.too_large, workspace.missing.
        TrustError: evidence.result, when the run's result is not what its samples give; evidence.changed_model;
            workspace.changed, workspace.ledger.
    """
    workspace = Workspace.open(run)
    members, state = run_members(workspace, candidate)
    if report is not None:
        members["report.html"] = report
    signers = [signer] if signer else []
    return seal_members(members, out, signers=signers, timestamp=timestamp, expires=expires, expected=state)


def seal_members(
    members: Mapping[str, bytes],
    out: Path,
    *,
    signers: Sequence[Signer],
    timestamp: str,
    expires: str | None = None,
    expected: str | None = None,
) -> Sealed:
    """Seal ready members; decision, manifest and attestation are made here.

    Args:
        members: Name → bytes, without those three; see `members`. JSON must be in RFC 8785 form.
        out: The file to write.
        signers: Private keys; none leaves it unsigned.
        timestamp: When, e.g. ``2026-12-01T09:30:00Z``.
        expires: Until when it may be acted on; None for no end.
        expected: What the samples should amount to: ``accept``, ``reject`` or ``hold``; None for whatever they do.

    Raises:
        InputError: evidence.time, evidence.member, evidence.too_large.
        TrustError: evidence.result, and what `content_of` raises.
    """
    read_time(timestamp, "timestamp")
    if expires is not None and read_time(expires, "expires") <= read_time(timestamp, "timestamp"):
        raise InputError("evidence.time", "expires", f"is {expires}, not after {timestamp}", "give a later time")
    whole = {name: data for name, data in members.items() if name not in (DECISION, MANIFEST, ATTESTATION)}
    content = content_of(whole)
    derived = derive(content)
    if expected is not None and derived.verdict.state != expected:
        problem = f"says {expected}; its raw samples give {derived.verdict.state}: {derived.verdict.why}"
        raise TrustError("evidence.result", "result.json", problem, "run the same command again, or start a new run")
    whole[DECISION] = canonical(derived.value, DECISION)
    _check_sizes(whole)
    manifest = {
        "schema": SCHEMA,
        "made_by": f"edgeproof {__version__}",
        "timestamp": timestamp,
        "expires": expires,
        "members": {name: {"digest": digest_bytes(data), "size": len(data)} for name, data in sorted(whole.items())},
    }
    whole[MANIFEST] = canonical(manifest, MANIFEST)
    model = content.analyses["candidate"].files[0]
    if signers:
        said = predicate(derived.verdict.state, content.policy.digest, manifest)
        payload = statement(model.name, model.digest, digest_bytes(whole[MANIFEST]), said)
        whole[ATTESTATION] = envelope(payload, signers)
    digest = write_archive(out, whole)
    found = tuple(differences(content))
    return Sealed(out, digest, derived.verdict, model.digest, found, bool(signers))


def run_members(workspace: Workspace, candidate: str | None = None) -> tuple[dict[str, bytes], str]:
    """The members that a finished run gives, without decision, manifest and signature.

    Args:
        workspace: The run.
        candidate: As in `seal`.

    Returns:
        Name → bytes, and the state that the run's own result gives the candidate.
    """
    result = _kept(workspace, "result.json")
    row = _row(result, candidate)
    name = row["name"]
    baseline = Structure.from_json(_kept(workspace, "structure.json"))
    analyses = {"baseline": baseline, "candidate": baseline if name == ORIGINAL else _analysed(workspace, name)}
    samples, machine = _kept(workspace, "samples.json"), _kept(workspace, "environment.json")
    settings = {**workspace.request["target"]["settings"], **row["recipe"].get("runtime", {})}
    value: dict[str, Any] = {
        "request.json": {
            "schema": REQUEST_SCHEMA,
            "by": "optimize",
            "frozen": workspace.request,
            "metric": result["metric"],
            "quality": result["quality"],
            "baseline": {
                "name": ORIGINAL,
                "recipe": None,
                "settings": workspace.request["target"]["settings"],
            },
            "candidate": {"name": name, "recipe": row["recipe"], "settings": settings},
            "change": ", ".join(step["pass"] for step in (row.get("change") or {}).get("steps", ())),
        },
        "policy.json": workspace.request["policy"],
        "dataset.json": {"schema": DATASET_SCHEMA, **samples},
        "evaluator.json": {"schema": EVALUATOR_SCHEMA, **_kept(workspace, "evaluator.json")},
        "environment.json": machine,
        "ledger.json": {"schema": LEDGER_SCHEMA, "lines": workspace.ledger()},
        **{f"analysis-{side}.json": found.to_json() for side, found in analyses.items()},
    }
    for role, receipt in _receipts(workspace, name, analyses, machine):
        value[receipt_name(role, receipt)] = receipt.to_json()
    return {member: canonical(v, member) for member, v in value.items()}, row["verdict"]["state"]


def device_of(facts: Mapping[str, Any], runs: Sequence[LegRun] = ()) -> dict[str, Any]:
    """What is known of a device, from the facts of its environment and how it did in each process.

    Args:
        facts: As `environment.Environment` has them.
        runs: Runs with the conditions before and after.
    """
    found: dict[str, Any] = {
        "module": facts.get("device") or facts.get("cpu"),
        "memory_gib": facts.get("memory_gib"),
        "os": " ".join(filter(None, (facts.get("os"), facts.get("system"), facts.get("kernel")))) or None,
        "jetpack": facts.get("jetpack"),
        "runtime": facts.get("packages"),
        "power_mode": facts.get("nvpmodel") or facts.get("power_profile"),
        "clocks": {k: facts[k] for k in ("governor", "min_khz", "max_khz", "boost", "no_turbo") if k in facts} or None,
    }
    if runs:
        before, after = runs[0].environment.get("before", {}), runs[-1].environment.get("after", {})
        for name, key in _CHANGING.items():
            found[name] = {"before": before[key], "after": after[key]} if key in before and key in after else None
    return {k: v for k, v in found.items() if v is not None}


def _receipts(
    workspace: Workspace, name: str, analyses: Mapping[str, Structure], machine: Mapping[str, Any]
) -> list[tuple[str, Receipt]]:
    """Role and receipt of every measurement that the decision rests on."""
    measuring = _kept(workspace, "measuring.json")
    rounds: list[list[LegRun]] = []
    while (kept := workspace.read(f"confirm/round-{len(rounds):03d}.json")) is not None:
        rounds.append([LegRun.from_json(v) for v in kept])
    everyone = [r for legs in rounds for r in legs]
    # The original stands for itself through its control: the same model, loaded a second time.
    legs = {"baseline": ORIGINAL, "control": CONTROL, "candidate": CONTROL if name == ORIGINAL else name}
    found: list[tuple[str, Receipt]] = []
    for role, leg in legs.items():
        side = analyses["candidate" if role == "candidate" else "baseline"]
        runs = tuple(r for r in everyone if r.leg == leg)
        bound: dict[str, Any] = {
            "model": side.digest,
            "files": {p.name: p.digest for p in side.files},
            "environment": workspace.request["machine"],
            "target": workspace.request["target"]["name"],
            "device": device_of(machine, runs),
            "placement": _placement(workspace, ORIGINAL if leg == CONTROL else leg),
        }
        receipt = Receipt(
            kind="runs",
            dataset=measuring["feeds"],
            evaluator=plan_digest(Plan(**measuring["plan"]), measuring["inferences"]),
            policy=digest_json(workspace.request["policy"]),
            runs=runs,
            **bound,
        )
        found.append((role, receipt))
        if role != "control":
            found.append((role, _quality(workspace, ORIGINAL if role == "baseline" else name, bound)))
    return found


def _quality(workspace: Workspace, name: str, bound: Mapping[str, Any]) -> Receipt:
    kept = Measurement.from_json(_kept(workspace, f"candidates/{name}/quality-confirm.json"))
    scores = Scores(kept.metric, kept.unit, kept.better, tuple(kept.samples))
    return Receipt(
        kind="quality",
        dataset=kept.dataset,
        evaluator=kept.evaluator,
        policy=digest_json(workspace.request["policy"]),
        scores={kept.metric: scores},
        **{**bound, "device": {k: v for k, v in bound["device"].items() if k not in _CHANGING}},
    )


def _placement(workspace: Workspace, name: str) -> Placement | None:
    """Where every node ran, from the runtime's own profile of the candidate."""
    layers = workspace.read(f"candidates/{name}/layers.json")
    if layers is None:
        return None
    nodes = tuple((v["name"], v["op"], v["device"], v["precision"]) for v in layers["layers"])
    fallbacks = tuple((node, why) for node, why in layers["placement"]["fallbacks"])
    return Placement(nodes, fallbacks, layers["placement"]["source"])


def _analysed(workspace: Workspace, name: str) -> Structure:
    """A candidate as it was analysed before it was measured; its files must still be those."""
    folder = workspace.folder(name)
    found = Structure.from_json(_kept(workspace, f"candidates/{name}/structure.json"))
    for part in found.files:
        path = folder / part.name
        digest = digest_file(path) if path.is_file() else "not there"
        if digest != part.digest:
            problem = f"is no longer the file that was measured: {digest}; expected {part.digest}"
            raise TrustError("evidence.changed_model", str(path), problem, "restore it, or start a new run")
    return found


def _row(result: Mapping[str, Any], candidate: str | None) -> Mapping[str, Any]:
    confirmed = [r for r in result["candidates"] if r["verdict"]]
    if candidate is None:
        others = [r["name"] for r in confirmed if r["name"] != ORIGINAL]
        candidate = result["best"] or next(iter(others), ORIGINAL)
    row: Mapping[str, Any] | None = next((r for r in confirmed if r["name"] == candidate), None)
    if row is None:
        names = ", ".join(r["name"] for r in confirmed)
        problem = "was not confirmed, so there is no decision to seal"
        raise InputError("evidence.candidate", candidate, problem, f"confirmed: {names}")
    return row


def _kept(workspace: Workspace, name: str) -> Any:
    value = workspace.read(name)
    if value is None:
        raise InputError(
            "evidence.unfinished",
            str(workspace.root / name),
            "is not there: the run has not ended, or was made by an earlier version",
            "run the same 'edgeproof optimize' command again; it goes on where it stopped",
        )
    return value


def _check_sizes(members: Mapping[str, bytes]) -> None:
    for name, data in members.items():
        most = allowed(name)
        if most == 0:
            raise InputError("evidence.member", name, "has no place in an evidence file", "leave it out")
        if len(data) > most:
            problem = f"has {len(data)} bytes; evidence holds at most {most} of it"
            raise InputError("evidence.too_large", name, problem, "measure on fewer samples, or leave it out")
