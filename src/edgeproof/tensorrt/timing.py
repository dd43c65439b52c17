"""The timing cache: how long kernels took on this device, so that the next build need not measure them again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import cache_folder, os_error, write_bytes
from .device import Device
from .dialect import Dialect


def cache_path(setting: str, dialect: Dialect, device: Device | None) -> Path | None:
    """Where the cache is: one file per TensorRT version and device, which are all that makes times comparable.

    Args:
        setting: ``auto``, ``off``, or a path.
        dialect: The version.
        device: The device that is built on.

    Returns:
        None when there is to be none.
    """
    if setting == "off" or not dialect.timing_cache:
        return None
    if setting != "auto":
        return Path(setting)
    place = "none" if device is None else f"{device.name} sm{device.capability}"
    slug = re.sub(r"[^a-z0-9.]+", "-", f"{dialect.text} {place}".lower()).strip("-")
    return cache_folder("tensorrt") / f"{slug}.timing"


def attach(config: Any, path: Path | None) -> str:
    """Let a build use a cache.

    Args:
        config: TensorRT's ``IBuilderConfig``.
        path: The cache; it need not exist.

    Returns:
        What was found there, for people.

    Raises:
        InputError: files.….
    """
    if path is None:
        return "not used"
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError as e:
        raise os_error(path, e) from e
    cache = config.create_timing_cache(data)
    if cache is not None and config.set_timing_cache(cache, False):
        return f"reused, {len(data):,} bytes" if data else "new"
    config.set_timing_cache(config.create_timing_cache(b""), False)
    return "of another version or device, begun anew"


def keep(config: Any, path: Path | None) -> int:
    """Write what a build has measured.

    Args:
        config: As given to `attach`.
        path: As given to `attach`.

    Returns:
        Bytes written; 0 when there was nothing to write, or when it cannot be kept: that costs time, not the engine.
    """
    cache = None if path is None else config.get_timing_cache()
    if path is None or cache is None:
        return 0
    data = bytes(cache.serialize())
    try:
        write_bytes(path, data)
    except InputError:
        return 0
    return len(data)
