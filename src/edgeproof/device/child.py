"""The process that runs the model: ``python -m edgeproof.device.child``, frames on stdin and stdout.

It reads a bundle once, holds every byte that it uses against the digest in the manifest, and makes the session from
those very bytes: no file is opened a second time, so there is nothing to swap between the check and the use.
Only this process loads a runtime.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EdgeproofError, InputError, UnsupportedError
from ..frames import KINDS, EndedError, Frame, receive, send
from .load import Loaded, load
from .state import Slot

if TYPE_CHECKING:
    import onnxruntime as ort


def main() -> int:
    """Load, then answer until the other end is gone."""
    # Native libraries write to file descriptor 1 as they please: answers go through a private copy of it.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        job = receive(0).head
        session, path = _session(job), str(job["path"])
    except EdgeproofError as e:
        send(answer, Frame({"error": e.to_json()}))
        return e.exit_code
    except EndedError:
        return 0
    send(answer, Frame(_interface(session)))
    while True:
        try:
            send(answer, _answer(session, receive(0), path))
        except EndedError:
            return 0


def _session(job: Any) -> ort.InferenceSession:
    """A session from verified bytes.

    Raises:
        TrustError: device.swapped and others of `load`.
        UnsupportedError: device.format, device.runtime_missing, device.refused.
    """
    loaded = load(Path(job["path"]), Slot(**job["slot"]))
    if loaded.manifest.format != "onnx":
        hint = "serve bundles of format onnx, or start the model's own runtime from the slot"
        raise UnsupportedError("device.format", loaded.manifest.label, f"is {loaded.manifest.format}", hint)
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as e:
        hint = "pip install 'edgeproof[device]'"
        raise UnsupportedError("device.runtime_missing", "onnxruntime", "is not installed here", hint) from e
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = int(job["threads"])
    _give_weights(options, loaded)
    # The Azure provider sends inputs to a server; whatever else the wheel has is tried in its own order.
    providers = [p for p in ort.get_available_providers() if p != "AzureExecutionProvider"]
    try:
        return ort.InferenceSession(loaded.model, options, providers=providers)
    except Exception as e:  # the runtime's errors have no common base
        problem = f"the runtime refuses it: {type(e).__name__}: {e}"
        raise UnsupportedError("device.refused", loaded.manifest.label, problem, "pack it for this runtime") from e


def _give_weights(options: ort.SessionOptions, loaded: Loaded) -> None:
    """Hand over weight files as bytes too, under the names by which the model knows them."""
    folder = PurePosixPath(loaded.manifest.model).parent
    others = {str(PurePosixPath(p).relative_to(folder)): b for p, b in loaded.beside.items()}
    if others:
        sizes = [len(b) for b in others.values()]
        options.add_external_initializers_from_files_in_memory(list(others), list(others.values()), sizes)


def _interface(session: ort.InferenceSession) -> dict[str, Any]:
    def described(values: Any) -> list[dict[str, Any]]:
        shapes = [[d if isinstance(d, int) else None for d in v.shape] for v in values]
        return [{"name": v.name, "type": v.type, "shape": s} for v, s in zip(values, shapes, strict=True)]

    return {
        "inputs": described(session.get_inputs()),
        "outputs": described(session.get_outputs()),
        "providers": session.get_providers(),
    }


def _answer(session: ort.InferenceSession, asked: Frame, path: str) -> Frame:
    """One inference: outputs, its time in ns, and how many outputs hold a NaN."""
    names = [o.name for o in session.get_outputs()]
    try:
        start = time.perf_counter_ns()
        outputs = session.run(names, dict(asked.arrays))
        took = time.perf_counter_ns() - start
    except Exception as e:  # the runtime's errors have no common base
        refused = type(e).__name__ in ("InvalidArgument", "ValueError", "TypeError")
        return _error(InputError if refused else UnsupportedError, path, f"{type(e).__name__}: {e}")
    arrays = {n: np.asarray(o) for n, o in zip(names, outputs, strict=True)}
    strange = [n for n, a in arrays.items() if a.dtype.kind not in KINDS]
    if strange:
        return _error(UnsupportedError, path, f"output {strange[0]!r} is of type {arrays[strange[0]].dtype}")
    nan = sum(bool(a.dtype.kind == "f" and np.isnan(a).any()) for a in arrays.values())
    return Frame({"latency_ns": took, "nan_outputs": nan}, arrays)


def _error(kind: type[EdgeproofError], path: str, problem: str) -> Frame:
    code = "serve.refused" if kind is InputError else "serve.failed"
    return Frame({"error": kind(code, Path(path).name, problem, "see 'inputs' on /health").to_json()})


if __name__ == "__main__":
    sys.exit(main())
