"""Which device of the catalogue this machine is, and the JetPack on it."""

from __future__ import annotations

import re
from pathlib import Path

from .hardware import Hardware, JetPack, catalogue, jetpacks

_NUMBER = re.compile(r"p\d{4}-\d{4}")
"""A module's number, which identifies it better than its name does."""


def detect(root: Path = Path("/")) -> Hardware | None:
    """The device that this is, by its device tree or its processor.

    Args:
        root: Where ``proc`` is.

    Returns:
        None for a machine of which nothing is known.
    """
    tree = root / "proc/device-tree"
    text = "\n".join(_read(p).replace("\0", "\n") for p in (tree / "compatible", tree / "model"))
    about = f"{text}\n{_read(root / 'proc/cpuinfo')}"
    rows = [(row, m) for row in catalogue().values() for m in row.match]
    for row, match in sorted(rows, key=lambda r: not _NUMBER.fullmatch(r[1])):
        if all(part in about for part in match.split(" & ")):
            return row
    return None


def installed_jetpack(root: Path = Path("/")) -> JetPack | None:
    """The JetPack of this machine, by its Jetson Linux version or Debian's record of ``nvidia-jetpack``.

    Source: the first line of ``/etc/nv_tegra_release``, as in ``# R36 (release), REVISION: 4.3, …``.
    """
    release = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", _read(root / "etc/nv_tegra_release"))
    l4t = f"{release[1]}.{release[2]}" if release else ""
    version = installed("nvidia-jetpack", root).partition("+")[0].partition("-")[0]
    for pack in jetpacks():
        if l4t in pack.l4t or (version and version == pack.version):
            return pack
    return None


def installed(package: str, root: Path = Path("/")) -> str:
    """The version of an installed Debian package, from dpkg's own record; empty when it is not installed."""
    for entry in _read(root / "var/lib/dpkg/status").split("\n\n"):
        lines = entry.splitlines()
        if f"Package: {package}" in lines and "Status: install ok installed" in lines:
            return next((line.partition(": ")[2] for line in lines if line.startswith("Version: ")), "")
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
