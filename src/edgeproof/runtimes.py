"""Find a runtime: in this Python, or in one of its own; and the target that a name means."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from . import registry, toolchain
from .errors import InputError, UnsupportedError, did_you_mean
from .model import Model
from .protocols import Backend, Planning, Session
from .remote import RemoteBackend
from .target import Target


def backend(name: str) -> Backend:
    """A backend: this Python's where it has the runtime, else that of the toolchain's own Python.

    Returns:
        One whose `Backend.missing` says what to install, when neither has it.

    Raises:
        InputError: registry.unknown.
    """
    here: Backend = registry.load("backends", name)()
    if here.missing() is None:
        return here
    python = toolchain.python_of(name)
    return here if python is None else RemoteBackend(name, python)


def compile_for(target: Target, model: Model) -> Session:
    """A session of a model on a target."""
    return backend(target.backend).compile(model, target)


def where_it_runs(target: Target) -> Target:
    """A target, or ONNX Runtime's CPU for one that can only be built for here: ranges are the model's own."""
    here = (t.name for t in backend(target.backend).targets())
    return target if target.name in here else find_target("onnxruntime:cpu", {})


def python_for(backends: Iterable[str]) -> str:
    """The Python in which a process that only uses these backends is best started.

    Returns:
        A toolchain's own, when all of them are one runtime that lives there; else this one, which reaches it through a
        child process.
    """
    names = set(backends)
    if len(names) == 1:
        (name,) = names
        here: Backend = registry.load("backends", name)()
        python = None if here.missing() is None else toolchain.python_of(name)
        if python is not None:
            return str(python)
    return sys.executable


def find_target(name: str, settings: Mapping[str, Any], *, run: bool = True) -> Target:
    """The target called ``name``, with settings on top.

    Args:
        name: ``backend`` for its fastest device, or ``backend:device``.
        settings: For the backend's settings dataclass.
        run: Whether models are to run on it here; else it is enough that files can be built for it.

    Raises:
        InputError: target.unknown.
        UnsupportedError: target.not_installed, with the line that installs it.
    """
    backend_name = name.partition(":")[0]
    if backend_name not in registry.names("backends"):
        raise InputError(
            "target.unknown", name, "no such runtime", did_you_mean(backend_name, registry.names("backends"))
        )
    found = backend(backend_name)
    line = found.missing()
    if line is not None:
        raise UnsupportedError("target.not_installed", name, "the runtime is not installed", f"run '{line}'")
    here = found.targets()
    planned = found.planned() if isinstance(found, Planning) else ()
    targets = {t.name: t for t in (here if run else (*planned, *here))}
    if name == backend_name and targets:
        return next(iter(targets.values())).with_settings(settings)
    if name in targets:
        return targets[name].with_settings(settings)
    if any(t.name == name for t in planned):
        problem = "models can be built for it here, but do not run here"
        hint = f"run 'edgeproof build MODEL --target {name}' here, and measure on the device"
        raise UnsupportedError("target.not_here", name, problem, hint)
    raise UnsupportedError(
        "target.not_installed",
        name,
        f"does not run here; what runs: {', '.join(targets) or 'nothing of this runtime'}",
        "run 'edgeproof targets' for the line that installs it",
    )
