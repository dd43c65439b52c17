"""A TUF repository in a folder that any static web server, or a USB stick, can serve.

```
REPO/
  metadata/N.root.json, N.targets.json, N.LINE.json, N.snapshot.json, timestamp.json
  targets/LINE/SHA256.NAME-VERSION.bundle
```

The root is 2-of-3 by default, with keys that are kept offline; so is ``targets``, which only delegates: one role per
product line, for the paths ``LINE/*`` alone. Snapshot and timestamp are signed by online keys and expire soon.
Private keys never lie in this folder. Every file is written whole, in an order that keeps a reader consistent.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..digest import PREFIX
from ..errors import InputError
from ..files import os_error, plain, replacing, write_bytes
from .delegation import check_count, delegator_of, with_keys, with_line
from .keys import distinct
from .roles import TOP, Expiry, Roles, Written, read, signed_anew

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The keys of the four top-level roles of a new repository.

    Attributes:
        root: At least ``root_threshold`` keys, kept offline and apart from each other.
        targets: Kept offline.
        snapshot: Online.
        timestamp: Online; may be the same as the snapshot's.
        root_threshold: Signatures that a root needs.
        targets_threshold: Signatures that a delegation needs.
    """

    root: Sequence[SSlibKey]
    targets: Sequence[SSlibKey]
    snapshot: Sequence[SSlibKey]
    timestamp: Sequence[SSlibKey]
    root_threshold: int = 2
    targets_threshold: int = 1


def create(
    folder: Path, keys: RootKeys, signers: Sequence[CryptoSigner], *, now: datetime, expiry: Expiry | None = None
) -> bytes:
    """Begin a repository without product lines.

    Args:
        folder: A new or empty folder.
        keys: Public keys by role.
        signers: Private keys: as many of the root's and targets' as their thresholds ask, and the online ones.
        now: Time of signing.
        expiry: Lifetimes.

    Returns:
        The root metadata: what devices get at the factory.

    Raises:
        InputError: repo.exists, repo.threshold, repo.online_root, keys.duplicate, files.*.
    """
    from tuf.api.metadata import Delegations, Metadata, Role, Root, Snapshot, Targets, Timestamp

    if _in_use(folder):
        raise InputError("repo.exists", str(folder), "holds a repository already", "choose another folder")
    online = {k.keyid for k in (*keys.snapshot, *keys.timestamp)}
    for key in (*keys.root, *keys.targets):
        if key.keyid in online:
            problem = f"the key {key.keyid[:12]} would be both offline and online"
            hint = "make keys of their own for root and targets, and keep them off the machine that publishes"
            raise InputError("repo.online_root", str(folder), problem, hint)
    by_role = {name: distinct(getattr(keys, name), f"role {name}") for name in TOP}
    thresholds = {"root": keys.root_threshold, "targets": keys.targets_threshold, "snapshot": 1, "timestamp": 1}
    for name in TOP:
        check_count(name, len(by_role[name]), thresholds[name])
    roles = {name: Role([k.keyid for k in by_role[name]], thresholds[name]) for name in TOP}
    known: dict[str, Any] = {k.keyid: k for role_keys in by_role.values() for k in role_keys}
    new = Roles(
        Metadata(Root(keys=known, roles=roles, consistent_snapshot=True)),
        Metadata(Targets(delegations=Delegations({}, roles={}))),
        {},
        Metadata(Snapshot()),
        Metadata(Timestamp()),
    )
    new, written = signed_anew(None, new, ("root", "targets"), signers, expiry=expiry or Expiry(), now=now)
    publish(folder, written)
    return new.root.to_bytes()


def add_line(
    folder: Path,
    line: str,
    keys: Sequence[SSlibKey],
    signers: Sequence[CryptoSigner],
    *,
    now: datetime,
    threshold: int = 1,
    expiry: Expiry | None = None,
) -> None:
    """Delegate the paths ``LINE/*`` to keys of their own.

    Args:
        folder: The repository.
        line: Name of the product line.
        keys: Keys that may sign its bundles.
        signers: The targets key, enough of the line's keys, and the online ones.
        now: Time of signing.
        threshold: Signatures that a change of the line needs.
        expiry: Lifetimes.

    Raises:
        InputError: repo.line, repo.threshold, manifest.name, keys.duplicate.
        TrustError: repo.broken, repo.foreign.
    """
    with locked(folder):
        old = read(folder)
        sign_and_publish(folder, old, with_line(old, line, keys, threshold), (line, "targets"), signers, now, expiry)


