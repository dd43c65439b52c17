"""What the commands of a device share: its folder, the time, and how a slot is shown."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..device.home import Home
    from ..device.state import Slot, State

ROOT = "/var/lib/edgeproof"


def add_root(parser: argparse.ArgumentParser) -> None:
    """The flag that names the device's folder."""
    parser.add_argument("--root", default=ROOT, metavar="R", help=f"the device's folder (default: {ROOT})")


def home_of(args: argparse.Namespace) -> Home:
    """The device's folder."""
    from ..device.home import Home

    return Home(Path(args.root))


def provisioned(args: argparse.Namespace) -> Home:
    """The folder, which must be a device's already.

    Raises:
        InputError: device.not_provisioned.
        TrustError: device.profile_damaged.
    """
    home = home_of(args)
    home.profile()
    return home


def now() -> int:
    """Unix time in s."""
    return int(time.time())


def when(seconds: int) -> str:
    """A Unix time for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def described(slot: Slot) -> str:
    """A slot's bundle for people."""
    return f"{slot.name} {slot.version} (security version {slot.security_version})" if slot.bundle else "nothing"


def running(state: State) -> Slot | None:
    """The slot that is to run, if one is."""
    return state.slot(state.current) if state.current == "a" or state.current == "b" else None
