"""Which packages a runtime needs, and Pythons of their own for those that cannot live beside the rest.

PyTorch, TVM and the like bring gigabytes and want versions of NumPy or ONNX of their own. Such a toolchain gets a
virtual environment under the user's data folder; `edgeproof.remote` runs it as a child process. The environment holds
what edgeproof itself needs, while the code that runs there is this very copy of edgeproof.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from .errors import InputError, UnsupportedError, did_you_mean
from .files import only_one

FOLDER = "EDGEPROOF_TOOLCHAINS"
"""Environment variable: where the toolchains' environments are, instead of the user's data folder."""

_START = (
    "import importlib.util as u, runpy, sys\n"
    "folder, module = sys.argv[1], sys.argv[2]\n"
    "spec = u.spec_from_file_location('edgeproof', folder + '/__init__.py', submodule_search_locations=[folder])\n"
    "package = u.module_from_spec(spec)\n"
    "sys.modules['edgeproof'] = package\n"
    "spec.loader.exec_module(package)\n"
    "sys.argv[:] = [module]\n"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
)
"""Runs a module of this copy of edgeproof in another Python, without its neighbours in site-packages."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How a runtime is installed.

    Attributes:
        steps: Arguments of ``pip install``, one tuple a call, in order.
        probe: Module whose presence means that it is installed.
        own: Whether it gets a Python of its own.
        size: Disk it takes, for people.
        note: What else it needs, for people.
    """

    steps: tuple[tuple[str, ...], ...]
    probe: str
    own: bool = False
    size: str = ""
    note: str = ""


CLANG = "apt-get install clang"
"""What compiles tinygrad's kernels for the processor."""

CROSS_COMPILER = "apt-get install g++-aarch64-linux-gnu"
"""What links TVM's libraries for ARM elsewhere."""

TOOLCHAINS: Mapping[str, Toolchain] = {
    "openvino": Toolchain((("openvino>=2025",),), "openvino", size="250 MB"),
    "torch": Toolchain(
        (("torch==2.13.0",),),
        "torch",
        own=True,
        size="700 MB without CUDA, 5 GB with",
        note="on Linux, pip takes the CUDA build unless PIP_INDEX_URL names PyTorch's index of CPU builds",
    ),
    "litert": Toolchain((("ai-edge-litert>=2.1",),), "ai_edge_litert", size="140 MB"),
    "ncnn": Toolchain(
        (("ncnn==1.0.20261020",), ("--no-deps", "pnnx==20261020")),
        "ncnn",
        size="190 MB",
        note="pnnx's package asks for PyTorch, its program does not; for ncnn:vulkan, a Vulkan driver",
    ),
    "tinygrad": Toolchain((("tinygrad>=0.14",),), "tinygrad", size="10 MB", note=f"for the processor, clang: {CLANG}"),
    "tvm": Toolchain(
        (
            # With a later apache-tvm-ffi, MetaSchedule ends in a segmentation fault; the rest is what it needs to tune.
            ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post0", "xgboost-cpu", "psutil", "cloudpickle"),
        ),
        "tvm",
        own=True,
        size="430 MB",
        note=f"to link libraries for ARM, a cross compiler: {CROSS_COMPILER}",
    ),
    "tensorrt": Toolchain(
        (("tensorrt>=10", "cuda-bindings>=12.6"),),
        "tensorrt",
        size="5 GB",
        note="an NVIDIA GPU; on Jetson, JetPack brings it",
    ),
    "tensorrt_rtx": Toolchain(
        (("tensorrt-rtx-cu12==1.7.1.116", "cuda-bindings>=12.6,<13"),),
        "tensorrt_rtx",
        size="320 MB",
        note="an RTX GPU to run, none to build",
    ),
    "executorch": Toolchain(
        (("torch==2.13.0",), ("executorch==1.5.1",)),
        "executorch",
        own=True,
        size="1.6 GB",
        note="with torch for CPUs only; PyPI's torch for Linux on x86 brings CUDA as well",
    ),
    "coreml": Toolchain(
        (("torch==2.13.0",), ("coremltools==9.0", "scikit-learn")),
        "coremltools",
        own=True,
        size="1.2 GB",
        note="macOS to run, none to build; with torch for CPUs only",
    ),
}
"""Backend → its toolchain. What is not listed comes with one of edgeproof's extras."""


def missing(name: str) -> str | None:
    """The line that installs a toolchain, or None when this Python has it. Imports nothing heavy."""
    return None if importlib.util.find_spec(TOOLCHAINS[name].probe) else f"edgeproof targets --install {name}"


def folder(name: str) -> Path:
    """Where a toolchain's own environment is, or would be."""
    root = os.environ.get(FOLDER)
    if root:
        return Path(root, name)
    data = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(data, "edgeproof", "toolchains", name)


