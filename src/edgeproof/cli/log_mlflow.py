"""Log deployment evaluations to MLflow: a run for each evidence file, or each confirmed candidate of a run.

  edgeproof log-mlflow runs/first --key keys/lab.key --tracking http://localhost:5000
  edgeproof log-mlflow evidence.zip --tracking mlflow --training-run 0f3c…

Runs of training stay as they are; --training-run only names one. The same evidence is never logged twice, and what was
interrupted is finished by the same command. Candidates of a folder are sealed first, into its evidence/NAME.zip.

exit codes: 0 logged, or already there
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import whole_number
from ._signing import key_flags, signers
from ._tracking import tracking_flags
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to log, and where."""
    parser.add_argument(
        "source", metavar="SOURCE", nargs="+", help="evidence files, or folders of 'edgeproof optimize'"
    )
    tracking_flags(parser)
    parser.add_argument("--training-run", default="", metavar="ID", help="run in MLflow that trained the model")
    key_flags(parser, "private key to seal the candidates of a folder with", required=False)
    parser.add_argument("--timestamp", metavar="T", help="when sealing: default: SOURCE_DATE_EPOCH, else now")
    parser.add_argument(
        "--valid", type=whole_number, default=365, metavar="DAYS", help="when sealing: how long an accept holds"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Seal what needs it, log, and show the runs."""
    from ..mlflow_bridge.log import log
    from ..mlflow_bridge.record import record_of
    from ..mlflow_bridge.tracking import tracking

    at = tracking(args.tracking)
    rows, found = [], []
    for path in [p for source in args.source for p in _evidence(Path(source), args)]:
        record = record_of(path)
        done = log(record, at, experiment=args.experiment, training_run=args.training_run)
        rows.append([done.outcome, record.name, record.tags["edgeproof.state"], done.run, str(path)])
        found.append(
            {
                "evidence": str(path),
                "digest": record.verification.digest,
                "run": done.run,
                "experiment": done.experiment,
                "outcome": done.outcome,
                "state": record.verification.state,
            }
        )
    show.table(["", "candidate", "verdict", "run in MLflow", "evidence"], rows, title=at.uri)
    show.text("compare a run with its evidence at any time: edgeproof audit-mlflow EVIDENCE")
    show.result({"tracking": at.uri, "runs": found})
    return 0


def _evidence(source: Path, args: argparse.Namespace) -> list[Path]:
    """Evidence files that a source stands for."""
    if not source.is_dir():
        return [source]
    from ..errors import InputError
    from ..mlflow_bridge.evaluations import sealed_evaluations
    from ..report import render
    from .seal import after, now

    keys = signers(args)
    if len(keys) > 1:
        raise InputError("usage.arguments", "--key", "was given more than once; evidence has one signer", "give one")
    timestamp = args.timestamp or now()
    return list(
        sealed_evaluations(
            source,
            signer=keys[0] if keys else None,
            timestamp=timestamp,
            expires=after(timestamp, args.valid),
            report=render(source).encode(),
        )
    )
