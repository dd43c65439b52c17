"""The signed metadata of a repository as one value: read it verified, sign it anew, say what to write in which order.

Nothing here writes. A change gives a list of files in an order in which a reader sees a whole repository at any moment:
what is new has a new name (consistent snapshots) and becomes visible with the timestamp. A timestamp is signed with the
old and the new keys when they change, and written before the root that names the new ones.
Source: TUF specification 1.0, sections 4, 5.3 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, TrustError
from ..files import os_error

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner
    from tuf.api.metadata import Metadata, MetaFile, Role, Root, Snapshot, Targets, Timestamp

TOP = ("root", "targets", "snapshot", "timestamp")
"""Names of the top-level roles."""
Written = tuple[str, bytes]
"""Path in the repository, and the content to write there."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """How long what is signed now stays valid. Offline roles live long, online ones briefly."""

    root: timedelta = timedelta(days=365)
    targets: timedelta = timedelta(days=90)
    snapshot: timedelta = timedelta(days=7)
    timestamp: timedelta = timedelta(days=1)

    def of(self, role: str) -> timedelta:
        """The lifetime of a role; product lines live as long as ``targets``."""
        by_role = {"root": self.root, "snapshot": self.snapshot, "timestamp": self.timestamp}
        return by_role.get(role, self.targets)


@dataclass(frozen=True, slots=True)
class Roles:
    """All current metadata. The metadata objects are never changed; `signed_anew` gives new ones.

    Attributes:
        root: Names the keys of the four top-level roles.
        targets: Delegates to product lines.
        lines: Product line → its targets.
        snapshot: Versions and hashes of targets and lines.
        timestamp: Version and hash of the snapshot.
    """

    root: Metadata[Root]
    targets: Metadata[Targets]
    lines: dict[str, Metadata[Targets]]
    snapshot: Metadata[Snapshot]
    timestamp: Metadata[Timestamp]

    def of(self, role: str) -> Metadata[Any]:
        """The metadata of a role.

        Raises:
            InputError: repo.role.
        """
        top: dict[str, Metadata[Any]] = {name: getattr(self, name) for name in TOP}
        found = top.get(role, self.lines.get(role))
        if found is None:
            known = ", ".join((*TOP, *sorted(self.lines)))
            raise InputError("repo.role", role, "is no role of this repository", f"known: {known}")
        return found

    def keys_of(self, role: str) -> Role:
        """Key ids and threshold of a role."""
        self.of(role)
        delegator = self.root if role in TOP else self.targets
        return delegator.signed.get_delegated_role(role)

    def with_role(self, role: str, metadata: Metadata[Any]) -> Roles:
        """These roles with another metadata for one of them."""
        if role in TOP:
            top: dict[str, Any] = {role: metadata}
            return replace(self, **top)
        return replace(self, lines={**self.lines, role: metadata})


def read(folder: Path) -> Roles:
    """All metadata of a repository, with every signature checked from the first root on.

    Expiry does not matter here: an expired role is renewed by signing it again.

    Raises:
        InputError: repo.none.
        TrustError: repo.broken, naming the file.
    """
    from tuf.api.metadata import Root, Snapshot, Targets, Timestamp

    if not (folder / "metadata" / "1.root.json").is_file():
        raise InputError("repo.none", str(folder), "is no repository", "make one with 'edgeproof repo create'")
    root = _load(folder, "1.root.json", Root)
    _verified(root, "root", root, folder, "1.root.json")
    while (folder / "metadata" / f"{root.signed.version + 1}.root.json").is_file():
        name = f"{root.signed.version + 1}.root.json"
        following = _load(folder, name, Root)
        _verified(root, "root", following, folder, name)
        _verified(following, "root", following, folder, name)
        if following.signed.version != root.signed.version + 1:
            raise _broken(folder, name, f"has version {following.signed.version}")
        root = following
    timestamp = _load(folder, "timestamp.json", Timestamp)
    _verified(root, "timestamp", timestamp, folder, "timestamp.json")
    meta = timestamp.signed.snapshot_meta
    snapshot = _listed(folder, "snapshot", meta, Snapshot, root)
    targets = _listed(folder, "targets", snapshot.signed.meta["targets.json"], Targets, root)
    lines = {
        line: _listed(folder, line, snapshot.signed.meta[f"{line}.json"], Targets, targets) for line in _lines(targets)
    }
    return Roles(root, targets, lines, snapshot, timestamp)


def signed_anew(
    old: Roles | None,
    new: Roles,
    changed: Iterable[str],
    signers: Sequence[CryptoSigner],
    *,
    expiry: Expiry,
    now: datetime,
) -> tuple[Roles, list[Written]]:
    """Sign what changed, and the snapshot and the timestamp above it.

    Args:
        old: What is published; None for a repository that begins.
        new: What is to be published; the roles in ``changed`` differ in content or are renewed.
        changed: Names of roles to sign again; snapshot and timestamp follow by themselves.
        signers: Whatever private keys are at hand; each role takes those that belong to it.
        expiry: Lifetimes, from ``now``.
        now: Time of signing.

    Returns:
        The new roles, and the files to write, in order.

    Raises:
        InputError: repo.threshold, when keys are missing.
        TrustError: repo.foreign, when a role to be signed was not signed by the same key before.
    """
    from tuf.api.metadata import MetaFile

    asked = list(dict.fromkeys(changed))
    written: list[Written] = []
    for role in [r for r in asked if r not in TOP] + [r for r in ("targets",) if r in asked]:
        new = _sign(old, new, role, signers, expiry, now)
        written.append(_file(role, new.of(role)))
    if old is None or "snapshot" in asked or written:
        meta = {f"{role}.json": _metafile(new.of(role), old, role) for role in ("targets", *new.lines)}
        snapshot = _copy(new.snapshot)
        snapshot.signed.meta = meta
        new = _sign(old, new.with_role("snapshot", snapshot), "snapshot", signers, expiry, now)
        written.append(_file("snapshot", new.snapshot))
    if "root" in asked:
        new = _sign(old, new, "root", signers, expiry, now)
    timestamp = _copy(new.timestamp)
    if written:
        data = written[-1][1]
        timestamp.signed.snapshot_meta = MetaFile.from_data(new.snapshot.signed.version, data, ["sha256"])
    new = _sign(old, new.with_role("timestamp", timestamp), "timestamp", signers, expiry, now)
    last: Written = ("metadata/timestamp.json", new.timestamp.to_bytes())
    if "root" not in asked:
        return new, [*written, last]
    root = _file("root", new.root)
    # A reader who has the old root must be able to read the new timestamp, or there is a moment in which it cannot.
    readable = old is not None and all(_verifies(old.root, role, new.of(role)) for role in TOP[1:])
    return new, [*written, last, root] if readable else [*written, root, last]


def _sign(
    old: Roles | None, new: Roles, role: str, signers: Sequence[CryptoSigner], expiry: Expiry, now: datetime
) -> Roles:
    """One role with the next version, a fresh expiry and signatures of every key at hand that belongs to it."""
    before = _before(old, role)
    if before is not None and _signed_elsewhere(old, new, role, before.signed.version + 1):
        return new
    metadata = _copy(new.of(role))
    metadata.signed.version = 1 if before is None else before.signed.version + 1
    metadata.signed.expires = now.astimezone(UTC) + expiry.of(role)
    metadata.signatures.clear()
    new = new.with_role(role, metadata)
    wanted = new.keys_of(role)
    former = list(old.keys_of(role).keyids) if old is not None and before is not None else []
    for signer in signers:
        if signer.public_key.keyid in {*wanted.keyids, *former}:
            metadata.sign(signer, append=True)
    delegators = [new.root if role in TOP else new.targets]
    if role == "root" and old is not None:
        delegators.append(old.root)
    for delegator in delegators:
        _check_threshold(delegator, role, metadata)
    if before is not None:
        _check_own(before, role, signers, wanted.keyids, former)
    return new


def _signed_elsewhere(old: Roles | None, new: Roles, role: str, version: int) -> bool:
    """Whether a role comes as the next version with all the signatures that it needs (`ceremony`)."""
    metadata = new.of(role)
    delegators = [new.root if role in TOP else new.targets]
    if role == "root" and old is not None:
        delegators.append(old.root)
    return metadata.signed.version == version and all(_verifies(d, role, metadata) for d in delegators)


def _check_threshold(delegator: Metadata[Any], role: str, metadata: Metadata[Any]) -> None:
    result = delegator.signed.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    if not result.verified:
        missing = ", ".join(sorted(keyid[:12] for keyid in result.unsigned))
        problem = f"has {len(result.signed)} of the {result.threshold} signatures that it needs"
        hint = f"give --key for more of the keys {missing}"
        raise InputError("repo.threshold", f"role {role}", problem, hint)


def _check_own(
    before: Metadata[Any], role: str, signers: Sequence[CryptoSigner], wanted: Sequence[str], former: Sequence[str]
) -> None:
    """A key never signs on top of what it did not sign itself: the folder may have been changed where it is served."""
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError

    for signer in signers:
        key = signer.public_key
        if key.keyid not in wanted or key.keyid not in former or role in ("snapshot", "timestamp"):
            continue
        try:
            key.verify_signature(before.signatures[key.keyid], before.signed_bytes)
        except (KeyError, UnverifiedSignatureError, VerificationError) as e:
            problem = f"was not signed by the key {key.keyid[:12]} before, which is to sign it now"
            hint = "compare it with what you published; sign with the keys that signed it last"
            raise TrustError("repo.foreign", f"role {role}", problem, hint) from e


def _before(old: Roles | None, role: str) -> Metadata[Any] | None:
    if old is None:
        return None
    return old.of(role) if role in TOP or role in old.lines else None


def _copy(metadata: Metadata[Any]) -> Metadata[Any]:
    from tuf.api.metadata import Metadata

    copied: Metadata[Any] = Metadata.from_bytes(metadata.to_bytes())
    return copied


def _metafile(metadata: Metadata[Any], old: Roles | None, role: str) -> MetaFile:
    """What the snapshot says of a role: unchanged files keep the entry that they have."""
    from tuf.api.metadata import MetaFile

    entry = None if old is None else old.snapshot.signed.meta.get(f"{role}.json")
    if entry is not None and entry.version == metadata.signed.version:
        return entry
    return MetaFile.from_data(metadata.signed.version, metadata.to_bytes(), ["sha256"])


def _file(role: str, metadata: Metadata[Any]) -> Written:
    return f"metadata/{metadata.signed.version}.{role}.json", metadata.to_bytes()


def _lines(targets: Metadata[Targets]) -> Iterator[str]:
    delegations = targets.signed.delegations
    yield from () if delegations is None or delegations.roles is None else delegations.roles


def _load(folder: Path, name: str, kind: type[Any], meta: MetaFile | None = None) -> Metadata[Any]:
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata

    path = folder / "metadata" / name
    try:
        data = path.read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
    try:
        if meta is not None:
            meta.verify_length_and_hashes(data)
        metadata: Metadata[Any] = Metadata.from_bytes(data)
    except RepositoryError as e:
        raise _broken(folder, name, f"cannot be read ({e})") from e
    if metadata.signed.type != kind.type:
        raise _broken(folder, name, f"is of type {metadata.signed.type}; expected {kind.type}")
    return metadata


def _listed(folder: Path, role: str, meta: MetaFile, kind: type[Any], delegator: Metadata[Any]) -> Metadata[Any]:
    name = f"{meta.version}.{role}.json"
    metadata = _load(folder, name, kind, meta)
    _verified(delegator, role, metadata, folder, name)
    if metadata.signed.version != meta.version:
        raise _broken(folder, name, f"has version {metadata.signed.version}")
    return metadata


def _verifies(delegator: Metadata[Any], role: str, metadata: Metadata[Any]) -> bool:
    result = delegator.signed.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    return bool(result.verified)


def _verified(delegator: Metadata[Any], role: str, metadata: Metadata[Any], folder: Path, name: str) -> None:
    if not _verifies(delegator, role, metadata):
        raise _broken(folder, name, "is not signed by enough of its keys")


def _broken(folder: Path, name: str, problem: str) -> TrustError:
    hint = "restore the repository from a copy that you trust"
    return TrustError("repo.broken", str(folder / "metadata" / name), problem, hint)
