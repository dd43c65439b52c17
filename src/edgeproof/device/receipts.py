"""Write down what happened on the device, signed with its own key, each receipt naming the digest of the one before.

A receipt follows the change of the state that it tells of; a power cut between the two costs the receipt, and the state
still says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import strictjson
from ..bundle import envelope
from ..bundle.keys import load_signer
from ..digest import digest_file
from ..errors import EdgeproofError
from .admit import facts as facts_of
from .home import Home
from .state import Slot
from .storage import replace

SCHEMA = "edgeproof.device-receipt/1"
PAYLOAD_TYPE = "application/vnd.edgeproof.device-receipt+json"
KEPT = 200
"""Receipts that stay; older ones are removed."""


def write(home: Home, event: str, slot: Slot, facts: Mapping[str, Any], now: int) -> Path:
    """Sign and keep a receipt.

    Args:
        home: The device's folder.
        event: What happened: ``kept``, ``left``, ``stopped``, ``installed`` or ``floor``.
        slot: What it is about.
        facts: Samples, decision and whatever else tells of it, as JSON.
        now: Unix time in s.

    Returns:
        Its file.

    Raises:
        InputError: keys.*, files.*.
    """
    profile, floor = home.profile(), home.state().floor
    here = facts_of(profile)
    earlier = listed(home)
    number = int(earlier[-1].name.partition("-")[0]) + 1 if earlier else 1
    value = {
        "schema": SCHEMA,
        "number": number,
        "previous": digest_file(earlier[-1]) if earlier else "",
        "event": event,
        "at": datetime.fromtimestamp(now, UTC).isoformat(),
        "device": profile.device,
        "product_line": profile.line,
        "driver": here.driver,
        "runtimes": dict(here.runtimes),
        "floor": floor,
        "bundle": slot.bundle,
        "manifest": slot.manifest,
        "name": slot.name,
        "bundle_version": slot.version,
        "security_version": slot.security_version,
        **facts,
    }
    path = home.receipts / f"{number:08d}-{event}.json"
    replace(home.storage, path, envelope.sign(strictjson.canonical(value), PAYLOAD_TYPE, [load_signer(home.key)]))
    for old in earlier[: max(0, len(earlier) + 1 - KEPT)]:
        home.storage.remove(old)
    return path


def attempt(home: Home, event: str, slot: Slot, facts: Mapping[str, Any], now: int) -> str:
    """`write`, where a full disk must not keep the device from what it does.

    Returns:
        What went wrong; empty when nothing did.
    """
    try:
        write(home, event, slot, facts, now)
    except EdgeproofError as e:
        return f"no receipt: {e.code}: {e.problem}"
    return ""


def listed(home: Home) -> list[Path]:
    """All receipts, oldest first."""
    return sorted(home.receipts.glob("[0-9]*-*.json"))
