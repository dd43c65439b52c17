"""The device's folder: what lies where, the lock, and reading and changing the one state file.

device.json           what the device is, written once at provisioning, last of all
state.json            what it remembers
slots/a.bundle, b.bundle, incoming.part
slots/golden.bundle   the fallback from the factory, if there is one
keys/device.pem       its own signing key; keys/trusted/*.pub: whose bundles and instructions it takes
tuf/                  what the update client trusts
receipts/             what happened, signed
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import strictjson
from ..errors import InputError, TrustError
from ..files import check_record, os_error
from .state import SCHEMA, Slot, SlotName, State, from_bytes
from .storage import Disk, Storage, replace

_PATIENCE_S = 30.0
"""How long a change of the state waits for another one; each takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the device is; written once.

    Attributes:
        device: Its name, held exactly against a bundle's ``device_allow``.
        line: Its product line; the delegated role that may give it bundles.
        floor: Factory security floor.
        first_seen: Unix time of provisioning, in s; time never goes back before it.
        golden: The fallback from the factory.
        driver: Version of the accelerator's driver, where it cannot be asked.
    """

    device: str
    line: str
    floor: int
    first_seen: int
    golden: Slot | None = None
    driver: str | None = None

    def to_bytes(self) -> bytes:
        """As device.json holds it."""
        return strictjson.canonical({"schema": SCHEMA, **asdict(self)})


@dataclass(frozen=True, slots=True)
class Home:
    """A device's folder, and how it is written.

    Attributes:
        root: The folder.
        storage: Every change goes through it.
    """

    root: Path
    storage: Storage = field(default_factory=Disk)

    @property
    def slots(self) -> Path:
        """Folder of the slots."""
        return self.root / "slots"

    @property
    def incoming(self) -> Path:
        """Where a bundle is written before it is believed."""
        return self.slots / "incoming.part"

    @property
    def golden(self) -> Path:
        """The factory's fallback."""
        return self.slots / "golden.bundle"

    @property
    def receipts(self) -> Path:
        """Folder of the receipts."""
        return self.root / "receipts"

    @property
    def key(self) -> Path:
        """The device's own signing key."""
        return self.root / "keys" / "device.pem"

    @property
    def trusted(self) -> Path:
        """Folder of the public keys whose bundles and instructions are taken."""
        return self.root / "keys" / "trusted"

    @property
    def tuf(self) -> Path:
        """What the update client trusts."""
        return self.root / "tuf"

    def bundle(self, name: SlotName) -> Path:
        """The bundle of a slot."""
        return self.slots / f"{name}.bundle"

    def profile(self) -> Profile:
        """What the device is.

        Raises:
            InputError: device.not_provisioned.
            TrustError: device.profile_damaged.
        """
        path = self.root / "device.json"
        try:
            value = strictjson.loads(path.read_bytes(), str(path))
        except FileNotFoundError as e:
            hint = "run 'edgeproof provision' first, or name the folder with --root"
            raise InputError("device.not_provisioned", str(self.root), "is no device's folder", hint) from e
        except OSError as e:
            raise os_error(path, e) from e
        except InputError as e:
            raise _damaged(path, e.problem) from e
        return _profile(path, value)

    def state(self) -> State:
        """What the device remembers.

        Raises:
            TrustError: device.state_damaged, also when the file is gone: a device that forgot its floor and its
                quarantine is not a new one.
        """
        path = self.root / "state.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError as e:
            problem = "is gone, so the floor and the quarantine are unknown"
            raise TrustError("device.state_damaged", str(path), problem, "provision the device anew") from e
        except OSError as e:
            raise os_error(path, e) from e
        return from_bytes(data, str(path))

    def change(self, step: Callable[[State], State]) -> State:
        """Take one step: read, change, write; nothing is written when nothing changes.

        Returns:
            The new state.
        """
        with self.locked():
            return self.store(self.state(), step)

    def store(self, before: State, step: Callable[[State], State]) -> State:
        """One step from a state that was read under `locked`."""
        from dataclasses import replace as changed

        after = step(before)
        if after == before:
            return before
        after = changed(after, sequence=before.sequence + 1)
        replace(self.storage, self.root / "state.json", after.to_bytes())
        return after

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the state for the length of one change; waits for the one before.

        Raises:
            InputError: device.busy.
        """
        with _lock(self.root / "state.lock", _PATIENCE_S) as held:
            if not held:
                raise InputError("device.busy", str(self.root), "its state is being changed for too long", "try again")
            yield

    @contextmanager
    def installing(self) -> Iterator[bool]:
        """Be the one that installs; gives whether that was possible, and does not wait."""
        with _lock(self.root / "install.lock", 0.0) as held:
            yield held

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Be the one that serves.

        Raises:
            InputError: device.serving.
        """
        with _lock(self.root / "serve.lock", 0.0) as held:
            if not held:
                raise InputError("device.serving", str(self.root), "another supervisor serves it", "end that one first")
            yield


@contextmanager
def _lock(path: Path, patience_s: float) -> Iterator[bool]:
    """Lock a file; the kernel unlocks it when the process ends, however that happens. Source: flock(2)."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise os_error(path, e) from e
    try:
        end = time.monotonic() + patience_s
        while not (held := _try(fd)) and time.monotonic() < end:
            time.sleep(0.01)
        yield held
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _profile(path: Path, value: Any) -> Profile:
    try:
        body = dict(strictjson.keys(value, ("schema", *Profile.__slots__), subject=str(path)))
        if body.pop("schema") != SCHEMA:
            raise _damaged(path, f"is not {SCHEMA}")
        golden = body.pop("golden")
        check_record(Profile, body, str(path))
        if golden is not None:
            check_record(Slot, golden, str(path))
        return Profile(**body, golden=None if golden is None else Slot(**golden))
    except InputError as e:
        raise _damaged(path, e.problem) from e
    except TypeError as e:
        raise _damaged(path, f"lacks a field, or has a strange one: {e}") from e


def _damaged(path: Path, problem: str) -> TrustError:
    return TrustError("device.profile_damaged", str(path), problem, "provision the device anew")
