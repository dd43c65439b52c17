"""Whether enough trusted keys signed an envelope, with a code for every way in which they did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..dsse import LIMIT_BYTES, Signed, read, sign, signed_by
from ..errors import TrustError

if TYPE_CHECKING:
    from securesystemslib.signer import Key

__all__ = ["LIMIT_BYTES", "payload_of", "sign", "verify"]
_HINT = "get the file anew from whoever made it"


def payload_of(data: bytes, payload_type: str, subject: str) -> bytes:
    """The payload of an envelope, of this type, whoever signed it.

    Raises:
        InputError: json.*, dsse.envelope.
        TrustError: bundle.payload_type.
    """
    return _of_type(data, payload_type, subject).payload


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
        InputError: json.*, dsse.envelope.
        TrustError: bundle.payload_type, bundle.unsigned, bundle.duplicate_signature, bundle.wrong_key,
            bundle.bad_signature, bundle.threshold.
    """
    signed = _of_type(data, payload_type, subject)
    ids = [keyid for keyid, _ in signed.signatures]
    if not ids:
        raise TrustError("bundle.unsigned", subject, "carries no signature", _HINT)
    if len(set(ids)) < len(ids):
        raise TrustError("bundle.duplicate_signature", subject, "carries one key's signature twice", _HINT)
    known = [key for key in trusted if key.keyid in ids]
    if not known:
        names = ", ".join(sorted(keyid[:12] for keyid in ids))
        raise TrustError("bundle.wrong_key", subject, f"is signed by {names}, which is not trusted", _HINT)
    for key in known:
        if not signed_by(signed, [key]):
            problem = f"has a signature of {key.keyid[:12]} that does not fit its content"
            raise TrustError("bundle.bad_signature", subject, problem, _HINT)
    found = signed_by(signed, known)
    if len(found) < threshold:
        problem = f"has {len(found)} of the {threshold} signatures that it needs"
        raise TrustError("bundle.threshold", subject, problem, _HINT)
    return signed.payload, found


def _of_type(data: bytes, payload_type: str, subject: str) -> Signed:
    signed = read(data, subject)
    if signed.payload_type != payload_type:
        problem = f"signs a {signed.payload_type!r}; expected {payload_type!r}"
        raise TrustError("bundle.payload_type", subject, problem, _HINT)
    return signed
