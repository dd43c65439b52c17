"""What each way to recover INT8's accuracy gains: model × technique → SQNR at the outputs and quality, same data.

    python -m benchmarks.recovery portraits reuters_r8 [--calibration 32] [--held-out 200] [--only NAME …]

Models and data come from the zoo (`python -m benchmarks.zoo`). The first samples calibrate, the following ones are
measured; nothing is chosen on them here, but a technique picked by reading this table was. CPU seconds are those of
quantising, calibration included. SQNR is that of the raw outputs over the first 16 held-out samples, and of other
tensors where outputs are sorted (``--outputs``).
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.catalogue import DATA, fetch, write_data
from benchmarks.zoo.check import METRICS
from benchmarks.zoo.packages import default_cache

from edgeproof import registry
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.model import Model, load_model
from edgeproof.protocols import Backend, Context
from edgeproof.quant.calibration import observed

FLOAT = ("simplify", "fuse_activation", "fold_affine")
BOTH = {"bias_correction": True, "rounding": "gptq"}
TECHNIQUES: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any] | None]] = {
    "float": ((), None),
    "minmax": ((), {"method": "minmax"}),
    "percentile": ((), {"method": "percentile"}),
    "mse": ((), {"method": "mse"}),
    "auto": ((), {"method": "auto"}),
    "auto + equalize": (("equalize",), {"method": "auto"}),
    "auto + smooth": (("smooth",), {"method": "auto"}),
    "auto + bias": ((), {"method": "auto", "bias_correction": True}),
    "auto + gptq": ((), {"method": "auto", "rounding": "gptq"}),
    "auto + bias + gptq": ((), {"method": "auto", **BOTH}),
    "mse + bias + gptq": ((), {"method": "mse", **BOTH}),
    "all": (("equalize", "smooth"), {"method": "auto", **BOTH}),
}
"""Name → float passes ahead of ``int8``, and its settings."""

SORTED: Mapping[str, tuple[str, ...]] = {"centernet": ("conv_259", "conv_263"), "ppocr_rec": ("p2o.Add.277",)}
"""Tensors whose error says more than that of the outputs: ahead of a sort or a softmax."""

SQNR_SAMPLES = 16


@dataclass(slots=True)
class Bench:
    """One model and its data."""

    name: str
    original: Model
    context: Context
    backend: Backend
    samples: Any
    spec: Any
    held_out: range
    metrics: tuple[str, ...]
    wanted: list[dict[str, np.ndarray]] = field(default_factory=list)

    def outputs(self, model: Model) -> list[dict[str, np.ndarray]]:
        heads = SORTED.get(self.name, ())
        session = self.context.compile(observed(model, heads))
        try:
            names = heads or tuple(o.name for o in model.outputs)
            found = [session.run(self.samples[i].feeds) for i in self.held_out[:SQNR_SAMPLES]]
            return [{n: o[n] for n in names if o[n].dtype.kind == "f"} for o in found]
        finally:
            session.close()

    def sqnr_db(self, model: Model) -> float:
        """Of all outputs, each weighing alike: the mean of their ratios in dB."""
        got = self.outputs(model)
        ratios = []
        for name in self.wanted[0]:
            signal = sum(float(np.sum(w[name].astype(np.float64) ** 2)) for w in self.wanted)
            noise = sum(
                float(np.sum((w[name].astype(np.float64) - g[name]) ** 2))
                for w, g in zip(self.wanted, got, strict=True)
            )
            ratios.append(10 * math.log10(signal / noise) if noise else math.inf)
        return float(np.mean(ratios))

    def quality(self, model: Model) -> dict[str, float]:
        session = self.context.compile(model)
        try:
            scores = evaluate(session, self.samples, self.held_out, self.spec, self.original, self.metrics)
        finally:
            session.close()
        return {name: float(metric_of(name, self.spec).value(values)) for name, values in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=sorted(METRICS), help="data sets; each brings its model")
    parser.add_argument("--calibration", type=int, default=32)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=list(TECHNIQUES), choices=TECHNIQUES, metavar="NAME")
    parser.add_argument("--seed", type=int, default=77)
    args = parser.parse_args()
    for name in args.data:
        with tempfile.TemporaryDirectory() as folder:
            table(bench(name, args.calibration, args.held_out, args.seed, Path(folder)), args.only)


def bench(data: str, calibration: int, held_out: int, seed: int, folder: Path) -> Bench:
    """Fetch a model and draw its data."""
    cache, name = default_cache(), DATA[data].model
    path = write_data(data, cache, folder / data, calibration + held_out, seed)
    model = load_model(fetch(name, cache))
    spec = load_spec(str(path))
    samples = open_dataset(spec, model)
    backend: Backend = registry.load("backends", "onnxruntime")()
    target = next(t for t in backend.targets() if t.device == "cpu")
    context = Context(
        lambda m: backend.compile(m, target),
        lambda: (samples[i].feeds for i in range(calibration)),
        calibration,
        target,
    )
    held = range(calibration, min(len(samples), calibration + held_out))
    return Bench(name, model, context, backend, samples, complete(spec, model, samples), held, METRICS[data])


def table(b: Bench, techniques: list[str]) -> None:
    """Print one line per technique."""
    clean = b.original
    for step in FLOAT:
        clean = registry.load("passes", step)()(clean, b.context).model
    b.wanted = b.outputs(clean)
    print(f"\n{b.name}, {b.context.samples} calibrating, {len(b.held_out)} held out")
    for technique in techniques:
        passes, settings = TECHNIQUES[technique]
        model, before = clean, time.process_time()
        context = replace(b.context, calibration=None)
        for step in passes:
            model = registry.load("passes", step)()(model, context).model
        if settings is not None:
            model = registry.load("passes", "int8")(**settings)(model, context).model
        spent = time.process_time() - before
        quality = "  ".join(f"{k} {v:.3f}" for k, v in b.quality(model).items())
        print(f"{technique:<20} {b.sqnr_db(model):7.1f} dB  {quality}  {spent:6.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
