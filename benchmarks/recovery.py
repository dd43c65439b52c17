"""What each way to recover INT8's accuracy gains: model × technique → SQNR, quality, INT8 share of the work, speed.

    python -m benchmarks.recovery scenes lines_medium [--calibration 32] [--held-out 200] [--only NAME …]

Models and data come from the zoo (`python -m benchmarks.zoo`). Calibration samples are drawn with one seed and test
samples with the next (of a finite set, both at once), the same for every technique; nothing is chosen on the latter.
SQNR is that of the raw outputs over the first 16 test samples, and of other tensors where outputs are sorted
(``SORTED``). CPU seconds are those of quantising, calibration included. The share is that of multiply-accumulates in
integers. CPU time of an inference is relative to the simplified float model: both in turn, one thread, the median.
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
from edgeproof.graph.cost import cost
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
    "percentile + bias + gptq": ((), {"method": "percentile", **BOTH}),
    "minmax + bias + gptq": ((), {"method": "minmax", **BOTH}),
    "all": (("equalize", "smooth"), {"method": "auto", **BOTH}),
    "layers, mse + bias + gptq": ((), {"method": "mse", "followers": False, **BOTH}),
    "… by channel": ((), {"method": "mse", "followers": False, "channel_outputs": True, **BOTH}),
    "… level": (("level",), {"method": "mse", "followers": False, "channel_outputs": True, **BOTH}),
    "int8_auto": (("int8_auto",), None),
    "int8_accurate": (("int8_accurate",), None),
}
"""Name → float passes ahead of ``int8``, and its settings."""

SORTED: Mapping[str, tuple[str, ...]] = {"centernet": ("sigmoid_260", "sigmoid_264"), "ppocr_rec": ("p2o.Add.277",)}
"""Tensors whose error says more than that of the outputs: ahead of a sort or a softmax."""

FINITE = ("reuters_r8", "mnist", "digits")
"""Drawn without replacement from a finite set: one draw, cut in two, so that no sample is in both."""

SQNR_SAMPLES = 16
TURNS = 25


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
            test_seed = None if name in FINITE else args.seed + 1
            made = bench(name, args.calibration, args.held_out, args.seed, Path(folder), test_seed=test_seed)
            table(made, args.only)


def bench(
    data: str, calibration: int, held_out: int, seed: int, folder: Path, *, test_seed: int | None = None
) -> Bench:
    """Fetch a model and draw its data; with a seed for them, the samples held out are a draw of their own."""
    cache, name = default_cache(), DATA[data].model
    model = load_model(fetch(name, cache))
    path = write_data(data, cache, folder / data, calibration + (held_out if test_seed is None else 0), seed)
    seen = open_dataset(load_spec(str(path)), model)
    spec, samples, first = load_spec(str(path)), seen, calibration
    if test_seed is not None:
        spec = load_spec(str(write_data(data, cache, folder / f"{data}-test", held_out, test_seed)))
        samples, first = open_dataset(spec, model), 0
    backend: Backend = registry.load("backends", "onnxruntime")()
    target = next(t for t in backend.targets() if t.device == "cpu").with_settings({"threads": 1})
    context = Context(
        lambda m: backend.compile(m, target),
        lambda: (seen[i].feeds for i in range(calibration)),
        calibration,
        target,
    )
    held = range(first, min(len(samples), first + held_out))
    return Bench(name, model, context, backend, samples, complete(spec, model, samples), held, METRICS[data])


def int8_share(model: Model, sample: Mapping[str, np.ndarray]) -> float:
    """Share of the multiply-accumulates of convolutions and products that integers do, 0 to 1."""
    layers = cost(model, {n: a.shape for n, a in sample.items()}).layers  # in the graph's order, named or not
    done = {True: 0, False: 0}
    for node, layer in zip(model.graph.graph, layers, strict=True):
        macs = layer.macs.value if layer.macs is not None else None
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and macs is not None:
            makers = [v.producer() for v in node.inputs[:2] if v is not None]
            done[all(m is not None and m.op_type == "DequantizeLinear" for m in makers)] += macs
    return done[True] / max(1, sum(done.values()))


def relative_time(b: Bench, plain: Model, model: Model) -> float:
    """CPU time of an inference as a multiple of the float model's, both in turn."""
    sessions = [b.context.compile(m) for m in (plain, model)]
    times: list[list[float]] = [[], []]
    feeds = b.samples[b.held_out[0]].feeds
    try:
        for turn in range(TURNS + 3):
            for session, spent in zip(sessions, times, strict=True):
                before = time.process_time()
                session.run(feeds)
                if turn >= 3:
                    spent.append(time.process_time() - before)
    finally:
        for session in sessions:
            session.close()
    return float(np.median(times[1]) / np.median(times[0]))


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
        share, ratio = int8_share(model, b.samples[b.held_out[0]].feeds), relative_time(b, clean, model)
        print(
            f"{technique:<26} {b.sqnr_db(model):7.1f} dB  {quality}  {share:4.0%} of MACs  {ratio:5.2f} × float"
            f"  {spent:6.1f} CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main()
