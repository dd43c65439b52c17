"""Compare a run in MLflow with the sealed evidence that it was logged from, and name everything that was changed.

The evidence is verified first (--key: by whose key), and found in MLflow by its digest, or by --run. Held against it:
every param, tag, metric with its history, dataset and artifact, and that the run is there, finished and not deleted.
Tags outside 'edgeproof.' are yours.

exit codes: 0 equal, 4 something differs, or the evidence does not hold
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import TrustError
from ._tracking import tracking_flags
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which evidence, and where its run is."""
    parser.add_argument("evidence", metavar="EVIDENCE", type=Path, help="the sealed evidence file")
    tracking_flags(parser)
    parser.add_argument(
        "--run", dest="run_id", default="", metavar="ID", help="run to compare (default: found by digest)"
    )
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key that may seal")


def run(args: argparse.Namespace, show: Show) -> int:
    """Compare and show."""
    from ..bundle.keys import load_public
    from ..mlflow_bridge.audit import audit
    from ..mlflow_bridge.record import record_of
    from ..mlflow_bridge.tracking import tracking

    record = record_of(args.evidence, [load_public(Path(k)) for k in args.key])
    at = tracking(args.tracking)
    found = audit(record, at, experiment=args.experiment, run=args.run_id)
    for drift in found.drifts:
        show.text(f"  differs  {drift}")
    notes = list(found.notes)
    if not record.verification.trusted:
        notes.append(f"not checked who sealed the evidence: {record.verification.untrusted[1]}")
    for note in notes:
        show.text(f"  note     {note}")
    counts = ", ".join(f"{n} {name}" for name, n in found.compared.items())
    equal = "equal: the run says what the evidence says"
    show.text(f"  {f'{len(found.drifts)} differ' if found.drifts else equal}{f' ({counts})' if counts else ''}")
    show.result(
        {
            "tracking": at.uri,
            "run": found.run,
            "evidence": record.verification.digest,
            "equal": not found.drifts,
            "drifts": [d.to_json() for d in found.drifts],
            "compared": dict(found.compared),
            "notes": notes,
        }
    )
    return TrustError.exit_code if found.drifts else 0
