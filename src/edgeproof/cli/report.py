"""Write one self-contained HTML page about a run: verdict, plots, layers, changes, and every raw number."""

from __future__ import annotations

import argparse
from pathlib import Path

from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run and where the page goes."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run (the --out of optimize)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page; RUN/report.html when left out")


def run(args: argparse.Namespace, show: Show) -> int:
    """Write the page and say where it is."""
    from ..report import write_report

    path = write_report(args.run, args.out)
    show.text(f"report: {path}")
    show.result({"report": str(path), "bytes": path.stat().st_size})
    return 0
