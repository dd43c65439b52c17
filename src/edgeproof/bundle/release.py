"""Publish a bundle in a repository, under the product line that it names and the keys that signed it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, TrustError
from ..manifest import Manifest
from .opening import open_bundle
from .repository import add_target
from .roles import Expiry, Roles, read

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


def add_bundle(
    folder: Path, file: Path, signers: Sequence[CryptoSigner], *, now: datetime, expiry: Expiry | None = None
) -> str:
    """Publish a bundle.

    Args:
        folder: The repository.
        file: A bundle that 'edgeproof pack' made, signed by keys of its product line.
        signers: Enough of the line's keys, and the online ones.
        now: Time of signing.
        expiry: Lifetimes.

    Returns:
        The target's path, ``LINE/NAME-VERSION.bundle``.

    Raises:
        InputError: repo.role, repo.threshold, repo.published, repo.version, repo.security_version.
        TrustError: archive.*, bundle.*, repo.broken, repo.foreign, repo.no_evidence.
    """
    roles = read(folder)
    with open_bundle(file) as bundle:
        manifest = bundle.manifest
        line = roles.keys_of(manifest.product_line)
        delegations = roles.targets.signed.delegations
        assert delegations is not None
        bundle.check_signature([delegations.keys[keyid] for keyid in line.keyids], line.threshold)
        bundle.check_files()
        if not manifest.evidence:
            problem = "carries no evidence of an accept"
            raise TrustError("repo.no_evidence", str(file), problem, "make it with 'edgeproof pack'")
        _check_later(roles, manifest)
        custom = {
            "name": manifest.name,
            "bundle_version": manifest.bundle_version,
            "security_version": manifest.security_version,
            "manifest": bundle.digest,
        }
    name = f"{manifest.name}-{manifest.bundle_version}.bundle"
    return add_target(folder, manifest.product_line, name, file, custom, signers, now=now, expiry=expiry)


def _check_later(roles: Roles, manifest: Manifest) -> None:
    """Versions only rise.

    Raises:
        InputError: repo.version, repo.security_version.
    """
    line = manifest.product_line
    published: list[dict[str, Any]] = [
        target.custom for target in roles.of(line).signed.targets.values() if target.custom["name"] == manifest.name
    ]
    for key, value, least in (
        ("bundle_version", manifest.bundle_version, 1),
        ("security_version", manifest.security_version, 0),
    ):
        highest = max((custom[key] for custom in published), default=-1)
        if value < highest + least:
            code = "repo.version" if key == "bundle_version" else "repo.security_version"
            problem = f"has {key} {value}; {highest} is published already"
            raise InputError(code, manifest.label, problem, f"pack it again with --{key.replace('_', '-')}")
