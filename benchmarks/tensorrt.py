"""What TensorRT for RTX builds of our graphs, without a GPU: the zoo, ONNX's own test models, and fusions of INT8.

    python -m benchmarks.tensorrt zoo [--only mnist_cnn ppocr_cls] [--modelopt PYTHON]
    python -m benchmarks.tensorrt suite [--part 0 --parts 1] [--limit 0]
    python -m benchmarks.tensorrt table

Needs ``tensorrt-rtx-cu12`` beside edgeproof. Every model is built in FP32, in FP16 (pass ``fp16``) and in INT8 (pass
``int8`` for scheme ``TENSORRT``, calibrated on a few real samples; on random ones for ONNX's models of single nodes).
Engines are built by a child process; one that dies or exceeds the time limit is a row like any other. What is read off
is the table of layers in the log of the build: the graph as compiled ahead of time. Kernels are chosen on the device,
so that nothing here says how fast an engine is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.catalogue import DATA, fetch, write_data
from benchmarks.zoo.packages import default_cache

from edgeproof import registry
from edgeproof.dataset import Feeds, load_spec
from edgeproof.errors import EdgeproofError
from edgeproof.evaluate import open_dataset
from edgeproof.model import Model, load_model, save_model
from edgeproof.protocols import Context
from edgeproof.quant.schemes import TENSORRT
from edgeproof.target import Target

RESULTS = Path(__file__).parent / "results" / "tensorrt"
ZOO = ("mnist", "turned", "lines_medium", "pages", "portraits", "scenes", "reuters_r8")
"""A data set for every model of the zoo."""
CAPABILITY = "8.6"
LIMIT_S = 300
FEW = 4
"""Reasons that are rarer are not listed one by one."""
SAMPLES = 4
TARGET = Target("tensorrt_rtx:sm86", "tensorrt_rtx", "sm86", TENSORRT)
CPU = Target("onnxruntime:cpu", "onnxruntime", "cpu", settings={"threads": 1})
PRECISIONS = {
    "fp32": "FP32, as it stands",
    "constants": "FP32, weights, axes and sizes as constants",
    "fp16": "FP16",
    "int8": "INT8",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("zoo", "suite", "table"))
    parser.add_argument("--only", nargs="*", default=[], help="models of the zoo")
    parser.add_argument("--modelopt", default="", help="Python with ModelOpt, for its INT8 graphs")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "zoo":
        with tempfile.TemporaryDirectory() as folder:
            rows = zoo(Path(folder), args.only, args.modelopt)
        write(args.out / "zoo.json", rows)
    elif args.what == "suite":
        with tempfile.TemporaryDirectory() as folder:
            rows = suite(Path(folder), args.part, args.parts)
        name = "suite.json" if args.parts == 1 else f"suite-{args.part}-of-{args.parts}.json"
        write(args.out / name, rows)
    print(table(args.out))


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One row a line; of what was built, counts only."""
    shown = [{k: v for k, v in r.items() if k not in ("exit_code", "hint", "cpu_s")} for r in rows]
    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in shown) + "\n]\n")


def zoo(folder: Path, only: Sequence[str], modelopt: str) -> list[dict[str, Any]]:
    """Rows of every model of the zoo, with ModelOpt's INT8 where there is a Python that has it."""
    jobs, rows = [], []
    for data in ZOO:
        name = DATA[data].model
        if only and name not in only:
            continue
        original = load_model(fetch(name, default_cache()))
        samples = [s.feeds for s in _samples(data, original, folder)]
        declined: dict[str, str] = {}
        made, shapes = variants(original, samples, declined), spans(original, samples)
        rows += [{"name": f"{name} {p}", "state": "declined", "problem": why} for p, why in declined.items()]
        for precision, model in made.items():
            jobs.append(_job(folder, name, precision, model, shapes))
        clean = made.get("clean")
        if modelopt and clean is not None:
            path = _modelopt(folder, name, clean, samples, modelopt)
            jobs.append({"name": f"{name} modelopt-int8", "model": str(path), "shapes": shapes})
        print(f"{name}: {', '.join(made)}", flush=True)
    return sorted(
        rows + built([j for j in jobs if not j["name"].endswith(" clean")], folder), key=lambda r: str(r["name"])
    )


def variants(original: Model, samples: Sequence[Feeds], told: dict[str, str] | None = None) -> dict[str, Model]:
    """Precision → model; one that a pass declines is left out. ``clean`` is what INT8 was made from.

    Args:
        original: The model.
        samples: To measure and calibrate on.
        told: Precision → why a pass declined it, added to.
    """
    context = Context(
        lambda m: registry.load("backends", "onnxruntime")().compile(m, CPU),
        lambda: iter(samples),
        len(samples),
        TARGET,
    )
    found = {"fp32": original}
    try:
        clean = registry.load("passes", "simplify")()(original, context).model
        found["clean"] = clean
        for name, precision in (("fp16", "fp16"), ("int8", "int8")):
            change = registry.load("passes", name)()(clean, context)
            if change.modified:
                found[precision] = change.model
            elif told is not None:
                told[precision] = change.declined[0][1] if change.declined else "nothing to change"
    except EdgeproofError:
        pass
    return found


