"""Verify an evidence file, or a bundle with the evidence in it: offline, deciding again from the raw samples.

Give the public key of whoever you trust to seal with --key, for a bundle also that of its product line; without them
nothing is trusted. Give the model with --model to have its bytes hashed and analysed again (a bundle brings its own).
Everything that disagrees is named.

exit codes: 0 accept, 1 reject, 5 hold, 4 not trusted, expired, or something differs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import VERDICT_EXIT, TrustError
from .show import Show

if TYPE_CHECKING:
    from securesystemslib.signer import Key

    from ..evidence.verify import Verification


def arguments(parser: argparse.ArgumentParser) -> None:
    """File, keys and models."""
    parser.add_argument("file", metavar="FILE", help="evidence file or bundle")
    parser.add_argument(
        "--key", action="append", default=[], metavar="PUB", help="public key that may seal, or sign a bundle"
    )
    parser.add_argument("--model", action="append", default=[], metavar="M", help="the candidate or the baseline")


def run(args: argparse.Namespace, show: Show) -> int:
    """Verify and show."""
    from ..bundle.keys import load_public
    from ..evidence.verify import verify

    keys = [load_public(Path(k)) for k in args.key]
    with _evidence(Path(args.file), keys) as (path, beside, signature):
        models = [*beside, *map(Path, args.model)]
        found = verify(path, keys=keys, models=models, now=datetime.now(UTC))
    _tell(found, show)
    if signature:
        show.text(f"  bundle    {signature.text}")
    show.result({**found.to_json(), **({"bundle": signature.to_json()} if signature else {})})
    if found.differences or not found.trusted or found.expired or (signature and not signature.by):
        return TrustError.exit_code
    return VERDICT_EXIT[found.state]


@dataclass(frozen=True, slots=True)
class _Signature:
    """Who signed a bundle, of the keys that were given; or why that is nobody."""

    by: tuple[str, ...]
    refused: TrustError | None = None

    @property
    def text(self) -> str:
        why = self.refused
        return f"NOT TRUSTED: {why.problem}  [{why.code}]" if why else f"signed by {', '.join(self.by)}"

    def to_json(self) -> dict[str, Any]:
        return {"signed_by": list(self.by), "refused": self.refused.to_json() if self.refused else None}


@contextmanager
def _evidence(path: Path, keys: Sequence[Key]) -> Iterator[tuple[Path, list[Path], _Signature | None]]:
    """The evidence file; from a bundle, taken out of it with the model that it came with, and who signed it."""
    from ..archive import open_archive
    from ..bundle.opening import EVIDENCE, open_bundle
    from ..evidence.members import allowed

    # A file that is neither is told about as what it was most likely meant to be.
    with open_archive(path, allowed=lambda name: max(allowed(name), 2**32), max_total=2**32) as archive:
        is_bundle = EVIDENCE in archive
    if not is_bundle:
        yield path, [], None
        return
    with tempfile.TemporaryDirectory(prefix="edgeproof-verify-") as folder, open_bundle(path) as bundle:
        for file in bundle.manifest.files:
            bundle.extract(file.path, Path(folder) / file.path)
        try:
            signature = _Signature(bundle.check_signature(keys))
        except TrustError as e:
            signature = _Signature((), e)
        yield Path(folder) / EVIDENCE, [Path(folder) / bundle.manifest.model], signature


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
