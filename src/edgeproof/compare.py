"""Two models side by side: interface, graph, operators, tensors, quantisation, findings.

A change of the interface is allowed where the policy declares it, and nowhere else. Tensors are compared by digest, so
a changed weight is never shown as unchanged; what has no digest on either side is unknown, never equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from .graph.facts import Finding
from .model import TensorSpec
from .policy import Check, Interface, Port, Rule
from .structure import Quantisation, Structure, Weight, read_structure

State = Literal["equal", "changed", "renamed", "removed", "added", "unknown"]
PortState = Literal["equal", "declared", "undeclared"]
INTERFACE = Rule("interface", "<=", Decimal(0), "1")
"""No undeclared change: the rule that a review adds to its policy's."""
DEFECTS = Rule("new_defects", "<=", Decimal(0), "1")
"""No defect that the baseline does not have: the other one."""


@dataclass(frozen=True, slots=True)
class PortChange:
    """An input or output on both sides.

    Attributes:
        side: ``input`` or ``output``.
        baseline: What it is there; empty when it was added.
        candidate: What it is there; empty when it was removed.
        state: Whether it differs, and whether the policy declares that.
    """

    side: str
    baseline: str
    candidate: str
    state: PortState


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A stored tensor on both sides.

    Attributes:
        name: In the baseline; in the candidate when it was added.
        state: What became of it.
        baseline: Type and shape there; empty when it was added.
        candidate: Type and shape there, with the name when it was renamed; empty when it was removed.
        distance: ‖b − a‖ / ‖a‖ of the real values; None when not known.
    """

    name: str
    state: State
    baseline: str
    candidate: str
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class QuantisationChange:
    """Parameters of a quantised tensor on both sides, as text; empty where it is not quantised.

    Attributes:
        tensor: Its name.
        state: What became of the parameters.
        baseline: Type and scales there.
        candidate: Type and scales there.
        distance: Of a stored tensor's real values, as in `TensorChange`; None when not known.
    """

    tensor: str
    state: State
    baseline: str
    candidate: str
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it.

    Attributes:
        identical: Whether the models have the same digest.
        interface: Every input and output; None when either side does not tell.
        graph: Operators, settings and connections.
        operators: Operator → how often before and after, where that differs; None when either side does not tell.
        tensors: Every stored tensor; None when either side does not tell.
        quantisation: Every quantised tensor.
        new: Findings that only the candidate has.
        gone: Findings that only the baseline has.
        kept: Findings of both.
    """

    identical: bool
    interface: tuple[PortChange, ...] | None
    graph: State
    operators: Mapping[str, tuple[int, int]] | None
    tensors: tuple[TensorChange, ...] | None
    quantisation: tuple[QuantisationChange, ...]
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    kept: tuple[Finding, ...]

    def count(self, state: State) -> int:
        """How many tensors are in a state."""
        return sum(t.state == state for t in self.tensors or ())

    def to_json(self) -> dict[str, Any]:
        """As JSON; tensors that are equal are only counted."""
        ops = self.operators
        return {
            "identical": self.identical,
            "interface": None if self.interface is None else [_json(p) for p in self.interface],
            "graph": self.graph,
            "operators": None if ops is None else {op: list(pair) for op, pair in ops.items()},
            "tensors": None if self.tensors is None else [_json(t) for t in self.tensors if t.state != "equal"],
            "equal_tensors": None if self.tensors is None else self.count("equal"),
            "quantisation": [_json(q) for q in self.quantisation if q.state != "equal"],
            "equal_quantisation": sum(q.state == "equal" for q in self.quantisation),
            "findings": {
                "new": [f.to_json() for f in self.new],
                "gone": [f.to_json() for f in self.gone],
                "kept": [f.to_json() for f in self.kept],
            },
        }


def compare_files(
    baseline: Path, candidate: Path, interface: Interface | None = None
) -> tuple[Structure, Structure, Comparison]:
    """Read two model files, in child processes with limits, and compare them.

    Raises:
        InputError, UnsupportedError, TrustError: as `structure.read_structure`.
    """
    from .structure.child import confined

    ours, theirs = read_structure(baseline), read_structure(candidate)
    found = compare(ours, theirs, interface)
    stored = {t.name: t.state for t in found.tensors or ()}
    moved = {name for name, state in stored.items() if state == "changed"}
    moved |= {q.tensor for q in found.quantisation if q.state == "changed" and stored.get(q.tensor) == "equal"}
    if moved:
        names = sorted(moved)
        far = confined("distances", [baseline, candidate], {"names": names})
        found = with_distances(found, dict(zip(names, far, strict=True)))
    return ours, theirs, found


