"""Why python-tuf refused: one error code for every cause.

python-tuf decides; this only says what was wrong, from the file that was read last and from what was trusted before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EdgeproofError, InputError, TrustError

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Root

_ASK = "ask whoever runs the repository; nothing was installed"
_TOP = ("root", "timestamp", "snapshot", "targets")


def cause(error: Exception, last: tuple[str, bytes], trusted: Path, source: str) -> EdgeproofError:
    """What a failure of python-tuf's means.

    Args:
        error: What it raised.
        last: Name and content of the metadata file that was read last.
        trusted: Folder of the metadata that is trusted so far.
        source: The repository, as the user gave it.
    """
    from tuf.api import exceptions as tuf
    from tuf.api.serialization import DeserializationError

    name, data = last
    role, subject = role_of(name), f"{source}: {name or 'repository'}"
    if isinstance(error, tuf.DownloadError):
        return _download(error, subject)
    if isinstance(error, DeserializationError):
        return _malformed(error, subject)
    found = _parsed(data)
    if found is not None and found.signed.type != (role if role in _TOP else "targets"):
        expected = role if role in _TOP else "targets"
        return TrustError("tuf.type", subject, f"holds metadata of type {found.signed.type!r}, not {expected!r}", _ASK)
    if isinstance(error, tuf.UnsignedMetadataError):
        return _signatures(found, role, trusted, subject)
    if isinstance(error, tuf.ExpiredMetadataError):
        return expired(str(error).removeprefix("New ").removeprefix("Final ").split(" ")[0], subject)
    if isinstance(error, tuf.BadVersionNumberError):
        return _version(error, found, role, trusted, subject)
    if isinstance(error, tuf.LengthOrHashMismatchError):
        problem = f"is not what the signed metadata above it lists ({error})"
        return TrustError("tuf.mismatch", subject, problem, _ASK)
    if "missing info" in str(error):
        return TrustError("tuf.removed", subject, f"no longer lists what it listed before ({error})", _ASK)
    if "not part of snapshot" in str(error) or "does not contain" in str(error):
        return TrustError("tuf.incomplete", subject, f"is not listed in the snapshot ({error})", _ASK)
    return TrustError("tuf.refused", subject, f"was refused: {error}", _ASK)


def expired(file: str, subject: str, when: str = "") -> TrustError:
    """An expiry, with a code of its own for each role."""
    role = role_of(file)
    kind = role if role in _TOP else "line"
    return TrustError(
        f"tuf.expired_{kind}",
        subject,
        f"{role} is no longer valid{when}",
        "publish it anew with 'edgeproof repo refresh'; check this device's clock",
    )


def role_of(name: str) -> str:
    """The role of a metadata file's name.

    >>> role_of("12.targets.json"), role_of("timestamp.json")
    ('targets', 'timestamp')
    """
    stem = name.removesuffix(".json")
    head, dot, rest = stem.partition(".")
    return rest if dot and head.isdigit() else stem


def _download(error: Exception, subject: str) -> EdgeproofError:
    from tuf.api import exceptions as tuf

    if isinstance(error, tuf.DownloadLengthMismatchError):
        return TrustError("tuf.too_long", subject, f"is longer than it may be ({error})", _ASK)
    if isinstance(error, tuf.SlowRetrievalError) and not _refused_connection(error):
        problem = f"came too slowly ({error})" if str(error) else "came too slowly"
        return TrustError("tuf.slow", subject, problem, "try again later, or from another place")
    if isinstance(error, tuf.DownloadHTTPError):
        return InputError("tuf.missing", subject, f"is not there ({error})", "check the address, then the repository")
    reason = error.__cause__ or error
    return InputError("tuf.unreachable", subject, f"cannot be read: {reason}", "check the address and the network")


def _refused_connection(error: Exception) -> bool:
    """Whether nobody answered: urllib3 counts that among its timeouts, and python-tuf among slow retrievals."""
    from urllib3.exceptions import MaxRetryError, NewConnectionError

    return isinstance(error.__cause__, MaxRetryError) and isinstance(error.__cause__.reason, NewConnectionError)


def _malformed(error: Exception, subject: str) -> TrustError:
    reason = str(error.__cause__ or error)
    if "Multiple signatures" in reason:
        problem = f"carries one key's signature twice ({reason})"
        return TrustError("tuf.duplicate_signature", subject, problem, _ASK)
    return TrustError("tuf.malformed", subject, f"is no TUF metadata ({reason or type(error).__name__})", _ASK)


def _signatures(found: Metadata[Any] | None, role: str, trusted: Path, subject: str) -> TrustError:
    """Say which signatures are there and why they do not count."""
    if found is None or not found.signatures:
        return TrustError("tuf.unsigned", subject, "is not signed", _ASK)
    root: Metadata[Root] | None = _parsed(_bytes(trusted / "root.json"))
    delegator = root if role in _TOP else _parsed(_bytes(trusted / "targets.json"))
    if root is None or delegator is None:
        return TrustError("tuf.wrong_key", subject, "is not signed by keys that are trusted", _ASK)
    result = delegator.signed.get_verification_result(role, found.signed_bytes, found.signatures)
    if result.verified and role == "root":  # the old root's keys signed it; its own must too
        delegator = found
        result = delegator.signed.get_verification_result(role, found.signed_bytes, found.signatures)
    own = set(delegator.signed.get_delegated_role(role).keyids)
    signers = ", ".join(sorted(keyid[:12] for keyid in found.signatures))
    if (own & set(found.signatures)) - set(result.signed):
        return TrustError("tuf.bad_signature", subject, "has a signature that does not fit its content", _ASK)
    if result.signed:
        problem = f"has {len(result.signed)} of the {result.threshold} signatures that it needs"
        return TrustError("tuf.threshold", subject, problem, _ASK)
    if set(found.signatures) & set(root.signed.keys):
        problem = f"is signed by {signers}, which is a key of another role"
        return TrustError("tuf.wrong_role", subject, problem, _ASK)
    former = {keyid for path in trusted.glob("root_history/*.root.json") for keyid in _keys(path)}
    if set(found.signatures) & former:
        return TrustError("tuf.revoked", subject, f"is signed by {signers}, which was revoked", _ASK)
    return TrustError("tuf.wrong_key", subject, f"is signed by {signers}; {role} has other keys", _ASK)


def _version(error: Exception, found: Metadata[Any] | None, role: str, trusted: Path, subject: str) -> TrustError:
    if role == "root":
        return TrustError("tuf.root_gap", subject, f"does not follow the root before it ({error})", _ASK)
    if role == "timestamp":
        return rollback(subject, str(error))
    above = _parsed(_bytes(trusted / ("timestamp.json" if role == "snapshot" else "snapshot.json")))
    if found is not None and above is not None:
        entry = above.signed.snapshot_meta if role == "snapshot" else above.signed.meta.get(f"{role}.json")
        if entry is not None and entry.version != found.signed.version:
            problem = f"has version {found.signed.version}; {entry.version} is the one published"
            return TrustError("tuf.version_mismatch", subject, problem, _ASK)
    return rollback(subject, str(error))


def rollback(subject: str, what: str) -> TrustError:
    """Something older than what was seen before."""
    hint = "this is an old copy of the repository, or an attack; nothing was installed"
    return TrustError("tuf.rollback", subject, f"is older than what was seen before ({what})", hint)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parsed(data: bytes) -> Metadata[Any] | None:
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata

    try:
        found: Metadata[Any] = Metadata.from_bytes(data)
    except RepositoryError:
        return None
    return found


def _keys(path: Path) -> set[str]:
    found = _parsed(_bytes(path))
    return set() if found is None else set(found.signed.keys)
