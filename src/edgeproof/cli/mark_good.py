"""Keep the bundle on trial, once enough was seen of it inside its SLA.

'edgeproof serve' does so by itself, unless it was started with --by-hand. The security floor rises only here, by a
signed instruction, and never above what was kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import InputError
from ._device import add_root, described, now, provisioned, running
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Folder and instruction."""
    add_root(parser)
    parser.add_argument("--raise-floor", metavar="FILE", help="signed instruction of 'edgeproof floor' to follow")


def run(args: argparse.Namespace, show: Show) -> int:
    """Keep it, and raise the floor if told so."""
    from ..device import receipts
    from ..device.floor import LIMIT_BYTES, raise_floor
    from ..device.sources import trusted_keys
    from ..device.state import Slot
    from ..device.trial import mark_good
    from ..files import os_error

    home, at = provisioned(args), now()
    state = home.state()
    if state.trial is not None or not args.raise_floor:
        state = mark_good(home, at)
        slot = running(state) or Slot()
        show.text(f"{described(slot)} is kept in slot {state.current}")
        _tell(receipts.attempt(home, "kept", slot, {"decision": {"code": "by_hand", "why": "mark-good"}}, at), show)
    if args.raise_floor:
        path = Path(args.raise_floor)
        try:
            with path.open("rb") as f:
                data = f.read(LIMIT_BYTES + 1)
        except OSError as e:
            raise os_error(path, e) from e
        if len(data) > LIMIT_BYTES:
            raise InputError("floor.value", str(path), "is too large for an instruction", "give another file")
        state = raise_floor(home, data, trusted_keys(home), str(path))
        show.text(f"the floor is {state.floor}")
        _tell(receipts.attempt(home, "floor", running(state) or Slot(), {}, at), show)
    show.result({"current": state.current, "floor": state.floor})
    return 0


def _tell(problem: str, show: Show) -> None:
    if problem:
        show.note(problem)
