"""Every runtime × model × precision: builds, agreement, latency beside FP32 ONNX Runtime, size, build time.

The float model is the same for all; FP16 and INT8 are made on it by our own passes, INT8 in the target's scheme. All
legs of a model are measured interleaved in one run, one thread each; a runtime that lives in a Python of its
own is timed there. Rows are kept as they are made, so an interrupted run goes on:

    scripts/bench runtimes --out FOLDER [--tasks scenes,turned] [--targets openvino:cpu,litert:cpu]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.tasks import TASKS, Prepared, Task, prepare

from edgeproof import registry
from edgeproof.bench import bench
from edgeproof.bounds import speedup
from edgeproof.dataset import Feeds, load_spec
from edgeproof.errors import EdgeproofError
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.job import CONTROL, Leg, Plan
from edgeproof.measurement import LegRun
from edgeproof.model import load_model, save_model, size_bytes
from edgeproof.protocols import Builder, Context
from edgeproof.runtimes import backend, compile_for, find_target
from edgeproof.stages import difference
from edgeproof.target import Target

TARGETS = ("openvino:cpu", "litert:cpu", "executorch:xnnpack", "ncnn:cpu", "tvm:llvm", "tinygrad:cpu")
PRECISIONS = ("fp32", "fp16", "int8")
CALIBRATION = 64
COMPARED = 4
QUICK = Plan(warmup=3, block=5, settle=1, sensor_s=0.0, alone=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(t.data for t in TASKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--score", type=int, default=0, help="labelled samples on which every leg is scored")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inferences", type=int, default=20)
    parser.add_argument(
        "--slowest", type=float, default=2.0, help="seconds; a slower leg is not put into the common run"
    )
    args = parser.parse_args()
    for task in (t for t in TASKS if t.data in args.tasks.split(",")):
        prepared = prepare(task, args.out, args.score or 4, lambda _w, _s: None)
        folder = args.out / "runtimes" / task.data
        folder.mkdir(parents=True, exist_ok=True)
        rows = built(task, prepared, folder, args)
        timed(task, prepared, rows, folder, args)
    print(table(args.out))


def built(task: Task, prepared: Prepared, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per target and precision; what is there already is read back."""
    rows = []
    for name in ("onnxruntime:cpu", *args.targets.split(",")):
        for precision in args.precisions.split(","):
            path = folder / f"{name.replace(':', '-')}-{precision}.json"
            if path.is_file():
                rows.append(json.loads(path.read_text()))
                continue
            print(f"{task.title}: {precision} on {name}", flush=True)
            try:
                row = one(prepared, name, precision, folder, args.score)
            except EdgeproofError as e:
                row = {"target": name, "precision": precision, "refused": str(e).splitlines()[0], "code": e.code}
            path.write_text(json.dumps(row))
            rows.append(row)
    return rows


def one(prepared: Prepared, name: str, precision: str, folder: Path, score: int) -> dict[str, Any]:
    """Make, build, compare and perhaps score one variant."""
    target = find_target(name, threads(name))
    path = made(prepared, target, precision, folder)
    model = load_model(path)
    row: dict[str, Any] = {"target": name, "precision": precision, "model": str(path)}
    maker = backend(target.backend)
    start = time.process_time(), time.perf_counter()
    if isinstance(maker, Builder):
        out = folder / "built" / f"{name.replace(':', '-')}-{precision}"
        out.parent.mkdir(exist_ok=True)
        found = maker.build(model, target, out, lambda _w, _s: None)
        row["size"] = sum(p.stat().st_size for p in found.files)
        row["format"] = found.format
    else:
        row["size"] = size_bytes(path)
    row["build_s"] = time.perf_counter() - start[1]
    session = compile_for(target, model)
    # A Q/DQ graph is held against ONNX Runtime on the very same graph; float ones against the float model.
    judge_path = path if precision == "int8" else prepared.model
    judge = compile_for(
        find_target("onnxruntime:cpu", {"threads": 1, "graph_optimization": "disable"}), load_model(judge_path)
    )
    inputs = feeds(prepared, COMPARED)
    began = time.perf_counter()
    outputs = [session.run(f) for f in inputs]
    row["first_s"] = (time.perf_counter() - began) / len(inputs)
    row["difference"] = max(difference(judge.run(f), o) for f, o in zip(inputs, outputs, strict=True))
    row["rms"] = max(rms(judge.run(f), o) for f, o in zip(inputs, outputs, strict=True))
    judge.close()
    if score:
        spec = load_spec(str(prepared.test))
        data = open_dataset(spec, model)
        spec = complete(spec, model, data)
        scores = evaluate(session, data, range(min(score, len(data))), spec, model, (prepared.task.metric,))
        row["quality"] = metric_of(prepared.task.metric, spec).value(scores[prepared.task.metric])
        row["scored"] = min(score, len(data))
    session.close()
    return row


