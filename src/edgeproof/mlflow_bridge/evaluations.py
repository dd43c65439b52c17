"""The evaluations of a finished run: one evidence file for each candidate that was confirmed.

They are kept in the run's folder, ``evidence/NAME.zip``, and sealed anew only when the run has changed since: the same
run gives the same files, and so the same runs in MLflow, however often it is logged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..archive import open_archive
from ..errors import InputError, TrustError
from ..evidence.members import ATTESTATION, DECISION, MANIFEST, MOST_BYTES, allowed
from ..evidence.seal import ORIGINAL, run_members, seal
from ..workspace import Workspace

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

FOLDER = "evidence"
_MADE_HERE = (DECISION, MANIFEST, ATTESTATION, "report.html")
"""Members that sealing makes or shows; all others come from the run."""


def sealed_evaluations(
    run: Path, *, signer: Signer | None, timestamp: str, expires: str | None = None, report: bytes | None = None
) -> tuple[Path, ...]:
    """Evidence of every confirmed candidate, sealed where it is not there yet; of the original when there is no other.

    Args:
        run: Folder of ``edgeproof optimize``.
        signer: Private key; None seals without a signature. Evidence without one is sealed anew when there is one.
        timestamp: When, for what is sealed now.
        expires: Until when an accept may be acted on.
        report: ``report.html`` of the run.

    Raises:
        InputError: evidence.unfinished; and what `seal` raises.
        TrustError: What `seal` raises.
    """
    workspace = Workspace.open(run)
    result = workspace.read("result.json")
    if result is None:
        hint = "run the same 'edgeproof optimize' command again; it goes on where it stopped"
        raise InputError("evidence.unfinished", str(run), "has no result yet", hint)
    confirmed = [row["name"] for row in result["candidates"] if row["verdict"]]
    names = [name for name in confirmed if name != ORIGINAL] or confirmed
    found = []
    for name in names:
        path = run / FOLDER / f"{name}.zip"
        if not _is_of(path, run_members(workspace, name)[0], signed=signer is not None):
            seal(
                run, path, signer=signer, timestamp=timestamp, candidate=name, expires=expires, report=report
            )  # fmt: skip
        found.append(path)
    return tuple(found)


def _is_of(path: Path, members: dict[str, bytes], *, signed: bool) -> bool:
    """Whether a file is evidence with just these members."""
    if not path.is_file():
        return False
    try:
        with open_archive(path, allowed=allowed, max_total=MOST_BYTES) as archive:
            if signed and ATTESTATION not in archive.names:
                return False
            kept = {name: archive.read(name) for name in archive.names if name not in _MADE_HERE}
    except TrustError:
        return False  # cut short, or no evidence: sealed anew
    return kept == members
