"""Make a folder a device's: once, at the factory.

The description, device.json, is written last: until it is there the folder is no device's, and provisioning can be
done again. From then on a missing state is damage, never a new beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..bundle import trust
from ..bundle.keys import load_public, new_key
from ..errors import InputError, TrustError
from ..files import os_error, plain
from .home import Home, Profile
from .sources import FileSource
from .state import Slot, State
from .storage import replace


@dataclass(frozen=True, slots=True)
class Factory:
    """What a device is given.

    Attributes:
        device: Its name, as bundles list it.
        line: Its product line.
        floor: Smallest security version that may ever run.
        driver: Version of the accelerator's driver, where it cannot be asked.
        keys: Public keys whose bundle files and instructions it takes.
        repository_root: Root metadata of its repository.
        golden: Bundle to run when no slot is good.
    """

    device: str
    line: str
    floor: int = 0
    driver: str | None = None
    keys: Sequence[Path] = ()
    repository_root: Path | None = None
    golden: Path | None = None


def provision(home: Home, factory: Factory, now: int) -> Profile:
    """Provision a device.

    Args:
        home: An empty or missing folder.
        factory: What it is given.
        now: Unix time in s; the device's time never goes back before it.

    Raises:
        InputError: device.provisioned, device.no_trust, keys.*, trust.*, files.*.
        TrustError: device.golden, trust.root, bundle.*.
    """
    if (home.root / "device.json").exists():
        raise InputError("device.provisioned", str(home.root), "is a device's folder already", "choose another one")
    if not factory.keys and factory.repository_root is None:
        hint = "give --key, --repository-root or both"
        raise InputError("device.no_trust", str(home.root), "would believe nobody", hint)
    storage = home.storage
    try:
        home.root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise os_error(home.root.parent, e) from e
    for folder in (home.root, home.slots, home.receipts, home.key.parent, home.trusted, home.tuf):
        storage.folder(folder)
    for path in factory.keys:
        load_public(path)
        replace(storage, home.trusted / f"{path.stem}.pub", path.read_bytes())
    if not home.key.exists():
        new_key(home.key, None)
    if factory.repository_root is not None:
        _trust(home, factory.repository_root, factory.floor, now)
    golden = _golden(home, factory) if factory.golden is not None else None
    profile = Profile(factory.device, factory.line, factory.floor, now, golden, factory.driver)
    start = State(floor=factory.floor, last_seen=now, current=None if golden is None else "golden")
    replace(storage, home.root / "state.json", start.to_bytes())
    replace(storage, home.root / "device.json", profile.to_bytes())
    return profile


def _trust(home: Home, root: Path, floor: int, now: int) -> None:
    try:
        data = plain(root).read_bytes()
    except OSError as e:
        raise os_error(root, e) from e
    if not (home.tuf / "root.json").exists():
        trust.provision(home.tuf, data, last_seen=datetime.fromtimestamp(now, UTC), security_floor=floor)


def _golden(home: Home, factory: Factory) -> Slot:
    """Copy the fallback; it is held against the device like any other bundle.

    Raises:
        TrustError: device.golden, bundle.*.
    """
    assert factory.golden is not None
    believed = FileSource(factory.golden).take(home)
    manifest = believed.manifest
    if factory.device not in manifest.device_allow or manifest.product_line != factory.line:
        raise TrustError("device.golden", manifest.label, "is for another device or line", "pack one for this device")
    if manifest.security_version < factory.floor:
        problem = f"has the security version {manifest.security_version}; the floor is {factory.floor}"
        raise TrustError("device.golden", manifest.label, problem, "choose a later bundle, or a lower floor")
    home.storage.sync(home.incoming)
    home.storage.rename(home.incoming, home.golden)
    home.storage.sync_folder(home.slots)
    return Slot(
        phase="good",
        bundle=believed.bundle,
        manifest=manifest.digest,
        name=manifest.name,
        version=manifest.bundle_version,
        security_version=manifest.security_version,
    )
