"""Make receipts of a run in MLflow, or of its exported JSON, for 'edgeproof review'.

  edgeproof import-mlflow 0f3c… --tracking http://localhost:5000 --model model.onnx --out imported
  edgeproof import-mlflow run.json --model model.onnx --out imported

A run that edgeproof logged brings its evidence along: that is verified, and its receipts have every raw sample. Of any
other run MLflow keeps aggregates only: its receipt has no samples, and a review holds on it.

exit codes: 0 written
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ._tracking import tracking_flags
from .show import Show

if TYPE_CHECKING:
    from ..mlflow_bridge.fetch import Fetched


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, and which model it is about."""
    parser.add_argument("run", metavar="RUN", help="id of a run, or the file of an exported one (JSON)")
    tracking_flags(parser, experiment=False)
    parser.add_argument(
        "--model", type=Path, metavar="M", help="the model that it is about, where it states none of ours"
    )
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key that may seal")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where receipts and records go")


def run(args: argparse.Namespace, show: Show) -> int:
    """Fetch, and write receipts."""
    done = _fetched(args)
    for path in done.receipts:
        show.text(f"  receipt  {path}")
    if done.evidence:
        show.text(f"  evidence {done.evidence}")
    for claim in done.claims:
        show.text(f"  claim    {claim.name} = {claim.value:g} {claim.unit}".rstrip())
    for note in done.notes:
        show.text(f"  note     {note}")
    show.result(
        {
            "receipts": [str(p) for p in done.receipts],
            "evidence": str(done.evidence) if done.evidence else None,
            "claims": [{"name": c.name, "value": c.value, "unit": c.unit, "metric": c.metric} for c in done.claims],
            "notes": list(done.notes),
        }
    )
    return 0


def _fetched(args: argparse.Namespace) -> Fetched:
    from ..bundle.keys import load_public
    from ..mlflow_bridge.fetch import export, imported_receipt, sealed_receipts

    exported = Path(args.run)
    if not exported.suffix and not exported.is_file():  # ids have no dot
        from ..mlflow_bridge.tracking import tracking

        at = tracking(args.tracking)
        exported = export(at, args.run, args.out)
        sealed = sealed_receipts(at, exported, args.out, [load_public(Path(k)) for k in args.key])
        if sealed is not None:
            return sealed
    digest, files = "", {}
    if args.model:
        from ..structure import read_structure

        structure = read_structure(args.model)
        digest, files = structure.digest, {p.name: p.digest for p in structure.files}
    return imported_receipt(exported, args.out, model=digest, files=files)
