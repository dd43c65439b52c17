"""An environment of its own for every peer, made when it is missing: a virtual environment with pinned releases.

Each lies in ``$EDGEPROOF_CACHE/peers/NAME`` (default ``~/.cache/edgeproof``). ``ready.json``, written last, holds the
pins it was made from and everything that pip put there; one with other pins, or a half-made one, is made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Where a peer wants PyTorch, the same release in each; a CPU build where the index offers one.
TORCH = "torch==2.13.0"

# What pip is asked for, one `pip install` an entry.
PINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "onnxruntime": (("onnxruntime==1.32.0", "onnx==1.23.2"),),
    "nncf": (("nncf==3.4.0", "openvino==2026.4.1", "onnx", "onnxruntime==1.32.0"),),
    "modelopt": ((TORCH,), ("nvidia-modelopt[onnx]==0.47.0",)),
    "aimet": ((TORCH, "aimet-onnx==2.42.0"),),
    "olive": ((TORCH,), ("olive-ai==0.13.0", "onnxruntime==1.32.0", "requests")),
    "deepbom": (("deepbom==1.103.0",),),
    "atheris": (("atheris>=3.0", "-e", f"{Path(__file__).parents[2]}[optimize]"),),
}


def root() -> Path:
    """The folder that holds the environments."""
    cache = os.environ.get("EDGEPROOF_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "edgeproof") / "peers"


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made when it is missing.

    Raises:
        RuntimeError: with pip's last line, when it cannot be made.
    """
    if name == "edgeproof":
        return Path(sys.executable)
    folder = root() / name
    python, ready = folder / "bin" / "python", folder / "ready.json"
    if ready.is_file() and json.loads(ready.read_text())["pins"] == [list(p) for p in PINS[name]]:
        return python
    print(f"{name}: making {folder} (once; minutes where PyTorch is needed)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run(name, [sys.executable, "-m", "venv", str(folder)])
    for pins in PINS[name]:
        _run(name, [str(python), "-m", "pip", "install", "--quiet", *pins])
    frozen = _run(name, [str(python), "-m", "pip", "freeze"]).split()
    ready.write_text(json.dumps({"pins": PINS[name], "installed": frozen, "bytes": _size(folder)}, indent=1))
    return python


def installed(name: str) -> dict[str, object]:
    """What ``ready.json`` says of a peer's environment: pins, installed releases, bytes on disk."""
    found: dict[str, object] = json.loads((root() / name / "ready.json").read_text())
    return found


def _run(name: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise RuntimeError(f"{name}: its environment could not be made: {last}")
    return done.stdout


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
