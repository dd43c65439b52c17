"""Who may sign what: the roles with another product line, or with other keys. Nothing is signed or written here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..manifest import check_name
from .keys import distinct
from .roles import TOP, Roles

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

MOST_KEYS = 1000
"""Most keys of one role."""


def with_line(old: Roles, line: str, keys: Sequence[SSlibKey], threshold: int) -> Roles:
    """The roles with another product line, whose keys may sign the paths ``LINE/*`` and no other.

    Raises:
        InputError: repo.line, repo.threshold, manifest.name, keys.duplicate.
    """
    from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Targets

    check_name(line, f"product line {line}")
    if line in TOP or line in old.lines:
        raise InputError("repo.line", line, "is taken", "choose another name, or change its keys with 'repo keys'")
    keys = distinct(keys, f"role {line}")
    check_count(line, len(keys), threshold)
    targets: Metadata[Targets] = Metadata.from_bytes(old.targets.to_bytes())
    delegations = targets.signed.delegations or Delegations({}, roles={})
    assert delegations.roles is not None
    role = DelegatedRole(line, [k.keyid for k in keys], threshold, terminating=True, paths=[f"{line}/*"])
    delegations.roles[line] = role
    delegations.keys.update({k.keyid: k for k in keys})
    targets.signed.delegations = delegations
    return old.with_role("targets", targets).with_role(line, Metadata(Targets()))


def with_keys(old: Roles, role: str, add: Sequence[SSlibKey], remove: Sequence[str], threshold: int | None) -> Roles:
    """The roles with other keys for one of them.

    Args:
        old: The roles.
        role: A top-level role or a product line.
        add: New public keys.
        remove: Ids of keys to revoke, or the beginnings of them.
        threshold: Signatures that the role needs from now on; None leaves it.

    Raises:
        InputError: repo.role, repo.key, repo.threshold, keys.duplicate.
    """
    from tuf.api.metadata import Metadata

    gone = [_key_id(old, role, beginning) for beginning in remove]
    changed: Metadata[Any] = Metadata.from_bytes(old.of(delegator_of(role)).to_bytes())
    for key in add:
        changed.signed.add_key(key, role)
    for keyid in gone:
        changed.signed.revoke_key(keyid, role)
    entry = changed.signed.get_delegated_role(role)
    entry.threshold = entry.threshold if threshold is None else threshold
    check_count(role, len(entry.keyids), entry.threshold)
    source = changed.signed if role in TOP else changed.signed.delegations
    distinct([source.keys[keyid] for keyid in entry.keyids], f"role {role}")
    return old.with_role(delegator_of(role), changed)


def delegator_of(role: str) -> str:
    """The role that names the keys of another."""
    return "root" if role in TOP else "targets"


def check_count(role: str, keys: int, threshold: int) -> None:
    """A role must have as many keys as it needs signatures.

    Raises:
        InputError: repo.threshold.
    """
    if not 1 <= threshold <= keys <= MOST_KEYS:
        problem = f"has {keys} keys and needs {threshold} signatures"
        raise InputError("repo.threshold", f"role {role}", problem, "give more keys, or a smaller threshold")


def _key_id(roles: Roles, role: str, beginning: str) -> str:
    found = [keyid for keyid in roles.keys_of(role).keyids if keyid.startswith(beginning)]
    if len(found) != 1 or len(beginning) < 8:
        problem = f"has {len(found)} keys whose id begins with {beginning!r}; expected one, named by 8 digits or more"
        raise InputError("repo.key", f"role {role}", problem, "see the ids with 'edgeproof repo show'")
    return found[0]