def compare(baseline: Structure, candidate: Structure, interface: Interface | None = None) -> Comparison:
    """Compare two structures. Pure.

    Args:
        baseline: The first.
        candidate: The second.
        interface: The changes that the policy allows.
    """
    new, gone, kept = findings(baseline, candidate)
    operators = _operators(baseline, candidate)
    return Comparison(
        identical=baseline.digest == candidate.digest,
        interface=_ports(baseline, candidate, interface or Interface()),
        graph=_graph(baseline, candidate, operators),
        operators=operators,
        tensors=_tensors(baseline.weights, candidate.weights),
        quantisation=_quantisation(baseline.quantisation, candidate.quantisation),
        new=new,
        gone=gone,
        kept=kept,
    )


def with_distances(found: Comparison, distances: Mapping[str, float | None]) -> Comparison:
    """The same with the distances of stored tensors filled in."""
    tensors = tuple(replace(t, distance=distances.get(t.name)) for t in found.tensors or ())
    quantisation = tuple(replace(q, distance=distances.get(q.tensor)) for q in found.quantisation)
    return replace(found, tensors=tensors if found.tensors is not None else None, quantisation=quantisation)


def structural_checks(found: Comparison, candidate: Structure) -> tuple[Check, ...]:
    """What a review asks of the structures, as checks like the gate's.

    An undeclared change of the interface and a defect that the baseline does not have fail; an interface that is not
    known is missing: hold. A defect is one that was found: where the format hides its weights (an engine), the reason
    says so, the gap is among the findings, and quality must be measured.
    """
    return _interface_check(found), _defect_check(found, candidate)


def _interface_check(found: Comparison) -> Check:
    if found.interface is None:
        reason = "the interface of one of the models is not known; name inputs and outputs in the engine's build record"
        return Check(INTERFACE, "missing", None, None, None, reason)
    wrong = [p for p in found.interface if p.state == "undeclared"]
    if not wrong:
        declared = sum(p.state == "declared" for p in found.interface)
        reason = f"the interface is the same but for {declared} declared changes" if declared else "the same interface"
        return Check(INTERFACE, "pass", 0.0, 0.0, 0.0, reason)
    p = wrong[0]
    what = f"{p.side} {p.baseline or 'none'} became {p.candidate or 'none'}"
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    count = float(len(wrong))
    return Check(INTERFACE, "fail", count, count, count, f"{what}{more}, which the policy's interface does not declare")


def _defect_check(found: Comparison, candidate: Structure) -> Check:
    defects = [f for f in found.new if f.kind == "defect"]
    if defects:
        count = float(len(defects))
        reason = f"{defects[0].subject} {defects[0].problem}"
        return Check(DEFECTS, "fail", count, count, count, reason)
    looked = next((c for c in candidate.checks if c.name == "finite_weights"), None)
    reason = "no defect that the baseline does not have"
    if looked is None or looked.state != "assessed":
        reason += f" ({candidate.format}: {looked.reason if looked else 'weights were not looked at'})"
    return Check(DEFECTS, "pass", 0.0, 0.0, 0.0, reason)


def declaration(baseline: Structure, candidate: Structure, found: Comparison) -> Interface:
    """The mapping that would declare every undeclared change of ports that both sides have by the same name."""

    def ports(ours: Sequence[TensorSpec] | None, theirs: Sequence[TensorSpec] | None, side: str) -> tuple[Port, ...]:
        named = {s.name: s for s in theirs or ()}
        wrong = {p.baseline for p in found.interface or () if p.side == side and p.state == "undeclared"}
        pairs = [(a, named[a.name]) for a in ours or () if str(a) in wrong and a.name in named]
        return tuple(
            Port(a.name, b.name, "" if a.dtype == b.dtype else b.dtype, (), None if _same_shape(a, b) else b.shape)
            for a, b in pairs
        )

    return Interface(
        ports(baseline.inputs, candidate.inputs, "input"), ports(baseline.outputs, candidate.outputs, "output")
    )


def _json(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _state(a: str | None, b: str | None) -> State:
    if a is None or b is None:
        return "unknown"
    return "equal" if a == b else "changed"


def _graph(baseline: Structure, candidate: Structure, operators: Mapping[str, tuple[int, int]] | None) -> State:
    """Whether operators, settings and connections are the same. Only within a format can that be told."""
    if baseline.format != candidate.format:
        return "unknown"
    state = _state(baseline.topology, candidate.topology)
    if state == "changed" and baseline.format == "tflite" and not operators:
        return "unknown"  # of two flatbuffers only equality is certain
    return state


def _ports(baseline: Structure, candidate: Structure, allowed: Interface) -> tuple[PortChange, ...] | None:
    sides = (
        ("input", baseline.inputs, candidate.inputs, allowed.inputs),
        ("output", baseline.outputs, candidate.outputs, allowed.outputs),
    )
    found: list[PortChange] = []
    for side, ours, theirs, ports in sides:
        if ours is None or theirs is None:
            return None
        found += _side(side, ours, theirs, ports)
    return tuple(found)


def _side(
    side: str, ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec], ports: Sequence[Port]
) -> list[PortChange]:
    mapped = {p.baseline: p for p in ports}
    left = {s.name: s for s in theirs}
    found = []
    for spec in ours:
        port = mapped.get(spec.name, Port(spec.name, spec.name))
        other = left.pop(port.candidate, None)
        if other is None:
            found.append(PortChange(side, str(spec), "", "undeclared"))
            continue
        state: PortState = "undeclared"
        if _same(spec, other) and spec.name == other.name:
            state = "equal"
        elif spec.name in mapped and _same(_expected(spec, port), other):
            state = "declared"
        found.append(PortChange(side, str(spec), str(other), state))
    return found + [PortChange(side, "", str(s), "undeclared") for s in left.values()]


