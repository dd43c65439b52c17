"""Bring the slots from any state to one that can be started, and switch between them.

Whatever runs was checked against its digest; with no good slot it is the golden fallback, or nothing. A switch is one
change of the state file, after the slot that takes over was read in full; files of slots that count no more are
removed afterwards, and again at the next start should that be cut short.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ..digest import digest_file
from ..errors import EdgeproofError, InputError, TrustError
from .home import Home
from .state import SLOTS, Current, Slot, SlotName, State
from .storage import PART


@dataclass(frozen=True, slots=True)
class Boot:
    """What is to run.

    Attributes:
        current: A slot, the golden fallback, or None: stop.
        slot: What is there.
        path: Its bundle file.
        why: In words, when it is not simply the slot that ran before.
    """

    current: Current | None
    slot: Slot
    path: Path | None
    why: str = ""


def recover(home: Home, now: int) -> Boot:
    """Bring the device to a state that can be started; does nothing when it is in one already.

    Args:
        home: The device's folder.
        now: Unix time in s.
    """
    with home.installing() as alone, home.locked():
        if alone:
            _sweep(home)
        try:
            state = home.state()
        except EdgeproofError as e:
            return _golden(home, f"{e.subject} {e.problem}", home.profile().floor)
        settled = _settled(home, state, now)
        try:
            state = home.store(state, lambda _: settled)
        except InputError:
            if settled.current != state.current:
                raise
            state = settled  # a full disk must not keep what is sound from running
        _clear(home, state)
    return _boot(home, state)


def roll_back(home: Home, reason: str, now: int, *, quarantine: bool = False, must_leave: bool = False) -> State:
    """Leave the current slot for a verified one at or above the floor.

    Args:
        home: The device's folder.
        reason: Why, in words.
        now: Unix time in s.
        quarantine: Also never take this bundle again.
        must_leave: With no such slot, fall back to the golden bundle or stop, instead of refusing.

    Raises:
        TrustError: device.no_fallback.
        InputError: device.phase, when no slot runs.
    """
    with home.locked():
        before = home.state()
        to, checked = _successor(home, before, now)
        if to in ("golden", None) and not must_leave:
            raise TrustError(
                "device.no_fallback",
                str(home.root),
                "there is no other verified bundle at or above the floor",
                "install one; 'edgeproof status' shows what there is",
            )
        state = home.store(before, lambda _: checked.left(reason, to, now, quarantine=quarantine))
        _clear(home, state)
        return state


def verified(path: Path, slot: Slot) -> str | None:
    """Whether a file is the bundle that a slot should hold.

    Returns:
        None when it is; otherwise the digest that was found, empty when the file cannot be read.
    """
    try:
        found = digest_file(path)
    except OSError:
        return ""
    return None if found == slot.bundle else found


def _settled(home: Home, state: State, now: int) -> State:
    """The state with writing that was cut short undone and with something sound to run."""
    state = state.seen(now)
    for name in SLOTS:
        if state.slot(name).phase == "writing":  # an install that still runs would hold the state
            state = state.emptied(name)
    current = state.current
    if current in SLOTS:
        state, fault = _fault(home, state, current, now)
        if fault:
            to, state = _successor(home, state, now)
            state = state.left(fault, to, now)
    else:
        from dataclasses import replace

        to, state = _successor(home, state, now)
        state = replace(state, current=to)
    return state


def _fault(home: Home, state: State, name: SlotName, now: int) -> tuple[State, str]:
    """Why a slot must not run, if so; bytes that are not what was installed are quarantined."""
    slot = state.slot(name)
    if state.quarantined(slot.bundle):
        return state, "is in quarantine"
    if slot.security_version < state.floor:
        return state, f"security version {slot.security_version} is below the floor {state.floor}"
    found = verified(home.bundle(name), slot)
    if found is None:
        return state, ""
    reason = f"device.rot: expected {slot.bundle}, found {found or 'nothing that can be read'}"
    return state.quarantining(found, reason, now), reason


def _successor(home: Home, state: State, now: int) -> tuple[Current | None, State]:
    """What takes over: another good slot that is sound, else the golden bundle, else nothing."""
    for name in state.fallbacks():
        state, fault = _fault(home, state, name, now)
        if not fault:
            return name, state
        state = state.spoilt(name, fault)
    return _golden(home, "", state.floor).current, state


def _golden(home: Home, why: str, floor: int) -> Boot:
    """The golden bundle if it is sound and at or above the floor, else a stop."""
    golden = home.profile().golden
    if golden is not None and golden.security_version >= floor and verified(home.golden, golden) is None:
        return Boot("golden", golden, home.golden, why)
    return Boot(None, Slot(), None, why or "there is no sound bundle")


def _boot(home: Home, state: State) -> Boot:
    if state.current in SLOTS:
        return Boot(state.current, state.slot(state.current), home.bundle(state.current))
    if state.current == "golden":
        return _golden(home, "no slot is good", state.floor)
    return Boot(None, Slot(), None, "no slot is good, and there is no sound golden bundle at or above the floor")


def _sweep(home: Home) -> None:
    """Remove what a crash left half-written."""
    for folder in (home.root, home.slots, home.receipts):
        for path in sorted([*folder.glob(f"*{PART}"), *folder.glob(".*.tmp")]):
            home.storage.remove(path)


def _clear(home: Home, state: State) -> None:
    """Remove the bundles of slots that hold nothing good."""
    for name in get_args(SlotName):
        if state.slot(name).phase in ("empty", "bad") and home.bundle(name).exists():
            home.storage.remove(home.bundle(name))
