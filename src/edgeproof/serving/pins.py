"""Exact versions of everything that a container installs, read from what is installed here.

A model is accepted with the packages of one environment; its container installs the same versions. Where a container
needs another build of ONNX Runtime (for a GPU, for OpenVINO), its own pin stands in place of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, version

from ..errors import UnsupportedError

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def pins(package: str, extras: frozenset[str], instead: Mapping[str, str]) -> dict[str, str]:
    """Name → version of a package and of all that it needs, as installed here; sorted.

    What is not installed is taken as not needed on this kind of machine.

    Args:
        package: The package.
        extras: Of it.
        instead: Name of a package → the requirement ``name==version`` that takes its place.

    Raises:
        UnsupportedError: serving.not_installed, when the package itself is not.
    """
    try:
        found = {_plain(package): version(package)}
    except PackageNotFoundError as e:
        hint = f"pip install {package}"
        raise UnsupportedError("serving.not_installed", package, "is not installed, so has no version", hint) from e
    todo = [(package, extras)]
    seen: set[tuple[str, str]] = set()
    while todo:
        name, wanted = todo.pop()
        for text in distribution(name).requires or ():
            needed, its_extras = _needed(text, wanted)
            if not needed or (needed, its_extras) in seen:
                continue
            seen.add((needed, its_extras))
            try:
                found[needed] = version(needed)
            except PackageNotFoundError:
                continue
            todo.append((needed, frozenset(filter(None, its_extras.split(",")))))
    for name, requirement in instead.items():
        if found.pop(name, None) is not None:
            other, _, pinned = requirement.partition("==")
            found[other] = pinned
    return dict(sorted(found.items()))


def _needed(requirement: str, extras: frozenset[str]) -> tuple[str, str]:
    """(name, its extras) of a requirement; an empty name when it belongs to an extra that is not wanted."""
    text, _, marker = requirement.partition(";")
    belongs = _EXTRA.findall(marker)
    match = _NAME.match(text)
    if match is None or (belongs and not extras & set(belongs)):
        return "", ""
    return _plain(match[1]), (match[2] or "").replace(" ", "")


def _plain(name: str) -> str:
    """Source: PyPA, *Names and normalization*."""
    return re.sub(r"[-_.]+", "-", name).lower()