def add_target(
    folder: Path,
    line: str,
    name: str,
    file: Path,
    custom: dict[str, Any],
    signers: Sequence[CryptoSigner],
    *,
    now: datetime,
    expiry: Expiry | None = None,
) -> str:
    """Publish a file under a product line. `release.add_bundle` is what checks that it is a bundle.

    Args:
        folder: The repository.
        line: The product line.
        name: File name in the line's folder.
        file: What to publish; copied in a stream.
        custom: What a client may know before it downloads.
        signers: Enough of the line's keys, and the online ones.
        now: Time of signing.
        expiry: Lifetimes.

    Returns:
        The target's path, ``LINE/NAME``.

    Raises:
        InputError: repo.role, repo.threshold, repo.published.
        TrustError: repo.broken, repo.foreign.
    """
    from tuf.api.metadata import Metadata, TargetFile, Targets

    with locked(folder):
        old = read(folder)
        _check_line(old, line)
        path = f"{line}/{name}"
        if path in old.of(line).signed.targets:
            hint = "what is published never changes; count bundle_version up"
            raise InputError("repo.published", path, "is published already", hint)
        with _copied(file, folder / "targets" / line) as (part, sha256, size):
            changed: Metadata[Targets] = Metadata.from_bytes(old.of(line).to_bytes())
            changed.signed.targets[path] = TargetFile(size, {"sha256": sha256}, path, {"custom": custom})
            new = old.with_role(line, changed)
            _, written = signed_anew(old, new, (line,), signers, expiry=expiry or Expiry(), now=now)
            part.replace(part.with_name(f"{sha256}.{name}"))
            publish(folder, written)
    return path


def remove_target(
    folder: Path, path: str, signers: Sequence[CryptoSigner], *, now: datetime, expiry: Expiry | None = None
) -> None:
    """Withdraw a target. Devices no longer find it; those that have it keep it.

    Raises:
        InputError: repo.role, repo.target, repo.threshold.
        TrustError: repo.broken, repo.foreign.
    """
    from tuf.api.metadata import Metadata, Targets

    line = path.partition("/")[0]
    with locked(folder):
        old = read(folder)
        _check_line(old, line)
        changed: Metadata[Targets] = Metadata.from_bytes(old.of(line).to_bytes())
        if path not in changed.signed.targets:
            raise InputError("repo.target", path, "is not published here", "see 'edgeproof repo show'")
        target = changed.signed.targets.pop(path)
        sign_and_publish(folder, old, old.with_role(line, changed), (line,), signers, now, expiry)
        for stored in target.get_prefixed_paths():
            (folder / "targets" / stored).unlink(missing_ok=True)


def refresh(
    folder: Path,
    signers: Sequence[CryptoSigner],
    *,
    now: datetime,
    roles: Sequence[str] = ("snapshot",),
    expiry: Expiry | None = None,
) -> None:
    """Sign roles again with a new expiry; the timestamp always.

    Args:
        folder: The repository.
        signers: Keys of the roles, and the online ones.
        now: Time of signing.
        roles: ``root``, ``targets``, ``snapshot`` or product lines.
        expiry: Lifetimes.

    Raises:
        InputError: repo.role, repo.threshold.
        TrustError: repo.broken, repo.foreign.
    """
    with locked(folder):
        old = read(folder)
        for role in roles:
            old.of(role)
        sign_and_publish(folder, old, old, tuple(r for r in roles if r != "timestamp"), signers, now, expiry)


