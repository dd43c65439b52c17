"""Open a bundle file that someone else made.

```
manifest.json       what it is (edgeproof.manifest), RFC 8785
signature.json      DSSE envelope over exactly those bytes
model/…             the model's files
evidence.zip        why it was accepted
preprocessing.json  how inputs are made, where that is declared
card.md             for people
```

A bundle is one canonical archive (`edgeproof.archive`) of exactly the first two members and those that the manifest
lists, at their sizes. Opening checks that much; `Bundle.extract` and `Bundle.check_files` hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, final

from ..archive import Archive, open_archive
from ..digest import digest_bytes
from ..errors import TrustError
from ..manifest import LIMIT_BYTES, Manifest
from . import envelope
from .reading import read_manifest

if TYPE_CHECKING:
    from securesystemslib.signer import Key

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
EVIDENCE, PREPROCESSING, CARD = "evidence.zip", "preprocessing.json", "card.md"
MODEL = "model/"
PAYLOAD_TYPE = "application/vnd.edgeproof.bundle.manifest+json"
"""What a bundle's signature says it signs; an evidence file's says something else."""
MOST_BYTES = 2**32 - 2
_MOST = {MANIFEST: LIMIT_BYTES, SIGNATURE: envelope.LIMIT_BYTES, EVIDENCE: 2**29, PREPROCESSING: 2**20, CARD: 2**22}
_HINT = "get the bundle anew from whoever made it; nothing was installed"


class Described(Protocol):
    """What a repository says of a bundle, before it is downloaded."""

    @property
    def target(self) -> str:
        """Its path in the repository."""

    @property
    def name(self) -> str:
        """See `Manifest`."""

    @property
    def bundle_version(self) -> int:
        """See `Manifest`."""

    @property
    def security_version(self) -> int:
        """See `Manifest`."""

    @property
    def manifest(self) -> str:
        """Digest of the manifest."""


@final
class Bundle:
    """An opened bundle; close it, or use it as a context.

    Attributes:
        path: The file.
        manifest: What it says of itself. Nobody's word yet: see `check_signature` and `check_offer`.
    """

    def __init__(self, path: Path, archive: Archive, manifest: Manifest, data: bytes) -> None:
        self.path = path
        self.manifest = manifest
        self._archive = archive
        self._data = data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    @property
    def digest(self) -> str:
        """Digest of the manifest, and so of everything in the bundle but its signature."""
        return digest_bytes(self._data)

    def check_signature(self, trusted: Sequence[Key], threshold: int = 1) -> tuple[str, ...]:
        """Check that enough trusted keys signed this manifest.

        Returns:
            Ids of the keys that signed.

        Raises:
            TrustError: bundle.unsigned, bundle.wrong_key, bundle.bad_signature, bundle.threshold, bundle.payload_type,
                bundle.duplicate_signature, bundle.other_manifest.
            InputError: json.*, dsse.envelope.
        """
        subject = f"{self.path}: {SIGNATURE}"
        if SIGNATURE not in self._archive:
            raise TrustError("bundle.unsigned", str(self.path), "carries no signature", _HINT)
        data = self._archive.read(SIGNATURE)
        payload, signed_by = envelope.verify(data, PAYLOAD_TYPE, trusted, subject, threshold)
        if payload != self._data:
            problem = "signs another manifest than the one in this bundle"
            raise TrustError("bundle.other_manifest", subject, problem, _HINT)
        return signed_by

    def check_offer(self, offer: Described) -> None:
        """Check that this is what the repository said it would be.

        Raises:
            TrustError: bundle.metadata_differs.
        """
        m = self.manifest
        for what, inside, said in (
            ("name", m.name, offer.name),
            ("product line", m.product_line, offer.target.partition("/")[0]),
            ("bundle version", m.bundle_version, offer.bundle_version),
            ("security version", m.security_version, offer.security_version),
            ("manifest", self.digest, offer.manifest),
        ):
            if inside != said:
                problem = f"has the {what} {inside!r}; the repository says {said!r}"
                raise TrustError("bundle.metadata_differs", str(self.path), problem, _HINT)

    def extract(self, name: str, to: Path) -> None:
        """Copy a listed member to a file, hashed from the very bytes that are written.

        Raises:
            TrustError: bundle.digest, bundle.unlisted, archive.crc, archive.truncated.
            InputError: What `files.replacing` raises.
        """
        listed = self.manifest.file(name).sha256
        got = self._archive.extract(name, to)
        if got != listed:
            to.unlink(missing_ok=True)
            raise self._differs(name, got, listed)

    def read(self, name: str) -> bytes:
        """A listed member, hashed.

        Raises:
            TrustError: bundle.digest, bundle.unlisted, archive.crc, archive.truncated.
        """
        listed, data = self.manifest.file(name).sha256, self._archive.read(name)
        if digest_bytes(data) != listed:
            raise self._differs(name, digest_bytes(data), listed)
        return data

    def check_files(self) -> None:
        """Hash every listed member.

        Raises:
            TrustError: bundle.digest, archive.crc, archive.truncated.
        """
        for file in self.manifest.files:
            got = self._archive.digest(file.path)
            if got != file.sha256:
                raise self._differs(file.path, got, file.sha256)

    def _differs(self, name: str, got: str, listed: str) -> TrustError:
        problem = f"{name} has the digest {got[:23]}…; its manifest lists {listed[:23]}…"
        return TrustError("bundle.digest", str(self.path), problem, _HINT)


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and read its manifest; its members are exactly those that the manifest lists.

    Raises:
        TrustError: archive.*, bundle.missing_member, bundle.extra_member, bundle.size, bundle.place.
        InputError: json.*, manifest.*, files.missing.
    """
    archive = open_archive(path, allowed=_allowed, max_total=MOST_BYTES)
    try:
        data = archive.read(MANIFEST)
        manifest = read_manifest(data, f"{path}: {MANIFEST}")
        listed = {file.path: file.size for file in manifest.files}
        extra = sorted(set(archive.names) - set(listed) - {MANIFEST, SIGNATURE})
        missing = sorted(set(listed) - set(archive.names))
        if missing:
            raise TrustError("bundle.missing_member", str(path), f"lacks {missing[0]!r}, which it lists", _HINT)
        if extra:
            raise TrustError("bundle.extra_member", str(path), f"holds {extra[0]!r}, which it does not list", _HINT)
        for name, size in listed.items():
            if archive.size(name) != size:
                problem = f"{name} has {archive.size(name)} bytes; its manifest lists {size}"
                raise TrustError("bundle.size", str(path), problem, _HINT)
        _check_places(path, manifest)
        return Bundle(path, archive, manifest, data)
    except BaseException:
        archive.close()
        raise


def _check_places(path: Path, manifest: Manifest) -> None:
    """What the manifest names stands where it belongs."""
    listed = {file.path: file.sha256 for file in manifest.files}
    if not manifest.model.startswith(MODEL):
        raise TrustError("bundle.place", str(path), f"names {manifest.model!r} as its model", _HINT)
    for name, digest in ((EVIDENCE, manifest.evidence), (PREPROCESSING, manifest.preprocessing)):
        if listed.get(name, "") != digest:
            problem = f"names another digest for {name} than it lists"
            raise TrustError("bundle.place", str(path), problem, _HINT)


def _allowed(name: str) -> int:
    return MOST_BYTES if name.startswith(MODEL) else _MOST.get(name, 0)
