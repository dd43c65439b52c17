"""CPU time and peak memory of a whole static INT8 quantisation, ours beside onnxruntime.quantization.

    python benchmarks/calibration.py MODEL --shape x=1,3,48,192 [--data FOLDER] [--samples 32 512] [--only NAME …]

Every cell is a fresh process with one thread: it imports, quantises the model with the first n samples and writes the
result. Peak memory is that process's VmHWM; CPU time is user + system of reading the model and the samples, quantising
and writing, and, second, of the whole process with its imports. ``floor`` only runs the float model over the samples,
``handed out`` runs it with the tensors that calibration observes as outputs, and drops them: what any tool pays that
sees them through ONNX Runtime. Cells run in turn, ``--rounds`` times, and the least time of each counts: others who use
the machine can only add. A peer that passes the memory limit is stopped and shown as such.

``--data`` takes a folder of .npz files, one sample each, named after the inputs; without it samples are random.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgeproof.model import Model
    from edgeproof.protocols import Context, Session

OURS = ("minmax", "percentile", "entropy", "mse", "auto", "minmax settle")
PEERS = ("MinMax", "Percentile", "Entropy")
NAMES = ("floor", "handed out", *(f"edgeproof {m}" for m in OURS), *(f"onnxruntime {m}" for m in PEERS))
IMPORTS = {
    "floor": ("onnxruntime",),
    "edgeproof": ("onnx", "onnx_ir", "onnxruntime", "edgeproof.passes.int8"),
    "onnxruntime": ("onnx", "onnxruntime", "onnxruntime.quantization"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=D,D,…")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-gb", type=float, default=12.0)
    parser.add_argument("--json", type=Path, help="write the cells here")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = {name: tuple(map(int, dims.split(","))) for name, dims in (s.split("=") for s in args.shape)}
    if args.cell:
        print(json.dumps(cell(args.model, args.cell[0], int(args.cell[1]), shapes, args.data)))
        return
    cells = []
    for n in args.samples:
        tries = [{name: child(name, n, args.limit_gb) for name in args.only} for _ in range(args.rounds)]
        for name in args.only:
            cells.append({"name": name, "samples": n, **best([t[name] for t in tries])})
            print(row(cells[-1], cells), flush=True)
    if args.json:
        args.json.write_text(json.dumps(cells, indent=1))


def best(tries: list[dict[str, object]]) -> dict[str, object]:
    """The least CPU time and the highest peak of a cell's tries; why it stopped, if any did."""
    stopped = [t for t in tries if "stopped" in t]
    if stopped:
        return stopped[0]
    least = {key: min(t[key] for t in tries) for key in ("cpu_s", "whole_s")}
    return {**least, "peak_mb": max(t["peak_mb"] for t in tries)}


def row(found: dict[str, object], cells: list[dict[str, object]]) -> str:
    head = f"{found['samples']:>4} samples  {found['name']:<24}"
    if "cpu_s" not in found:
        return f"{head} {found['stopped']}"
    floor = [c for c in cells if c["name"] == "floor" and c["samples"] == found["samples"] and "cpu_s" in c]
    ratio = "".join(f" {found[key] / floor[0][key]:6.2f} x" for key in ("cpu_s", "whole_s")) if floor else ""
    return f"{head} {found['cpu_s']:8.2f} s {found['whole_s']:8.2f} s whole {found['peak_mb']:7.0f} MB{ratio}"


def child(name: str, n: int, limit_gb: float) -> dict[str, object]:
    """Run one cell in a process of its own, with a bound on its address space."""
    limit = int(limit_gb * 2**30)
    done = subprocess.run(
        [sys.executable, *sys.argv, "--cell", name, str(n)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    if done.returncode:
        memory = "MemoryError" in done.stderr or "bad_alloc" in done.stderr or done.returncode < 0
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"stopped": f"stopped above {limit_gb:g} GB" if memory else last[0][:120]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def cell(model: Path, name: str, n: int, shapes: dict[str, tuple[int, ...]], data: Path | None) -> dict[str, float]:
    tool, _, method = name.partition(" ")
    run = {"floor": floor, "handed": handed_out, "edgeproof": ours, "onnxruntime": peer}[tool]
    for module in IMPORTS[{"handed": "edgeproof"}.get(tool, tool)]:
        import_module(module)
    start = time.process_time()
    names = observed_names(model, lambda: feeds(shapes, 1, data)) if tool == "handed" else ()
    before = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run(model, ",".join(names) or method, lambda: feeds(shapes, n, data), n, Path(folder) / "int8.onnx")
    after = time.process_time()
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {"cpu_s": after - before, "whole_s": after - before + start, "peak_mb": int(peak.split()[1]) / 1024}


def feeds(shapes: dict[str, tuple[int, ...]], n: int, data: Path | None) -> Iterator[dict[str, np.ndarray]]:
    if data:
        for path in sorted(data.glob("*.npz"))[:n]:
            with np.load(path) as arrays:
                yield dict(arrays)
        return
    rng = np.random.default_rng(0)
    for _ in range(n):
        yield {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


Samples = Callable[[], Iterator[dict[str, np.ndarray]]]


def floor(model: Path, _method: str, samples: Samples, _n: int, _out: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    for sample in samples():
        session.run(None, sample)


def handed_out(model: Path, names: str, samples: Samples, n: int, _out: Path) -> None:
    from edgeproof.model import load_model
    from edgeproof.quant.calibration import observed

    session = our_context(samples, n).compile(observed(load_model(model), names.split(","), alone=True))
    for sample in samples():
        session.run(sample)


def observed_names(model: Path, samples: Samples) -> tuple[str, ...]:
    """The tensors that calibration asks the runtime for."""
    from edgeproof.model import load_model
    from edgeproof.passes.int8 import Int8

    context, names = our_context(samples, 1), list[str]()

    def listening(watched: Model) -> Session:
        names[:] = [o.name for o in watched.outputs]
        return context.compile(watched)

    Int8()(load_model(model), replace(context, compile=listening))
    return tuple(names)


def our_context(samples: Samples, n: int) -> Context:
    from edgeproof.backends.onnxruntime import OnnxRuntime
    from edgeproof.protocols import Context

    backend = OnnxRuntime()
    target = next(t for t in backend.targets() if t.name == "onnxruntime:cpu").with_settings({"threads": 1})
    return Context(lambda m: backend.compile(m, target), samples, n, target)


def ours(model: Path, method: str, samples: Samples, n: int, out: Path) -> None:
    from edgeproof.model import load_model, save_model
    from edgeproof.passes.int8 import Int8

    method, _, settle = method.partition(" ")
    save_model(Int8(method=method, settle=bool(settle))(load_model(model), our_context(samples, n)).model, out)


def peer(model: Path, method: str, samples: Samples, _n: int, out: Path) -> None:
    import onnxruntime as ort
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = samples()

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    # It makes its sessions itself, with a thread per core: ask for one, as for the others.
    make = ort.SessionOptions

    def one_thread() -> ort.SessionOptions:
        options = make()
        options.intra_op_num_threads = 1
        return options

    ort.SessionOptions = one_thread
    quantize_static(
        str(model),
        str(out),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=getattr(CalibrationMethod, method),
    )
    ort.SessionOptions = make


if __name__ == "__main__":
    main()
