"""Channel pruning at half of the multiply-accumulates: which networks it carries, and what it gains in ONNX Runtime.

    python -m benchmarks.pruning coverage [FOLDER] [--peer FILE] [--json FILE]
    python -m benchmarks.pruning latency portraits turned [--samples 200] [--rounds 60] [--layers]

``coverage`` prunes every network among ONNX's light models, and those of FOLDER, which `benchmarks/pruning_peer.py`
exports from torchvision; FILE is what the same script measured of Torch-Pruning. Valid means: ONNX's checker and strict
shape inference, fewer parameters, and a run in ONNX Runtime with outputs of the same shape. *Error* compares the output
with the original's at the same weights set to zero, as a share of its largest value; where a normalisation runs over
channels (¹), with all units removed but those.
``latency`` prunes models of the zoo in several ways, measures CPU time of one inference on one thread in interleaved
rounds (ratios are medians with a 95 % interval of order statistics), and quality before any recovery.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks.fusion import interleaved, ratio
from benchmarks.zoo.catalogue import DATA, fetch, write_data
from benchmarks.zoo.check import METRICS
from benchmarks.zoo.packages import default_cache

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, evaluate, metric_of, open_dataset
from edgeproof.graph.equivalence import random_feeds, relative_error
from edgeproof.graph.inference import inferred
from edgeproof.model import Model, load_model
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.passes.prune_channels import PruneChannels
from edgeproof.protocols import Context
from edgeproof.prune.account import account
from edgeproof.prune.channels import channels
from edgeproof.prune.importance import scores
from edgeproof.prune.removal import masked, remove
from edgeproof.prune.selection import Limits, choose
from edgeproof.target import Target

KEEP = 0.5
PROFILED = 40
TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
CONTEXT = Context(lambda m: OnnxRuntime().compile(m, TARGET))
VARIANTS = (
    ("l2", "layer", 8),
    ("l2", "global", 8),
    ("l2", "macs", 8),
    ("contribution", "layer", 8),
    ("l2", "layer", 16),
    ("l2", "layer", 1),
)
"""Criterion, ranking and multiple of the channels that stay."""
FIXED = {"portraits": "images=1,3,224,224", "turned": "x=1,3,48,192"}
"""Sizes of the inputs whose latency is measured."""


def networks(folder: Path | None) -> Iterator[tuple[str, str, Model]]:
    """Source, name and model of every network."""
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(light.glob("*.onnx")):
        yield "ONNX", path.stem.removeprefix("light_"), Model.of(ir.from_proto(onnx.load(path)), path.stem)
    for path in sorted(folder.glob("*.onnx")) if folder is not None else ():
        yield "torchvision", path.stem, load_model(path)


def coverage(source: str, name: str, model: Model) -> dict[str, Any]:
    """One row: what is left of a network."""
    started = time.process_time()
    found = channels(model)
    gone = choose(found, scores(found, "l2"), KEEP, rank="layer", limits=Limits(8))
    small = remove(found, gone)
    seconds = time.process_time() - started
    counted = account(found, gone, small)
    row: dict[str, Any] = {"source": source, "network": name, "seconds": seconds}
    row["left"] = counted.macs[1] / counted.macs[0]
    row["parameters_left"] = counted.parameters[1] / counted.parameters[0]
    row["pinned"] = list(found.pinned)
    try:
        proto = onnx.load_model_from_string(small.to_bytes())
        onnx.checker.check_model(proto)
        inferred(proto, strict=True)
        feeds = random_feeds(model, np.random.default_rng(0), 1, 224)
        if isinstance(feeds, str):
            raise SystemExit(feeds)
        got = CONTEXT.compile(small).run(feeds)
        exact = gone.copy()
        for group in found.groups:
            exact[group.units] &= not group.inexact
        row["inexact"] = int((gone & ~exact).sum())
        rest = CONTEXT.compile(remove(found, exact)).run(feeds) if row["inexact"] else got
        zero = CONTEXT.compile(masked(found, exact)).run(feeds)
        row["valid"] = {n: x.shape for n, x in got.items()} == {n: x.shape for n, x in zero.items()}
        row["error"] = max(relative_error(zero[n], rest[n]) for n in rest)
    except Exception as e:
        row["failed"] = f"{type(e).__name__}: {' '.join(str(e).split())[:160]}"
    return row


def show_coverage(rows: list[dict[str, Any]], peer: Mapping[str, Mapping[str, Any]]) -> None:
    """The table."""
    print("| network | MACs left | parameters left | valid | error | s | Torch-Pruning: MACs left | valid | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        theirs = peer.get(row["network"]) if row["source"] == "torchvision" else None
        error = "" if "error" not in row else f"{row['error']:.0e}" + (" ¹" if row["inexact"] else "")
        cells = [
            row["network"], f"{row['left']:.3f}", f"{row['parameters_left']:.2f}",
            "yes" if row.get("valid") else row.get("failed", "no"),
            error, f"{row['seconds']:.1f}",
        ]  # fmt: skip
        if theirs is None:
            cells += ["", "", ""]
        elif "left" not in theirs:
            cells += ["", theirs.get("failed", "no"), ""]
        else:
            says = theirs.get("failed", "yes" if theirs["valid"] else "no")
            cells += [f"{theirs['left']:.3f}", says, f"{theirs['seconds']:.1f}"]
        print(f"| {' | '.join(cells)} |")
    ours = sum(bool(row.get("valid")) and row["left"] <= KEEP for row in rows)
    print(f"\n{ours} of {len(rows)} valid with at most {KEEP:.0%} of the work")


def latency(data: str, samples: int, rounds: int, *, layers: bool) -> None:
    """The original and one pruned model per ranking, side by side."""
    model = load_model(fetch(DATA[data].model, default_cache()))
    with tempfile.TemporaryDirectory() as folder:
        spec = load_spec(str(write_data(data, default_cache(), Path(folder), samples)))
        dataset = open_dataset(spec, model)
        spec = complete(spec, model, dataset)
        half = range(len(dataset) // 2)
        context = Context(CONTEXT.compile, lambda: (dataset[i].feeds for i in half), len(half), TARGET)
        legs: list[tuple[str, Model, dict[str, Any]]] = [("original", model, {})]
        for criterion, rank, multiple in VARIANTS:
            change = PruneChannels(KEEP, criterion, rank, round_to=multiple)(model, context)
            legs.append((f"{criterion}, {rank}, {multiple}", change.model, change.facts))
        fixed = [FixShapes(FIXED[data])(m, CONTEXT).model for _, m, _ in legs]
        sessions = [CONTEXT.compile(m) for m in fixed]
        name = model.inputs[0].name
        shape = tuple(d for d in fixed[0].inputs[0].shape or () if isinstance(d, int))
        feeds = [{name: np.random.default_rng(i).standard_normal(shape).astype(np.float32)} for i in range(4)]
        times = interleaved(sessions, feeds, rounds)
        print(f"\n{data}: {DATA[data].model}, {rounds} rounds, quality on {len(dataset) - len(half)} samples\n")
        print(
            "| criterion, rank, multiple | CPU ms | × faster | latency less | MACs left | parameters left | quality |"
        )
        print("|---|---|---|---|---|---|---|")
        rest = range(len(dataset) // 2, len(dataset))
        for i, (leg, made, facts) in enumerate(legs):
            session = CONTEXT.compile(made)
            metric = METRICS[data][0]
            found = evaluate(session, dataset, rest, spec, made, (metric,))
            quality = metric_of(metric, spec).value(found[metric])
            less = 1 - median(b / a for a, b in zip(times[0], times[i], strict=True))
            left = [f"{facts[k][1] / facts[k][0]:.3f}" if facts else "1" for k in ("macs", "parameters")]
            speed = ratio(times[0], times[i]) if i else "1"
            print(f"| {leg} | {median(times[i]):.2f} | {speed} | {less:.0%} | {' | '.join(left)} | {quality:.3f} |")
        if layers:
            _layers(fixed[0], fixed[1], legs[1][2], feeds[0])


def _layers(before: Model, after: Model, facts: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
    """Per layer of one pruned model; times are medians of profiled runs, taken in turns."""
    sessions = [OnnxRuntime().compile(m, TARGET.with_settings({"profile": True})) for m in (before, after)]
    for _ in range(PROFILED):
        for session in sessions:
            session.run(feeds)
    # Blocked layouts rename nodes; both graphs run their layers in the same order, that of the file.
    layers = ("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul")
    times = [[median(x.time_ns) / 1e3 for x in session.layers() if x.op in layers] for session in sessions]
    told = all(len(t) == len(facts["layers"]) for t in times)
    print("\n| layer | channels | kMACs | parameters | µs |\n|---|---|---|---|---|")
    for i, row in enumerate(facts["layers"]):
        cells = [f"{a:,} → {b:,}" for a, b in (row["channels"], [m // 1000 for m in row["macs"]], row["parameters"])]
        cells.append(f"{times[0][i]:.0f} → {times[1][i]:.0f}" if told else "")
        print(f"| {row['name']} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("coverage")
    one.add_argument("folder", type=Path, nargs="?")
    one.add_argument("--peer", type=Path)
    one.add_argument("--json", type=Path)
    two = commands.add_parser("latency")
    two.add_argument("data", nargs="+", choices=sorted(FIXED))
    two.add_argument("--samples", type=int, default=200)
    two.add_argument("--rounds", type=int, default=60)
    two.add_argument("--layers", action="store_true")
    args = parser.parse_args()
    if args.what == "latency":
        for data in args.data:
            latency(data, args.samples, args.rounds, layers=args.layers)
        return
    peer = {row["network"]: row for row in json.loads(args.peer.read_text(encoding="utf-8"))} if args.peer else {}
    rows = []
    for source, name, model in networks(args.folder):
        rows.append(coverage(source, name, model))
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1, default=list) + "\n", encoding="utf-8")
    show_coverage(rows, peer)


if __name__ == "__main__":
    main()
