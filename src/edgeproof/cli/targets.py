"""What runs here, what is missing, and the line that installs it."""

from __future__ import annotations

import argparse

from .. import registry, runtimes
from ..errors import EdgeproofError
from ..protocols import Backend, Planning
from ._hardware import show_hardware
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument(
        "--install", metavar="RUNTIME", help="install a runtime: beside edgeproof, or in a Python of its own"
    )
    parser.add_argument(
        "--hardware",
        nargs="?",
        const="all",
        metavar="DEVICE",
        help="show the catalogue of devices, or one of them; 'here' is this machine",
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Ask every backend, install one, or show the catalogue of devices."""
    if args.install is not None:
        return _install(args.install, show)
    if args.hardware is not None:
        return show_hardware(args.hardware, show)
    rows: list[list[str]] = []
    result: list[dict[str, object]] = []
    for name in registry.names("backends"):
        backend = runtimes.backend(name)
        line = backend.missing()
        if line is not None:
            rows.append([f"{name}:*", "missing", line])
            result.append({"backend": name, "state": "missing", "install": line})
            continue
        try:
            here = backend.targets()
            planned = backend.planned() if isinstance(backend, Planning) else ()
        except EdgeproofError as e:  # one runtime that is broken hides no other
            rows.append([f"{name}:*", "broken", f"{e.problem}; {e.hint}"])
            result.append({"backend": name, "state": "broken", "error": e.to_json()})
            continue
        for target in here:
            scheme = target.scheme
            wants = f"{scheme.activation} activations, {scheme.weight} weights" if scheme else "no INT8"
            rows.append([target.name, "ready", wants])
            result.append({"backend": name, "target": target.name, "state": "ready", "quantisation": wants})
        for target in planned:
            if target.name not in {t.name for t in here}:
                rows.append([target.name, "builds", f"edgeproof build MODEL --target {target.name}"])
                result.append({"backend": name, "target": target.name, "state": "builds"})
    for provider, line in _absent_providers():
        rows.append([f"onnxruntime:{provider}", "missing", line])
        result.append(
            {"backend": "onnxruntime", "target": f"onnxruntime:{provider}", "state": "missing", "install": line}
        )
    show.table(["target", "state", "quantisation, or the line that installs it"], rows)
    show.result({"targets": result})
    return 0


def _install(name: str, show: Show) -> int:
    from ..toolchain import TOOLCHAINS, install

    with show.progress() as progress:
        python = install(name, progress)
    chain = TOOLCHAINS[name]
    show.text(f"{name} is installed ({chain.size or 'size not known'}), for {python}")
    if chain.note:
        show.text(f"  {chain.note}")
    show.result({"backend": name, "python": str(python), "size": chain.size, "note": chain.note})
    return 0


_INSTALL = {
    "tensorrt": "pip uninstall onnxruntime && pip install onnxruntime-gpu  (with TensorRT's libraries)",
    "cuda": "pip uninstall onnxruntime && pip install onnxruntime-gpu  (with CUDA's libraries and a driver)",
    "openvino": "pip uninstall onnxruntime && pip install onnxruntime-openvino",
    "qnn": "pip uninstall onnxruntime && pip install onnxruntime-qnn  (Windows on Snapdragon, or Android builds)",
}


def _absent_providers() -> list[tuple[str, str]]:
    backend: Backend = registry.load("backends", "onnxruntime")()
    if backend.missing():
        return []
    here = {t.device for t in backend.targets()}
    return [(device, line) for device, line in _INSTALL.items() if device not in here]
