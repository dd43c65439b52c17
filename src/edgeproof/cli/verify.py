"""Verify an evidence file, or the evidence in a bundle: offline, deciding again from the raw samples.

Give the public key of whoever you trust to seal with --key; without it nothing is trusted. Give the model with --model
to have its bytes hashed and analysed again (a bundle brings its own). Everything that disagrees is named.

exit codes: 0 accept, 1 reject, 5 hold, 4 not trusted, expired, or something differs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import VERDICT_EXIT, TrustError
from .show import Show

if TYPE_CHECKING:
    from ..evidence.verify import Verification


def arguments(parser: argparse.ArgumentParser) -> None:
    """File, keys and models."""
    parser.add_argument("file", metavar="FILE", help="evidence file or bundle")
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key that may seal")
    parser.add_argument("--model", action="append", default=[], metavar="M", help="the candidate or the baseline")


def run(args: argparse.Namespace, show: Show) -> int:
    """Verify and show."""
    from ..bundle.keys import load_public
    from ..evidence.verify import verify

    keys = [load_public(Path(k)) for k in args.key]
    with _evidence(Path(args.file), show) as (path, beside):
        models = [*beside, *map(Path, args.model)]
        found = verify(path, keys=keys, models=models, now=datetime.now(UTC))
    _tell(found, show)
    show.result(found.to_json())
    if found.differences or not found.trusted or found.expired:
        return TrustError.exit_code
    return VERDICT_EXIT[found.state]


@contextmanager
def _evidence(path: Path, show: Show) -> Iterator[tuple[Path, list[Path]]]:
    """The evidence file; from a bundle, taken out of it with the model that it came with."""
    from ..archive import open_archive
    from ..bundle.opening import EVIDENCE, open_bundle
    from ..evidence.members import allowed

    # A file that is neither is told about as what it was most likely meant to be.
    with open_archive(path, allowed=lambda name: max(allowed(name), 2**32), max_total=2**32) as archive:
        is_bundle = EVIDENCE in archive
    if not is_bundle:
        yield path, []
        return
    with tempfile.TemporaryDirectory(prefix="edgeproof-verify-") as folder, open_bundle(path) as bundle:
        for file in bundle.manifest.files:
            bundle.extract(file.path, Path(folder) / file.path)
        show.note(f"{path} is a bundle: this verifies its evidence and model; installing checks who signed the bundle")
        yield Path(folder) / EVIDENCE, [Path(folder) / bundle.manifest.model]


def _tell(found: Verification, show: Show) -> None:
    rows = [[c.state, str(c.rule), c.reason] for c in found.verdict.checks]
    show.table(["", "rule", "why"], rows, title=f"decided again from the raw samples: {found.state}")
    for difference in found.differences:
        show.text(f"  differs  {difference}")
    show.text(f"  candidate {found.candidate}")
    show.text(f"  baseline  {found.baseline}")
    show.text(f"  policy    {found.policy}")
    until = f", until {found.expires}" if found.expires else ""
    show.text(f"  sealed    {found.timestamp}{until}{'  EXPIRED' if found.expired else ''}")
    code, why = found.untrusted
    show.text(f"  signed by {', '.join(found.signed_by)}" if found.trusted else f"  NOT TRUSTED: {why}  [{code}]")
    for note in found.notes:
        show.text(f"  note      {note}")
