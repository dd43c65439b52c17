"""The whole way on a small real model: PP-OCRv4's text recogniser reads 1,600 rendered words on one thread of this CPU.

The first start fetches the model (15 MB); later ones need no network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ._outcome import command, finish
from .optimize import TARGET, run_flags, runtime_settings
from .show import Show

THREADS = "threads=1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the demo."""
    run_flags(parser)
    parser.set_defaults(out="runs/demo", set=[THREADS])
    parser.add_argument("--samples", type=int, default=1600, metavar="N", help="words to draw (default: 1600)")
    parser.add_argument("--fetch-only", action="store_true", help="only fetch the model, for later use without network")


def run(args: argparse.Namespace, show: Show) -> int:
    """Get the model, draw the words, optimise."""
    from ..dataset import load_spec
    from ..demo import demo_data, demo_model
    from ..files import cache_folder
    from ..optimize import optimize
    from ..policy import default_policy
    from ..runtimes import find_target

    out = Path(args.out)
    name = args.target or TARGET
    target = find_target(name, runtime_settings(name, args.set))
    with show.progress() as progress:
        model = demo_model(cache_folder(), progress)
    if args.fetch_only:
        show.text(str(model))
        show.result({"model": str(model)})
        return 0
    with show.progress() as progress:
        data = demo_data(out.with_name(f"{out.name}-words"), args.samples, progress)
    with show.progress() as progress:
        result = optimize(
            model,
            load_spec(str(data)),
            default_policy(),
            target,
            out,
            seed=args.seed,
            progress=progress,
            tell=show.note,
        )
    fixed = [word for pair in args.set for word in ("--set", pair)]
    show.text(f"The same by hand:\n  {command('optimize', model, '--data', data, *fixed, '--out', out)}")
    return finish(result, out, show)
