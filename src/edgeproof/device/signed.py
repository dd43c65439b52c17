"""Signed JSON: the device's receipts, and the instructions that it takes.

An envelope is DSSE over a canonical JSON text; the payload type says what it is, so that one kind never passes for
another. Source: DSSE v1.0.2 (secure-systems-lab/dsse), securesystemslib's envelope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import strictjson
from ..errors import InputError, TrustError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

LIMIT_BYTES = 4 << 20
RECEIPT = "application/vnd.edgeproof.device-receipt+json"
FLOOR = "application/vnd.edgeproof.floor+json"


def seal(value: Any, payload_type: str, signer: CryptoSigner) -> bytes:
    """Sign a JSON value.

    Args:
        value: The JSON value.
        payload_type: What it is.
        signer: Who says so.

    Returns:
        The envelope as canonical JSON.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(strictjson.canonical(value), payload_type, {})
    envelope.sign(signer)
    return strictjson.canonical(envelope.to_dict())


def unseal(data: bytes, payload_type: str, keys: Sequence[SSlibKey], subject: str) -> Any:
    """The value of an envelope that one of the keys signed.

    Args:
        data: The envelope.
        payload_type: What it must be.
        keys: Who is believed.
        subject: What is being read, for errors.

    Raises:
        TrustError: signed.type, signed.signature, signed.no_keys.
        InputError: json.*, signed.envelope.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError

    if not keys:
        raise TrustError("signed.no_keys", subject, "there is no key to believe", "put public keys into keys/trusted")
    value = strictjson.keys(
        strictjson.loads(data, subject, limit_bytes=LIMIT_BYTES), ("payload", "payloadType", "signatures"), (), subject
    )
    try:
        envelope = Envelope.from_dict(value)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError("signed.envelope", subject, f"is no DSSE envelope: {e}", "get it anew") from e
    if envelope.payload_type != payload_type:
        problem = f"is {str(envelope.payload_type)[:80]!r}; expected {payload_type!r}"
        raise TrustError("signed.type", subject, problem, "give the file that was made for this")
    try:
        envelope.verify(list(keys), 1)
    except VerificationError as e:
        raise TrustError("signed.signature", subject, "is signed by none of the trusted keys", "get it anew") from e
    return strictjson.loads(envelope.payload, subject, canonical=True)
