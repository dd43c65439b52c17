"""Where bundles come from: a file that a trusted key signed, or a repository on a server, in a folder or on a stick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..bundle.client import Client
from ..bundle.keys import load_public
from ..bundle.opening import open_bundle
from ..digest import digest_file
from ..errors import TrustError
from ..files import os_error, plain
from .home import Home
from .install import Believed

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileSource:
    """One bundle file, signed by a key that the device trusts.

    Attributes:
        path: The file.
    """

    path: Path

    def take(self, home: Home) -> Believed:
        """Copy it, and check the copy.

        Raises:
            TrustError: device.no_keys, bundle.*, archive.*.
            InputError: json.*, manifest.*, files.*.
        """
        keys = trusted_keys(home)
        home.storage.write(home.incoming, _chunks(self.path))
        with open_bundle(home.incoming) as bundle:
            bundle.check_signature(keys)
            bundle.check_files()
            return Believed(bundle.manifest, digest_file(home.incoming))


@dataclass(frozen=True, slots=True)
class RepositorySource:
    """The newest bundle of the device's product line in a TUF repository.

    Attributes:
        location: URL or folder.
        name: Which bundle, where the line has several.
    """

    location: str
    name: str = ""

    def take(self, home: Home) -> Believed:
        """Bring the trusted metadata up to date, download, and check the download.

        Raises:
            TrustError: tuf.*, device.quarantined, bundle.metadata_differs and other bundle.*, archive.*.
            InputError: tuf.*, trust.*, files.*.
        """
        client = Client(home.tuf, self.location)
        offer = client.newest(home.profile().line, self.name)
        entry = home.state().quarantined(offer.sha256)
        if entry is not None:  # before a download that would be refused anyway
            hint = "publish a later bundle"
            raise TrustError("device.quarantined", offer.target, f"is in quarantine: {entry.reason}", hint)
        home.storage.adopt(home.incoming, lambda to: client.download(offer, to))
        with open_bundle(home.incoming) as bundle:
            bundle.check_offer(offer)
            bundle.check_files()
            return Believed(bundle.manifest, offer.sha256)


def trusted_keys(home: Home) -> Sequence[SSlibKey]:
    """The public keys whose bundles and instructions this device takes.

    Raises:
        TrustError: device.no_keys.
        InputError: keys.format.
    """
    keys = [load_public(path) for path in sorted(home.trusted.glob("*.pub"))]
    if not keys:
        hint = "install from a repository, or provision with --key"
        raise TrustError("device.no_keys", str(home.trusted), "holds no key to believe", hint)
    return keys


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with plain(path).open("rb") as f:
            while chunk := f.read(_CHUNK):
                yield chunk
    except OSError as e:
        raise os_error(path, e) from e
