"""The signature: a DSSE envelope over an in-toto Statement that names the model and the manifest by their SHA-256.

The statement is rebuilt from the evidence and must equal the signed bytes, so a signature that was made for other
evidence, or for bytes of another kind, says nothing here. A key counts once, however often it signed.
Source: DSSE protocol 1.0.2; in-toto Statement v1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import dsse
from ..digest import PREFIX
from ..errors import InputError
from ..strictjson import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:edgeproof:evidence:1"


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
    """Sign; the same keys and payload give the same bytes."""
    return dsse.sign(payload, PAYLOAD_TYPE, signers)


def signed_by(data: bytes, expected: bytes, trusted: Sequence[Key]) -> tuple[tuple[str, ...], str, str]:
    """Which of the trusted keys signed.

    Args:
        data: The envelope.
        expected: The statement that the evidence gives.
        trusted: Public keys.

    Returns:
        Ids of the keys, each once; and when there is none, a code and one sentence why.
    """
    try:
        signed = dsse.read(data, "attestation.json")
    except InputError as e:
        return (), "evidence.envelope", f"{e.problem} [{e.code}]"
    if signed.payload_type != PAYLOAD_TYPE:
        problem = f"the signed bytes are of type {signed.payload_type!r}; expected {PAYLOAD_TYPE!r}"
        return (), "evidence.payload_type", problem
    if signed.payload != expected:
        return (), "evidence.statement", "what was signed is not this evidence"
    if not trusted:
        return (), "evidence.no_key", "it is signed, but no key was given to check that with"
    found = dsse.signed_by(signed, trusted)
    if not found:
        return (), "evidence.signature", "no signature on it is by a key that was given"
    return found, "", ""
