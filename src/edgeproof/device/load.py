"""Read a bundle so that what was checked is what is used.

The archive is opened once; every member is held against its digest in the very bytes that are handed on, and the
manifest against the digest that the device remembers from when it checked the signature. A file that changes between
two reads therefore changes nothing: there is no second read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..archive import MOST_BYTES, Archive, open_archive
from ..bundle.reading import read_manifest
from ..digest import digest_bytes
from ..errors import TrustError
from ..manifest import Manifest
from .state import Slot

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A bundle whose bytes were checked.

    Attributes:
        manifest: What it says of itself.
        model: The model file's bytes.
        beside: Other files of the model's folder, by their path in the bundle: its weights.
    """

    manifest: Manifest
    model: bytes
    beside: Mapping[str, bytes]


def load(path: Path, slot: Slot) -> Loaded:
    """The model in a slot.

    Args:
        path: The bundle file.
        slot: What the device remembers of it.

    Raises:
        TrustError: device.swapped when a member is not what was installed, archive.*.
        InputError: files.*.
    """
    with open_archive(path, allowed=lambda _: MOST_BYTES, max_total=MOST_BYTES) as archive:
        manifest = _manifest(archive, slot)
        folder = PurePosixPath(manifest.model).parent
        beside = [
            f.path for f in manifest.files if folder in PurePosixPath(f.path).parents and f.path != manifest.model
        ]
        checked = {name: _checked(archive, name, manifest.file(name).sha256) for name in (manifest.model, *beside)}
    return Loaded(manifest, checked.pop(manifest.model), checked)


def manifest_of(path: Path, slot: Slot) -> Manifest:
    """The manifest of a slot's bundle, held against what the device remembers.

    Raises:
        TrustError: device.swapped, archive.*.
        InputError: files.*.
    """
    with open_archive(path, allowed=lambda _: MOST_BYTES, max_total=MOST_BYTES) as archive:
        return _manifest(archive, slot)


def _manifest(archive: Archive, slot: Slot) -> Manifest:
    return read_manifest(_checked(archive, MANIFEST, slot.manifest), f"{archive.path.name}: {MANIFEST}")


def _checked(archive: Archive, name: str, expected: str) -> bytes:
    data = archive.read(name)
    found = digest_bytes(data)
    if found != expected:
        raise TrustError(
            "device.swapped",
            f"{archive.path.name}: {name}",
            f"has the digest {found}; {expected} was installed",
            "it is not run; 'edgeproof status' shows what runs instead",
        )
    return data
