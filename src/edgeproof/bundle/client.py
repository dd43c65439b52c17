"""A device's view of a repository: what it trusts, what it has seen, what it may install.

python-tuf decides what is signed; this adds what a device needs besides: an effective time that a clock set back
cannot lower, a timestamp that was once seen expired and stays so, versions that survive a lost metadata folder, the
factory's floor, and paths and fields of targets that are what a bundle's must be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ..digest import PREFIX
from ..errors import EdgeproofError, InputError, TrustError
from ..files import os_error, replacing
from .causes import cause, expired, rollback
from .trust import Seen, Trust, read_trust, write_trust

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata
    from tuf.ngclient import TargetFile, Updater

MOST_BYTES = 2**32
"""Largest bundle that is downloaded."""
MOST_VERSION = 2**53
"""No version from here on is believed: JSON numbers of that size have no one meaning, and none could follow."""
_ROLES = ("root", "timestamp", "snapshot", "targets")
_TARGET = re.compile(r"([a-z0-9][a-z0-9._-]*)/([a-z0-9][a-z0-9._-]*)-([1-9][0-9]{0,15})\.bundle")
_CUSTOM = {"name", "bundle_version", "security_version", "manifest"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A bundle that the repository offers, from signed metadata.

    Attributes:
        target: Its path, ``LINE/NAME-VERSION.bundle``.
        name: Name of the bundle.
        bundle_version: See `Manifest`.
        security_version: See `Manifest`.
        manifest: Digest of the manifest inside.
        sha256: Digest of the file.
        size: Bytes of the file.
    """

    target: str
    name: str
    bundle_version: int
    security_version: int
    manifest: str
    sha256: str
    size: int


