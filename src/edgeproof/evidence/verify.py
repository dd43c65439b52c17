"""Check evidence: offline, from the raw samples up, naming everything that differs.

`verify` raises for a file that is no evidence (a damaged archive, JSON with two meanings, a missing member). For
evidence that can be read it returns what follows from the samples, what disagrees, and whether a trusted key signed.
Only a `Verification` that is ``accepted`` is worth acting on. Nothing depends on the clock unless ``now`` is given.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archive import open_archive
from ..compare import findings
from ..digest import digest_bytes, digest_file
from ..errors import EdgeproofError, InputError, State
from ..files import plain
from ..policy import Verdict
from ..strictjson import keys as closed_keys
from ..structure import Structure, read_structure
from .checks import Difference, compared, differences
from .decision import derive
from .members import (
    ATTESTATION,
    DECISION,
    MANIFEST,
    MOST_BYTES,
    REQUIRED,
    SCHEMA,
    Content,
    allowed,
    content_of,
    read_json,
    read_time,
    refused,
)
from .statement import signed_by, statement

if TYPE_CHECKING:
    from securesystemslib.signer import Key

_MANIFEST_KEYS = ("schema", "made_by", "timestamp", "expires", "members")


@dataclass(frozen=True, slots=True)
class Verification:
    """What evidence amounts to.

    Attributes:
        state: The decision, computed again from the raw samples.
        trusted: Whether a given key signed exactly this evidence.
        signed_by: Ids of the given keys that did, each once.
        untrusted: Code and sentence, why it is not trusted; empty when it is.
        candidate: Digest of the candidate's file.
        candidate_files: All its files: name → digest; the first is the model.
        candidate_model: Digest of its content (`Model.digest` for ONNX).
        baseline: Digest of the baseline's file.
        policy: Digest of the policy.
        verdict: The gate's, with reasons, computed again.
        differences: Everything that disagrees.
        notes: What a reader should know, one sentence each.
        timestamp: When it was sealed, as it says of itself.
        expires: Until when it may be acted on; empty for no end.
        expired: Whether that is over; False when no time was given.
        digest: Digest of the evidence file.
    """

    state: State
    trusted: bool
    signed_by: tuple[str, ...]
    untrusted: tuple[str, str]
    candidate: str
    candidate_files: Mapping[str, str]
    candidate_model: str
    baseline: str
    policy: str
    verdict: Verdict
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    timestamp: str
    expires: str
    expired: bool
    digest: str

    @property
    def accepted(self) -> bool:
        """An accept that holds: nothing differs, a trusted key signed it, and it has not expired."""
        return self.state == "accept" and self.trusted and not self.differences and not self.expired

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        code, why = self.untrusted
        return {
            "state": self.state,
            "accepted": self.accepted,
            "trusted": self.trusted,
            "signed_by": list(self.signed_by),
            "untrusted": {"code": code, "why": why} if code else None,
            "candidate": self.candidate,
            "candidate_files": dict(self.candidate_files),
            "candidate_model": self.candidate_model,
            "baseline": self.baseline,
            "policy": self.policy,
            "verdict": self.verdict.to_json(),
            "differences": [d.to_json() for d in self.differences],
            "notes": list(self.notes),
            "timestamp": self.timestamp,
            "expires": self.expires,
            "expired": self.expired,
            "digest": self.digest,
        }


def verify(
    path: Path, *, keys: Sequence[Key] = (), models: Sequence[Path] = (), now: datetime | None = None
) -> Verification:
    """Verify an evidence file.

    Args:
        path: The file.
        keys: Public keys that are trusted to seal.
        models: Files of the candidate or the baseline, where they are at hand; they are hashed and analysed again.
        now: For expiry, with its time zone; nothing expires when left out.

    Raises:
        TrustError: archive.*, evidence.*, json.*, receipt.*, policy.*, when the file is no evidence.
        InputError: files.*, when it cannot be read.
    """
    members, digest = read_members(path)
    return verify_members(members, digest, keys=keys, models=models, now=now)


def read_members(path: Path) -> tuple[dict[str, bytes], str]:
    """All members of an evidence file, and the digest of the file.

    Raises:
        TrustError: archive.*; InputError: files.*.
    """
    with open_archive(path, allowed=allowed, max_total=MOST_BYTES) as archive:
        return {name: archive.read(name) for name in archive.names}, archive.file_digest()


def verify_members(
    members: Mapping[str, bytes],
    digest: str,
    *,
    keys: Sequence[Key] = (),
    models: Sequence[Path] = (),
    now: datetime | None = None,
) -> Verification:
    """As `verify`, of what `read_members` gave: for readers that go on with the very bytes that were verified."""
    manifest = _manifest(members)
    return _FORMATS[manifest["schema"]](members, manifest, digest, keys, models, now)


def _verify_1(
    members: Mapping[str, bytes],
    manifest: Mapping[str, Any],
    digest: str,
    keys: Sequence[Key],
    models: Sequence[Path],
    now: datetime | None,
) -> Verification:
    """Format 1. A later format gets a function beside this one; this one must go on giving what it gives."""
    content = content_of(members)
    derived = derive(content)
    found = [*_manifest_differences(manifest, members), *differences(content)]
    found += compared(DECISION, _plain(members, DECISION), derived.value)
    notes = list(_notes(manifest, now, members, models))
    for model in models:
        found += _model_differences(content, model, notes)
    signers, code, why = _signed(members, content, manifest, derived.value["state"], keys)
    candidate, baseline = content.analyses["candidate"], content.analyses["baseline"]
    expires = manifest["expires"] or ""
    return Verification(
        state=derived.verdict.state,
        trusted=bool(signers),
        signed_by=signers,
        untrusted=(code, why),
        candidate=candidate.files[0].digest,
        candidate_files={p.name: p.digest for p in candidate.files},
        candidate_model=candidate.digest,
        baseline=baseline.files[0].digest,
        policy=content.policy.digest,
        verdict=derived.verdict,
        differences=tuple(found),
        notes=tuple(notes),
        timestamp=manifest["timestamp"],
        expires=expires,
        expired=bool(expires and now is not None and now >= read_time(expires, MANIFEST)),
        digest=digest,
    )


_FORMATS = {SCHEMA: _verify_1}
"""Schema of the manifest → how such evidence is verified. None is ever removed."""


def predicate(state: str, policy: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the signed statement says besides the digests, for readers that know in-toto and not us."""
    return {
        "state": state,
        "policy": policy,
        "timestamp": manifest["timestamp"],
        "expires": manifest["expires"],
        "made_by": manifest["made_by"],
    }


