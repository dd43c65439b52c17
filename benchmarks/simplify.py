"""Nodes, CPU seconds and error of simplifiers on the same models, as given and with fixed shapes.

    python benchmarks/simplify.py --zoo [--repeats 3] [--json FILE]
    python benchmarks/simplify.py MODEL... [--shape MODEL_STEM:x=1,3,48,320]

``--zoo`` takes every model of the zoo, as it is and, where dimensions are open, with fixed ones. Peers run when they
are installed: onnxsim, onnxslim, and ONNX Runtime's BASIC level (its optimised model, written out). Runs are
interleaved, and the smallest time counts. The error is the largest |a - b| of an output over its largest |a|, against
the original on the same seeded inputs; the column ``noise`` says how much the original itself answers to a change of
its inputs in the last place. The last line says on which models edgeproof has more nodes than the best peer whose
outputs are right, or differs by more than 1e-5 (or four times the noise).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.errors import EdgeproofError
from edgeproof.graph.equivalence import Probe, allowed, probes, relative_error
from edgeproof.graph.rewrite import graphs
from edgeproof.model import Model, load_model
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.passes.simplify import Simplify
from edgeproof.protocols import Context
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
CONTEXT = Context(lambda m: OnnxRuntime().compile(m, TARGET))
TOLERANCE = 1e-5
ZOO_SHAPES = {
    "ppocr_rec": "x=1,3,48,320",
    "ppocr_det": "x=1,3,320,320",
    "ppocr_cls": "x=1,3,48,192",
    "efficientnet_lite0": "images=1,3,224,224",
    "minilm": "input_ids=1,128;attention_mask=1,128",
    "mnist_cnn": "images=1,1,28,28",
}
"""Sizes for open dimensions of the zoo's models."""


def by_onnxsim(data: bytes) -> ir.Model:
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.load_model_from_string(data))
    return ir.from_proto(simplified)


def by_onnxslim(data: bytes) -> ir.Model:
    import onnxslim

    return ir.from_proto(onnxslim.slim(onnx.load_model_from_string(data)))


def by_onnxruntime(data: bytes) -> ir.Model:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "basic.onnx")
        options.log_severity_level = 4
        ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return ir.from_proto(onnx.load(options.optimized_model_filepath))


def by_edgeproof(data: bytes) -> ir.Model:
    model = Model.of(ir.from_proto(onnx.load_model_from_string(data)), "model")
    return Simplify()(model, CONTEXT).model.graph


TOOLS: tuple[tuple[str, str, Callable[[bytes], ir.Model]], ...] = (
    ("onnxsim", "onnxsim", by_onnxsim),
    ("onnxslim", "onnxslim", by_onnxslim),
    ("ort-basic", "onnxruntime", by_onnxruntime),
    ("edgeproof", "edgeproof", by_edgeproof),
)


def measure(name: str, model: Model, repeats: int) -> list[dict[str, object]]:
    """Rows of one model: the original, then every installed tool."""
    data = model.to_bytes()
    runs = probes(model, CONTEXT)
    if isinstance(runs, str):
        raise SystemExit(f"{name}: {runs}")
    noise = max((n for run in runs for n in run.noise.values()), default=0.0)
    here = [(tool, function) for tool, module, function in TOOLS if importlib.util.find_spec(module)]
    seconds: dict[str, list[float]] = {tool: [] for tool, _ in here}
    results: dict[str, ir.Model | str] = {}
    for _ in range(repeats):
        for tool, function in here:
            started = time.process_time()
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    results[tool] = function(data)
            except Exception as e:
                results[tool] = f"{type(e).__name__}: {str(e)[:60]}"
            seconds[tool].append(time.process_time() - started)
    rows: list[dict[str, object]] = [{"model": name, "tool": "original", "nodes": count(model.graph), "noise": noise}]
    for tool, _ in here:
        found = results[tool]
        row: dict[str, object] = {"model": name, "tool": tool, "seconds": min(seconds[tool])}
        if isinstance(found, str):
            row["failed"] = found
        else:
            row["nodes"] = count(found)
            try:
                row["error"], row["right"] = compared(Model.of(found, tool), runs)
            except EdgeproofError as e:
                row["failed"] = e.problem[:60]
        rows.append(row)
    return rows


def compared(result: Model, runs: list[Probe]) -> tuple[float, bool]:
    """Largest error of an output, and whether all are within the tolerance or the noise."""
    session = CONTEXT.compile(result)
    errors, right = [0.0], True
    for run in runs:
        got = session.run(run.feeds)
        for name, want in run.outputs.items():
            errors.append(relative_error(want, got.get(name)))
            right = right and errors[-1] <= allowed(want, TOLERANCE, run.noise.get(name, 0.0))
    session.close()
    return max(errors), right


def behind(rows: list[dict[str, object]]) -> list[str]:
    """Models on which a peer with right outputs has fewer nodes than edgeproof, or edgeproof's outputs are wrong."""
    out = []
    for model in dict.fromkeys(str(row["model"]) for row in rows):
        nodes = {row["tool"]: row["nodes"] for row in rows if row["model"] == model and row.get("right")}
        ours = nodes.pop("edgeproof", None)
        if ours is None or any(theirs < ours for theirs in nodes.values()):
            out.append(model)
    return out


def zoo() -> Iterator[tuple[str, Model]]:
    """Every model of the zoo, as it is and with fixed shapes."""
    from zoo import catalogue, packages

    for name in catalogue.MODELS:
        model = load_model(catalogue.fetch(name, packages.default_cache()))
        yield name, model
        if name in ZOO_SHAPES:
            yield f"{name} fixed", FixShapes(ZOO_SHAPES[name])(model, CONTEXT).model


def files(paths: list[Path], shapes: dict[str, str]) -> Iterator[tuple[str, Model]]:
    """The files given, as they are and with the shapes given."""
    for path in paths:
        model = load_model(path)
        yield path.stem, model
        if path.stem in shapes:
            yield f"{path.stem} fixed", FixShapes(shapes[path.stem])(model, CONTEXT).model


def count(graph: ir.Model) -> int:
    return sum(len(g) for g in graphs(graph.graph))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--zoo", action="store_true", help="all models of benchmarks/zoo")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="STEM:x=1,3,48,320", help="also with this shape"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    for tool, module, _ in TOOLS:
        if importlib.util.find_spec(module) is None:
            print(f"{tool} is not installed and is left out (pip install {module})")
    if not args.models and not args.zoo:
        parser.error("name a MODEL, or say --zoo")
    shapes = dict(text.split(":", 1) for text in args.shape)
    rows: list[dict[str, object]] = []
    for name, model in chain(zoo() if args.zoo else (), files(args.models, shapes)):
        rows += measure(name, model, args.repeats)
    print(f"{'model':<40} {'tool':<10} {'nodes':>6} {'seconds':>8} {'error':>9} {'noise':>9}")
    for row in rows:
        cells = [f"{row['model']:<40} {row['tool']:<10}"]
        cells.append(f"{row.get('nodes', ''):>6}")
        cells.append(f"{row['seconds']:>8.2f}" if "seconds" in row else " " * 8)
        cells.append(f"{row['error']:>9.1e}" if "error" in row else f"{row.get('failed', ''):>9}")
        cells.append(f"{row['noise']:>9.1e}" if "noise" in row else "")
        print(" ".join(cells))
    worse = behind(rows)
    print(f"edgeproof is behind on {', '.join(worse)}" if worse else "edgeproof is behind on none")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
