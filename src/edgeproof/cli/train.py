"""Train, prune, retrain, quantise and export by one file, without code.

The file names the model, labelled samples and the stages; see docs/training.md. Every stage is scored on samples that
nothing learns from. Ctrl-C or a killed process loses nothing: the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .show import Show, quantity


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("spec", metavar="SPEC", type=Path, help="training file (YAML)")
    parser.add_argument(
        "until", metavar="STAGE", nargs="?", default="", help="stop behind the first stage of this kind"
    )
    parser.add_argument("--out", metavar="RUN", type=Path, help="folder of the run (default: as the file says)")


def run(args: argparse.Namespace, show: Show) -> int:
    """Read, train, show."""
    from ..training import NAME, load_training, run_training

    spec = load_training(args.spec)
    if args.out is not None:
        spec = replace(spec, out=args.out)
    with show.progress() as progress:
        result = run_training(spec, until=args.until, progress=progress, tell=show.note)
    table(result, show)
    show.text(f"  all     {spec.out / NAME}")
    show.result({**result, "run": str(spec.out)})
    return 0


def table(result: Mapping[str, Any], show: Show) -> None:
    """One row per stage."""
    from ..report.units import text

    rows = []
    first = result["stages"][0]
    for stage in result["stages"]:
        q = stage["quality"]
        known = isinstance(stage["macs"], int) and isinstance(first["macs"], int) and first["macs"] > 0
        macs = f"{stage['macs'] / first['macs']:.0%}" if known else ""
        rows.append(
            [
                stage["stage"],
                quantity(q["value"], q["unit"], q["low"], q["high"], intervals=True),
                text(stage["size_bytes"], "bytes"),
                macs,
                curve(stage["epochs"]),
                stage["path"],
            ]
        )
    columns = ["stage", f"{result['metric']} [95 %]", "size", "MACs", "loss", "model"]
    show.table(columns, rows, right=" rrr  ", optional=("loss",))
    show.text(f"  scored on {result['samples']['tested']} samples that nothing learned from")


BARS = "▁▂▃▄▅▆▇█"


def curve(epochs: Sequence[Mapping[str, Any]]) -> str:
    """Losses as bars, the one before training first, and that and the lowest in numbers."""
    losses = [e["held_out"] if e["held_out"] is not None else e["loss"] for e in epochs]
    if not losses:
        return ""
    if epochs[0].get("before") is not None:
        losses = [epochs[0]["before"], *losses]
    low, high = min(losses), max(losses)
    bars = "".join(BARS[round((v - low) / (high - low or 1) * (len(BARS) - 1))] for v in losses[-24:])
    return f"{bars} {losses[0]:.3g} → {low:.3g}"
