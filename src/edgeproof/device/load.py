"""Read a bundle so that what was checked is what is used.

The archive is opened once; every member is held against its digest in the very bytes that are handed on, and the
manifest against the digest that the device remembers from when it checked the signature. A file that changes between
two reads therefore changes nothing: there is no second read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..bundle.opening import Bundle, open_bundle
from ..errors import TrustError
from ..manifest import Manifest
from .state import Slot


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
        TrustError: device.swapped when it is not what was installed, bundle.*, archive.*.
        InputError: files.*.
    """
    with _opened(path, slot) as bundle:
        manifest = bundle.manifest
        folder = PurePosixPath(manifest.model).parent
        inside = [f.path for f in manifest.files if folder in PurePosixPath(f.path).parents]
        files = {name: bundle.read(name) for name in inside}
    return Loaded(manifest, files.pop(manifest.model), files)


def manifest_of(path: Path, slot: Slot) -> Manifest:
    """The manifest of a slot's bundle, held against what the device remembers.

    Raises:
        TrustError: device.swapped, bundle.*, archive.*.
        InputError: files.*.
    """
    with _opened(path, slot) as bundle:
        return bundle.manifest


@contextmanager
def _opened(path: Path, slot: Slot) -> Iterator[Bundle]:
    with open_bundle(path) as bundle:
        if bundle.digest != slot.manifest:
            problem = f"has a manifest of the digest {bundle.digest}; {slot.manifest} was installed"
            hint = "it is not run; 'edgeproof status' shows what runs instead"
            raise TrustError("device.swapped", str(path), problem, hint)
        yield bundle
