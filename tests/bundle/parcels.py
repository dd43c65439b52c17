"""Bundle files made by hand, so that each part can be wrong by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner

from edgeproof.archive import write_archive
from edgeproof.bundle.envelope import sign
from edgeproof.bundle.opening import EVIDENCE, PAYLOAD_TYPE
from edgeproof.digest import digest_bytes
from edgeproof.manifest import File, Manifest

MEMBERS: Mapping[str, bytes] = {EVIDENCE: b"evidence", "model/net.onnx": b"model bytes", "model/net.data": b"weights"}


def manifest(members: Mapping[str, bytes] = MEMBERS, **fields: Any) -> Manifest:
    plain = Manifest(
        name="reader",
        product_line="cameras",
        format="onnx",
        model="model/net.onnx",
        files=tuple(File(name, digest_bytes(data), len(data)) for name, data in sorted(members.items())),
        bundle_version=1,
        security_version=1,
        device_allow=("orin-nano",),
        evidence=digest_bytes(members[EVIDENCE]) if EVIDENCE in members else "",
    )
    return replace(plain, **fields)


def parcel(
    path: Path,
    signers: Sequence[CryptoSigner],
    says: Manifest | None = None,
    *,
    members: Mapping[str, bytes] = MEMBERS,
    signed: bytes | None = None,
    signature: bytes | None = None,
) -> Path:
    """A bundle file. ``members``, what is ``signed`` and the ``signature`` may differ from what the manifest says."""
    data = (manifest() if says is None else says).to_bytes()
    if signature is None and signers:
        signature = sign(data if signed is None else signed, PAYLOAD_TYPE, signers)
    content: dict[str, bytes | Path] = {"manifest.json": data, **members}
    if signature is not None:
        content["signature.json"] = signature
    write_archive(path, content)
    return path
