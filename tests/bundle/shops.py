"""A repository with all its keys in memory, as its owner and as an attacker who holds some of them would use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile

from edgeproof.bundle.client import Client
from edgeproof.bundle.repository import RootKeys, add_line, add_target, create
from edgeproof.bundle.trust import provision

ROLES = ("root", "targets", "snapshot", "timestamp")


def key() -> CryptoSigner:
    return CryptoSigner.generate_ed25519()


def publics(signers: Sequence[CryptoSigner]) -> list[Any]:
    return [s.public_key for s in signers]


@dataclass
class Shop:
    """A repository of one product line, ``cameras``, and every key of it."""

    folder: Path
    now: datetime
    keys: dict[str, list[CryptoSigner]] = field(
        default_factory=lambda: {
            "root": [key(), key(), key()],
            "targets": [key()],
            "snapshot": [key()],
            "timestamp": [key()],
            "cameras": [key()],
        }
    )
    root: bytes = b""

    @property
    def signers(self) -> list[CryptoSigner]:
        return [s for signers in self.keys.values() for s in signers]

    def open(self, **options: Any) -> Shop:
        keys = RootKeys(*(publics(self.keys[role]) for role in ROLES))
        self.root = create(self.folder, keys, self.signers, now=self.now, **options)
        add_line(self.folder, "cameras", publics(self.keys["cameras"]), self.signers, now=self.now, **options)
        return self

    def add(self, version: int = 1, security: int = 1, content: bytes = b"", **options: Any) -> str:
        file = self.folder.parent / "new.bundle"
        file.write_bytes(content or f"bundle {version}".encode())
        manifest = "sha256:" + hashlib.sha256(b"manifest").hexdigest()
        custom = {"name": "reader", "bundle_version": version, "security_version": security, "manifest": manifest}
        name = f"reader-{version}.bundle"
        return add_target(self.folder, "cameras", name, file, custom, self.signers, now=self.now, **options)

    def device(self, name: str = "device", *, source: str = "", seen: datetime | None = None, floor: int = 0) -> Client:
        state = self.folder.parent / name
        if not state.exists():
            last_seen = seen or self.now - timedelta(days=30)
            provision(state, self.root, last_seen=last_seen, security_floor=floor)
        return Client(state, source or str(self.folder), grace_s=5)

    def path(self, role: str) -> Path:
        """The metadata file of a role that is published now."""
        if role == "timestamp":
            return self.folder / "metadata" / "timestamp.json"
        found = self.folder.glob(f"metadata/*.{role}.json")
        return max(found, key=lambda p: int(p.name.partition(".")[0]))

    def load(self, role: str) -> Metadata[Any]:
        return Metadata.from_bytes(self.path(role).read_bytes())

    def forge(
        self, role: str, change: Callable[[Any], None], by: Sequence[CryptoSigner] = (), *, later: bool = True
    ) -> None:
        """Change a role's content as an attacker would, under the next version, signed by the keys that he has."""
        metadata = self.load(role)
        if later:
            metadata.signed.version += 1
        change(metadata.signed)
        metadata.signatures.clear()
        for signer in by:
            metadata.sign(signer, append=True)
        self.put(role, metadata)

    def put(self, role: str, metadata: Metadata[Any], data: bytes | None = None) -> None:
        name = "timestamp.json" if role == "timestamp" else f"{metadata.signed.version}.{role}.json"
        (self.folder / "metadata" / name).write_bytes(metadata.to_bytes() if data is None else data)

    def republish(self) -> None:
        """A snapshot and a timestamp over whatever lies there, by an attacker who holds the online keys."""

        def listed(signed: Any) -> None:
            for name in signed.meta:
                path = self.path(name.removesuffix(".json"))
                signed.meta[name] = MetaFile.from_data(int(path.name.partition(".")[0]), path.read_bytes(), ["sha256"])

        self.forge("snapshot", listed, self.keys["snapshot"])

        def pointed(signed: Any) -> None:
            path = self.path("snapshot")
            signed.snapshot_meta = MetaFile.from_data(int(path.name.partition(".")[0]), path.read_bytes(), ["sha256"])

        self.forge("timestamp", pointed, self.keys["timestamp"])


def opened(folder: Path, *, ago: timedelta = timedelta(0), **options: Any) -> Shop:
    """A shop that was opened some time ago, with its first bundle."""
    shop = Shop(folder / "repo", datetime.now(UTC) - ago).open(**options)
    shop.add(1, **options)
    return shop
