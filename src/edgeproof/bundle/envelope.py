"""A signature that travels with what it signs: a DSSE envelope, in its RFC 8785 form.

What is signed includes the payload's type, so that a signature over one kind of thing is none over another.
Source: DSSE v1 (secure-systems-lab/dsse), protocol and envelope; securesystemslib computes and checks both.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import TrustError
from ..strictjson import canonical, keys, loads

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

LIMIT_BYTES = 4 * 2**20
MOST_SIGNATURES = 16
_HINT = "get the file anew from whoever made it"


def sign(payload: bytes, payload_type: str, signers: Sequence[Signer]) -> bytes:
    """An envelope with one signature of each signer."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, payload_type, {})
    for signer in signers:
        envelope.sign(signer)
    return canonical(envelope.to_dict(), "envelope")


def payload_of(data: bytes, payload_type: str, subject: str) -> bytes:
    """The payload of an envelope, of this type, whoever signed it.

    Raises:
        InputError: json.*.
        TrustError: bundle.envelope, bundle.payload_type.
    """
    return _payload(_read(data, subject), payload_type, subject)


def verify(
    data: bytes, payload_type: str, trusted: Sequence[Key], subject: str, threshold: int = 1
) -> tuple[bytes, tuple[str, ...]]:
    """The payload of an envelope that enough trusted keys signed.

    Args:
        data: The envelope.
        payload_type: What the payload must be.
        trusted: Keys that may sign; one given twice counts once.
        subject: What errors call it.
        threshold: Keys that must have signed.

    Returns:
        The payload, and the ids of the keys that signed it.

    Raises:
        InputError: json.*.
        TrustError: bundle.envelope, bundle.payload_type, bundle.unsigned, bundle.duplicate_signature,
            bundle.wrong_key, bundle.bad_signature, bundle.threshold.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
    from securesystemslib.signer import Signature

    value = _read(data, subject)
    payload = _payload(value, payload_type, subject)
    signatures = {
        entry["keyid"]: Signature(entry["keyid"], _decoded(entry["sig"], subject).hex()) for entry in value[1]
    }
    if not signatures:
        raise TrustError("bundle.unsigned", subject, "carries no signature", _HINT)
    if len(signatures) < len(value[1]):
        raise TrustError("bundle.duplicate_signature", subject, "carries one key's signature twice", _HINT)
    pae = Envelope(payload, payload_type, signatures).pae()
    by_value = {key.to_dict()["keyval"]["public"]: key for key in trusted}
    known = [key for key in by_value.values() if key.keyid in signatures]
    if not known:
        names = ", ".join(sorted(keyid[:12] for keyid in signatures))
        raise TrustError("bundle.wrong_key", subject, f"is signed by {names}, which is not trusted", _HINT)
    for key in known:
        try:
            key.verify_signature(signatures[key.keyid], pae)
        except (UnverifiedSignatureError, VerificationError) as e:
            problem = f"has a signature of {key.keyid[:12]} that does not fit its content"
            raise TrustError("bundle.bad_signature", subject, problem, _HINT) from e
    if len(known) < threshold:
        problem = f"has {len(known)} of the {threshold} signatures that it needs"
        raise TrustError("bundle.threshold", subject, problem, _HINT)
    return payload, tuple(sorted(key.keyid for key in known))


def _read(data: bytes, subject: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The envelope's texts, and its signatures, from JSON with a closed set of keys."""
    value = loads(data, subject, limit_bytes=LIMIT_BYTES, canonical=True)
    keys(value, ("payload", "payloadType", "signatures"), (), subject)
    signatures = value.pop("signatures")
    if not isinstance(signatures, list) or len(signatures) > MOST_SIGNATURES:
        raise _broken(subject, f"has no list of at most {MOST_SIGNATURES} signatures")
    for entry in signatures:
        keys(entry, ("keyid", "sig"), (), subject)
    if not all(isinstance(v, str) for entry in (value, *signatures) for v in entry.values()):
        raise _broken(subject, "has a field that is no text")
    return value, signatures


def _payload(value: tuple[dict[str, str], list[dict[str, str]]], payload_type: str, subject: str) -> bytes:
    if value[0]["payloadType"] != payload_type:
        problem = f"signs a {value[0]['payloadType']!r}; expected {payload_type!r}"
        raise TrustError("bundle.payload_type", subject, problem, _HINT)
    return _decoded(value[0]["payload"], subject)


def _decoded(text: str, subject: str) -> bytes:
    """Base64 in its one canonical writing."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as e:
        raise _broken(subject, "has a field that is not base64") from e
    if base64.b64encode(data).decode() != text:
        raise _broken(subject, "has a field whose base64 is not canonical")
    return data


def _broken(subject: str, problem: str) -> TrustError:
    return TrustError("bundle.envelope", subject, problem, _HINT)
