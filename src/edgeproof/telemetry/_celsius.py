"""Read the kernel's temperature files, which all hold millidegrees Celsius."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def celsius(paths: Iterable[Path]) -> list[float]:
    """°C of every file that answers.

    A sensor that is switched off answers with an error, one that is not wired up with exactly 0: both are missing.
    """
    found = []
    for path in paths:
        try:
            milli = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if milli != 0:
            found.append(milli / 1000)
    return found
