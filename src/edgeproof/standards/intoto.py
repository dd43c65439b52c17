"""The signed in-toto Statement: a DSSE envelope whose subjects are the model file and the evidence's manifest.

It is the evidence's own attestation, byte for byte, so every DSSE verifier checks it with the key that sealed.
Source: DSSE protocol 1.0.2; in-toto Statement v1.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import TrustError
from . import Verified


class InToto:
    """The attestation as a file of its own."""

    suffix: ClassVar[str] = ".intoto.json"
    shows_differences: ClassVar[bool] = False

    def write(self, evidence: Verified) -> bytes:
        """The envelope.

        Raises:
            TrustError: standards.unsigned.
        """
        if evidence.attestation is None:
            hint = "seal it with 'edgeproof seal --key'"
            raise TrustError("standards.unsigned", "evidence", "has no signature that could be passed on", hint)
        return evidence.attestation


IMPL = InToto
