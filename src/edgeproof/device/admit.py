"""What a bundle must meet before this device takes it. Pure: facts, state and manifest in, a refusal out.

Device names are compared exactly, and an empty list means nobody; versions are compared as versions; what cannot be
told here (a driver, a runtime) meets no demand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import TrustError, UnsupportedError
from ..manifest import Manifest, in_range
from .home import Profile
from .state import SLOTS, State

_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn"),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "openvino": ("openvino",),
}
"""Runtime → packages that bring it."""
_DRIVERS = (
    ("sys/module/nvidia/version", re.compile(r"(\d+(?:\.\d+)+)")),
    ("proc/driver/nvidia/version", re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")),
)
"""Where the kernel tells the driver's version, and how."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What this device is and has.

    Attributes:
        device: Its name.
        line: Its product line.
        driver: Version of the accelerator's driver; None when it cannot be told.
        runtimes: Installed runtime → version.
    """

    device: str
    line: str
    driver: str | None
    runtimes: Mapping[str, str]


def facts(profile: Profile, root: Path = Path("/")) -> Facts:
    """Read them.

    Args:
        profile: What was written at provisioning; a driver version there goes before what the kernel says.
        root: Where ``proc`` and ``sys`` are.
    """
    installed = {name: v for name, packages in _DISTRIBUTIONS.items() if (v := _installed(packages))}
    return Facts(profile.device, profile.line, profile.driver or _driver(root), installed)


def admit(manifest: Manifest, digest: str, state: State, here: Facts) -> None:
    """Refuse a bundle that may not run here.

    Args:
        manifest: Its manifest, from a verified bundle.
        digest: Of the bundle file.
        state: What the device remembers.
        here: What the device is.

    Raises:
        TrustError: device.quarantined, device.not_allowed, device.other_line, device.below_floor, device.older.
        UnsupportedError: device.driver_unknown, device.driver, device.runtime.
    """
    name = manifest.label
    entry = state.quarantined(digest)
    if entry is not None:
        raise TrustError("device.quarantined", name, f"is in quarantine: {entry.reason}", "install a later bundle")
    if here.device not in manifest.device_allow:
        listed = ", ".join(manifest.device_allow) or "nobody"
        raise TrustError(
            "device.not_allowed", name, f"is for {listed}; this is {here.device!r}", "pack it for this one"
        )
    if manifest.product_line != here.line:
        problem = f"is of the line {manifest.product_line!r}; this device is of {here.line!r}"
        raise TrustError("device.other_line", name, problem, "install a bundle of this line")
    if manifest.security_version < state.floor:
        problem = f"has the security version {manifest.security_version}; the floor here is {state.floor}"
        raise TrustError("device.below_floor", name, problem, "install a later bundle; the floor never falls")
    _check_age(manifest, digest, state)
    _check_driver(manifest, here)
    _check_runtime(manifest, here)


def _check_age(manifest: Manifest, digest: str, state: State) -> None:
    """An older bundle comes back by switching to its slot, never by installing it."""
    if state.current not in SLOTS:
        return
    runs = state.slot(state.current)
    if runs.bundle == digest or runs.name != manifest.name or manifest.bundle_version > runs.version:
        return
    problem = f"is not later than {runs.name} {runs.version}, which runs here"
    raise TrustError("device.older", manifest.label, problem, "use 'edgeproof rollback' to go back to the other slot")


def _check_driver(manifest: Manifest, here: Facts) -> None:
    low, high = manifest.min_driver, manifest.max_driver
    if not low and not high:
        return
    wanted = f"expected {low or 'any'} to {high or 'any'}"
    if here.driver is None:
        hint = "install the driver, or name its version when provisioning"
        raise UnsupportedError("device.driver_unknown", manifest.label, f"no driver can be told here; {wanted}", hint)
    if not in_range(here.driver, low, high, "driver"):
        problem = f"the driver here is {here.driver}; {wanted}"
        raise UnsupportedError("device.driver", manifest.label, problem, "update the driver, or pack for this one")


def _check_runtime(manifest: Manifest, here: Facts) -> None:
    if not manifest.runtime:
        return
    for wanted in manifest.runtime:
        found = here.runtimes.get(wanted.name)
        if found is not None and in_range(found, wanted.min, wanted.max, wanted.name):
            return
    asked = "; ".join(f"{r.name} {r.min or 'any'} to {r.max or 'any'}" for r in manifest.runtime)
    has = ", ".join(f"{n} {v}" for n, v in sorted(here.runtimes.items())) or "none"
    raise UnsupportedError("device.runtime", manifest.label, f"needs {asked}; here: {has}", "install that runtime")


def _installed(packages: tuple[str, ...]) -> str | None:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _driver(root: Path) -> str | None:
    for name, pattern in _DRIVERS:
        try:
            found = pattern.search((root / name).read_text(encoding="ascii", errors="replace")[:4096])
        except OSError:
            continue
        if found:
            return found.group(1)
    return None