def change_keys(
    folder: Path,
    role: str,
    signers: Sequence[CryptoSigner],
    *,
    now: datetime,
    add: Sequence[SSlibKey] = (),
    remove: Sequence[str] = (),
    threshold: int | None = None,
    expiry: Expiry | None = None,
) -> None:
    """Rotate or revoke keys of any role, the root included.

    A new root must carry enough signatures of the old root's keys and of its own, so that devices can follow the chain.
    The role itself is signed again, so that nothing rests on a revoked key.

    Args:
        folder: The repository.
        role: A top-level role or a product line.
        signers: Keys of the delegating role (root, or targets for a line), of the role itself, and the online ones.
        now: Time of signing.
        add: New public keys.
        remove: Ids of keys to revoke, or the beginnings of them.
        threshold: Signatures that the role needs from now on; None leaves it.
        expiry: Lifetimes.

    Raises:
        InputError: repo.role, repo.key, repo.threshold, keys.duplicate.
        TrustError: repo.broken, repo.foreign.
    """
    with locked(folder):
        old = read(folder)
        asked = dict.fromkeys(r for r in (delegator_of(role), role) if r != "timestamp")
        sign_and_publish(folder, old, with_keys(old, role, add, remove, threshold), tuple(asked), signers, now, expiry)


def publish(folder: Path, written: Sequence[Written]) -> None:
    """Write files in the order given, each under a temporary name first."""
    for name, data in written:
        write_bytes(folder / name, data)


def sign_and_publish(
    folder: Path,
    old: Roles,
    new: Roles,
    changed: Sequence[str],
    signers: Sequence[CryptoSigner],
    now: datetime,
    expiry: Expiry | None,
) -> None:
    """Sign what changed and publish it; see `roles.signed_anew`."""
    _, written = signed_anew(old, new, changed, signers, expiry=expiry or Expiry(), now=now)
    publish(folder, written)


def _in_use(folder: Path) -> bool:
    """Whether anything was published there; what a lost beginning left behind does not count."""
    begun = {"1.root.json", "1.targets.json", "1.snapshot.json"}
    found = (folder / "metadata").glob("*")
    return any(path.name not in begun and not path.name.startswith(".") for path in found)


def _check_line(roles: Roles, line: str) -> None:
    if line not in roles.lines:
        known = ", ".join(sorted(roles.lines)) or "none yet"
        raise InputError("repo.role", line, "is no product line of this repository", f"known: {known}")


@contextmanager
def _copied(file: Path, folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Copy a target into its folder: a temporary file, and the SHA-256 and size of the very bytes written.

    The caller renames it; otherwise it is removed.
    """
    import hashlib

    h, size, part = hashlib.sha256(), 0, folder / f".{os.getpid()}.new"
    try:
        with replacing(part) as temporary, plain(file).open("rb") as source, temporary.open("wb") as out:
            while chunk := source.read(2**20):
                h.update(chunk)
                size += out.write(chunk)
    except OSError as e:
        raise os_error(file, e) from e
    try:
        yield part, h.hexdigest(), size
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep two publishers apart; readers need no lock.

    Raises:
        InputError: repo.none, repo.busy.
    """
    try:
        handle = os.open(folder / "metadata", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        hint = "make one with 'edgeproof repo create'"
        raise InputError("repo.none", str(folder), "is no repository", hint) from e
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise InputError("repo.busy", str(folder), "another edgeproof is publishing", "wait for it to end") from e
        yield
    finally:
        os.close(handle)


def describe(folder: Path) -> dict[str, Any]:
    """The roles with their keys, versions and expiries, and all targets, as JSON.

    Raises:
        InputError: repo.none.
        TrustError: repo.broken.
    """
    roles = read(folder)
    described = []
    for name in (*TOP, *sorted(roles.lines)):
        entry, signed = roles.keys_of(name), roles.of(name).signed
        described.append(
            {
                "role": name,
                "version": signed.version,
                "expires": signed.expires.isoformat(),
                "threshold": entry.threshold,
                "keys": list(entry.keyids),
            }
        )
    targets = [
        {"path": path, "size": t.length, "sha256": PREFIX + t.hashes["sha256"], **(t.custom or {})}
        for line in sorted(roles.lines)
        for path, t in sorted(roles.lines[line].signed.targets.items())
    ]
    return {"roles": described, "targets": targets}
