"""Seal one candidate of a finished run into a signed evidence file.

The decision is made anew from the raw samples before anything is signed. The file holds the policy, every raw sample,
the analysis of both models, the ledger and the report; 'edgeproof verify' checks it offline, without the models.
The same run, key and --timestamp give the same bytes.

exit codes: 0 sealed an accept, 1 sealed a reject, 5 sealed a hold
"""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..errors import VERDICT_EXIT, InputError
from . import whole_number
from ._signing import key_flags, signers
from .show import Show

TIME = "%Y-%m-%dT%H:%M:%SZ"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Run, key, file and times."""
    parser.add_argument("run", metavar="RUN", help="folder of 'edgeproof optimize'")
    key_flags(parser, "private key to sign with; without one, nobody has a reason to trust the file", required=False)
    parser.add_argument("--out", metavar="FILE", help="default: evidence.zip in the run's folder")
    parser.add_argument("--candidate", metavar="NAME", help="default: the accepted one, else the first confirmed")
    parser.add_argument("--timestamp", metavar="T", help="default: SOURCE_DATE_EPOCH, else now")
    parser.add_argument(
        "--valid", type=whole_number, default=365, metavar="DAYS", help="how long an accept holds (default: 365)"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Seal and show what was sealed."""
    from ..evidence.seal import seal
    from ..report import render

    folder = Path(args.run)
    out = Path(args.out) if args.out else folder / "evidence.zip"
    keys = signers(args)
    if len(keys) > 1:
        raise InputError("usage.arguments", "--key", "was given more than once; evidence has one signer", "give one")
    timestamp = args.timestamp or now()
    done = seal(
        folder,
        out,
        signer=keys[0] if keys else None,
        timestamp=timestamp,
        candidate=args.candidate,
        expires=after(timestamp, args.valid),
        report=render(folder).encode(),
    )
    for difference in done.differences:
        show.text(f"  differs  {difference}")
    show.text(f"  {done.verdict.state}: {done.verdict.why}")
    show.text(f"  {out}  {done.digest}")
    if not done.signed:
        show.note("not signed: 'edgeproof keys new' makes a key, --key signs with it")
    show.result(
        {
            "path": str(out),
            "digest": done.digest,
            "signed": done.signed,
            "candidate": done.candidate,
            "verdict": done.verdict.to_json(),
            "differences": [d.to_json() for d in done.differences],
        }
    )
    return VERDICT_EXIT[done.verdict.state]


def now() -> str:
    """The time to seal with. Source: reproducible-builds.org, SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return datetime.now(UTC).strftime(TIME)
    if not epoch.isascii() or not epoch.isdigit() or len(epoch) > 11:
        raise InputError("usage.arguments", "SOURCE_DATE_EPOCH", f"is {epoch!r}; expected seconds since 1970", "")
    return datetime.fromtimestamp(int(epoch), UTC).strftime(TIME)


def after(timestamp: str, days: int) -> str:
    """A time so many days later."""
    from ..evidence.members import read_time

    start = read_time(timestamp, "--timestamp")
    if not 1 <= days <= 36_500:
        raise InputError("usage.arguments", "--valid", f"is {days} days; expected 1 to 36500", "give e.g. --valid 90")
    return (start + timedelta(days=days)).strftime(TIME)