def python_of(name: str) -> Path | None:
    """The Python of a toolchain's own environment; None when there is none, or its installation was not finished."""
    place = folder(name)
    python = place / "bin" / "python"
    return python if (place / _DONE).is_file() and os.access(python, os.X_OK) else None


def broken(name: str, why: str) -> UnsupportedError:
    """The error about a toolchain whose Python is there and does not do its work."""
    return UnsupportedError(
        "toolchain.broken",
        name,
        f"its own Python ({folder(name)}) does not work: {why}",
        f"make it anew: 'edgeproof targets --install {name}'",
    )


def command(python: str | Path, module: str) -> list[str]:
    """The command that runs a module of this copy of edgeproof in a Python.

    Args:
        python: This one, or a toolchain's.
        module: Dotted name. Files of the current folder never take the place of packages.
    """
    if str(python) == sys.executable:
        return [sys.executable, "-P", "-m", module]
    return [str(python), "-P", "-c", _START, str(Path(__file__).parent), module]


def install(name: str, progress: Callable[[str, float], None] = lambda _what, _share: None) -> Path:
    """Install a toolchain: into its own environment where it wants one, else into this Python's.

    Args:
        name: As in `TOOLCHAINS`.
        progress: Told about each step.

    Returns:
        The Python that has it now.

    Raises:
        InputError: toolchain.unknown; toolchain.busy, while another process installs it.
        UnsupportedError: toolchain.venv; toolchain.pip, with the last line of what pip said.
    """
    if name not in TOOLCHAINS:
        raise InputError(
            "toolchain.unknown", name, "is no runtime that can be installed", did_you_mean(name, TOOLCHAINS)
        )
    chain = TOOLCHAINS[name]
    if not chain.own:
        _steps(name, Path(sys.executable), chain.steps, progress)
        return Path(sys.executable)
    place = folder(name)
    progress(f"{name}: making {place}", 0.0)
    busy = InputError(
        "toolchain.busy", name, f"another edgeproof is installing it at {place}", "wait for it to end, then look again"
    )
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(only_one(place.with_name(f".{name}.lock"), busy))
        except OSError as e:
            raise _no_place(name, place, e) from e
        try:
            _install_at(name, place, progress)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return place / "bin" / "python"


def _install_at(name: str, place: Path, progress: Callable[[str, float], None]) -> None:
    try:
        (place / _DONE).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise _no_place(name, place, e) from e
    _steps(name, place / "bin" / "python", ((*_own_requirements(),), *TOOLCHAINS[name].steps), progress)
    (place / _DONE).touch()


def _no_place(name: str, place: Path, error: OSError | subprocess.CalledProcessError) -> UnsupportedError:
    return UnsupportedError(
        "toolchain.venv",
        name,
        f"no environment could be made at {place}: {_said(error)}",
        f"check that it can be written and has free space; {FOLDER} names another place",
    )


def _said(error: OSError | subprocess.CalledProcessError) -> str:
    """What a failed venv said, in a line."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    lines = (error.output or b"").decode("utf-8", "replace").splitlines()
    cause = next((t.partition("Errno")[2] for t in lines if "[Errno" in t), "")
    return cause.partition("] ")[2][:200] or f"python -m ensurepip ended with {error.returncode}"


_DONE = ".edgeproof-installed"


def _steps(name: str, python: Path, steps: Sequence[Sequence[str]], progress: Callable[[str, float], None]) -> None:
    for i, step in enumerate(steps):
        progress(f"{name}: installing {' '.join(s for s in step if not s.startswith('-'))[:60]}", i / len(steps))
        line = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *step]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            said = [t for t in done.stdout.splitlines() if t.strip()]
            raise UnsupportedError(
                "toolchain.pip",
                name,
                f"pip could not install {' '.join(step)}: {said[-1][:300] if said else 'it said nothing'}",
                "check the connection and the free space, then run the same command again",
            )
    progress(f"{name}: installed", 1.0)


def main() -> int:
    """Put a toolchain beside edgeproof in this very Python: for environments that are made for one runtime."""
    name = sys.argv[1]
    if name in TOOLCHAINS and missing(name) is not None:
        _steps(name, Path(sys.executable), TOOLCHAINS[name].steps, lambda what, _share: print(what, file=sys.stderr))
    return 0


def _own_requirements() -> list[str]:
    """What edgeproof itself needs to load and run models, as its metadata say."""
    wanted = []
    for line in requires("edgeproof") or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"](\w[\w-]*)['\"]", marker)
        if extra is None or extra[1] == "optimize":
            wanted.append(requirement.strip())
    return wanted


if __name__ == "__main__":
    sys.exit(main())
