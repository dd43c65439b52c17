"""Review a change of a model with measurements from anywhere: freeze what is decided on, then decide, then seal.

`prepare` freezes both models (by digest), the policy, every receipt with its original record, and the change in words.
`run` holds all of that against what was frozen, decides from the raw samples and the two structures, and writes the
evidence. A receipt of another model, or of another policy, is set aside with its reason and decides nothing; what is
then missing holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compare import Comparison, compare_files
from ..digest import canonical_json, digest_bytes, digest_file, digest_json
from ..errors import InputError, TrustError
from ..evaluate import EVALUATOR, metric_of
from ..evidence.members import LEDGER_SCHEMA, REQUEST_SCHEMA, allowed
from ..evidence.seal import Sealed, seal_members
from ..files import os_error, write_bytes
from ..importers import Claim
from ..policy import Policy
from ..receipt import Receipt
from ..strictjson import loads
from ..structure import Structure
from ..workspace import Workspace
from .gather import SIDES, Gathered, Given, Unused, gather, numbered

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

SCHEMA = "edgeproof.review/1"
_SAFE = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A review that was frozen.

    Attributes:
        folder: Where it lies.
        frozen: Digest of everything that it rests on.
        comparison: The two models side by side.
        structures: Of both.
        receipts: Role and receipt.
        unused: What was set aside.
        claims: Role and aggregate without samples.
        notes: What a reader should know.
    """

    folder: Path
    frozen: str
    comparison: Comparison
    structures: tuple[Structure, Structure]
    receipts: tuple[tuple[str, Receipt], ...]
    unused: tuple[Unused, ...]
    claims: tuple[tuple[str, Claim], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A review that was decided.

    Attributes:
        sealed: The evidence, with the verdict.
        unused: What had been set aside, with the reasons.
        notes: What a reader should know.
    """

    sealed: Sealed
    unused: tuple[Unused, ...]
    notes: tuple[str, ...]


def prepare(
    folder: Path,
    *,
    baseline: Path,
    candidate: Path,
    policy: Policy,
    change: str,
    given: Sequence[Given] = (),
    metric: str = "",
) -> Prepared:
    """Freeze a review.

    Args:
        folder: A new or empty folder.
        baseline: Model file of any known format.
        candidate: Model file of any known format.
        policy: The rules.
        change: What was changed, and why, in words.
        given: Measurements.
        metric: What ``quality`` stands for; the one that the receipts have when left out.

    Raises:
        InputError: review.same_model, review.change, review.twice, review.exists, review.metric; structure.*,
            import.*, bench.format, receipt.*.
    """
    if not change.strip():
        raise InputError("review.change", "--change", "is empty", "say in a sentence what was changed, and why")
    if (folder / "request.json").exists():
        raise InputError("review.exists", str(folder), "holds a review already", "give another folder; none is redone")
    ours, theirs, found = compare_files(baseline, candidate, policy.interface)
    if ours.digest == theirs.digest:
        problem = f"is the baseline itself ({ours.digest[:19]}); there is nothing to review"
        raise InputError("review.same_model", str(candidate), problem, "give the changed model")
    collected = gather(given, (ours, theirs), policy)
    receipts = numbered(collected.receipts)
    records = _records(collected)
    kept: dict[str, Any] = {
        "analysis-baseline.json": ours.to_json(),
        "analysis-candidate.json": theirs.to_json(),
        "comparison.json": found.to_json(),
        "review.json": _review(collected),
        **{name: receipt.to_json() for name, (_, receipt) in receipts.items()},
    }
    if collected.machine is not None:
        kept["environment.json"] = dict(collected.machine)
    quality_metric, quality = _quality(metric, collected)
    request = {
        "by": "review",
        "policy": policy.to_json(),
        "model": ours.digest,
        "files": {p.name: p.digest for p in ours.files},
        "candidate": theirs.digest,
        "candidate_files": {p.name: p.digest for p in theirs.files},
        "metric": quality_metric,
        "quality": dict(quality),
        "change": change.strip(),
        "names": {"baseline": ours.name, "candidate": theirs.name},
        "members": {name: digest_json(value) for name, value in sorted(kept.items())},
        "records": {name: digest_bytes(data) for name, data in sorted(records.items())},
    }
    workspace = Workspace.create(folder, request)
    with workspace.locked():
        for name, value in kept.items():
            workspace.write(name, value)
        for name, data in records.items():
            write_bytes(folder / name, data)
        workspace.write("models.json", {s: str(p.resolve()) for s, p in zip(SIDES, (baseline, candidate), strict=True)})
        entered = {"policy": policy.digest}
        for line in collected.confirmed:
            workspace.record({**entered, **line})
        workspace.record({**entered, "kind": "review", "candidate": theirs.name, "model": theirs.digest})
    return Prepared(
        folder,
        digest_json(workspace.request),
        found,
        (ours, theirs),
        tuple(receipts.values()),
        tuple(collected.unused),
        tuple(collected.claims),
        tuple(collected.notes),
    )


def run(
    folder: Path,
    out: Path,
    *,
    signers: Sequence[Signer] = (),
    timestamp: str,
    expires: str | None = None,
    frozen: str = "",
) -> Reviewed:
    """Decide a prepared review and seal its evidence.

    Args:
        folder: What `prepare` wrote.
        out: The evidence file to write.
        signers: Private keys.
        timestamp: When, e.g. ``2026-12-01T09:30:00Z``.
        expires: Until when an accept may be acted on; None for no end.
        frozen: The digest that `prepare` gave; empty to not ask.

    Raises:
        InputError: review.none, workspace.missing, evidence.time.
        TrustError: review.changed, review.changed_model, review.frozen, workspace.changed, workspace.ledger, for
            anything that is no longer what was frozen, by name.
    """
    workspace = Workspace.open(folder)
    request = workspace.request
    if request.get("by") != "review":
        raise InputError("review.none", str(folder), "is no review", "run 'edgeproof review prepare' first")
    if frozen and digest_json(request) != frozen:
        problem = f"has the digest {digest_json(request)}; {frozen} was frozen"
        raise TrustError("review.frozen", str(folder / "request.json"), problem, "prepare the review anew")
    lines = workspace.ledger()
    if not lines:
        raise TrustError("workspace.ledger", str(folder), "has no ledger", "prepare the review anew")
    members = {name: _kept(workspace, name, digest) for name, digest in request["members"].items()}
    review = loads(members["review.json"], "review.json")
    notes = [*review["notes"], *_check_models(workspace)]
    side: dict[str, Any] = {"recipe": None, "settings": {}}
    members["request.json"] = canonical_json(
        {
            "schema": REQUEST_SCHEMA,
            "by": "review",
            "frozen": request,
            "metric": request["metric"],
            "quality": request["quality"],
            **{s: {"name": request["names"][s], **side} for s in SIDES},
            "change": request["change"],
        }
    )
    members["policy.json"] = canonical_json(request["policy"])
    members["ledger.json"] = canonical_json({"schema": LEDGER_SCHEMA, "lines": lines})
    for name, digest in request["records"].items():
        members[name] = _record(folder / name, digest)
    sealed = seal_members(members, out, signers=signers, timestamp=timestamp, expires=expires)
    return Reviewed(sealed, tuple(Unused(u["what"], u["why"]) for u in review["unused"]), tuple(notes))


def _records(collected: Gathered) -> dict[str, bytes]:
    """Member name → original record."""
    found = {_record_name(i, name): data for i, (name, data) in enumerate(collected.records)}
    for name, data in found.items():
        if len(data) > allowed(name):
            problem = f"has {len(data):,} bytes; evidence keeps at most {allowed(name):,} of a record"
            raise InputError("review.record", name, problem, "shorten the record to what was measured")
    return found


def _review(collected: Gathered) -> dict[str, Any]:
    """What was set aside and what was only claimed, for ``review.json``."""
    return {
        "schema": SCHEMA,
        "unused": [{"what": u.what, "why": u.why} for u in collected.unused],
        "claims": [
            {"role": role, "name": c.name, "value": c.value, "unit": c.unit, "metric": c.metric}
            for role, c in collected.claims
        ],
        "notes": list(collected.notes),
    }


def _kept(workspace: Workspace, name: str, digest: str) -> bytes:
    value = workspace.read(name)
    if value is None or digest_json(value) != digest:
        raise _changed(workspace.root / name)
    return canonical_json(value)


def _record(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
    if digest_bytes(data) != digest:
        raise _changed(path)
    return data


def _changed(path: Path) -> TrustError:
    return TrustError(
        "review.changed", str(path), "is not what was frozen", "prepare the review anew, in another folder"
    )


def _check_models(workspace: Workspace) -> list[str]:
    """The model files, where they still are, are those that were frozen; a note for each that is not there."""
    notes = []
    for side, path in (workspace.read("models.json") or {}).items():
        frozen = workspace.request["files" if side == "baseline" else "candidate_files"]
        for name, digest in frozen.items():
            file = Path(path).parent / name
            if not file.is_file():
                notes.append(f"the {side}'s {name} is no longer where it was; it is known by its digest")
            elif digest_file(file) != digest:
                problem = f"of the {side} has the digest {digest_file(file)}; {digest} was frozen"
                raise TrustError("review.changed_model", str(file), problem, "restore it, or prepare the review anew")
    return notes


def _quality(metric: str, collected: Gathered) -> tuple[str, Mapping[str, str]]:
    """What ``quality`` stands for, and its unit, direction and kind."""
    if collected.quality is not None and metric in ("", collected.quality[0]):
        return collected.quality
    scored = sorted(_scored(collected))
    if not metric:
        if len(scored) > 1:
            problem = f"could stand for any of {', '.join(scored)}"
            raise InputError("review.metric", "quality", problem, "name one with --metric")
        metric = scored[0] if scored else "top1"
    if metric == EVALUATOR:
        raise InputError("review.metric", metric, "is scored by code of the user's own", "give the run that used it")
    known = metric_of(metric)
    if known.kind not in ("proportion", "mean", "pooled"):
        raise InputError("review.metric", metric, "is no metric of quality", "name one, e.g. --metric top1")
    return metric, {"unit": known.unit, "better": known.better, "kind": known.kind}


def _scored(collected: Gathered) -> Iterator[str]:
    names = {name for _, r in collected.receipts for name in r.scores}
    return (n for n in names if n != EVALUATOR and metric_of(n).kind in ("proportion", "mean", "pooled"))


def _record_name(number: int, name: str) -> str:
    """Name of the member that keeps an original record, from the allow-list of evidence files."""
    safe = _SAFE.sub("-", name.lower()).strip("._-")[:50].strip("._-") or "record"
    return f"record-{number:02d}-{safe}"
