"""DSSE envelopes: a signature beside what it signs, in RFC 8785 form.

What is signed includes the payload's type, so that a signature over one kind of thing is none over another. Every value
has one writing, base64 included. A key counts once, however often it signed and whatever it is called.
Source: DSSE 1.0.2 (secure-systems-lab/dsse), protocol and envelope; securesystemslib signs and checks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InputError
from .strictjson import canonical, keys, loads

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

LIMIT_BYTES = 4 * 2**20
MOST_SIGNATURES = 16


@dataclass(frozen=True, slots=True)
class Signed:
    """What an envelope holds. Nobody's word yet: see `signed_by`.

    Attributes:
        payload: The bytes that are signed.
        payload_type: What they are.
        signatures: (key id, signature), as they stand there.
    """

    payload: bytes
    payload_type: str
    signatures: tuple[tuple[str, bytes], ...]


def sign(payload: bytes, payload_type: str, signers: Sequence[Signer]) -> bytes:
    """An envelope with one signature of each signer; the same keys and payload give the same bytes (RFC 8032)."""
    from securesystemslib.dsse import Envelope

    made = Envelope(payload, payload_type, {})
    for signer in signers:
        made.sign(signer)
    value = made.to_dict()
    return canonical({**value, "signatures": sorted(value["signatures"], key=lambda s: str(s["keyid"]))}, "envelope")


def read(data: bytes, subject: str) -> Signed:
    """What an envelope holds, whoever signed it.

    Raises:
        InputError: json.*, dsse.envelope.
    """
    value = loads(data, subject, limit_bytes=LIMIT_BYTES, canonical=True)
    value = keys(value, ("payload", "payloadType", "signatures"), (), subject)
    entries = value["signatures"]
    if not isinstance(entries, list) or len(entries) > MOST_SIGNATURES:
        raise _broken(subject, f"has no list of at most {MOST_SIGNATURES} signatures")
    signatures = [keys(entry, ("keyid", "sig"), (), f"{subject}: signatures") for entry in entries]
    return Signed(
        _bytes(value["payload"], subject),
        _text(value["payloadType"], subject),
        tuple((_text(s["keyid"], subject), _bytes(s["sig"], subject)) for s in signatures),
    )


def signed_by(signed: Signed, trusted: Sequence[Key]) -> tuple[str, ...]:
    """Ids of the trusted keys that signed it, each key once."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    pae = Envelope(signed.payload, signed.payload_type, {}).pae()
    found: dict[str, str] = {}
    for keyid, signature in signed.signatures:
        for key in trusted:
            if key.keyid != keyid:
                continue
            try:
                key.verify_signature(Signature(keyid, signature.hex()), pae)
            except UnverifiedSignatureError:
                continue
            found.setdefault(str(key.to_dict()["keyval"]["public"]), key.keyid)
    return tuple(sorted(found.values()))


def _text(value: Any, subject: str) -> str:
    if not isinstance(value, str):
        raise _broken(subject, "has a field that is no text")
    return value


def _bytes(value: Any, subject: str) -> bytes:
    text = _text(value, subject)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as e:
        raise _broken(subject, "has a field that is not base64") from e
    if base64.b64encode(data).decode() != text:
        raise _broken(subject, "has a field whose base64 is not canonical")
    return data


def _broken(subject: str, problem: str) -> InputError:
    return InputError("dsse.envelope", subject, problem, "get the file anew from whoever made it")
