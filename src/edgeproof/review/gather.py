"""Sort what a reviewer gives: which receipt is of which model, and what is set aside with what reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bench import CONTROL, plan_digest
from ..benchfile import FORMAT as BENCH
from ..benchfile import NAME, RESULT, RESULT_FORMAT, BenchFile, load_bench
from ..digest import digest_json
from ..errors import InputError
from ..evidence.members import ROLES, receipt_name
from ..evidence.seal import device_of, run_members
from ..files import os_error
from ..importers import Claim, Role, import_records, read_records
from ..policy import Policy
from ..receipt import SCHEMA as RECEIPT
from ..receipt import Receipt
from ..strictjson import loads
from ..structure import Structure
from ..workspace import CONFIRMS, Workspace

SIDES = ("baseline", "candidate")


@dataclass(frozen=True, slots=True)
class Given:
    """Measurements that the reviewer gives.

    Attributes:
        paths: A bench, a run's folder, a receipt, or records of another tool (several: one for each process).
        role: Which side they are of; empty where their digests tell.
        label: Which model of a record that tells of several.
    """

    paths: tuple[Path, ...]
    role: Role = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Unused:
    """Measurements that were set aside.

    Attributes:
        what: The file, and what in it.
        why: One sentence.
    """

    what: str
    why: str


@dataclass(slots=True)
class Gathered:
    """What was made of all that was given.

    Attributes:
        receipts: Role and receipt, in the order given.
        records: File name and bytes of original records.
        unused: What was set aside.
        claims: Role and aggregate without samples.
        notes: What a reader should know.
        confirmed: Ledger lines of confirmations in runs of our own.
        machine: Facts of the machine, where a bench or run has them.
        quality: Metric of quality with its unit, direction and kind, where a run has it.
    """

    receipts: list[tuple[str, Receipt]] = field(default_factory=list)
    records: list[tuple[str, bytes]] = field(default_factory=list)
    unused: list[Unused] = field(default_factory=list)
    claims: list[tuple[str, Claim]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    confirmed: list[dict[str, Any]] = field(default_factory=list)
    machine: Mapping[str, Any] | None = None
    quality: tuple[str, Mapping[str, str]] | None = None


def gather(given: Sequence[Given], sides: tuple[Structure, Structure], policy: Policy) -> Gathered:
    """Read everything that was given.

    Args:
        given: Measurements.
        sides: Baseline and candidate.
        policy: The rules of this review.

    Raises:
        InputError: review.receipt, review.role; import.*, bench.format, receipt.*.
    """
    into = Gathered()
    for one in given:
        _gather(one, sides, policy, into)
    return into


def _gather(one: Given, sides: tuple[Structure, Structure], policy: Policy, into: Gathered) -> None:
    """Find out what was given, and sort its receipts by role."""
    path = one.paths[0]
    if path.is_dir():
        inside = next((path / n for n in (RESULT, NAME) if (path / n).is_file()), None)
        if inside is None:
            problem = f"holds neither {RESULT} (a finished run) nor {NAME} (a bench)"
            raise InputError("review.receipt", str(path), problem, "give the folder of a finished run or bench")
        path = inside
    try:
        head = path.read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
    # An own file says what it is near its beginning; everything else is a record of another tool.
    if RESULT_FORMAT.encode() in head[:200] and path.name == RESULT:
        _from_run(path.parent, sides, policy, into)
    elif BENCH.encode() in head[:200]:
        _from_bench(load_bench(path), str(path), sides, into)
    elif f'"{RECEIPT}"'.encode() in head and head.lstrip()[:1] == b"{":
        for file in one.paths:
            receipt = Receipt.from_json(loads(file.read_bytes(), str(file)), str(file))
            role = one.role or _role_of(receipt.model, sides)
            _sort(role, receipt, str(file), sides, policy, into)
    else:
        _from_records(one, sides, into)


def _from_records(one: Given, sides: tuple[Structure, Structure], into: Gathered) -> None:
    what = ", ".join(p.name for p in one.paths)
    role: str = one.role
    stated = ""
    if not role:
        _, readings, _ = read_records(one.paths, label=one.label)
        roles, models = {r.role for r in readings if r.role}, {r.model for r in readings if r.model}
        stated = next(iter(models), "")
        role = next(iter(roles)) if len(roles) == 1 else _role_of(stated, sides)
    if role not in ROLES:
        if stated:
            into.unused.append(Unused(what, _other(stated, sides)))
            return
        hint = "give it with --baseline-receipt, --control-receipt or --candidate-receipt"
        raise InputError("review.role", what, "does not say which of the two models it is of", hint)
    side = sides[role == "candidate"]
    files = {p.name: p.digest for p in side.files}
    try:
        found = import_records(one.paths, model=side.digest, files=files, role=role, label=one.label)  # type: ignore[arg-type]
    except InputError as e:
        if e.code != "import.other_model":
            raise
        into.unused.append(Unused(what, f"{e.subject} {e.problem}"))
        return
    into.receipts.append((role, found.receipt))
    into.records += found.records.items()
    into.claims += [(role, c) for c in found.claims]
    into.notes += [f"{what}: {note}" for note in found.notes]


def _from_bench(kept: BenchFile, what: str, sides: tuple[Structure, Structure], into: Gathered) -> None:
    used = False
    for leg in kept.legs:
        role = _role_of(leg.digest, sides)
        if leg.name == CONTROL:
            role = "control" if role == "baseline" else ""
        if not role or (role == "baseline" and leg is not kept.baseline):
            if leg.name != CONTROL:
                into.unused.append(Unused(f"{what}: {leg.name}", _other(leg.digest, sides)))
            continue
        runs = tuple(r for r in kept.runs if r.leg == leg.name)
        receipt = Receipt(
            kind="runs",
            model=leg.digest,
            files={p.name: p.digest for p in sides[role == "candidate"].files},
            dataset=kept.dataset,
            evaluator=plan_digest(kept.plan, kept.inferences),
            environment=kept.machine["digest"],
            target=leg.target,
            runs=runs,
            device=device_of(kept.machine, runs),
        )
        into.receipts.append((role, receipt))
        used = True
    if used and into.machine is None:
        into.machine = kept.machine


def _from_run(root: Path, sides: tuple[Structure, Structure], policy: Policy, into: Gathered) -> None:
    """Receipts of a run of our own, and its confirmations: they count against the looks of this policy too."""
    workspace = Workspace.open(root)
    result = workspace.read(RESULT) or {}
    name = next((r["name"] for r in result.get("candidates", ()) if r.get("model") == sides[1].digest), "")
    if not name:
        into.unused.append(Unused(str(root), f"confirmed no candidate with the digest {sides[1].digest[:19]}"))
        return
    members, _ = run_members(workspace, name)
    request = loads(members["request.json"], "request.json")
    into.quality = (request["metric"], request["quality"])
    for member, data in members.items():
        if member.startswith("receipt-"):
            receipt = Receipt.from_json(loads(data, member), f"{root}: {member}")
            _sort(member.split("-")[1], receipt, f"{root}: {member}", sides, policy, into)
    if "environment.json" in members and into.machine is None:
        into.machine = loads(members["environment.json"], "environment.json")
    into.confirmed += [
        {"kind": line["kind"], "candidate": line["candidate"], "confirmed_in": digest_json(line)}
        for line in workspace.ledger()
        if line.get("kind") in CONFIRMS
    ]


def _sort(
    role: str, receipt: Receipt, what: str, sides: tuple[Structure, Structure], policy: Policy, into: Gathered
) -> None:
    """Use a receipt, or set it aside with the reason."""
    if role not in ROLES or receipt.model != sides[role == "candidate"].digest:
        into.unused.append(Unused(what, _other(receipt.model, sides)))
    elif receipt.policy and receipt.policy != policy.digest:
        why = f"was measured under another policy ({receipt.policy[:19]}), not this one ({policy.digest[:19]})"
        into.unused.append(Unused(what, why))
    else:
        into.receipts.append((role, receipt))


def _role_of(digest: str, sides: tuple[Structure, Structure]) -> str:
    return next((name for name, s in zip(SIDES, sides, strict=True) if s.digest == digest), "")


def _other(digest: str, sides: tuple[Structure, Structure]) -> str:
    return f"is of another model ({digest[:19]}); the two are {sides[0].digest[:19]} and {sides[1].digest[:19]}"


def numbered(receipts: Sequence[tuple[str, Receipt]]) -> dict[str, tuple[str, Receipt]]:
    """Member name → role and receipt. No two measure the same of a role, or one could be chosen after the fact."""
    found: dict[str, tuple[str, Receipt]] = {}
    measured: set[tuple[str, str]] = set()
    for role, receipt in receipts:
        what = {(role, name) for name in receipt.scores} | ({(role, receipt.kind)} if receipt.runs else set())
        if twice := what & measured:
            name = sorted(n for _, n in twice)[0]
            problem = f"has {name} from two receipts; which of them counts must not be chosen afterwards"
            raise InputError("review.twice", role, problem, "give one of them, or one record with all processes")
        measured |= what
        number = 1
        while receipt_name(role, receipt, number) in found:
            number += 1
        found[receipt_name(role, receipt, number)] = (role, receipt)
    return found
