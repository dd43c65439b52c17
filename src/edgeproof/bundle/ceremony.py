"""Sign root and targets where their keys are: propose a file, have it signed on other machines, publish it.

Only the file travels. Nobody needs two offline keys in one place, and the machine that publishes needs none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, TrustError
from .repository import locked, sign_and_publish
from .roles import Expiry, Roles, read

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner
    from tuf.api.metadata import Metadata

LIMIT_BYTES = 5_000_000
OFFLINE = ("root", "targets")


def propose(old: Roles, new: Roles, role: str, *, now: datetime, expiry: Expiry | None = None) -> bytes:
    """The next version of an offline role, without signatures.

    Args:
        old: What is published.
        new: The roles with the change; see `delegation`.
        role: ``root`` or ``targets``: which of them changed.
        now: Time from which its lifetime counts.
        expiry: Lifetimes.

    Raises:
        InputError: repo.staged, for a role that is not kept offline.
    """
    from tuf.api.metadata import Metadata

    if role not in OFFLINE:
        raise InputError("repo.staged", f"role {role}", "is signed online", "leave --stage out")
    metadata: Metadata[Any] = Metadata.from_bytes(new.of(role).to_bytes())
    metadata.signed.version = old.of(role).signed.version + 1
    metadata.signed.expires = now.astimezone(UTC) + (expiry or Expiry()).of(role)
    metadata.signatures.clear()
    return metadata.to_bytes()


def countersign(data: bytes, signers: Sequence[CryptoSigner], subject: str) -> bytes:
    """A proposed file with one more signature of each signer.

    Raises:
        InputError: repo.staged, when it is no proposal.
    """
    metadata = _proposal(data, subject)
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()


def adopt(
    folder: Path, data: bytes, signers: Sequence[CryptoSigner], *, now: datetime, expiry: Expiry | None = None
) -> None:
    """Publish a proposed file that is signed, with everything whose keys it changes.

    Args:
        folder: The repository.
        data: The file.
        signers: The online keys, and those of every role or product line that it names new keys for.
        now: Time of signing.
        expiry: Lifetimes of what is signed now.

    Raises:
        InputError: repo.staged, repo.threshold.
        TrustError: repo.stale, when another change was published meanwhile; repo.broken, repo.foreign.
    """
    from tuf.api.metadata import Metadata, Targets

    metadata = _proposal(data, "the staged file")
    role = metadata.signed.type
    with locked(folder):
        old = read(folder)
        if metadata.signed.version != old.of(role).signed.version + 1:
            problem = f"is version {metadata.signed.version}; {old.of(role).signed.version} is published"
            raise TrustError("repo.stale", f"staged {role}", problem, "stage the change again, and have it signed")
        new = old.with_role(role, metadata)
        for line in _delegated(metadata) if role == "targets" else ():
            new = new if line in old.lines else new.with_role(line, Metadata(Targets()))
        moved = [r for r in ("targets", "snapshot", *new.lines) if _keys(old, r) != _keys(new, r)]
        sign_and_publish(folder, old, new, (role, *moved), signers, now, expiry)


def summary(data: bytes) -> dict[str, Any]:
    """What a proposed file says, for whoever is to sign it, as JSON."""
    metadata = _proposal(data, "the staged file")
    signed = metadata.signed
    entries = signed.roles if signed.type == "root" else (signed.delegations and signed.delegations.roles) or {}
    return {
        "role": signed.type,
        "version": signed.version,
        "expires": signed.expires.isoformat(),
        "roles": [
            {"role": name, "threshold": entry.threshold, "keys": list(entry.keyids)} for name, entry in entries.items()
        ],
        "signed_by": list(metadata.signatures),
    }


def _proposal(data: bytes, subject: str) -> Metadata[Any]:
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata

    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data[: LIMIT_BYTES + 1])
    except RepositoryError as e:
        raise InputError("repo.staged", subject, f"is no TUF metadata ({e})", "give a file made with --stage") from e
    if metadata.signed.type not in OFFLINE:
        problem = f"is metadata of type {metadata.signed.type}"
        raise InputError("repo.staged", subject, problem, "give a file made with --stage")
    return metadata


def _delegated(metadata: Metadata[Any]) -> list[str]:
    delegations = metadata.signed.delegations
    return [] if delegations is None else list(delegations.roles or {})


def _keys(roles: Roles, role: str) -> tuple[list[str], int]:
    """Key ids and threshold of a role; none where it is not there yet."""
    if role not in ("targets", "snapshot") and role not in roles.lines:
        return [], 0
    entry = roles.keys_of(role)
    return sorted(entry.keyids), entry.threshold
