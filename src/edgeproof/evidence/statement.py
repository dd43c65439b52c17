"""The signature: a DSSE envelope over an in-toto Statement that names the model and the manifest by their SHA-256.

The statement is rebuilt from the evidence and must equal the signed bytes, so a signature that was made for other
evidence, or for bytes of another kind, says nothing here. A key counts once, however often it signed.
Source: DSSE protocol 1.0.2; in-toto Statement v1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..digest import PREFIX
from ..errors import InputError
from ..strictjson import canonical, keys, loads

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:edgeproof:evidence:1"
MOST_SIGNATURES = 16


def statement(model: str, model_digest: str, manifest_digest: str, predicate: dict[str, Any]) -> bytes:
    """The bytes that are signed.

    Args:
        model: Name of the candidate's file.
        model_digest: Digest of its bytes.
        manifest_digest: Digest of the manifest's bytes.
        predicate: State, policy, times.
    """
    value = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": model, "digest": {"sha256": model_digest.removeprefix(PREFIX)}},
            {"name": "manifest.json", "digest": {"sha256": manifest_digest.removeprefix(PREFIX)}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return canonical(value, "statement")


def envelope(payload: bytes, signers: Sequence[Signer]) -> bytes:
    """Sign; the same keys and payload give the same bytes, since Ed25519 is deterministic (RFC 8032)."""
    from securesystemslib.dsse import Envelope

    made = Envelope(payload, PAYLOAD_TYPE, {})
    for signer in signers:
        made.sign(signer)
    signatures = sorted(made.to_dict()["signatures"], key=lambda s: str(s["keyid"]))
    return canonical({**made.to_dict(), "signatures": signatures}, "attestation.json")


def signed_by(data: bytes, expected: bytes, trusted: Sequence[Key]) -> tuple[tuple[str, ...], str, str]:
    """Which of the trusted keys signed.

    Args:
        data: The envelope.
        expected: The statement that the evidence gives.
        trusted: Public keys.

    Returns:
        Ids of the keys, each once; and when there is none, a code and one sentence why.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    try:
        payload, kind, signatures = _read(data)
    except InputError as e:
        return (), "evidence.envelope", f"{e.problem} [{e.code}]"
    if kind != PAYLOAD_TYPE:
        return (), "evidence.payload_type", f"the signed bytes are of type {kind!r}; expected {PAYLOAD_TYPE!r}"
    if payload != expected:
        return (), "evidence.statement", "what was signed is not this evidence"
    if not trusted:
        return (), "evidence.no_key", "it is signed, but no key was given to check that with"
    signed = Envelope(payload, kind, {}).pae()
    found: dict[str, str] = {}
    for keyid, signature in signatures:
        for key in trusted:
            if key.keyid != keyid:
                continue
            try:
                key.verify_signature(Signature(keyid, signature.hex()), signed)
            except UnverifiedSignatureError:
                continue
            found.setdefault(str(key.keyval["public"]), key.keyid)
    if not found:
        return (), "evidence.signature", "no signature on it is by a key that was given"
    return tuple(sorted(found.values())), "", ""


def _read(data: bytes) -> tuple[bytes, str, list[tuple[str, bytes]]]:
    name = "attestation.json"
    value = keys(loads(data, name, canonical=True), ("payload", "payloadType", "signatures"), (), name)
    if not isinstance(value["signatures"], list) or len(value["signatures"]) > MOST_SIGNATURES:
        raise InputError("evidence.envelope", name, f"has no list of at most {MOST_SIGNATURES} signatures", "")
    signatures = [keys(s, ("keyid", "sig"), (), f"{name}: signatures") for s in value["signatures"]]
    return (
        _bytes(value["payload"], name),
        str(value["payloadType"]),
        [(str(s["keyid"]), _bytes(s["sig"], name)) for s in signatures],
    )


def _bytes(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as e:
        raise InputError("evidence.envelope", name, f"holds what is no base64 ({e})", "") from e
