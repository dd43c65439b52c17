"""Nodes, seconds and error of simplifiers on the same models, as given and with fixed shapes.

    python benchmarks/simplify.py MODEL... [--shape MODEL_STEM:x=1,3,48,320] [--repeats 3] [--json FILE]

Peers run when they are installed: onnxsim, onnxslim, and ONNX Runtime's BASIC level (its optimised model, written out).
Runs are interleaved, and the smallest time counts. The error is the largest |a - b| of an output over its largest |a|,
against the original on the same seeded inputs; the column ``noise`` says how much the original itself answers to a
change of its inputs in the last place.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.graph.equivalence import probes, relative_error
from edgeproof.graph.rewrite import graphs
from edgeproof.model import Model, load_model
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.passes.simplify import Simplify
from edgeproof.protocols import Context
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
CONTEXT = Context(lambda m: OnnxRuntime().compile(m, TARGET))


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
            started = time.perf_counter()
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    results[tool] = function(data)
            except Exception as e:
                results[tool] = f"{type(e).__name__}: {str(e)[:60]}"
            seconds[tool].append(time.perf_counter() - started)
    rows: list[dict[str, object]] = [{"model": name, "tool": "original", "nodes": count(model.graph), "noise": noise}]
    for tool, _ in here:
        found = results[tool]
        row: dict[str, object] = {"model": name, "tool": tool, "seconds": min(seconds[tool])}
        if isinstance(found, str):
            row["failed"] = found
        else:
            row["nodes"] = count(found)
            session = CONTEXT.compile(Model.of(found, tool))
            errors = []
            for run in runs:
                got = session.run(run.feeds)
                errors += [relative_error(want, got.get(output)) for output, want in run.outputs.items()]
            row["error"] = max(errors)
        rows.append(row)
    return rows


def count(graph: ir.Model) -> int:
    return sum(len(g) for g in graphs(graph.graph))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="STEM:x=1,3,48,320", help="also with this shape"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    for tool, module, _ in TOOLS:
        if importlib.util.find_spec(module) is None:
            print(f"{tool} is not installed and is left out (pip install {module})")
    shapes = dict(text.split(":", 1) for text in args.shape)
    rows: list[dict[str, object]] = []
    for path in args.models:
        model = load_model(path)
        rows += measure(path.stem, model, args.repeats)
        if path.stem in shapes:
            fixed = FixShapes(shapes[path.stem])(model, CONTEXT).model
            rows += measure(f"{path.stem} fixed", fixed, args.repeats)
    print(f"{'model':<40} {'tool':<10} {'nodes':>6} {'seconds':>8} {'error':>9} {'noise':>9}")
    for row in rows:
        cells = [f"{row['model']:<40} {row['tool']:<10}"]
        cells.append(f"{row.get('nodes', ''):>6}")
        cells.append(f"{row['seconds']:>8.2f}" if "seconds" in row else " " * 8)
        cells.append(f"{row['error']:>9.1e}" if "error" in row else f"{row.get('failed', ''):>9}")
        cells.append(f"{row['noise']:>9.1e}" if "noise" in row else "")
        print(" ".join(cells))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
