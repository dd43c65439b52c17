"""Show what differs between two models: interface, graph, operators, tensors, quantisation, findings.

Takes ONNX, TFLite, OpenVINO IR (.xml), TensorRT engines, safetensors and GGUF; the two may be of different formats.
Tensors are compared by digest; of those that changed, the relative distance of the real values is shown. Files are
read in child processes with limits on memory and time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from .show import Show

if TYPE_CHECKING:
    from ..compare import Comparison
    from ..structure import Structure

SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Two models."""
    parser.add_argument("baseline", type=Path, metavar="A", help="the model as it was")
    parser.add_argument("candidate", type=Path, metavar="B", help="the model as it is to be")
    parser.add_argument(
        "--policy",
        metavar="P",
        help="policy whose 'interface' declares the changes of inputs and outputs that are meant",
    )
    parser.add_argument("--all", action="store_true", help="show every tensor that changed, not the first 20")


def run(args: argparse.Namespace, show: Show) -> int:
    """Compare; differences do not change the exit code."""
    from ..compare import compare_files

    interface = None
    if args.policy:
        from ..evaluate import metric_units
        from ..policy import load_policy

        interface = load_policy(args.policy, metric_units()).interface
    ours, theirs, found = compare_files(args.baseline, args.candidate, interface)
    heads = {"baseline": _head(ours), "candidate": _head(theirs)}
    show.result({**heads, "comparison": found.to_json()})
    show_comparison(ours, theirs, found, show, everything=args.all)
    return 0


def _head(s: Structure) -> dict[str, object]:
    return {"name": s.name, "format": s.format, "digest": s.digest, "size_bytes": s.size_bytes, "facts": dict(s.facts)}


def show_comparison(
    ours: Structure, theirs: Structure, found: Comparison, show: Show, *, everything: bool = False
) -> None:
    """For people."""
    from .inspect import size

    rows = [
        ["format", ours.format, theirs.format],
        ["digest", ours.digest[:19], theirs.digest[:19]],
        ["size", size(ours.size_bytes), size(theirs.size_bytes)],
    ]
    facts = sorted({*ours.facts, *theirs.facts})
    rows += [[k, str(ours.facts.get(k, "")), str(theirs.facts.get(k, ""))] for k in facts]
    show.table(["", "baseline", "candidate"], rows)
    if found.identical:
        show.text("The models have the same digest: nothing differs.")
    show.text(f"Graph: {found.graph}" + (_UNKNOWN_GRAPH if found.graph == "unknown" else ""))
    _interface(found, show)
    _declare(ours, theirs, found, show)
    _operators(found, show)
    _tensors(found, show, everything=everything)
    changed = [q for q in found.quantisation if q.state != "equal"]
    same = len(found.quantisation) - len(changed)
    show.text(f"Quantisation: {same} tensors equal, {len(changed)} changed")
    if changed:
        shown = changed if everything else changed[:SHOWN]
        show.table(
            ["tensor", "change", "distance", "baseline", "candidate"],
            [[q.tensor, q.state, _far(q.distance), q.baseline, q.candidate] for q in shown],
            right="llr",
        )
        _more(len(changed) - len(shown), show)
    for title, findings in (("New findings", found.new), ("Findings gone", found.gone)):
        show.text(f"{title}: {len(findings) or 'none'}")
        lines = [f"  {f.kind}  {f.subject}: {f.problem}  [{f.check}]" for f in findings]
        show.listing(lines, None if everything else SHOWN, "  and {} more; --all shows them")
    show.text(f"Findings of both: {len(found.kept)}")


_UNKNOWN_GRAPH = " (that can be told within one format only, and of TFLite only when nothing moved in the file)"


def _interface(found: Comparison, show: Show) -> None:
    if found.interface is None:
        show.text("Interface: unknown; one of the formats does not tell")
        return
    states = {s: sum(p.state == s for p in found.interface) for s in ("equal", "declared", "undeclared")}
    show.text("Interface: " + ", ".join(f"{n} {s}" for s, n in states.items() if n))
    rows = [[p.side, p.state, p.baseline, p.candidate] for p in found.interface if p.state != "equal"]
    if rows:
        show.table(["", "change", "baseline", "candidate"], rows)


def _declare(ours: Structure, theirs: Structure, found: Comparison, show: Show) -> None:
    """The line of a policy that says the change is meant."""
    import json

    from ..compare import declaration

    meant = {k: v for k, v in declaration(ours, theirs, found).to_json().items() if v}
    if meant:
        show.text(f"  in a policy, if it is meant:  interface: {json.dumps(meant, ensure_ascii=False)}")


def _operators(found: Comparison, show: Show) -> None:
    if found.operators is None:
        show.text("Operators: unknown; one of the formats does not tell")
        return
    show.text(f"Operators: {len(found.operators) or 'none'} changed in number")
    if found.operators:
        rows = [[op, str(a), str(b)] for op, (a, b) in found.operators.items()]
        show.table(["operator", "baseline", "candidate"], rows, right="lrr")


def _tensors(found: Comparison, show: Show, *, everything: bool) -> None:
    if found.tensors is None:
        show.text("Tensors: unknown; one of the formats hides them")
        return
    from ..compare import State

    states = get_args(State)
    show.text("Tensors: " + (", ".join(f"{found.count(s)} {s}" for s in states if found.count(s)) or "none"))
    rest = [t for t in found.tensors if t.state != "equal"]
    rest.sort(key=lambda t: (states.index(t.state), -(t.distance or 0.0)))
    shown = rest if everything else rest[:SHOWN]
    if shown:
        rows = [[t.name, t.state, _far(t.distance), t.baseline, t.candidate] for t in shown]
        show.table(["tensor", "change", "distance", "baseline", "candidate"], rows, right="llr")
    _more(len(rest) - len(shown), show)


def _far(distance: float | None) -> str:
    return "" if distance is None else f"{distance:.3g}"


def _more(count: int, show: Show) -> None:
    if count > 0:
        show.text(f"  and {count} more; --all shows them")
