"""Measure models against each other in fresh, interleaved processes.

The first model is the baseline; it runs twice, as itself and as its own A/A control. Inputs are random and seeded: this
measures speed and memory, never quality. Every raw sample is kept in OUT/bench.json; the same command goes on where it
stopped, and 'edgeproof gate' decides on the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import whole_number
from .show import Show

if TYPE_CHECKING:
    from ..benchfile import BenchFile, KeptLeg
    from ..measurement import Measurement


def arguments(parser: argparse.ArgumentParser) -> None:
    """Models, target and how often."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX files; the first is the baseline")
    parser.add_argument("--target", default="onnxruntime:cpu", metavar="T", help="default: onnxruntime:cpu")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="fix a setting of the runtime, e.g. threads=1"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input with open dimensions",
    )
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="fresh processes (default: 10)")
    parser.add_argument("--inferences", type=int, default=200, metavar="N", help="timed per process (default: 200)")
    parser.add_argument("--out", default="runs/bench", metavar="FOLDER", help="default: runs/bench")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the random inputs and the order of models")


def run(args: argparse.Namespace, show: Show) -> int:
    """Measure, show, keep."""
    from ..benchfile import NAME, run_bench
    from ..passes.fix_shapes import parse_shapes
    from ..target import find_target
    from .optimize import runtime_settings

    shapes = parse_shapes(";".join(args.shape)) if args.shape else {}
    target = find_target(args.target, runtime_settings(args.target, args.set))
    out = Path(args.out)
    with show.progress() as progress:
        kept = run_bench(
            [Path(m) for m in args.models],
            target,
            out,
            shapes=shapes,
            rounds=args.runs,
            inferences=args.inferences,
            seed=args.seed,
            progress=progress,
        )
    _print(kept, out / NAME, show)
    return 0


def _print(kept: BenchFile, file: Path, show: Show) -> None:
    legs = (kept.baseline, *kept.candidates)
    measured = {leg.name: kept.measured(leg) for leg in legs}
    names = [n for n in (*kept.measured(kept.baseline),) if n in measured[kept.baseline.name]]
    ratios = {leg.name: speed_ratio(kept, leg) for leg in kept.candidates}
    rows = [[_label(measured[legs[0].name][n]), *(_cell(measured[leg.name].get(n)) for leg in legs)] for n in names]
    if ratios:
        rows.append(["p50 / baseline", "1", *(_range(*ratios[leg.name]) for leg in kept.candidates)])
    show.table(["", *(leg.name for leg in legs)], rows, title=_title(kept), right=" " + "r" * len(legs))
    control = kept.control
    if control.ratio is not None:
        state = "fit to measure on" if control.ok else "not fit to decide on"
        show.text(f"  A/A control {_range(control.ratio, control.low, control.high)}: {state}")
    for text in (*control.problems, *control.warnings):
        show.text(f"  ! {text}")
    for quantity, why in kept.no_sensor.items():
        show.text(f"  no {quantity}: {why}")
    show.text(f"  raw samples  {file}")
    show.result(
        {
            "file": str(file),
            "runs": kept.rounds,
            "inferences": kept.inferences,
            "machine": dict(kept.machine),
            "control": control.to_json(),
            "no_sensor": kept.no_sensor,
            "models": [
                {
                    "name": leg.name,
                    "digest": leg.digest,
                    "target": leg.target,
                    "ratio": dict(zip(("value", "low", "high"), ratios.get(leg.name, (1.0, 1.0, 1.0)), strict=True)),
                    "measured": {n: m.to_json() for n, m in measured[leg.name].items()},
                }
                for leg in legs
            ],
        }
    )


def speed_ratio(kept: BenchFile, leg: KeptLeg) -> tuple[float, float | None, float | None]:
    """Candidate / baseline of the runs' median latency, with its 95 % interval; below 1 is faster."""
    from ..bench import control_check

    c = control_check(kept.runs, kept.baseline.name, leg.name)
    return c.ratio or 1.0, c.low, c.high


def _title(kept: BenchFile) -> str:
    return f"{kept.baseline.target}, {kept.rounds} processes of {kept.inferences} inferences, [95 % interval]"


def _label(m: Measurement) -> str:
    unit = {"bytes": "MB"}.get(m.unit, m.unit)
    return f"{m.metric}, {unit}"


def _cell(m: Measurement | None) -> str:
    if m is None:
        return "missing"
    scale = 1e-6 if m.unit == "bytes" else 1.0
    low, high = (None if x is None else x * scale for x in (m.low, m.high))
    return _range(m.value * scale, low, high)


def _range(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"