def _plain(members: Mapping[str, bytes], name: str) -> Any:
    try:
        return read_json(members, name)
    except InputError as e:
        raise refused("value", name, f"{e.problem} [{e.code}]") from e


def _manifest(members: Mapping[str, bytes]) -> dict[str, Any]:
    missing = [name for name in REQUIRED if name not in members]
    if missing:
        raise refused("missing", missing[0], "is not there")
    value = _plain(members, MANIFEST)
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str) or schema not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise refused("schema", MANIFEST, f"has schema {schema!r}; this version of edgeproof verifies {known}")
    try:
        closed_keys(value, _MANIFEST_KEYS, (), MANIFEST)
        read_time(value["timestamp"], f"{MANIFEST}: timestamp")
        if value["expires"] is not None:
            read_time(value["expires"], f"{MANIFEST}: expires")
        for name, entry in value["members"].items():
            closed_keys(entry, ("digest", "size"), (), f"{MANIFEST}: {name}")
    except (InputError, AttributeError) as e:
        raise refused("manifest", MANIFEST, str(e)) from e
    return value  # type: ignore[no-any-return]


def _manifest_differences(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> list[Difference]:
    """Every member has its digest in the manifest, and every digest its member."""
    listed = manifest["members"]
    present = {
        name: {"digest": digest_bytes(data), "size": len(data)}
        for name, data in members.items()
        if name not in (MANIFEST, ATTESTATION)
    }
    found = []
    for name in sorted(listed.keys() | present.keys()):
        if name not in listed:
            found.append(Difference("evidence.extra_member", name, "member", "there", "not in the manifest"))
        elif name not in present:
            found.append(Difference("evidence.missing_member", name, "member", None, listed[name]["digest"]))
        elif listed[name] != present[name]:
            digest = listed[name]["digest"]
            found.append(Difference("evidence.member_digest", name, "digest", present[name]["digest"], digest))
    return found


def _signed(
    members: Mapping[str, bytes],
    content: Content,
    manifest: Mapping[str, Any],
    state: str,
    trusted: Sequence[Key],
) -> tuple[tuple[str, ...], str, str]:
    if ATTESTATION not in members:
        return (), "evidence.unsigned", "nobody signed it"
    part = content.analyses["candidate"].files[0]
    expected = statement(
        part.name, part.digest, digest_bytes(members[MANIFEST]), predicate(state, content.policy.digest, manifest)
    )
    return signed_by(members[ATTESTATION], expected, trusted)


def _notes(
    manifest: Mapping[str, Any], now: datetime | None, members: Mapping[str, bytes], models: Sequence[Path]
) -> list[str]:
    notes = []
    if manifest["expires"] and now is None:
        notes.append(f"it may be acted on until {manifest['expires']}; no time was given to hold that against")
    if not models:
        notes.append("no model file was given: its size and analysis are as sealed, its bytes were not seen")
    if "report.html" in members:
        notes.append(
            "report.html is for reading: its bytes are covered by the manifest, its numbers are not recomputed"
        )
    return notes


def _model_differences(content: Content, path: Path, notes: list[str]) -> list[Difference]:
    """A model's bytes against the analysis that was sealed."""
    digest = digest_file(plain(path))
    sides = {side: a for side, a in content.analyses.items() if a.files[0].digest == digest}
    if not sides:
        expected = content.analyses["candidate"].files[0].digest
        return [Difference("evidence.model_bytes", "analysis-candidate.json", path.name, digest, expected)]
    side, sealed = sorted(sides.items(), reverse=True)[0]  # the candidate, when both are one
    if sealed.format == "onnx" and importlib.util.find_spec("onnx") is None:
        notes.append(
            f"{path.name} has the sealed digest; its analysis needs 'edgeproof[optimize]' and was not repeated"
        )
        return []
    try:
        again = read_structure(path)
    except EdgeproofError as e:
        return [
            Difference(
                "evidence.analysis", f"analysis-{side}.json", path.name, "an analysis", f"{e.problem} [{e.code}]"
            )
        ]
    return _analysis_differences(side, sealed, again, notes)


def _analysis_differences(side: str, sealed: Structure, again: Structure, notes: list[str]) -> list[Difference]:
    """Facts of the bytes must be equal; findings may grow with the checks that later versions have."""
    member = f"analysis-{side}.json"
    first = replace(again.files[0], name=sealed.files[0].name)  # a file may be renamed on its way
    facts, before = (
        {k: v for k, v in s.to_json().items() if k not in ("name", "findings", "checks", "facts")}
        for s in (replace(again, files=(first, *again.files[1:])), sealed)
    )
    found = [
        Difference("evidence.analysis", member, d.what, d.got, d.expected) for d in compared(member, before, facts)
    ]
    new, gone, _ = findings(sealed, again)
    notes.extend(f"{member}: this version's checks also find {f.subject}: {f.problem}" for f in new)
    notes.extend(f"{member}: this version's checks no longer find {f.subject}: {f.problem}" for f in gone)
    return found