def spans(model: Model, samples: Sequence[Feeds]) -> str:
    """Sizes of open dimensions, as seen in the samples: least, those of the first, largest."""
    parts = []
    for spec in model.inputs:
        shapes = np.array([s[spec.name].shape for s in samples])
        if spec.dynamic:
            steps = (shapes.min(axis=0), shapes[0], shapes.max(axis=0))
            parts.append(f"{spec.name}=" + ":".join("x".join(map(str, s)) or "scalar" for s in steps))
    return ";".join(parts)


def suite(folder: Path, part: int, parts: int) -> list[dict[str, Any]]:
    """Rows of every ONNX test model that runs on the CPU."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "conformance"))
    import onnx_suite

    jobs, rows = [], []
    cases = [*onnx_suite.nodes(part, parts)]
    if part == 0:
        cases += [c for kind in onnx_suite.STORED for c in onnx_suite.stored(kind)]
        cases += [onnx_suite.light_case(name) for name in onnx_suite.light()]
    warnings.simplefilter("ignore")
    for case in cases:
        feeds = case.feeds or _drawn(case.model)
        why = "no arrays for its inputs (sequences, optionals, strings)" if feeds is None else _fails(case.model, feeds)
        if feeds is None or why:
            rows.append({"name": case.name, "state": "left out", "problem": why})
            continue
        jobs.append(_job(folder, case.name, "fp32", case.model, spans(case.model, [feeds])))
        bound, left = constants(case.model, feeds)
        for precision, model in variants(bound, [left]).items():
            if precision != "clean" and (precision != "fp32" or bound is not case.model):
                named = "constants" if precision == "fp32" else precision
                jobs.append(_job(folder, case.name, named, model, spans(bound, [left])))
    return rows + built(jobs, folder)


def constants(model: Model, feeds: Feeds) -> tuple[Model, Feeds]:
    """A single-node model as an exporter writes it: all inputs but the first float one are constants.

    ONNX's tests feed weights, axes and sizes, which TensorRT wants to know when it builds.
    """
    import onnx_ir as ir

    kept = next((s.name for s in model.inputs if s.dtype in ("float32", "float16")), None)
    if kept is None or len(model.inputs) == 1:
        return model, feeds
    graph = model.graph.clone()
    for value in [v for v in graph.graph.inputs if v.name in feeds and v.name != kept]:
        if value.is_graph_output():
            return model, feeds
        value.const_value = ir.tensor(np.asarray(feeds[value.name]), name=value.name)
        graph.graph.inputs.remove(value)
        graph.graph.register_initializer(value)
    return Model.of(graph, model.name), {kept: feeds[kept]}


def built(jobs: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Build all, restarting the child behind a job that it died of."""
    rows: dict[str, dict[str, Any]] = {}
    left = [{"capability": CAPABILITY, **j} for j in jobs]
    turn = 0
    while left:
        turn += 1
        listed, out = folder / f"jobs-{turn}.json", folder / f"rows-{turn}.jsonl"
        listed.write_text(json.dumps(left))
        out.write_text("")
        ended = _watched(listed, out)
        begun = ""
        for line in out.read_text().splitlines():
            row = json.loads(line)
            begun = row["name"]
            if "begun" not in row:
                rows[begun] = row
        if begun and begun not in rows:
            rows[begun] = {"name": begun, "state": "crashed", "problem": ended}
        left = [j for j in left if j["name"] not in rows]
        if not begun and left:
            raise SystemExit(f"the child does not start: {ended}")
    return [rows[j["name"]] for j in jobs]


