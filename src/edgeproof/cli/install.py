"""Install a bundle on this device, on trial.

SOURCE is a bundle file that a trusted key signed, or a repository: a URL, or a folder such as a USB stick, of which the
newest bundle of the device's product line is taken. The bundle goes into the free slot; what runs now stays in the
other one. 'edgeproof serve' watches it and keeps it or goes back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import InputError
from ._device import add_root, described, now, provisioned
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Source and folder."""
    parser.add_argument("source", metavar="SOURCE", help="bundle file, or URL or folder of a repository")
    parser.add_argument("--name", default="", metavar="N", help="which bundle, where the repository has several")
    add_root(parser)


def run(args: argparse.Namespace, show: Show) -> int:
    """Install."""
    from ..device import receipts
    from ..device.install import Source, install
    from ..device.sources import FileSource, RepositorySource

    source: Source
    if args.source.startswith(("http://", "https://", "file://")) or Path(args.source).is_dir():
        source = RepositorySource(args.source, args.name)
    elif Path(args.source).is_file():
        source = FileSource(Path(args.source))
    else:
        raise InputError("files.missing", args.source, "no such file or folder", "give a bundle file or a repository")
    home, at = provisioned(args), now()
    done = install(home, source, at)
    slot = done.state.slot(done.slot)
    if done.fresh:
        problem = receipts.attempt(home, "installed", slot, {"slot": done.slot}, at)
        if problem:
            show.note(problem)
    state = "is on trial" if done.fresh else "is there already"
    show.text(f"{described(slot)} {state} in slot {done.slot}")
    show.result({"slot": done.slot, "fresh": done.fresh, "bundle": slot.bundle, "manifest": done.manifest.to_json()})
    return 0