@final
class Client:
    """One device and one repository.

    Args:
        state: The device's trust folder, provisioned.
        source: URL of the repository, or its folder.
        grace_s: Seconds before a slow server is given up.
        slowest: Slowest average rate in bytes per second after that.
    """

    def __init__(self, state: Path, source: str, *, grace_s: float | None = None, slowest: int | None = None) -> None:
        from .fetch import GRACE_S, SLOWEST, Fetcher, base_url

        self.state = state
        self.source = source
        self._base = base_url(source)
        self._fetcher = Fetcher(
            self._base,
            grace_s=GRACE_S if grace_s is None else grace_s,
            slowest=SLOWEST if slowest is None else slowest,
        )
        self._updater: Updater | None = None

    def refresh(self) -> Trust:
        """Bring the trusted metadata up to date.

        Returns:
            What is remembered now.

        Raises:
            TrustError: tuf.*, one code for each cause: see docs/bundles.md.
            InputError: trust.missing, tuf.missing, tuf.unreachable.
        """
        from tuf.ngclient import Updater, UpdaterConfig

        trust = read_trust(self.state)
        folder = self.state / "metadata"
        try:
            root = (self.state / "root.json").read_bytes()
            folder.mkdir(exist_ok=True)
        except OSError as e:
            raise os_error(self.state, e) from e
        config = UpdaterConfig(max_root_rotations=256, max_delegations=8)
        url = f"{self._base}metadata/"
        with _Explained(self, trust):
            updater = Updater(str(folder), url, fetcher=self._fetcher, config=config, bootstrap=root)
            updater.refresh()
        current = {role: self._trusted(role) for role in _ROLES}
        self._check(current, trust)
        now = max(datetime.now(UTC), trust.time)
        seen = {role: Seen(m.signed.version, _keyids(current["root"], role)) for role, m in current.items()}
        trust = replace(trust, last_seen=now.isoformat(timespec="seconds"), seen=seen)
        write_trust(self.state, trust)
        self._updater = updater
        return trust

    def offers(self, line: str) -> tuple[Offer, ...]:
        """Every bundle that the repository offers a product line, oldest first.

        Raises:
            TrustError: tuf.*.
            InputError: tuf.no_line.
        """
        trust = self.refresh() if self._updater is None else read_trust(self.state)
        assert self._updater is not None
        delegations = self._trusted("targets").signed.delegations
        if delegations is None or line not in (delegations.roles or {}):
            known = ", ".join(sorted((delegations and delegations.roles) or {})) or "none"
            raise InputError("tuf.no_line", f"{self.source}: {line}", "is no product line", f"known: {known}")
        with _Explained(self, trust):
            self._updater.get_targetinfo(f"{line}/")  # reads and verifies the line's role
        signed = self._trusted(line).signed
        self._check_time(line, signed, trust)
        found = [self._offer(line, path, trust) for path in signed.targets]
        return tuple(sorted(found, key=lambda o: (o.name, o.bundle_version)))

    def newest(self, line: str, name: str = "") -> Offer:
        """The latest bundle of a line, or of one name in it.

        Raises:
            TrustError: tuf.*, bundle.below_floor.
            InputError: tuf.no_line, tuf.no_bundle, tuf.which.
        """
        offers = [o for o in self.offers(line) if not name or o.name == name]
        if not offers:
            raise InputError(
                "tuf.no_bundle", f"{self.source}: {line}", f"offers no bundle {name}".rstrip(), "publish one first"
            )
        names = sorted({o.name for o in offers})
        if len(names) > 1:
            raise InputError("tuf.which", f"{self.source}: {line}", f"offers {', '.join(names)}", "name one of them")
        offer = max(offers, key=lambda o: o.bundle_version)
        check_floor(offer.security_version, read_trust(self.state).security_floor, offer.target)
        return offer

    def download(self, offer: Offer, to: Path) -> None:
        """Download a bundle; the file appears only when it is whole and what was signed.

        Raises:
            TrustError: tuf.target_longer, tuf.target_shorter, tuf.target_hash, tuf.slow.
            InputError: tuf.missing, tuf.unreachable, files.*.
        """
        folder, _, name = offer.target.rpartition("/")
        url = f"{self._base}targets/{folder}/{offer.sha256.removeprefix(PREFIX)}.{name}"
        h, size = hashlib.sha256(), 0
        self._fetcher.last = (offer.target, b"")
        with replacing(to) as temporary, temporary.open("wb") as out, _Explained(self, None):
            for chunk in self._fetcher.fetch(url):
                size += len(chunk)
                if size > offer.size:
                    problem = f"is longer than the {offer.size} bytes that were signed"
                    raise TrustError("tuf.target_longer", offer.target, problem, _AGAIN)
                h.update(chunk)
                out.write(chunk)
            if size < offer.size:
                problem = f"ends after {size} of the {offer.size} bytes that were signed"
                raise TrustError("tuf.target_shorter", offer.target, problem, _AGAIN)
            if PREFIX + h.hexdigest() != offer.sha256:
                raise TrustError("tuf.target_hash", offer.target, "is not the file that was signed", _AGAIN)

    def _offer(self, line: str, path: str, trust: Trust) -> Offer:
        """An offer from a target; its path and what is said of it must be a bundle's."""
        assert self._updater is not None
        match = _TARGET.fullmatch(path)
        if match is None or match[1] != line or ".." in path:
            problem = f"lists the target {path[:80]!r}; expected {line}/NAME-VERSION.bundle"
            raise TrustError("tuf.target_path", f"{self.source}: {line}", problem, _ASK)
        with _Explained(self, trust):
            target: TargetFile | None = self._updater.get_targetinfo(path)
        if target is None:
            raise TrustError(
                "tuf.outside_delegation", f"{self.source}: {path}", "is not in the paths of its role", _ASK
            )
        custom, sha256 = target.custom, target.hashes.get("sha256", "")
        if not isinstance(custom, dict) or set(custom) != _CUSTOM or not _whole(custom) or len(sha256) != 64:
            problem = "is not described as a bundle's target is"
            raise TrustError("tuf.target_fields", f"{self.source}: {path}", problem, _ASK)
        if (custom["name"], str(custom["bundle_version"])) != (match[2], match[3]) or target.length > MOST_BYTES:
            problem = f"is described as {custom['name']} {custom['bundle_version']}, of {target.length} bytes"
            raise TrustError("tuf.target_fields", f"{self.source}: {path}", problem, _ASK)
        return Offer(path, **custom, sha256=PREFIX + sha256, size=target.length)

    def _trusted(self, role: str) -> Metadata[Any]:
        from tuf.api.metadata import Metadata

        try:
            found: Metadata[Any] = Metadata.from_bytes((self.state / "metadata" / f"{role}.json").read_bytes())
        except OSError as e:
            raise os_error(self.state / "metadata", e) from e
        return found

    def _check(self, current: Mapping[str, Metadata[Any]], trust: Trust) -> None:
        """What python-tuf does not know: the time and the versions seen before.

        Raises:
            TrustError: tuf.same_key, tuf.version_size, tuf.rollback, tuf.frozen, tuf.expired_*.
        """
        root = current["root"]
        for role in _ROLES:
            values = [root.signed.keys[keyid].keyval["public"] for keyid in _keyids(root, role)]
            if len(set(values)) < len(values):
                problem = f"lists one key twice for {role}, so that one signature would count as two"
                raise TrustError("tuf.same_key", f"{self.source}: root", problem, _ASK)
        for role, metadata in current.items():
            if metadata.signed.version >= MOST_VERSION:
                problem = f"has version {metadata.signed.version}; nothing could ever follow it"
                raise TrustError("tuf.version_size", f"{self.source}: {role}", problem, _ASK)
            before = trust.seen.get(role)
            same_keys = before is not None and (role == "root" or before.keys == _keyids(root, role))
            if before is not None and same_keys and metadata.signed.version < before.version:
                raise rollback(f"{self.source}: {role}", f"version {metadata.signed.version} after {before.version}")
        timestamp = current["timestamp"].signed
        if timestamp.version <= trust.stale.version and trust.stale.keys == _keyids(root, "timestamp"):
            problem = f"has timestamp {timestamp.version}, which was already seen expired; the clock was set back"
            raise TrustError("tuf.frozen", self.source, problem, "publish a new one with 'edgeproof repo refresh'")
        for role, metadata in current.items():
            self._check_time(role, metadata.signed, trust)

    def _check_time(self, role: str, signed: Any, trust: Trust) -> None:
        now = max(datetime.now(UTC), trust.time)
        if signed.is_expired(now):
            self._remember_stale(trust)
            when = f" at {now.isoformat(timespec='seconds')}, the latest time that was seen"
            raise expired(f"{role}.json", f"{self.source}: {role}.json", when)

    def _remember_stale(self, trust: Trust) -> None:
        """Note the timestamp under which something was seen expired, whatever the clock says later.

        It is the one read last when that was refused itself: python-tuf does not keep an expired one, but has
        verified it before it looks at the date. Otherwise it is the one that is trusted.
        """
        from tuf.api.exceptions import RepositoryError
        from tuf.api.metadata import Metadata

        name, data = self._fetcher.last
        try:
            timestamp = Metadata.from_bytes(data) if name == "timestamp.json" and data else self._trusted("timestamp")
            stale = Seen(timestamp.signed.version, _keyids(self._trusted("root"), "timestamp"))
        except (RepositoryError, EdgeproofError):
            return
        later = stale.version > trust.stale.version or stale.keys != trust.stale.keys
        if later and stale.version < MOST_VERSION:
            write_trust(self.state, replace(trust, stale=stale))


