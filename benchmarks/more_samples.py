"""Whether more calibration samples make INT8 better, by range method, and which method a choice on held-out data takes.

    python -m benchmarks.more_samples lines_medium [--calibration 32 128 512] [--search 100] [--held-out 400]

The first samples calibrate; the next ones choose, as `edgeproof optimize` does: the two methods whose outputs err least
on 8 of them are scored on all of them. The last ones give the figures and chose nothing. Every convolution and matrix
product is quantised; nothing is corrected afterwards. ONNX Runtime's MinMax gets the same float model and samples.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.calibration import peer
from benchmarks.recovery import FLOAT, Bench, bench
from benchmarks.zoo.check import METRICS

from edgeproof import registry
from edgeproof.graph.opset import raised
from edgeproof.model import Model, load_model, save_model
from edgeproof.passes.int8 import OPSET
from edgeproof.probe import HELD_OUT
from edgeproof.protocols import Context
from edgeproof.quant.sensitivity import model_error
from edgeproof.search.ladder import MEASURED_METHODS, RANGE_METHODS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(METRICS), help="data set; it brings its model")
    parser.add_argument("--calibration", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--search", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--seed", type=int, default=77)
    args = parser.parse_args()
    most = max(args.calibration)
    with tempfile.TemporaryDirectory() as folder:
        b = bench(args.data, most, args.search + args.held_out, args.seed, Path(folder))
        clean = b.original
        for step in FLOAT:
            clean = registry.load("passes", step)()(clean, b.context).model
        search, final = range(most, most + args.search), range(most + args.search, len(b.samples))
        print(f"{b.name}: chosen on {len(search)}, scored on {len(final)}; float {show(b, clean, final)}", flush=True)
        for n in args.calibration:
            table(b, clean, n, search, final)


def table(b: Bench, clean: Model, n: int, search: range, final: range) -> None:
    """All methods from the first n samples."""
    context = replace(b.context, feeds=lambda: (b.samples[i].feeds for i in range(n)), samples=n, calibration={})
    int8 = registry.load("passes", "int8")
    models = {m: int8(method=m)(clean, context).model for m in (*RANGE_METHODS, "auto")}
    for method, model in models.items():
        print(f"{n:>4} samples  edgeproof {method:<12} {show(b, model, final)}", flush=True)
    first = [b.samples[i].feeds for i in search[:HELD_OUT]]
    errors = {m: model_error(clean, models[m], context.compile, first) for m in RANGE_METHODS}
    near = sorted(errors, key=errors.__getitem__)[:MEASURED_METHODS]
    chosen = max(near, key=lambda m: scores(b, models[m], search)[b.metrics[0]])
    print(f"{n:>4} samples  chosen: {chosen} (of {', '.join(near)})", flush=True)
    print(f"{n:>4} samples  onnxruntime MinMax     {show(b, theirs(clean, context), final)}", flush=True)


def theirs(clean: Model, context: Context) -> Model:
    """What ONNX Runtime's own quantiser makes of the same samples."""
    assert context.feeds is not None
    # Below opset 13 it writes scales per channel that the runtime then refuses.
    graph = raised(clean.graph.clone(), OPSET)
    assert not isinstance(graph, str), graph
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(Model.of(graph, clean.name), Path(folder) / "float.onnx")
        peer(path, "MinMax", context.feeds, context.samples, Path(folder) / "int8.onnx")
        return load_model(Path(folder) / "int8.onnx")


def scores(b: Bench, model: Model, part: range) -> dict[str, float]:
    return replace(b, held_out=part).quality(model)


def show(b: Bench, model: Model, part: range) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in scores(b, model, part).items())


if __name__ == "__main__":
    main()
