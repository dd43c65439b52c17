"""Make a folder a device's, once, at the factory.

The device gets its name, its product line, whom it believes (public keys, the root of its repository, or both), a
security floor, and, best, a golden bundle that runs when no slot is good. A signing key of its own is made for its
receipts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ._device import add_root, home_of, now
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the device is given."""
    from . import whole_number

    add_root(parser)
    parser.add_argument(
        "--device", required=True, metavar="NAME", help="its name, as bundles list it, e.g. orin-nano-8gb"
    )
    parser.add_argument("--line", required=True, metavar="LINE", help="its product line")
    parser.add_argument("--repository-root", metavar="FILE", help="root metadata of its repository (1.root.json)")
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key it believes; repeatable")
    parser.add_argument(
        "--floor", type=whole_number, default=0, metavar="N", help="smallest security version (default: 0)"
    )
    parser.add_argument(
        "--golden", metavar="BUNDLE", help="bundle that runs when no slot is good; signed by one of --key"
    )
    parser.add_argument("--driver", metavar="V", help="version of the accelerator's driver, where it cannot be asked")


def run(args: argparse.Namespace, show: Show) -> int:
    """Provision."""
    from ..device.provision import Factory, provision

    factory = Factory(
        args.device,
        args.line,
        args.floor,
        args.driver,
        [Path(k) for k in args.key],
        Path(args.repository_root) if args.repository_root else None,
        Path(args.golden) if args.golden else None,
    )
    home = home_of(args)
    profile = provision(home, factory, now())
    show.text(f"{home.root}: {profile.device} of the line {profile.line}, floor {profile.floor}")
    show.text("  install a bundle with 'edgeproof install'")
    show.result(
        {"root": str(home.root), "device": profile.device, "product_line": profile.line, "floor": profile.floor}
    )
    return 0