class _Explained:
    """Turns python-tuf's errors into ours, and remembers what was seen expired."""

    def __init__(self, client: Client, trust: Trust | None) -> None:
        self._client = client
        self._trust = trust

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        from tuf.api.exceptions import DownloadError, ExpiredMetadataError, RepositoryError

        client = self._client
        if isinstance(error, ExpiredMetadataError) and self._trust is not None:
            client._remember_stale(self._trust)
        if isinstance(error, DownloadError | RepositoryError):
            raise cause(error, client._fetcher.last, client.state / "metadata", client.source) from error
        if isinstance(error, OSError) and self._trust is not None:
            raise os_error(client.state, error) from error


def check_floor(security_version: int, floor: int, subject: str) -> None:
    """Refuse what is older than a device may go.

    Raises:
        TrustError: bundle.below_floor.
    """
    if security_version < floor:
        problem = f"has security version {security_version}; this device takes none below {floor}"
        raise TrustError("bundle.below_floor", subject, problem, "publish a bundle with a higher security_version")


_AGAIN = "download it again; if that does not help, publish it again"
_ASK = "ask whoever runs the repository; nothing was installed"


def _whole(custom: Mapping[str, Any]) -> bool:
    versions = (custom["bundle_version"], custom["security_version"])
    texts = (custom["name"], custom["manifest"])
    return all(type(v) is int and 0 <= v < 2**53 for v in versions) and all(isinstance(t, str) for t in texts)


def _keyids(root: Metadata[Any], role: str) -> tuple[str, ...]:
    return tuple(sorted(root.signed.get_delegated_role(role).keyids))
