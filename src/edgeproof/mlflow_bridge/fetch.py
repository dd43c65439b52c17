"""Take a run out of MLflow: its record as JSON, and receipts from it.

A run that edgeproof logged keeps its evidence: that is verified, and the receipts are those that were sealed, with
every raw sample. Of any other run MLflow keeps aggregates only, and its receipt says so by having no samples.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archive import open_archive
from ..digest import digest_file
from ..errors import InputError, TrustError
from ..evidence.members import MOST_BYTES, allowed
from ..files import read_json, write_bytes, write_json
from ..importers import Claim, import_records, read_records
from .record import ARCHIVE, EVIDENCE, RECEIPTS, record_of
from .tracking import Tracking, told

if TYPE_CHECKING:
    from securesystemslib.signer import Key

RUN = "mlflow-run.json"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Receipts of a run.

    Attributes:
        receipts: Files that were written.
        evidence: The evidence that came with them; None when the run keeps none.
        claims: Aggregates that have no samples.
        notes: What a reader should know.
    """

    receipts: tuple[Path, ...]
    evidence: Path | None
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]


def export(at: Tracking, run: str, out: Path) -> Path:
    """Write a run as MLflow's JSON, into a folder.

    Raises:
        InputError: mlflow.server, also when there is no such run; files.*.
    """
    with told(f"{at.uri}: run {run}"):
        value = at.client.get_run(run).to_dictionary()
    write_json(out / RUN, {"run": _finite(value)})
    return out / RUN


def sealed_receipts(at: Tracking, exported: Path, out: Path, keys: Sequence[Key] = ()) -> Fetched | None:
    """The receipts of a run that edgeproof logged, from the evidence that it keeps; None for other runs.

    Args:
        at: Where the run is.
        exported: Its JSON.
        out: Folder to write to.
        keys: Public keys that may have sealed the evidence.

    Raises:
        TrustError: mlflow.artifact, when the evidence is not the one that the run's params name; mlflow.too_large;
            mlflow.evidence; and what `verify` raises.
        InputError: mlflow.server, mlflow.artifact.
    """
    run = read_json(exported)["run"]
    stated = run["data"].get("params", {}).get(EVIDENCE, "")
    if not stated:
        return None
    run_id, evidence = run["info"]["run_id"], out / ARCHIVE
    _download(at, run_id, evidence, stated)
    found = record_of(evidence, keys).verification
    receipts = []
    with open_archive(evidence, allowed=allowed, max_total=MOST_BYTES) as archive:
        for name in archive.names:
            if name.startswith("receipt-"):
                archive.extract(name, out / RECEIPTS / name)
                receipts.append(out / RECEIPTS / name)
    note = "from the evidence that the run keeps, with every raw sample"
    who = (
        f"signed by {', '.join(found.signed_by)}"
        if found.trusted
        else f"not checked who sealed it: {found.untrusted[1]}"
    )
    return Fetched(tuple(receipts), evidence, (), (note, who))


def imported_receipt(exported: Path, out: Path, *, model: str, files: Mapping[str, str]) -> Fetched:
    """A receipt of what an exported run states.

    Args:
        exported: The run's JSON, in the shape of the REST API or of ``Run.to_dictionary``.
        out: Folder to write to.
        model: Digest of the model's content; empty for the one that the run states.
        files: Its files: name → digest.

    Raises:
        InputError: import.*; mlflow.model, when nothing says which model the run is about.
    """
    form, readings, _ = read_records([exported])
    if form != "mlflow":
        raise InputError(
            "import.unknown", str(exported), f"is a record of {form}, not of MLflow", "see 'review prepare'"
        )
    model = model or readings[0].model
    if not model:
        problem = "states no digest of a model (param or tag edgeproof.model)"
        raise InputError("mlflow.model", str(exported), problem, "give the model with --model")
    done = import_records([exported], model=model, files=files)
    path = out / f"receipt-{readings[0].kind}.json"
    write_json(path, done.receipt.to_json())
    return Fetched((path,), None, done.claims, done.notes)


def _download(at: Tracking, run: str, to: Path, stated: str) -> None:
    with told(f"{at.uri}: run {run}"):
        size = next((f.file_size for f in at.client.list_artifacts(run) if f.path == ARCHIVE), -1)
    if size == -1:
        problem = f"its artifact {ARCHIVE} is not there any more"
        raise InputError("mlflow.artifact", f"run {run}", problem, "use the evidence file that it was logged from")
    if size is not None and size > 2 * MOST_BYTES:
        raise TrustError("mlflow.too_large", f"run {run}", f"{ARCHIVE} has {size} bytes", "evidence is never as large")
    with tempfile.TemporaryDirectory(prefix="edgeproof-import-") as folder:
        with told(f"{at.uri}: run {run}"):
            path = Path(at.client.download_artifacts(run, ARCHIVE, folder))
        got = digest_file(path)
        if got != stated:
            problem = f"{ARCHIVE} has digest {got}; its param {EVIDENCE} says {stated}"
            raise TrustError("mlflow.artifact", f"run {run}", problem, "use the evidence file that it was logged from")
        write_bytes(to, path.read_bytes())


def _finite(value: Any) -> Any:
    """Numbers that JSON does not have as text, as the REST API writes them."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
