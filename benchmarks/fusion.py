"""What runs in integers, by the runtimes' own records: our Q/DQ on ONNX Runtime and OpenVINO, and NNCF's on OpenVINO.

    python -m benchmarks.fusion lines_medium turned portraits [--calibration 64] [--held-out 300] [--rounds 40]

Needs ``openvino``, and for the comparison ``nncf``, beside edgeproof (``scripts/test-with openvino`` makes one
with the former). All variants of a model start from the same simplified graph (for OpenVINO with hard activations as it
fuses them), are quantised on the same samples and run on one thread. CPU time is taken in interleaved rounds; ratios
are medians of the rounds' with a 95 % interval of order statistics. *Layers* are executed convolutions and matrix
products, those in integers first; *changes* are executed nodes that do nothing but change precision or layout.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.zoo.catalogue import DATA, fetch, write_data
from benchmarks.zoo.check import METRICS
from benchmarks.zoo.packages import default_cache

from edgeproof import registry
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.measurement import LayerTime
from edgeproof.model import Model, load_model
from edgeproof.protocols import Context, Session
from edgeproof.runtimes import find_target
from edgeproof.target import Target

METHOD = {"reuters_r8": "auto"}
"""Range rule where ``mse`` is not the better one; see docs/quantisation.md."""

LAYERS = {
    "onnxruntime": ("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "QLinearConv", "QGemm", "QLinearMatMul",
                    "MatMulIntegerToFloat", "ConvTranspose", "FusedMatMul"),
    "openvino": ("Convolution", "GroupConvolution", "Deconvolution", "FullyConnected", "MatMul",
                 "FullyConnectedQuantizedLegacy", "FullyConnectedQuantized"),
}  # fmt: skip
CHANGES = {
    "onnxruntime": ("QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput", "Cast"),
    "openvino": ("Reorder", "Convert", "FakeQuantize"),
}
PROFILED = 20
INFERENCES = 3
"""Of each leg in a round."""


@dataclass(slots=True)
class Leg:
    """One variant on one runtime."""

    runtime: str
    variant: str
    compile: Callable[[bool], Session]


@dataclass(slots=True)
class Case:
    """A model with its data."""

    data: str
    original: Model
    model: Model
    samples: Any
    spec: Any
    calibration: int
    held_out: range
    ort: Target
    openvino: Target

    def context(self, target: Target) -> Context:
        backend = registry.load("backends", "onnxruntime")()
        return Context(
            lambda m: backend.compile(m, self.ort),
            lambda: (self.samples[i].feeds for i in range(self.calibration)),
            self.calibration,
            target,
        )

    def quantised(self, target: Target) -> Model:
        method = METHOD.get(self.data, "mse")
        return registry.load("passes", "int8")(method=method)(self.model, self.context(target)).model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=sorted(METRICS), help="data sets; each brings its model")
    parser.add_argument("--calibration", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=77)
    args = parser.parse_args()
    for data in args.data:
        with tempfile.TemporaryDirectory() as folder:
            show(case(data, args.calibration, args.held_out, args.seed, Path(folder)), args.rounds)


def case(data: str, calibration: int, held_out: int, seed: int, folder: Path) -> Case:
    """Fetch a model, draw its data, make the clean float graph with the samples' shapes."""
    cache = default_cache()
    path = write_data(data, cache, folder / data, calibration + held_out, seed)
    model = load_model(fetch(DATA[data].model, cache))
    spec = load_spec(str(path))
    samples = open_dataset(spec, model)
    ort, openvino = (find_target(f"{name}:cpu", {"threads": 1}) for name in ("onnxruntime", "openvino"))
    held = range(calibration, min(len(samples), calibration + held_out))
    found = Case(data, model, model, samples, complete(spec, model, samples), calibration, held, ort, openvino)
    shapes = [{k: v.shape for k, v in samples[i].feeds.items()} for i in range(0, calibration, 8)]
    if all(s == shapes[0] for s in shapes) and any(s.dynamic for s in model.inputs):
        text = ";".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes[0].items())
        found.model = registry.load("passes", "fix_shapes")(shapes=text)(found.model, found.context(ort)).model
    found.model = registry.load("passes", "simplify")()(found.model, found.context(ort)).model
    return found


def legs(c: Case) -> list[Leg]:
    """FP32 and INT8 on both runtimes, on OpenVINO also with the Q/DQ meant for ONNX Runtime, and NNCF's."""

    def leg(target: Target, variant: str, model: Model, graph: Any = None) -> Leg:
        backend = registry.load("backends", target.backend)()

        def compile(profile: bool) -> Session:  # noqa: A001
            chosen = target.with_settings({"profile": profile})
            if graph is None:
                return backend.compile(model, chosen)
            from edgeproof.backends.openvino import OpenVinoSession

            return OpenVinoSession(model, chosen, graph)

        return Leg(target.backend, variant, compile)

    for_ort, for_openvino = c.quantised(c.ort), c.quantised(c.openvino)
    spelled = registry.load("passes", "spell_activations")()(c.model, c.context(c.openvino)).model
    found = [
        leg(c.ort, "FP32", c.model),
        leg(c.ort, "FP32 as it came", c.original),
        leg(c.ort, "INT8", for_ort),
        leg(c.openvino, "FP32", spelled),
        leg(c.openvino, "INT8 placed for ONNX Runtime", for_ort),
        leg(c.openvino, "INT8", for_openvino),
    ]
    if importlib.util.find_spec("nncf"):
        found.append(leg(c.openvino, "INT8 by NNCF", spelled, nncf_graph(c, spelled)))
    return found


