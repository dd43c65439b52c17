"""What a device remembers of its repository, in a folder of its own.

```
STATE/
  root.json       the root that came from the factory
  trust.json      factory floor, last seen time, versions seen, and the last timestamp that was seen expired
  metadata/       python-tuf's own folder: the metadata that is trusted now
```

``last_seen`` rises only with a refresh that succeeded, so it never passes the expiry of a signed timestamp: a clock
set far ahead cannot lock a device out for good. What such a clock makes look expired is refused until a newer
timestamp is published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, TrustError
from ..files import check_record, os_error, write_bytes, write_json
from ..strictjson import keys, loads

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata

SCHEMA = "edgeproof.trust/1"
_ROOT = "give the 1.root.json, or a later one, of the repository"


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest version seen of a role, and the keys it had then: new keys begin a new count.

    Source: TUF specification 1.0, section 5.3.11 (recovery from a fast-forward attack).
    """

    version: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """What a device remembers.

    Attributes:
        last_seen: Latest time at which the repository was found valid, ISO 8601; the factory's at first.
        security_floor: No bundle below it is ever taken; the factory's. The device keeps its own, which may be higher.
        seen: Role → what was seen of it.
        stale: Version of the timestamp that was last seen expired, with its keys; version 0 when none was.
    """

    last_seen: str
    security_floor: int = 0
    seen: Mapping[str, Seen] = field(default_factory=dict)
    stale: Seen = field(default_factory=lambda: Seen(0, ()))

    @property
    def time(self) -> datetime:
        """``last_seen`` as a time."""
        return datetime.fromisoformat(self.last_seen)


def provision(state: Path, root: bytes, *, last_seen: datetime, security_floor: int = 0) -> None:
    """Give a fresh device what it trusts. Done once, at the factory.

    Args:
        state: The device's trust folder; it must not hold a root yet.
        root: Root metadata, as 'edgeproof repo create' wrote it.
        last_seen: No repository that expired before this time is believed; the time of provisioning.
        security_floor: No bundle with a smaller security version is believed.

    Raises:
        InputError: trust.exists, trust.time, files.*.
        TrustError: trust.root, when it is no root or not signed by its own keys.
    """
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata

    if (state / "root.json").exists():
        raise InputError("trust.exists", str(state), "has its root already", "give another folder")
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(root)
        if metadata.signed.type != "root":
            raise TrustError("trust.root", "root metadata", f"is of type {metadata.signed.type}", _ROOT)
        metadata.signed.verify_delegate("root", metadata.signed_bytes, metadata.signatures)
    except RepositoryError as e:
        raise TrustError("trust.root", "root metadata", f"cannot be trusted: {e}", _ROOT) from e
    if last_seen.tzinfo is None:
        raise InputError("trust.time", str(last_seen), "has no time zone", "give it in UTC")
    write_trust(state, Trust(last_seen.astimezone(UTC).isoformat(timespec="seconds"), security_floor))
    write_bytes(state / "root.json", root)


def read_trust(state: Path) -> Trust:
    """What the device remembers.

    Raises:
        InputError: trust.missing, json.*, files.value.
    """
    path = state / "trust.json"
    if not path.is_file():
        hint = "provision the device with the root of its repository first"
        raise InputError("trust.missing", str(state), "is no trust folder of a device", hint)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
    subject = str(path)
    value = keys(loads(data, subject), ("schema", "last_seen", "security_floor", "seen", "stale"), (), subject)
    if value.pop("schema") != SCHEMA:
        raise InputError("files.value", subject, f"is not of the schema {SCHEMA}", "restore the file")
    seen = {role: _seen(entry, f"{subject}: {role}") for role, entry in _object(value.pop("seen"), subject).items()}
    stale = _seen(value.pop("stale"), f"{subject}: stale")
    check_record(Trust, value, subject)
    try:
        aware = datetime.fromisoformat(value["last_seen"]).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        problem = f"has the time {value['last_seen'][:40]!r}; expected one with its time zone"
        raise InputError("files.value", subject, problem, "restore the file")
    return Trust(**value, seen=seen, stale=stale)


def _seen(value: Any, subject: str) -> Seen:
    check_record(Seen, keys(value, ("version", "keys"), (), subject), subject)
    return Seen(value["version"], tuple(value["keys"]))


def _object(value: Any, subject: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError("files.value", f"{subject}: seen", "is no object", "restore the file")
    return value


def write_trust(state: Path, trust: Trust) -> None:
    """Keep what is remembered, on the disk when this returns."""
    write_json(state / "trust.json", {"schema": SCHEMA, **asdict(trust)})
    try:
        handle = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as e:
        raise os_error(state, e) from e
