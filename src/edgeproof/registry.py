"""Find plug-ins by file name: ``backends/onnxruntime.py`` is backend ``onnxruntime``, everywhere.

A plug-in module ends with ``IMPL = TheClass``. Third parties add theirs through the entry-point group
``edgeproof.<kind>``. Nothing is imported until it is asked for by name. A callable of the user's own is named as
``file.py:callable`` or ``module:callable``.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from .errors import InputError, did_you_mean

Kind = Literal["passes", "backends", "metrics", "telemetry", "data", "search", "standards"]


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
    if name.isidentifier() and not name.startswith("_") and (Path(__file__).parent / kind / f"{name}.py").is_file():
        return importlib.import_module(f"edgeproof.{kind}.{name}").IMPL
    for entry in entry_points(group=f"edgeproof.{kind}"):
        if entry.name == name:
            return entry.load()
    raise InputError("registry.unknown", name, f"is not one of the {kind}", did_you_mean(name, names(kind)))


def callable_at(name: str, root: str | Path = "") -> Callable[..., Any]:
    """A callable of the user's own. Importing it runs the user's code.

    Args:
        name: ``file.py:callable`` or ``module:callable``; the callable may be dotted.
        root: Folder that a relative ``file.py`` is resolved against.

    Raises:
        InputError: registry.callable.
    """
    source, _, attributes = name.rpartition(":")
    if not source or not attributes:
        raise _no_callable(name, "expected 'file.py:callable' or 'module:callable'")
    try:
        found: Any = _module_from(Path(root, source)) if source.endswith(".py") else importlib.import_module(source)
    except (Exception, SystemExit) as e:  # the user's code may raise anything, and call exit()
        raise _no_callable(name, f"importing {source} failed: {type(e).__name__}: {e}") from e
    for attribute in attributes.split("."):
        known = [n for n in dir(found) if not n.startswith("_")]
        found = getattr(found, attribute, None)
        if found is None:
            raise _no_callable(name, f"{source} has no {attributes!r}; {did_you_mean(attribute, known)}")
    if not callable(found):
        raise _no_callable(name, f"is a {type(found).__name__}; expected a callable")
    return found  # type: ignore[no-any-return]


def _module_from(path: Path) -> ModuleType:
    """Run a file as a module of its own; it is listed in ``sys.modules``, which dataclasses rely on."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    name = f"edgeproof_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _no_callable(name: str, problem: str) -> InputError:
    return InputError("registry.callable", name, problem, "give a file and a function in it, e.g. score.py:score")
