"""Write a signed instruction that raises the security floor of a product line's devices.

A device follows it with 'edgeproof mark-good --raise-floor FILE', and only when what it kept is at or above that floor.
From then on nothing below it runs there: neither a bundle, nor the other slot, nor the golden one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ._signing import key_flags, signers
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Floor, line and key."""
    from . import whole_number

    parser.add_argument("floor", type=whole_number, metavar="N", help="smallest security version from then on")
    parser.add_argument("--line", required=True, metavar="LINE", help="product line")
    key_flags(parser, "private key that the devices trust; repeatable")
    parser.add_argument("--out", default="floor.json", metavar="FILE", help="where to write it (default: floor.json)")


def run(args: argparse.Namespace, show: Show) -> int:
    """Write it."""
    from ..device.floor import instruction
    from ..files import write_bytes
    from ..manifest import check_name

    line = check_name(args.line, "--line")
    write_bytes(Path(args.out), instruction(line, args.floor, signers(args)))
    show.text(f"{args.out}: devices of the line {line} take nothing below security version {args.floor}")
    show.result({"out": args.out, "product_line": line, "floor": args.floor})
    return 0
