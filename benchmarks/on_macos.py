"""Predict with Core ML, compare with ONNX Runtime, time: one JSON receipt per model.

    python -m benchmarks.on_macos MODEL.onnx ... [--target coreml:all] [--out FOLDER] [--rounds 30]

Targets default to all compute units of Core ML, each with the model's precision and with float16. Both runtimes run
interleaved in one process on the same random inputs (fixed seed); times are wall times per inference. Any other target
may be named, which is how this script is tried where there is no Mac.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgeproof.errors import EdgeproofError
from edgeproof.files import write_json
from edgeproof.model import Model, load_model
from edgeproof.runtimes import backend, find_target
from edgeproof.target import Target

INPUTS = 4
SETTINGS: tuple[dict[str, str], ...] = ({}, {"precision": "float16"})


def main() -> int:
    """Run; returns the exit code."""
    try:
        run()
    except EdgeproofError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


def run() -> None:
    """Write a receipt per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", type=Path)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("receipts-coreml"))
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.model:
        model = load_model(path)
        receipt = {
            "schema": "edgeproof.on-macos/1",
            "model": {"name": model.name, "digest": model.digest},
            "machine": machine(),
            "legs": [leg(model, t, args.rounds) for t in targets(args.target)],
        }
        write_json(args.out / f"{model.name}.json", receipt)
        for found in receipt["legs"]:
            print(f"{model.name}: {found['target']} {found['settings']}: {found.get('error') or summary(found)}")


def targets(named: list[str]) -> list[Target]:
    """Those that were named, or every compute unit in every precision."""
    if named:
        return [find_target(name, {}) for name in named]
    units = backend("coreml").targets() or (find_target("coreml", {}),)  # the latter says why there is none
    return [t.with_settings(s) for t in units for s in SETTINGS]


def leg(model: Model, target: Target, rounds: int) -> dict[str, Any]:
    """One target beside ONNX Runtime."""
    about = {"target": target.name, "settings": dict(target.settings)}
    try:
        start = time.perf_counter()
        session = backend(target.backend).compile(model, target)
        seconds = time.perf_counter() - start
    except EdgeproofError as e:
        return {**about, "error": str(e)}
    base_target = find_target("onnxruntime:cpu", {"threads": 1})
    base = backend("onnxruntime").compile(model, base_target)
    rng = np.random.default_rng(0)
    feeds = [{s.name: value(s, rng) for s in model.inputs} for _ in range(INPUTS)]
    signal = noise = largest = 0.0
    for sample in feeds:
        got = session.run(sample)
        for name, want in base.run(sample).items():
            gap = np.asarray(got[name], np.float64) - want
            signal, noise = signal + float((want.astype(np.float64) ** 2).sum()), noise + float((gap**2).sum())
            largest = max(largest, float(np.abs(gap).max(initial=0.0)))
    times: dict[str, list[int]] = {"ours": [], "onnxruntime": []}
    for i in range(rounds):
        for key, one in (("ours", session), ("onnxruntime", base)):
            begin = time.perf_counter_ns()
            one.run(feeds[i % INPUTS])
            times[key].append(time.perf_counter_ns() - begin)
    placement = session.placement()
    devices: dict[str, int] = {}
    for _, _, where, _ in placement.nodes:
        devices[where] = devices.get(where, 0) + 1
    session.close()
    base.close()
    return {
        **about,
        "compile_seconds": round(seconds, 3),
        "inputs": INPUTS,
        "max_abs": largest,
        "sqnr_db": None if not noise or not signal else round(10 * float(np.log10(signal / noise)), 2),
        "latency_ns": times["ours"],
        "onnxruntime_latency_ns": times["onnxruntime"],
        "devices": devices,
        "placement": [list(n) for n in placement.nodes],
        "placement_source": placement.source,
    }


def machine() -> dict[str, str]:
    """What measures here; `edgeproof.environment` reads Linux only."""
    packages = ("edgeproof", "coremltools", "torch", "onnxruntime", "numpy")
    found = {p: version(p) for p in packages if importlib.util.find_spec(p)}
    return {
        "system": platform.platform(),
        "processor": platform.processor(),
        "python": platform.python_version(),
        **found,
    }


def value(spec: Any, rng: np.random.Generator) -> np.ndarray:
    shape = tuple(int(d) for d in spec.shape)
    wide = rng.standard_normal(shape) if spec.dtype.startswith("float") else rng.integers(0, 2, shape)
    return wide.astype(spec.dtype)


def summary(found: dict[str, Any]) -> str:
    ours, theirs = median(found["latency_ns"]) / 1e6, median(found["onnxruntime_latency_ns"]) / 1e6
    quality = "equal" if found["sqnr_db"] is None else f"{found['sqnr_db']} dB"
    return f"{quality}, {ours:.2f} ms (ONNX Runtime, 1 thread: {theirs:.2f} ms), {found['devices']}"


if __name__ == "__main__":
    sys.exit(main())
