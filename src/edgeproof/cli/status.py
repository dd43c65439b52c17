"""Show what runs on this device, its slots, its floor and its quarantine.

Nothing is changed. With --check the bundles are read and held against their digests.

exit codes: 0 something runs, 4 nothing may run or the state is damaged, 5 on trial
"""

from __future__ import annotations

import argparse

from ._device import add_root, described, provisioned, when
from .show import Show

ON_TRIAL, NOTHING = 5, 4


def arguments(parser: argparse.ArgumentParser) -> None:
    """Folder."""
    add_root(parser)
    parser.add_argument("--check", action="store_true", help="hash the bundles")


def run(args: argparse.Namespace, show: Show) -> int:
    """Show the state."""
    from ..device.receipts import listed
    from ..device.slots import verified
    from ..device.state import SLOTS

    home = provisioned(args)
    profile, state = home.profile(), home.state()
    rows, faults = [], {}
    for name in SLOTS:
        slot = state.slot(name)
        found = verified(home.bundle(name), slot) if args.check and slot.phase in ("trial", "good") else None
        if found is not None:
            faults[name] = f"has the digest {found}" if found else "cannot be read"
        mark = "runs" if state.current == name else "may run" if state.may_run(name) else ""
        rows.append([name, slot.phase, mark, described(slot), faults.get(name, slot.reason)])
    if profile.golden is not None:
        mark = "runs" if state.current == "golden" else ""
        rows.append(["golden", profile.golden.phase, mark, described(profile.golden), ""])
    show.table(["slot", "phase", "", "bundle", "why"], rows, title=f"{profile.device}, line {profile.line}")
    if state.current is None:
        show.text("  nothing runs: there is no verified bundle at or above the floor")
    if state.trial is not None:
        trial = state.trial
        show.text(f"  on trial since {when(trial.since)}: {trial.boots} starts, {trial.served_s:.0f} s; {trial.why}")
    show.text(f"  floor {state.floor}; last seen {when(state.last_seen)}; {len(listed(home))} receipts")
    for entry in state.quarantine:
        show.text(f"  quarantine: {entry.digest[:19]}… since {when(entry.at)}: {entry.reason}")
    value = {**state.to_json(), "device": profile.device, "product_line": profile.line, "faults": faults}
    show.result(value)
    if faults or state.current is None:
        return NOTHING
    return ON_TRIAL if state.trial is not None else 0
