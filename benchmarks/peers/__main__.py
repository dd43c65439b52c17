"""INT8 of edgeproof beside its peers: cost, accuracy, share of MACs, latency; same float models, samples, runtime.

    scripts/bench peers --out DIR [--models NAME …] [--only TOOL …] [--calibration N …] [--test N] [--again] [--table]

Every cell (model × tool × number of samples) is kept in DIR as soon as it is measured, and not measured again unless
``--again`` says so; a run that is stopped loses at most one cell. ``--only edgeproof`` takes all tools of that peer.
``--table`` prints the tables of what is in DIR and measures nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .cells import Bench
from .environments import root
from .table import render
from .tasks import TASKS
from .tools import TOOLS

STAGES = ("quantise", "quality", "latency")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [t.data for t in TASKS]
    tools = sorted({t.name for t in TOOLS} | {t.peer for t in TOOLS})
    parser.add_argument("--out", type=Path, required=True, help="where models, samples and cells are kept")
    parser.add_argument("--models", nargs="+", default=names, choices=names, metavar="DATA", help=", ".join(names))
    parser.add_argument("--only", nargs="+", default=[], choices=tools, metavar="TOOL", help=", ".join(tools))
    parser.add_argument("--calibration", type=int, nargs="+", default=[128], metavar="N", help="default: 128")
    parser.add_argument("--test", type=int, default=0, metavar="N", help="test samples; default: 300 to 600 by model")
    parser.add_argument("--rounds", type=int, default=20, help="of latency, per process; default: 20")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES, metavar="STAGE")
    parser.add_argument("--limit-gb", type=float, default=10.0, help="a tool that holds more is stopped; default: 10")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="a tool that takes longer is stopped")
    parser.add_argument("--again", action="store_true", help="measure the chosen cells anew")
    parser.add_argument("--table", action="store_true", help="print the tables, as Markdown, and measure nothing")
    args = parser.parse_args()
    if args.table:
        print(render(args.out, args.calibration[0]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a child does not outlive it
    chosen = [t for t in TOOLS if not args.only or {t.name, t.peer} & set(args.only)]
    print(f"environments: {root()}; results: {args.out}", file=sys.stderr)
    for task in TASKS:
        if task.data in args.models:
            bench = Bench.prepare(task, args.out, args.test or task.test, args.again, args.limit_gb, args.limit_s)
            bench.run(chosen, [n for n in args.calibration if n <= task.most], args.stages, args.rounds)
    print(render(args.out, args.calibration[0]))


if __name__ == "__main__":
    main()