def rms(want: Mapping[str, Any], got: Mapping[str, Any]) -> float:
    """Root mean square of the difference, as a share of that of the values; the worst output."""
    found = []
    for name, a in want.items():
        b = np.asarray(got[name], np.float64)
        a = np.asarray(a, np.float64)
        found.append(float(np.sqrt(np.mean((a - b) ** 2) / max(float(np.mean(a**2)), 1e-30))) if a.size else 0.0)
    return max(found, default=0.0)


def threads(name: str) -> dict[str, Any]:
    """One thread, where the runtime can be told so."""
    settings = registry.load("backends", name.partition(":")[0]).settings
    return {"threads": 1} if "threads" in settings.__dataclass_fields__ else {}


def feeds(prepared: Prepared, count: int) -> list[Feeds]:
    found = []
    for path in sorted(prepared.samples.glob("*.npz"))[:count]:
        with np.load(path) as arrays:
            found.append({n: arrays[n] for n in arrays})
    return found


def made(prepared: Prepared, target: Target, precision: str, folder: Path) -> Path:
    """The ONNX file of a precision, made once for every scheme."""
    if precision == "fp32":
        return prepared.model
    scheme = target.backend if precision == "int8" else "any"
    path = folder / f"{precision}-{scheme}.onnx"
    if path.is_file():
        return path
    model = load_model(prepared.model)
    place = find_target("onnxruntime:cpu", {"threads": 1})
    context = Context(lambda m: compile_for(place, m), lambda: iter(feeds(prepared, CALIBRATION)), CALIBRATION, target)
    if precision == "int8" and target.scheme is not None and target.scheme.spell:
        model = registry.load("passes", "spell_activations")()(model, context).model
    change = registry.load("passes", precision)()(model, context)
    save_model(change.model, path)
    return path


def timed(
    task: Task, prepared: Prepared, rows: list[dict[str, Any]], folder: Path, args: argparse.Namespace
) -> list[LegRun]:
    """All legs of a model in one interleaved run; appended round by round."""
    base = find_target("onnxruntime:cpu", {"threads": 1})
    legs = [Leg("onnxruntime:cpu fp32", prepared.model, base), Leg(CONTROL, prepared.model, base)]
    for row in rows:
        name = f"{row['target']} {row['precision']}"
        if "refused" in row or name == legs[0].name or row["first_s"] > args.slowest:
            continue
        legs.append(Leg(name, Path(row["model"]), find_target(row["target"], threads(row["target"]))))
    file = folder / "runs.json"
    kept = json.loads(file.read_text()) if file.is_file() else {"legs": []}
    names = [leg.name for leg in legs]
    done = [LegRun.from_json(r) for r in kept["runs"]] if kept["legs"] == names else []

    def keep(_index: int, new: list[LegRun]) -> None:
        done.extend(new)
        file.write_text(json.dumps({"legs": names, "runs": [r.to_json() for r in done]}))

    print(f"{task.title}: {len(legs)} legs, interleaved", flush=True)
    return bench(
        legs,
        feeds(prepared, COMPARED),
        rounds=args.rounds,
        inferences=args.inferences,
        plan=QUICK,
        on_round=keep,
        done=tuple(done),
    )


def table(out: Path) -> str:
    """The rows of everything measured so far, as Markdown."""
    lines = [
        "| model | runtime | precision | × FP32 ONNX Runtime | outputs differ by (RMS) | score | size | build |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        folder = out / "runtimes" / task.data
        runs_file = folder / "runs.json"
        runs = [LegRun.from_json(r) for r in json.loads(runs_file.read_text())["runs"]] if runs_file.is_file() else []
        for path in sorted(folder.glob("*-*.json")):
            row = json.loads(path.read_text())
            lines.append(cells(task, row, runs))
    return "\n".join(lines)


def cells(task: Task, row: dict[str, Any], runs: list[LegRun]) -> str:
    head = f"| {task.title} | {row['target']} | {row['precision']} |"
    if "refused" in row:
        return f"{head} – | refused: {row['refused'][:120]} | | | |"
    name = f"{row['target']} {row['precision']}"
    own = [r for r in runs if r.leg == name]
    base = {r.round: r for r in runs if r.leg == "onnxruntime:cpu fp32"}
    ratio = f"slower than can be shown ({row['first_s']:.1f} s)"
    if own and len(own) > 1:
        pairs = [(median(base[r.round]), median(r)) for r in own if r.round in base]
        value, low, high = speedup([a for a, _ in pairs], [b for _, b in pairs])
        ratio = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    score = f"{row['quality']:.4f} (n={row['scored']})" if "quality" in row else ""
    return f"{head} {ratio} | {row['rms']:.1e} | {score} | {row['size'] / 1e6:.1f} MB | {row['build_s']:.1f} s |"


def median(run: LegRun) -> float:
    return float(np.median(run.latency_ns))


if __name__ == "__main__":
    main()
