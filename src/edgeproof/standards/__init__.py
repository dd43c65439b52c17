"""Sealed evidence in the formats that others read: one standard a file, found by its name.

A standard is given evidence that was verified just now, from the very bytes that it then reads. Whatever it writes
follows from them alone: the same evidence, keys and version of edgeproof give the same bytes. What the evidence does
not say (what a model is for, what it was trained on) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .. import registry
from ..digest import canonical_json
from ..errors import TrustError
from ..evidence.members import ATTESTATION, DECISION, MANIFEST, Content, content_of, read_json
from ..evidence.verify import Verification, read_members, verify_members
from ..model import TensorSpec
from ..policy import Check
from ..receipt import Receipt
from ..structure import Structure

if TYPE_CHECKING:
    from securesystemslib.signer import Key

LEVEL = "95 %"
"""Confidence of a figure's interval, two-sided. Source: `bounds.interval`."""
_UNCHECKED = ("evidence.no_key", "evidence.unsigned")
"""Codes of evidence of whose signature nothing is known to be wrong."""
_TASKS = {"classes": "classification", "ctc": "text recognition", "boxes": "object detection"}
"""How outputs were decoded for scoring → the task."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number on both sides.

    Attributes:
        metric: Its name.
        unit: Its unit; empty for a plain number.
        value: Of the candidate, to 12 digits; None when it is no finite number.
        low: Lower end of its interval; None when there is none.
        high: Upper end.
        samples: How many raw samples it rests on.
        baseline: The baseline's value, low and high; all None when it was not measured there.
        on: Where and on what it was measured, in words.
        dataset: Digest of the samples that were scored; empty for numbers of another kind.
    """

    metric: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    samples: int
    baseline: tuple[float | None, float | None, float | None]
    on: str
    dataset: str = ""

    @property
    def label(self) -> str:
        """Name with unit."""
        return f"{self.metric} [{self.unit}]" if self.unit else self.metric


@dataclass(frozen=True, slots=True)
class Verified:
    """Evidence that can be read, with what verifying it found.

    Attributes:
        verification: What it amounts to.
        content: Its members.
        decision: The sealed decision, as JSON.
        made_by: Program and version that sealed it.
        attestation: The signature's bytes; None when nobody signed.
    """

    verification: Verification
    content: Content
    decision: Mapping[str, Any]
    made_by: str
    attestation: bytes | None

    @property
    def model(self) -> Structure:
        """The candidate."""
        return self.content.analyses["candidate"]

    @property
    def original(self) -> Structure:
        """The baseline."""
        return self.content.analyses["baseline"]

    @property
    def task(self) -> str:
        """What the model does, as far as its outputs were decoded; empty when they were not."""
        decode = (self.content.evaluator or {}).get("decode")
        return _TASKS.get(str(decode.get("kind")), "") if isinstance(decode, Mapping) else ""

    @property
    def recipe(self) -> str:
        """How the candidate was made, in RFC 8785 form; empty when it was made elsewhere or is the original."""
        recipe = self.content.sides["candidate"]["recipe"]
        return canonical_json(recipe).decode() if recipe else ""

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every rule with its outcome, decided again."""
        return self.verification.verdict.checks

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every measured number of the candidate: quality first, then by name."""
        found = [self._figure(name, value) for name, value in sorted(self.decision["candidate"].items())]
        return tuple(sorted(found, key=lambda f: f.metric != self.content.metric))

    def receipts(self, role: str) -> tuple[Receipt, ...]:
        """A role's receipts, by the name of their member."""
        return tuple(receipt for _, receipt in sorted(self.content.receipts[role].items()))

    def _figure(self, name: str, value: Mapping[str, Any]) -> Figure:
        before = self.decision["baseline"].get(name, {})
        scored = next((r for r in self.receipts("candidate") if name in r.scores), None)
        if name == "size":
            on = "all files of the model"
        elif scored is not None:
            on = ", ".join(filter(None, (f"{value['samples']} samples", scored.target)))
        else:
            target = next((r.target for r in self.receipts("candidate") if r.runs and r.kind == "runs"), "")
            on = ", ".join(filter(None, (f"{value['samples']} processes", target)))
        return Figure(
            metric=name,
            unit="" if value["unit"] == "1" else value["unit"],
            value=value["value"],
            low=value["low"],
            high=value["high"],
            samples=value["samples"],
            baseline=(before.get("value"), before.get("low"), before.get("high")),
            on=on,
            dataset=scored.dataset if scored is not None else "",
        )


class Standard(Protocol):
    """Writes verified evidence in a format that others read."""

    suffix: ClassVar[str]
    """End of the file's name, with its dot."""
    shows_differences: ClassVar[bool]
    """Whether evidence that does not hold may be written, since what is wrong with it is told."""

    def write(self, evidence: Verified) -> bytes:
        """The file's bytes.

        Raises:
            TrustError: When the evidence lacks what the standard is about.
        """


def read_verified(path: Path, keys: Sequence[Key] = ()) -> Verified:
    """Verify an evidence file and read it.

    Args:
        path: The file.
        keys: Public keys that are trusted to seal.

    Raises:
        TrustError: archive.*, evidence.*, json.*, receipt.*, policy.*; InputError: files.*.
    """
    members, digest = read_members(path)
    found = verify_members(members, digest, keys=keys)
    decision, manifest = read_json(members, DECISION), read_json(members, MANIFEST)
    return Verified(found, content_of(members), decision, manifest["made_by"], members.get(ATTESTATION))


def export(evidence: Verified, name: str, keys: Sequence[Key] = ()) -> bytes:
    """Write evidence in a standard's format.

    Args:
        evidence: From `read_verified`, with the same keys.
        name: Of the standard.
        keys: Given when the signature has to be one of theirs.

    Raises:
        InputError: registry.unknown.
        TrustError: standards.differences, standards.attestation, standards.untrusted, standards.unsigned.
    """
    standard: Standard = registry.load("standards", name)()
    if not standard.shows_differences:
        _check(evidence.verification, bool(keys))
    return standard.write(evidence)


def sha256(digest: str) -> str:
    """The 64 hexadecimal digits of one of our digests; empty for one of another kind."""
    found = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
    return found[1] if found else ""


def tensor(spec: TensorSpec) -> str:
    """An input or output in words, e.g. ``x: float32 [1, 3, 16, 16]``."""
    shape = "of any shape" if spec.shape is None else f"[{', '.join(map(str, spec.shape))}]"
    return f"{spec.name}: {spec.dtype} {shape}"


def _check(found: Verification, has_keys: bool) -> None:
    """Evidence that does not hold is passed on in no other form."""
    code, why = found.untrusted
    hint = "see 'edgeproof verify'; --as sarif writes down what is wrong"
    if found.differences:
        problem = f"has {len(found.differences)} differences, the first: {found.differences[0]}"
        raise TrustError("standards.differences", "evidence", problem, hint)
    if code and code not in _UNCHECKED and not has_keys:
        raise TrustError("standards.attestation", "evidence", f"{why} [{code}]", hint)
    if has_keys and not found.trusted:
        raise TrustError("standards.untrusted", "evidence", f"{why} [{code}]", hint)