def _watched(listed: Path, out: Path) -> str:
    """Run the child until it ends, or until one job takes too long."""
    line = [sys.executable, "-m", "benchmarks.tensorrt_builds", str(listed), str(out)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(line, stdout=said, stderr=said)
        size, since = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(0.2)
            if out.stat().st_size != size:
                size, since = out.stat().st_size, time.monotonic()
            elif time.monotonic() - since > LIMIT_S:
                child.kill()
                child.wait()
                return f"took more than {LIMIT_S} s"
        said.seek(0)
        lines = said.read().strip().splitlines()
        return f"exit status {child.returncode}{': ' + lines[-1][:200] if lines else ''}"


def table(out: Path) -> str:
    """Both results as Markdown."""
    text = []
    if (out / "zoo.json").is_file():
        text.append(_zoo_table(json.loads((out / "zoo.json").read_text())))
    rows = [r for path in sorted(out.glob("suite*.json")) for r in json.loads(path.read_text())]
    if rows:
        text.append(_suite_table(rows))
    return "\n\n".join(text)


def _zoo_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| model | graph | engine | layers | convolutions and products | … in integers | only type or layout |"]
    lines.append("|---|---|---|---|---|---|---|")
    for r in rows:
        name, _, graph = r["name"].partition(" ")
        if r["state"] == "built":
            size = f"{r['bytes'] / 1e6:.1f} MB"
            counts = f"{r['layers']} | {r['multiply']} | {r['integers']} | {r['moves']}"
        else:
            size, counts = f"{r['state']}: {r['problem'][:120]}", "– | – | – | –"
        lines.append(f"| {name} | {graph} | {size} | {counts} |")
    return "\n".join(lines)


def _suite_table(rows: Sequence[Mapping[str, Any]]) -> str:
    ran = [r for r in rows if r["state"] != "left out"]
    lines = [f"{len(rows) - len(ran)} models that do not run on the CPU, or take no arrays, are left out.", ""]
    lines += ["| graph | models | built | refused | crashed |", "|---|---|---|---|---|"]
    for p, title in PRECISIONS.items():
        mine = [r for r in ran if r["name"].endswith(f" {p}")]
        states = Counter(r["state"] for r in mine)
        lines.append(f"| {title} | {len(mine)} | {states['built']} | {states['refused']} | {states['crashed']} |")
    made = {r["name"].rpartition(" ")[0] for r in ran if r["state"] == "built"}
    left = [r for r in ran if r["name"].endswith(" fp32") and r["name"].rpartition(" ")[0] not in made]
    reasons = Counter(reason(r) for r in left)
    lines += ["", f"{len(left)} models were built in none of these forms:", "", "| why | models |", "|---|---|"]
    lines += [f"| {why} | {n} |" for why, n in reasons.most_common() if n >= FEW]
    rare = [n for n in reasons.values() if n < FEW]
    lines.append(f"| {len(rare)} other reasons, each less than {FEW} times | {sum(rare)} |")
    return "\n".join(lines)


def reason(row: Mapping[str, Any]) -> str:
    """A refusal as operator and message, without names and numbers."""
    import re

    subject = str(row.get("subject", ""))
    operator = re.search(r"\((\w+)\)$", subject)
    problem = re.sub(r"\b\d+\b", "n", re.sub(r"; and \d+ more$", "", str(row.get("problem", ""))))
    return f"{operator[1] if operator else '?'}: {problem[:110]}".replace("|", "/")


def _job(folder: Path, name: str, precision: str, model: Model, shapes: str) -> dict[str, Any]:
    safe = "".join(c if c.isalnum() else "_" for c in name)
    return {
        "name": f"{name} {precision}",
        "model": str(save_model(model, folder / f"{safe}-{precision}.onnx")),
        "shapes": shapes,
    }


def _samples(data: str, model: Model, folder: Path) -> Iterator[Any]:
    path = write_data(data, default_cache(), folder / data, SAMPLES, 77)
    dataset = open_dataset(load_spec(str(path)), model)
    return (dataset[i] for i in range(min(SAMPLES, len(dataset))))


def _drawn(model: Model) -> Feeds | None:
    """Random arrays for a model of fixed shapes; None where that cannot be."""
    rng = np.random.default_rng(7)
    feeds = {}
    for s in model.inputs:
        if s.shape is None or s.dynamic or not s.dtype.startswith("float"):
            return None
        feeds[s.name] = rng.standard_normal([int(d) for d in s.shape]).astype(s.dtype)
    return feeds


def _fails(model: Model, feeds: Feeds) -> str:
    """Why a model does not run on the CPU, or nothing."""
    try:
        session = registry.load("backends", "onnxruntime")().compile(model, CPU)
        session.run(feeds)
        session.close()
    except Exception as e:  # whatever it is, there is nothing to compare an engine with
        return str(e).splitlines()[0][:160]
    return ""


def _modelopt(folder: Path, name: str, model: Model, samples: Sequence[Feeds], python: str) -> Path:
    """ModelOpt's INT8 graph of the same clean model, calibrated on the same samples."""
    place = folder / f"modelopt-{name}"
    place.mkdir(exist_ok=True)
    for i, feeds in enumerate(samples):
        np.savez(place / f"{i:04}.npz", **feeds)
    out = place / "int8.onnx"
    job = {
        "model": str(save_model(model, place / "clean.onnx")),
        "out": str(out),
        "samples": str(place),
        "count": len(samples),
        "settings": {"method": "max"},
    }
    (place / "job.json").write_text(json.dumps(job))
    script = Path(__file__).parent / "peers" / "drive_modelopt.py"
    line = [python, str(script), str(place / "job.json"), str(place / "told.json")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: ModelOpt failed: {done.stderr.strip().splitlines()[-1][:200]}", flush=True)
    return out


if __name__ == "__main__":
    main()
