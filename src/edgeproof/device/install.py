"""Take a bundle: fetch it, believe it, hold it against this device, put it on trial.

The bundle is written beside the slots first, and every check reads that private copy, so that a source which changes
meanwhile changes nothing and a refused bundle costs no slot. Only then is the free slot given up for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError
from ..manifest import Manifest
from .admit import Facts, admit, facts
from .home import Home
from .state import SLOTS, Slot, SlotName, State


@dataclass(frozen=True, slots=True)
class Believed:
    """A bundle whose signature holds and whose files are those that were signed.

    Attributes:
        manifest: What it says of itself.
        bundle: Digest of the bundle file.
    """

    manifest: Manifest
    bundle: str


class Source(Protocol):
    """Where a bundle comes from."""

    def take(self, home: Home) -> Believed:
        """Write the bundle to `Home.incoming`, through the device's storage, and check that copy.

        Raises:
            TrustError: when what is offered is not to be believed.
        """


@dataclass(frozen=True, slots=True)
class Installed:
    """What an install did.

    Attributes:
        slot: Where the bundle is.
        manifest: What it says of itself.
        state: What the device remembers now.
        fresh: False when the bundle was there already.
    """

    slot: SlotName
    manifest: Manifest
    state: State
    fresh: bool


def install(home: Home, source: Source, now: int, here: Facts | None = None) -> Installed:
    """Put a bundle on trial.

    Args:
        home: The device's folder.
        source: Where the bundle comes from.
        now: Unix time in s.
        here: What the device is; read from the system when None.

    Raises:
        InputError: device.installing, device.trial_running, files.disk_full.
        TrustError: Those of the source, of `admit` and of `Home.state`.
        UnsupportedError: Of `admit`.
    """
    with home.installing() as alone:
        if not alone:
            hint = "wait for the other one to end"
            raise InputError("device.installing", str(home.root), "another install is running", hint)
        here = here or facts(home.profile())
        _no_trial(home.state())
        try:
            believed = source.take(home)
            home.storage.sync(home.incoming)
            state = home.state()
            admit(believed.manifest, believed.bundle, state, here)
            there = next((n for n in SLOTS if state.may_run(n) and state.slot(n).bundle == believed.bundle), None)
            if there is not None and there == state.current:
                return Installed(there, believed.manifest, state, fresh=False)
            return _place(home, believed, now)
        finally:
            home.storage.remove(home.incoming)


def _place(home: Home, believed: Believed, now: int) -> Installed:
    """Give up the free slot, move the bundle in, and switch to it."""
    manifest = believed.manifest
    slot = Slot(
        bundle=believed.bundle,
        manifest=manifest.digest,
        name=manifest.name,
        version=manifest.bundle_version,
        security_version=manifest.security_version,
    )
    with home.locked():
        state = home.state()
        name = state.free()
        state = home.store(state, lambda s: s.writing(name, slot))
        home.storage.rename(home.incoming, home.bundle(name))
        home.storage.sync_folder(home.slots)
        state = home.store(state, lambda s: s.on_trial(name, now))
    return Installed(name, manifest, state, fresh=True)


def _no_trial(state: State) -> None:
    """The other slot is what a trial falls back to: it is not overwritten."""
    if state.trial is not None:
        hint = "wait until it is kept or left, or run 'edgeproof mark-good' or 'edgeproof rollback'"
        raise InputError("device.trial_running", f"slot {state.current}", "is on trial", hint)
