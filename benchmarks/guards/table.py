"""The table of guards, which lies beside this file as TOML, one file for each group.

A case says what must be refused. Its edits take its guard away: each replaces one fragment of source text, which must
stand exactly once in its file. Its test must then fail. Where several guards stop the same attack one after the other,
a case takes all of them away at once, and others take one away where only that one stands.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GROUPS = {
    "signing": "TUF and signing",
    "archive": "Archive and JSON",
    "evidence": "Evidence",
    "models": "Models",
    "device": "Device",
}
TUF = "7.0.1"
"""Some of the guards are python-tuf's. Their fragments are those of this version; another is not held against them."""
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Edit:
    """One fragment of source text, and what stands there when the guard is gone.

    Attributes:
        file: ``edgeproof/…`` or ``tuf/…``.
        guard: The fragment.
        gone: What takes its place.
    """

    file: str
    guard: str
    gone: str

    @property
    def ours(self) -> bool:
        """Whether the guard is in this repository and not in python-tuf."""
        return self.file.startswith("edgeproof/")


@dataclass(frozen=True, slots=True)
class Case:
    """Something that must be refused.

    Attributes:
        group: Key of `GROUPS`.
        case: What, in words.
        edits: They take its guard away.
        test: Pytest id of the test that must fail then, without parameters.
        limit_s: Wall time after which the test counts as failed: without its guard it may never end.
        extra: Whether it goes beyond the cases that were asked for.
        needs: ``mlflow``, when the test runs in that environment of its own (scripts/test-mlflow).
    """

    group: str
    case: str
    edits: tuple[Edit, ...]
    test: str
    limit_s: float
    extra: bool
    needs: str = ""


def cases() -> tuple[Case, ...]:
    """The whole table, in order."""
    return tuple(c for group in GROUPS for c in _read(group))


def problems(case: Case) -> Iterator[str]:
    """Why a row is no longer true: a fragment that is not in its file exactly once, a test that is gone."""
    for edit in case.edits:
        if not edit.ours and version("tuf") != TUF:
            continue
        text = source_of(edit.file).read_text(encoding="utf-8")
        count = text.count(edit.guard)
        if count != 1:
            yield f"{edit.file} holds the fragment {count} times: {edit.guard}"
            continue
        try:
            ast.parse(text.replace(edit.guard, edit.gone))
        except SyntaxError as e:
            yield f"{edit.file} is no Python without its guard ({e.msg}, line {e.lineno}): {edit.gone}"
    file, _, name = case.test.partition("::")
    path = ROOT / file
    named = path.is_file() and any(
        isinstance(n, ast.FunctionDef) and n.name == name for n in ast.parse(path.read_text(encoding="utf-8")).body
    )
    if not named:
        yield f"there is no test {case.test}"


def source_of(file: str) -> Path:
    """Where a file of an edit lies."""
    if file.startswith("edgeproof/"):
        return ROOT / "src" / file
    spec = find_spec(file.partition("/")[0])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / file.partition("/")[2]


def _read(group: str) -> Iterator[Case]:
    with (HERE / f"{group}.toml").open("rb") as f:
        found: dict[str, Any] = tomllib.load(f)
    for row in found["case"]:
        edits = tuple(Edit(e["file"], e["guard"], e["gone"]) for e in (row, *row.get("also", ())))
        yield Case(
            group,
            row["case"],
            edits,
            row["test"],
            row.get("limit_s", LIMIT_S),
            row.get("extra", False),
            row.get("needs", ""),
        )
