"""Go back to the other slot, if its bundle was kept, is at or above the floor, and is still what was installed.

The bundle that ran is bad from then on, and its slot is free. An older bundle comes back only in this way; installing
one is refused.
"""

from __future__ import annotations

import argparse

from ._device import add_root, described, now, provisioned, running
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Folder and reason."""
    add_root(parser)
    parser.add_argument("--reason", default="by hand", metavar="TEXT", help="kept with the slot and in the receipt")
    parser.add_argument(
        "--golden", action="store_true", help="go to the golden bundle where the other slot may not run"
    )
    parser.add_argument("--quarantine", action="store_true", help="never take this bundle again on this device")


def run(args: argparse.Namespace, show: Show) -> int:
    """Go back."""
    from ..device import receipts
    from ..device.slots import roll_back
    from ..device.state import Slot

    home, at = provisioned(args), now()
    left = running(home.state()) or Slot()
    must_leave = args.golden and home.profile().golden is not None
    state = roll_back(home, args.reason, at, quarantine=args.quarantine, must_leave=must_leave)
    facts = {"decision": {"code": "by_hand", "why": args.reason}}
    problem = receipts.attempt(home, "left", left, facts, at)
    if problem:
        show.note(problem)
    runs = running(state) or (home.profile().golden if state.current == "golden" else None) or Slot()
    show.text(f"{described(left)} was left; {described(runs)} runs from {state.current or 'nowhere'}")
    show.result({"current": state.current, "left": left.bundle})
    return 0