def nncf_graph(c: Case, model: Model) -> Any:
    """NNCF's post-training quantisation of OpenVINO's form of a float model, with its defaults."""
    import logging

    import nncf
    import openvino

    from edgeproof.backends.openvino import read

    nncf.set_log_level(logging.ERROR)
    names = [s.name for s in c.model.inputs]
    feeds = nncf.Dataset([c.samples[i].feeds for i in range(c.calibration)], lambda f: {n: f[n] for n in names})
    kind = nncf.ModelType.TRANSFORMER if c.data == "reuters_r8" else None
    return nncf.quantize(read(openvino.Core(), model), feeds, subset_size=c.calibration, model_type=kind)


def show(c: Case, rounds: int) -> None:
    """Print one line per leg."""
    found = legs(c)
    recorded = [record(leg, c) for leg in found]
    sessions = [leg.compile(False) for leg in found]
    times = interleaved(sessions, [c.samples[i].feeds for i in c.held_out[:8]], rounds)
    want = outputs(sessions[0], c)
    print(f"\n{c.data}: {DATA[c.data].model}, {c.calibration} calibrating, {len(c.held_out)} held out, {rounds} rounds")
    print(
        "| runtime | variant | layers | changes | nodes | CPU ms | × FP32 ONNX Runtime | × FP32 here | dB | quality |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for i, (leg, layers) in enumerate(zip(found, recorded, strict=True)):
        own = next(j for j, other in enumerate(found) if other.runtime == leg.runtime)
        quality = evaluate(sessions[i], c.samples, c.held_out, c.spec, c.model, METRICS[c.data][:1])
        value = {name: metric_of(name, c.spec).value(scores) for name, scores in quality.items()}
        sqnr = f"{sqnr_db(want, outputs(sessions[i], c)):.1f}" if i else ""
        row = [
            leg.runtime, leg.variant, *counts(leg.runtime, layers), f"{median(times[i]):.2f}",
            ratio(times[0], times[i]), ratio(times[own], times[i]), sqnr, f"{next(iter(value.values())):.3f}",
        ]  # fmt: skip
        print(f"| {' | '.join(row)} |", flush=True)


def record(leg: Leg, c: Case) -> tuple[LayerTime, ...]:
    """What the runtime says that it executed."""
    session = leg.compile(True)
    try:
        for _ in range(PROFILED):
            session.run(c.samples[c.held_out[0]].feeds)
        return session.layers()
    finally:
        session.close()


def counts(runtime: str, layers: Sequence[LayerTime]) -> tuple[str, str, str]:
    """Layers in integers of all, changes of precision or layout, executed nodes."""
    own = [x for x in layers if x.op in LAYERS[runtime]]
    integer = [
        x for x in own if x.op.startswith(("QLinear", "QGemm", "MatMulInteger")) or x.precision in ("int8", "uint8")
    ]
    changes = [x for x in layers if x.op in CHANGES[runtime]]
    return f"{len(integer)} of {len(own)}", str(len(changes)), str(len(layers))


def interleaved(sessions: Sequence[Session], feeds: Sequence[Any], rounds: int) -> list[list[float]]:
    """CPU milliseconds of one inference, per session and round."""
    times: list[list[float]] = [[] for _ in sessions]
    for n in range(rounds + 2):
        for session, kept in zip(sessions, times, strict=True):
            session.run(feeds[n % len(feeds)])
            start = time.process_time_ns()
            for i in range(INFERENCES):
                session.run(feeds[(n + i) % len(feeds)])
            kept.append((time.process_time_ns() - start) / INFERENCES / 1e6)
    return [kept[2:] for kept in times]


def ratio(base: Sequence[float], other: Sequence[float]) -> str:
    """How many times faster, with the 95 % interval of the median by order statistics."""
    found = sorted(b / o for b, o in zip(base, other, strict=True))
    n, half = len(found), 0.98 * math.sqrt(len(found))
    low, high = found[max(0, math.floor(n / 2 - half))], found[min(n - 1, math.ceil(n / 2 + half))]
    return f"{median(found):.2f} [{low:.2f}, {high:.2f}]"


def outputs(session: Session, c: Case) -> list[Any]:
    """Float outputs of a few held-out samples."""
    names = [o.name for o in c.model.outputs if o.dtype.startswith("float")]
    found = [session.run(c.samples[i].feeds) for i in c.held_out[:16]]
    return [[got[n].astype(np.float64) for n in names] for got in found]


def sqnr_db(want: Sequence[Any], got: Sequence[Any]) -> float:
    """Of all outputs, each weighing alike."""
    found = []
    for n in range(len(want[0])):
        signal = sum(float(np.sum(w[n] ** 2)) for w in want)
        noise = sum(float(np.sum((w[n] - g[n]) ** 2)) for w, g in zip(want, got, strict=True))
        found.append(10 * math.log10(signal / noise) if noise else math.inf)
    return float(np.mean(found))


if __name__ == "__main__":
    main()
