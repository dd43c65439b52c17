"""Find plug-ins by file name: ``backends/onnxruntime.py`` is backend ``onnxruntime``, everywhere.

A plug-in module ends with ``IMPL = TheClass``. Third parties add theirs through the entry-point group
``edgeproof.<kind>``. Nothing is imported until it is asked for by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from .errors import InputError, did_you_mean

Kind = Literal["passes", "backends", "metrics", "telemetry", "data", "search"]


def names(kind: Kind) -> tuple[str, ...]:
    """All plug-in names of a kind, sorted: our files and the installed entry points."""
    folder = Path(__file__).parent / kind
    ours = {m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_")}
    return tuple(sorted(ours | {e.name for e in entry_points(group=f"edgeproof.{kind}")}))


def load(kind: Kind, name: str) -> Any:
    """The class behind a plug-in name.

    Raises:
        InputError: registry.unknown, with the nearest known name.
    """
    if (Path(__file__).parent / kind / f"{name}.py").is_file() and not name.startswith("_"):
        return importlib.import_module(f"edgeproof.{kind}.{name}").IMPL
    for entry in entry_points(group=f"edgeproof.{kind}"):
        if entry.name == name:
            return entry.load()
    raise InputError("registry.unknown", name, f"is not one of the {kind}", did_you_mean(name, names(kind)))