def _expected(spec: TensorSpec, port: Port) -> TensorSpec:
    """What a port of the baseline is in the candidate, as the policy declares it."""
    shape = spec.shape
    if port.transpose and shape is not None and len(shape) == len(port.transpose):
        shape = tuple(shape[i] for i in port.transpose)
    return TensorSpec(port.candidate, port.dtype or spec.dtype, shape if port.shape is None else port.shape)


def _same(a: TensorSpec, b: TensorSpec) -> bool:
    """Same type and shape; open dimensions may go by other names."""
    return a.dtype == b.dtype and _same_shape(a, b)


def _same_shape(a: TensorSpec, b: TensorSpec) -> bool:
    if (a.shape is None) != (b.shape is None):
        return False
    x, y = a.shape or (), b.shape or ()
    return len(x) == len(y) and all(
        i == j if isinstance(i, int) and isinstance(j, int) else isinstance(i, str) and isinstance(j, str)
        for i, j in zip(x, y, strict=True)
    )


def _operators(baseline: Structure, candidate: Structure) -> dict[str, tuple[int, int]] | None:
    ours, theirs = baseline.operators, candidate.operators
    if ours is None or theirs is None:
        return None
    names = sorted({*ours, *theirs})
    return {n: (ours.get(n, 0), theirs.get(n, 0)) for n in names if ours.get(n, 0) != theirs.get(n, 0)}


def _tensors(ours: Sequence[Weight] | None, theirs: Sequence[Weight] | None) -> tuple[TensorChange, ...] | None:
    if ours is None or theirs is None:
        return None
    before, after = {w.name: w for w in ours}, {w.name: w for w in theirs}
    by_digest: dict[str, list[Weight]] = {}
    for w in theirs:
        if w.name not in before and w.digest is not None:
            by_digest.setdefault(w.digest, []).append(w)
    found, renamed = [], set()
    for name, w in before.items():
        twin = after.get(name)
        if twin is not None:
            found.append(TensorChange(name, _state(w.digest, twin.digest), _of(w), _of(twin)))
        elif w.digest is not None and by_digest.get(w.digest):
            other = by_digest[w.digest].pop(0)
            renamed.add(other.name)
            found.append(TensorChange(name, "renamed", _of(w), f"{other.name} {_of(other)}"))
        else:
            found.append(TensorChange(name, "removed", _of(w), ""))
    added = [w for n, w in after.items() if n not in before and n not in renamed]
    return (*found, *(TensorChange(w.name, "added", "", _of(w)) for w in added))


def _of(w: Weight) -> str:
    return f"{w.dtype}[{', '.join(map(str, w.shape))}]"


def _quantisation(ours: Sequence[Quantisation], theirs: Sequence[Quantisation]) -> tuple[QuantisationChange, ...]:
    before, after = {q.tensor: q for q in ours}, {q.tensor: q for q in theirs}
    found = []
    for name in (*before, *(n for n in after if n not in before)):
        a, b = before.get(name), after.get(name)
        if a is not None and b is not None:
            state: State = _state(a.digest, b.digest)
        else:
            state = "removed" if a is not None else "added"
        found.append(QuantisationChange(name, state, _scales(a), _scales(b)))
    return tuple(found)


def _scales(q: Quantisation | None) -> str:
    if q is None:
        return ""
    if q.count == 1:
        return f"{q.dtype}, scale {q.low:.6g}"
    axis = "" if q.axis is None else f" along axis {q.axis}"
    return f"{q.dtype}, {q.count} scales{axis}, {q.low:.6g} to {q.high:.6g}"


def findings(
    baseline: Structure, candidate: Structure
) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[Finding, ...]]:
    """New, gone and kept; what is said of the whole model is the same whatever the files are called."""

    def key(f: Finding, of: Structure) -> tuple[str, str, str]:
        return f.kind, f.check, "" if f.subject in (of.name, *(p.name for p in of.files)) else f.subject

    before = {key(f, baseline) for f in baseline.findings}
    after = {key(f, candidate) for f in candidate.findings}
    new = tuple(f for f in candidate.findings if key(f, candidate) not in before)
    gone = tuple(f for f in baseline.findings if key(f, baseline) not in after)
    return new, gone, tuple(f for f in candidate.findings if key(f, candidate) in before)
