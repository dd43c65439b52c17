"""Show a model of a format that is not ONNX: what its structure tells, and what its format hides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .show import Show

if TYPE_CHECKING:
    from ..structure import Structure


def foreign(path: Path) -> bool:
    """Whether a file is a model of another format; what is wrong with a file is left to whoever opens it."""
    from ..errors import InputError
    from ..structure.recognise import recognise

    try:
        return recognise(path) != "onnx"
    except InputError:
        return False


def show_foreign(path: Path, show: Show) -> int:
    """Read it in a child process with limits, and show it."""
    from ..structure import read_structure

    found = read_structure(path)
    show.result(found.to_json())
    _show(found, show)
    return 0


def _show(found: Structure, show: Show) -> None:
    from .inspect import TITLES, size

    rows = [("model", found.name), ("format", found.format), ("digest", found.digest)]
    rows += [("file", f"{p.name}, {size(p.size)}") for p in found.files]
    rows += [(name, str(value)) for name, value in found.facts.items()]
    for label, specs in (("input", found.inputs), ("output", found.outputs)):
        rows += [(label, "unknown; the format does not tell")] if specs is None else [(label, str(s)) for s in specs]
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        show.text(f"{label:<{width}}{value}")
    show.text()
    operators = found.operators
    counts = "unknown; the format does not tell" if operators is None else ""
    show.text(f"Operators: {counts or '   '.join(f'{op} {n}' for op, n in (operators or {}).items()) or 'none'}")
    weights = found.weights
    show.text(f"Tensors: {'unknown; the format hides them' if weights is None else len(weights)}")
    show.text(f"Quantised tensors: {len(found.quantisation)}")
    for kind, title in TITLES.items():
        findings = [f for f in found.findings if f.kind == kind]
        show.text(f"{title}: {len(findings) or 'none'}")
        for f in findings:
            show.text(f"  {f.subject}: {f.problem}")
            show.text(f"    hint: {f.hint}  [{f.check}]")
    done = sum(c.state == "assessed" for c in found.checks)
    show.text(f"Checks: {done} of {len(found.checks)} assessed")
    for c in found.checks:
        if c.state != "assessed":
            show.text(f"  {c.name}: {c.state}: {c.reason}")
