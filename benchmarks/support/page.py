"""The page docs/support.md, from the tables in the package: ``python -m benchmarks.support.page`` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgeproof.support import PRECISIONS, Entry, State, Table, tables

PAGE = Path(__file__).parents[2] / "docs/support.md"
MARKS: Mapping[State, str] = {"runs": "●", "falls back": "◐", "fails": "✕", "unknown": "·"}
HEAD = """# Which operator runs where

<!-- Written by `python -m benchmarks.support.page` from src/edgeproof/support/tables; a test holds them equal. -->

`edgeproof inspect MODEL --target T` looks a model's nodes up in these tables: T is a runtime, installed or not
(`tensorrt`, `onnxruntime:coreml`), or a device (`orin-nx:dla0`). It lists the nodes that fall back or fail there, with
the reason and what to do about each; on a DLA it holds the documented limits of every layer against the node itself.

*Probed* tables come from the runtime: the onnx package's tests of single nodes (at most {most} an operator
and precision) are compiled, run and compared; FP16 as our pass `fp16` makes it, INT8 as our pass `int8` does (or, for
operators between layers, with the Q/DQ that it would put there). Weights, shapes and axes are constants, as in models,
and the opset is the oldest from 17 on that the test allows. *Built* means the same for a device that is not here: it
was compiled, not run. *Published* tables are the runtime's own documentation; nothing of them was run here.

`python -m benchmarks.support --backend NAME` probes a runtime that is installed and writes its table.

"""


def page() -> str:
    """The whole page."""
    found = list(tables().values())
    most = max((e.tests for t in found for row in t.operators.values() for e in row.values()), default=0)
    parts = [HEAD.format(most=most), *_sources(found), *_matrix(found), *_reasons(found)]
    return "".join(f"{line}\n" if not line.endswith("\n\n") else line for line in parts)


def _sources(found: Sequence[Table]) -> Iterator[str]:
    yield "| table | kind | source | runs | falls back | fails | not tested |"
    yield "|---|---|---|---|---|---|---|"
    for t in found:
        counts = [_count(t, state) for state in MARKS]
        source = f"{t.source}; **not finished**" if t.unfinished else t.source
        yield f"| `{t.runtime}` | {t.kind} | {source} | {' | '.join(counts)} |"
    yield ""
    yield "Counts are of operators in FP32 / FP16 / INT8."
    yield ""


def _count(table: Table, state: State) -> str:
    if state == "unknown":
        return " / ".join(str(sum(p not in row for row in table.operators.values())) for p in PRECISIONS)
    return " / ".join(
        str(sum(row[p].state == state for row in table.operators.values() if p in row)) for p in PRECISIONS
    )


def _matrix(found: Sequence[Table]) -> Iterator[str]:
    yield "## Operators"
    yield ""
    yield "Three marks are FP32, FP16, INT8: ● runs, ◐ runs elsewhere or in another precision than asked for, ✕ fails,"
    yield "· is not known. ◐ in INT8 also stands where the runtime has no integer form: there the operator computes in"
    yield "float, between two conversions."
    yield ""
    yield f"| operator | {' | '.join(f'`{t.runtime}`' for t in found)} |"
    yield f"|---|{'---|' * len(found)}"
    for operator in sorted({op for t in found for op in t.operators}):
        cells = ["".join(MARKS[t.entry(operator, p).state] for p in PRECISIONS) for t in found]
        yield f"| {operator} | {' | '.join(cells)} |"
    yield ""


def _reasons(found: Sequence[Table]) -> Iterator[str]:
    """Per table: what fails, what passes only in part, and what documentation limits."""
    for t in found:
        rows = list(_rows(t))
        if not rows:
            continue
        yield f"## {t.title}"
        yield ""
        yield (
            "| operator | precision | passed | why |"
            if t.kind != "published"
            else "| operator | precision | | within |"
        )
        yield "|---|---|---|---|"
        yield from rows
        yield ""


def _rows(table: Table) -> Iterator[str]:
    for operator, row in table.operators.items():
        for precision, entry in row.items():
            if table.kind == "published" and precision != "fp16" and "fp16" in row:
                continue
            if _worth(entry, table):
                passed = f"{entry.passed} of {entry.tests}" if entry.tests else ""
                why = entry.why.replace("|", "\\|").replace("<", "&lt;")
                yield f"| {operator} | {precision.upper()} | {passed} | {why} |"


def _worth(entry: Entry, table: Table) -> bool:
    if table.kind == "published":
        return entry.state == "runs" and bool(entry.why)
    return entry.state == "fails" or entry.passed < entry.tests


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.name, len(page()), "characters")


if __name__ == "__main__":
    main()
