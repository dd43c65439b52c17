"""Measure models against each other in fresh, interleaved processes.

The first model is the baseline; it runs twice, as itself and as its own A/A control. Inputs are random and seeded: this
measures speed and memory, never quality. Every raw sample is kept in OUT/bench.json; the same command goes on where it
stopped, and 'edgeproof gate' decides on the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import whole_number
from .show import Show, quantity, table_width

if TYPE_CHECKING:
    from ..benchfile import BenchFile, KeptLeg
    from ..measurement import Measurement


def arguments(parser: argparse.ArgumentParser) -> None:
    """Models, target and how often."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX files; the first is the baseline")
    parser.add_argument(
        "--target", default="onnxruntime:cpu", metavar="T", help="default: onnxruntime:cpu; several with commas"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="fix a setting of the runtime, e.g. threads=1"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input with open dimensions, once per input; an only input needs no NAME=",
    )
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="fresh processes (default: 10)")
    parser.add_argument("--inferences", type=int, default=200, metavar="N", help="timed per process (default: 200)")
    parser.add_argument("--out", default="runs/bench", metavar="FOLDER", help="default: runs/bench")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the random inputs and the order of models")


def run(args: argparse.Namespace, show: Show) -> int:
    """Measure, show, keep."""
    from ..benchfile import NAME, run_bench
    from .optimize import named_targets

    shapes = _shapes(args.shape, Path(args.models[0]))
    targets = named_targets(args.target, args.set)
    out = Path(args.out)
    with show.progress() as progress:
        kept = run_bench(
            [Path(m) for m in args.models],
            targets,
            out,
            shapes=shapes,
            rounds=args.runs,
            inferences=args.inferences,
            seed=args.seed,
            progress=progress,
        )
    _print(kept, out / NAME, show)
    return 0


def _shapes(texts: Sequence[str], model: Path) -> dict[str, tuple[int, ...]]:
    """What --shape gives; only a shape without a name needs a look at the model."""
    from ..model import load_model
    from .inspect import parse_shapes

    nameless = any("=" not in text for text in texts)
    return parse_shapes(texts, [s.name for s in load_model(model).inputs] if nameless else ())


def _print(kept: BenchFile, file: Path, show: Show) -> None:
    legs = (kept.baseline, *kept.candidates)
    measured = {leg.name: kept.measured(leg) for leg in legs}
    ratios = {leg.name: speed_ratio(kept, leg) for leg in kept.candidates}
    _tables(kept, measured, ratios, show)
    control = kept.control
    if control.ratio is not None:
        state = "fit to measure on" if control.ok else "not fit to decide on"
        show.text(f"  A/A control {_ratio(control.ratio, control.low, control.high)}: {state}")
    for text in (*control.problems, *control.warnings):
        show.text(f"  ! {text}")
    if kept.no_sensor:
        show.text(f"  no sensor for {' and '.join(kept.no_sensor)}; --json says why")
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


def _tables(
    kept: BenchFile,
    measured: Mapping[str, Mapping[str, Measurement]],
    ratios: Mapping[str, tuple[float, float | None, float | None]],
    show: Show,
) -> None:
    """A column a model and a row a metric: without intervals where they do not fit, then in several tables."""
    base = kept.baseline.name

    def column(name: str, intervals: bool) -> list[str]:
        head = _cut(name, max(12, (show.width - 30) // 2))
        cells = [_cell(measured[name].get(metric), intervals) for metric in measured[base]]
        return [head, *cells, *([_ratio(*ratios[name]) if name in ratios else "1"] if ratios else [])]

    shown = ["ONNX file" if metric == "size" else metric for metric in measured[base]]
    labels = ["", *shown, *(["p50 / baseline"] if ratios else [])]
    names = [leg.name for leg in kept.candidates]
    intervals = True
    blocks = [[labels, *(column(name, intervals) for name in (base, *names))]]
    if _width(blocks[0]) > show.width:
        intervals = False
        blocks = _blocks([labels, column(base, False)], [column(name, False) for name in names], show.width)
    ends = "[95 % interval]" if intervals else "95 % intervals with --json"
    targets = " and ".join(dict.fromkeys(leg.target for leg in (kept.baseline, *kept.candidates)))
    show.wrapped(f"{targets}, {kept.rounds} processes of {kept.inferences} inferences, {ends}")
    for block in blocks:
        head, *rows = zip(*block, strict=True)
        show.table(head, rows, right=" " + "r" * (len(block) - 1))


def _blocks(left: list[list[str]], columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Tables that fit, each with the labels and the baseline on its left."""
    blocks = [list(left)]
    for column in columns:
        if len(blocks[-1]) > len(left) and _width([*blocks[-1], column]) > width:
            blocks.append(list(left))
        blocks[-1].append(column)
    return blocks


def _width(block: Sequence[Sequence[str]]) -> int:
    head, *rows = zip(*block, strict=True)
    return table_width(head, rows)


def _cut(name: str, most: int) -> str:
    """A long name without its middle: variants of a model differ at the end."""
    return name if len(name) <= most else f"{name[: most // 3]}…{name[-(most - most // 3 - 1) :]}"


def _cell(m: Measurement | None, intervals: bool) -> str:
    return "missing" if m is None else quantity(m.value, m.unit, m.low, m.high, intervals=intervals)


def _ratio(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
