"""What each runtime does with each operator in FP32, FP16 and INT8, and with the nodes of a model.

The tables beside this file (``tables/*.json``, one a runtime) are of two kinds, and each says which: *probed* (or
*built*, for a device that is not here), by running ONNX's own tests on the runtime with ``benchmarks/support``; or
*published*, from the runtime's documentation. What neither says is unknown.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from .. import hardware
from ..errors import UnsupportedError, did_you_mean

State = Literal["runs", "falls back", "fails", "unknown"]
"""``falls back``: it runs, but elsewhere or in another precision than asked for."""
Precision = Literal["fp32", "fp16", "int8"]
Kind = Literal["probed", "built", "published"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator in one precision.

    Attributes:
        state: What becomes of it.
        passed: Tests that gave the right result, wherever they ran.
        tests: Tests that were run; 0 in published tables.
        why: Of a fallback or a failure, the first reason; of what runs, what it does not do (or a test that failed).
    """

    state: State
    passed: int = 0
    tests: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """What one runtime does.

    Attributes:
        runtime: Name of the target, or of the runtime where all its devices are alike.
        title: For people.
        kind: Where the entries come from.
        source: That, in words: versions, or the document.
        otherwise: What becomes of an operator that is not listed.
        operators: Operator (``domain:Operator`` outside ONNX's own) → precision → what becomes of it.
        unfinished: Precisions in which not every operator was asked for.
        release: Major version of the runtime, where devices hold others; 0 where none is meant.
    """

    runtime: str
    title: str
    kind: Kind
    source: str
    otherwise: State
    operators: Mapping[str, Mapping[str, Entry]]
    unfinished: tuple[str, ...] = ()
    release: int = 0

    def entry(self, operator: str, precision: Precision) -> Entry:
        """What becomes of an operator.

        An operator that is known with floats (in FP16 too) and has no entry in INT8 has no integer form here: it
        computes in float, between two conversions.
        """
        row = self.operators.get(operator)
        if row is None:
            why = {"unknown": "was not tested", "fails": "is not in its list"}.get(self.otherwise, "is not in its list")
            return Entry(self.otherwise, why=why)
        if precision in row:
            return row[precision]
        single = row.get("fp32", Entry("unknown", why="was not tested"))
        if precision in self.unfinished:
            return Entry("unknown", why="was not tested")
        if precision == "int8" and single.state == "runs" and "fp16" in row:
            return Entry("falls back", why="has no integer form here: computed in float, between conversions")
        return single if precision == "fp16" and single.state == "fails" else Entry("unknown", why="was not tested")


@functools.cache
def tables() -> Mapping[str, Table]:
    """Every table, by the name of its runtime."""
    found = (_read(p) for p in sorted(TABLES.glob("*.json")))
    return {t.runtime: t for t in found}


def place_of(target: str) -> str:
    """``backend:device`` of a target, or of what a device of the catalogue runs with."""
    if target.partition(":")[0] not in {t.partition(":")[0] for t in tables()} and hardware.knows(target):
        planned = hardware.plan(target)
        return f"{planned.backend}:{planned.device}"
    return target


def table_for(target: str) -> Table:
    """The table for a target, installed or not, or for a device of the catalogue.

    Args:
        target: ``backend``, ``backend:device``, or a device such as ``orin-nx:dla0``.

    Raises:
        UnsupportedError: support.unknown.
    """
    backend, _, device = place_of(target).partition(":")
    kind = device.rstrip("0123456789")
    siblings = [t for t in tables() if t.startswith(f"{backend}:")]
    # Where devices have tables of their own, none of them speaks for a device without one.
    near = [f"{backend}:cpu", *siblings] if not device else siblings if len(siblings) == 1 else []
    for tried in (f"{backend}:{device}", f"{backend}:{kind}", backend, *near):
        if tried in tables():
            return tables()[tried]
    hint = did_you_mean(backend, (*tables(), *hardware.called()))
    raise UnsupportedError("support.unknown", target or "the empty name", "has no support table", hint)


def runs_on(operator: str, precision: Precision) -> list[str]:
    """Runtimes that run an operator in a precision."""
    return [name for name, t in tables().items() if t.entry(operator, precision).state == "runs"]


def _read(path: Path) -> Table:
    value = json.loads(path.read_text(encoding="utf-8"))
    source: Mapping[str, str] = value["source"]
    kind: Any = source["kind"]
    published = kind == "published"
    words = source["document"] if published else ", ".join((source["runtime"], source["suite"], source["machine"]))
    operators = {
        op: {precision: _entry(cell) for precision, cell in row.items()} for op, row in value["operators"].items()
    }
    title = value.get("title") or value["runtime"]
    unfinished = tuple(value.get("unfinished", ()))
    otherwise, release = value.get("otherwise", "unknown"), value.get("release", 0)
    return Table(value["runtime"], title, kind, words, otherwise, operators, unfinished, release)


def _entry(cell: Iterable[Any]) -> Entry:
    state, passed, tests, why = cell
    return Entry(state, passed, tests, why)
