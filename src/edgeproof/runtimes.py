"""Find a runtime: in this Python, or in one of its own; and the target that a name means."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from . import hardware, machine, registry, toolchain
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
    """A session of a model on a target.

    Raises:
        UnsupportedError: hardware.refused, when the device that the target names cannot run it; backend.….
    """
    hardware.check_model(model, target)
    return backend(target.backend).compile(model, target)


def observer(target: Target) -> Target:
    """Where a model is run to look into it: for ranges, for the error of a layer, for every tensor as an output.

    Returns:
        The target itself when it runs here and takes graphs as they are; else ONNX Runtime's CPU, since numbers inside
        a model are its own, and compiling it for another runtime with hundreds of outputs takes minutes or fails.
    """
    found = backend(target.backend) if target.backend in _DIRECT else None
    here = [t.name for t in found.targets()] if found is not None and found.missing() is None else []
    if f"{target.backend}:{target.device}" in here:
        return target
    threads = target.settings.get("threads")
    return find_target("onnxruntime:cpu", {"threads": threads} if isinstance(threads, int) else {})


_DIRECT = ("onnxruntime", "openvino", "reference")
"""Backends that load ONNX as it is, in an instant."""


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


def backend_of(name: str) -> str:
    """The backend that a target's name means: its first part, or what a device of the catalogue runs with.

    Raises:
        InputError: target.unknown.
        UnsupportedError: hardware.refused.
    """
    first = name.partition(":")[0]
    if first in registry.names("backends"):
        return first
    if hardware.knows(name):
        return hardware.plan(name).backend
    hint = did_you_mean(first, (*registry.names("backends"), *hardware.called()))
    raise InputError(
        "target.unknown", name or "the empty name", "is neither a runtime nor a device of the catalogue", hint
    )


def find_target(name: str, settings: Mapping[str, Any], *, run: bool = True) -> Target:
    """The target called ``name``, with settings on top.

    Args:
        name: ``backend`` for its fastest device, ``backend:device``, or a device of the catalogue, ``orin-nx:dla0``.
        settings: For the backend's settings dataclass.
        run: Whether models are to run on it here; else it is enough that files can be built for it.

    Raises:
        InputError: target.unknown.
        UnsupportedError: target.not_installed, with the line that installs it; target.not_here; hardware.refused.
    """
    backend_name = backend_of(name)
    if name.partition(":")[0] != backend_name:
        return _of_hardware(hardware.plan(name), settings, run=run)
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


def _of_hardware(planned: Target, settings: Mapping[str, Any], *, run: bool) -> Target:
    """A device of the catalogue, as planned; to run on it, this machine must be it."""
    if not run:
        return planned.with_settings(settings)
    assert planned.hardware is not None
    if machine.detect() != planned.hardware:
        raise UnsupportedError(
            "target.not_here",
            planned.name,
            f"this machine is not a {planned.hardware.title}, and nothing is measured in its place",
            f"run it there; 'edgeproof inspect MODEL --target {planned.name}' tells here what will not run",
        )
    find_target(f"{planned.backend}:{planned.device}", settings)
    return planned.with_settings(settings)
