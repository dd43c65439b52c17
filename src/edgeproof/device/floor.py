"""Raise the security floor: by a signed instruction, and only above it a bundle that was kept.

The instruction names the product line, so that one for another line is not taken. It needs no date: a floor only
rises, so an old instruction does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import strictjson
from ..bundle import envelope
from ..errors import TrustError
from .home import Home
from .state import State

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

SCHEMA = "edgeproof.floor/1"
LIMIT_BYTES = 1 << 16
"""Longest instruction that is read."""
PAYLOAD_TYPE = "application/vnd.edgeproof.floor+json"


def instruction(line: str, floor: int, signers: Sequence[CryptoSigner]) -> bytes:
    """Write an instruction.

    Args:
        line: Product line that it is for.
        floor: Smallest security version that may run from then on.
        signers: Keys, one of which the devices trust.
    """
    value = {"schema": SCHEMA, "product_line": line, "floor": floor}
    return envelope.sign(strictjson.canonical(value), PAYLOAD_TYPE, signers)


def raise_floor(home: Home, data: bytes, keys: Sequence[SSlibKey], subject: str = "instruction") -> State:
    """Follow an instruction.

    Raises:
        TrustError: bundle.* of the signature, floor.other_line, floor.value, device.floor_falls, device.floor_unproven.
        InputError: json.*.
    """
    payload, _ = envelope.verify(data, PAYLOAD_TYPE, keys, subject)
    floor = _floor(strictjson.loads(payload, subject, canonical=True), home.profile().line, subject)
    return home.change(lambda state: state.raised(floor))


def _floor(value: Any, line: str, subject: str) -> int:
    value = strictjson.keys(value, ("schema", "product_line", "floor"), (), subject)
    if value["schema"] != SCHEMA or type(value["floor"]) is not int or value["floor"] < 0:
        raise TrustError("floor.value", subject, f"is not {SCHEMA} with a whole number", "get it anew")
    if value["product_line"] != line:
        problem = f"is for the line {str(value['product_line'])[:80]!r}; this device is of {line!r}"
        raise TrustError("floor.other_line", subject, problem, "get the one for this line")
    return int(value["floor"])
