"""A trial from its first start to its end: count the starts, keep what was watched, keep the bundle or leave it.

Time on trial is time in service, counted by a monotonic clock and kept in the state: a device without a battery for its
clock wakes up in the past, and one whose clock is set jumps by months.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import InputError
from ..manifest import Rollback
from .home import Home
from .load import manifest_of
from .slots import Boot, recover, roll_back
from .state import SLOTS, State, Trial


def boot(home: Home, now: int) -> Boot:
    """Start the device: bring its slots in order, and leave a bundle that has been on trial for too long.

    Args:
        home: The device's folder.
        now: Unix time in s.
    """
    found = recover(home, now)
    if found.current not in SLOTS or found.slot.phase != "trial" or found.path is None:
        return found
    allowed = manifest_of(found.path, found.slot).rollback
    trial = home.change(_booted).trial
    assert trial is not None
    over = _over(trial, allowed)
    if not over:
        return found
    roll_back(home, f"sla.undecided: {over}", now, must_leave=True)
    return recover(home, now)


def watched(home: Home, trial: Trial, now: int) -> State:
    """Keep what was watched, so that a restart goes on from there.

    Args:
        home: The device's folder.
        trial: Its served time, samples and decision are taken; the starts that were counted stay.
        now: Unix time in s.
    """

    def step(state: State) -> State:
        if state.trial is None:
            return state
        kept = replace(trial, since=state.trial.since, boots=state.trial.boots)
        return replace(state, trial=kept).seen(now)

    return home.change(step)


def mark_good(home: Home, now: int) -> State:
    """Keep the bundle on trial.

    Raises:
        InputError: device.no_trial; device.undecided, while too little was seen inside the SLA.
    """

    def step(state: State) -> State:
        name = state.on_trial_name()
        assert state.trial is not None
        if state.trial.decision != "commit":
            hint = "let 'edgeproof serve' watch it for longer, or go back with 'edgeproof rollback'"
            raise InputError("device.undecided", f"slot {name}", f"is on trial: {state.trial.why}", hint)
        return state.kept(now)

    return home.change(step)


def _booted(state: State) -> State:
    """One start more. What was watched before it does not count: a clean run is one without a restart."""
    assert state.trial is not None
    return replace(state, trial=replace(state.trial, boots=state.trial.boots + 1, samples=0, decision="go_on"))


def _over(trial: Trial, allowed: Rollback) -> str:
    if trial.boots > allowed.boots:
        return f"start {trial.boots} of {allowed.boots} on trial; {trial.why}"
    if trial.served_s >= allowed.trial_seconds:
        return f"{trial.served_s:.0f} s of {allowed.trial_seconds} s on trial; {trial.why}"
    return ""
