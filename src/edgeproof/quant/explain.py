"""Explain a quantised graph layer by layer: precision, range, what is clipped, what it costs, and why not in integers.

Every number says where it comes from: measured on samples, kept by calibration, computed from the stored codes, or
estimated from the step (noise of step² / 12, uniform rounding; Widrow and Kollár 2008, section 1.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..graph.quantised import Coded, Computed, coded, computed
from ..graph.rewrite import array, label
from ..model import Model, attribute
from ..protocols import Session
from ..target import QuantScheme
from .calibration import observed
from .layers import Scope, layer

if TYPE_CHECKING:
    pass

ANOTHER_DB = 15.0
"""A float weight that is further below the estimate is another one: folds changed it before it was quantised."""

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather")


@dataclass(frozen=True, slots=True)
class Seen:
    """What samples showed of one quantised activation.

    Attributes:
        low: Exact minimum.
        high: Exact maximum.
        values: How many there were.
        clipped_share: Share of values that no code reaches within half a step.
        sqnr_db: Of the tensor after its own quantisation alone; None when there was no error or no signal.
        arrived_db: Of the tensor in the quantised model against the float model, errors of all layers before it
            included; None without a float model.
    """

    low: float
    high: float
    values: int
    clipped_share: float
    sqnr_db: float | None
    arrived_db: float | None


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One computing node.

    Attributes:
        name: Node.
        op: Operator.
        precision: As `Computed.precision`.
        integer: Whether a runtime can run it in integers.
        input: Its quantised input's name.
        low: Lowest real value with a code.
        high: Highest.
        scale: Step of the input.
        zero_point: Code of zero.
        clipped_share: Share of the input's values outside the range.
        clipped_from: ``measured`` or ``calibration``.
        input_db: SQNR of the input after its own quantisation.
        arrived_db: SQNR of the input against the float model, errors before it included.
        weight: Its quantised weight's name.
        weight_scales: Number of scales.
        weight_low: Least step of the weight.
        weight_high: Largest step.
        weight_db: SQNR of the weight.
        weight_from: ``float weight`` or ``estimated``.
        before_ms: Time of the layer in float, with what follows it up to the next layer.
        after_ms: The same, quantised.
        reason: Why it stays in float; empty for a node in integers.
    """

    name: str
    op: str
    precision: str
    integer: bool
    input: str | None = None
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    zero_point: int | None = None
    clipped_share: float | None = None
    clipped_from: str | None = None
    input_db: float | None = None
    arrived_db: float | None = None
    weight: str | None = None
    weight_scales: int | None = None
    weight_low: float | None = None
    weight_high: float | None = None
    weight_db: float | None = None
    weight_from: str | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def explain(
    model: Model,
    scheme: QuantScheme | None,
    *,
    reference: Model | None = None,
    kept: Mapping[str, Mapping[str, Any]] | None = None,
    seen: Mapping[str, Seen] | None = None,
    reasons: Mapping[str, str] | None = None,
    before_ms: Mapping[str, float] | None = None,
    after_ms: Mapping[str, float] | None = None,
) -> list[LayerRow]:
    """One row per computing node, in graph order.

    Args:
        model: The quantised model.
        scheme: What the target wants, for reasons; None when it has no integer path.
        reference: The float model with the same node names, for the error of weights.
        kept: Tensor → facts of calibration (`ranges.describe`).
        seen: Tensor → what samples showed (`measure`).
        reasons: Node → why the pass left it in float.
        before_ms: First output of a layer → its time in float.
        after_ms: First output of a layer → its time in this model.
    """
    weights = _weights(reference) if reference is not None else {}
    rows = []
    for node in computed(model.graph.graph):
        facts: dict[str, Any] = {}
        if node.input is not None:
            facts |= _input(node.input, (kept or {}).get(node.input.name), (seen or {}).get(node.input.name))
        if node.weight is not None:
            facts |= _weight(node, node.weight, weights)
        key = node.node.outputs[0].name or "" if node.node.outputs else ""
        facts |= {
            name: times.get(key, times.get(key.removesuffix(".float")))
            for name, times in (("before_ms", before_ms or {}), ("after_ms", after_ms or {}))
        }
        if not node.integer:
            facts["reason"] = (reasons or {}).get(node.label) or reason_in_float(node, scheme)
        rows.append(LayerRow(node.label, node.node.op_type, node.precision, node.integer, **facts))
    return rows


def pass_facts(change: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What a candidate's passes said: tensor → facts of calibration, and node → why it was left in float.

    Args:
        change: Content of ``change.json``; None when there is none.
    """
    facts: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for step in (change or {}).get("steps", ()):
        tensors = step.get("facts", {}).get("tensors")
        if isinstance(tensors, dict):
            facts |= tensors
            reasons |= dict(step.get("declined", ()))
    return facts, reasons


def quantising_step(change: Any) -> int:
    """Index of the first step that put codes into the graph, by its facts; the number of steps when none did.

    Args:
        change: Content of ``change.json``; None when there is none.
    """
    steps = list((change or {}).get("steps", ()))
    coding = [i for i, s in enumerate(steps) if {"tensors", "weights"} & set(s.get("facts", {}))]
    return coding[0] if coding else len(steps)


def reason_in_float(node: Computed, scheme: QuantScheme | None) -> str:
    """Why a node is in float, from the rules of placement; what the pass itself said is better where it is known."""
    if node.precision != "float":
        return "only its weight is quantised; it computes in float"
    if scheme is None:
        return "the target has no integer path"
    op = node.node.op_type
    if node.node.domain not in ("", "ai.onnx"):
        return f"the operator is of the domain {node.node.domain}"
    if op in scheme.ops:
        made = layer(node.node, scheme, Scope())
        return made if isinstance(made, str) else "it could run in integers: whoever quantised the model left it out"
    if op in (*scheme.follow, *scheme.share, *scheme.expand, *scheme.absorb):
        return "runs in integers only between integer nodes; here that would add a change of precision"
    return f"the target has no integer kernel of {op}"


def measure(
    model: Model,
    compile: Callable[[Model], Session],  # noqa: A002  (the name that Context has)
    feeds: Iterable[Feeds],
    reference: Model | None = None,
) -> dict[str, Seen]:
    """What samples show of every quantised activation; samples are streamed.

    Args:
        model: The quantised model.
        compile: Makes a runnable session.
        feeds: Samples; read once.
        reference: The float model; tensors are compared where it has them by name.
    """
    tensors = {c.name: c for c in coded(model.graph.graph).values() if c.kind == "activation" and c.scale.size == 1}
    theirs = {v.name for n in reference.graph.graph for v in n.outputs} if reference is not None else set()
    one = compile(observed(model, list(tensors)))
    two = compile(observed(reference, [n for n in tensors if n in theirs])) if reference is not None else None
    sums = {name: _Sums() for name in tensors}
    try:
        for sample in feeds:
            got = one.run(sample)
            want = two.run(sample) if two is not None else {}
            for name, tensor in tensors.items():
                x = got.get(name, sample.get(name))
                if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size:
                    sums[name].add(tensor, x, want.get(name))
    finally:
        one.close()
        if two is not None:
            two.close()
    return {name: s.seen() for name, s in sums.items() if s.values}


class _Sums:
    """Running sums of one tensor."""

    def __init__(self) -> None:
        self.low, self.high, self.values, self.clipped = math.inf, -math.inf, 0, 0
        self.own, self.arrived = [0.0, 0.0], [0.0, 0.0]

    def add(self, tensor: Coded, x: NDArray[Any], want: NDArray[Any] | None) -> None:
        """One sample's values."""
        low, high = tensor.range
        half = float(tensor.scale.reshape(-1)[0]) / 2
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        self.values += x.size
        self.clipped += int(np.count_nonzero((x < low - half) | (x > high + half)))
        back = tensor.through(x)
        _accumulate(self.own, x, back)
        if want is not None and want.shape == x.shape:
            _accumulate(self.arrived, want, back)

    def seen(self) -> Seen:
        """The result."""
        return Seen(self.low, self.high, self.values, self.clipped / self.values, _db(*self.own), _db(*self.arrived))


def _accumulate(sums: list[float], want: NDArray[Any], got: NDArray[Any]) -> None:
    wide = want.astype(np.float64)
    sums[0] += float(np.square(wide).sum())
    sums[1] += float(np.square(got - wide).sum())


def _db(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 and math.isfinite(noise) else None


def _input(tensor: Coded, kept: Mapping[str, Any] | None, seen: Seen | None) -> dict[str, Any]:
    low, high = tensor.range
    facts: dict[str, Any] = {"input": tensor.name, "low": low, "high": high}
    if tensor.scale.size == 1:
        facts |= {"scale": float(tensor.scale.reshape(-1)[0]), "zero_point": int(tensor.zero_point.reshape(-1)[0])}
    if seen is not None:
        facts |= {"clipped_share": seen.clipped_share, "clipped_from": "measured"}
        facts |= {"input_db": seen.sqnr_db, "arrived_db": seen.arrived_db}
    elif kept is not None and isinstance(kept.get("clipped_share"), int | float):
        facts |= {"clipped_share": float(kept["clipped_share"]), "clipped_from": "calibration"}
    return facts


def _weight(node: Computed, tensor: Coded, weights: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    real = tensor.real()
    facts: dict[str, Any] = {
        "weight": tensor.name,
        "weight_scales": int(tensor.scale.size),
        "weight_low": float(tensor.scale.min()),
        "weight_high": float(tensor.scale.max()),
    }
    if real is None or not real.size:
        return facts
    noise = float(np.mean(np.square(tensor.scale.astype(np.float64)))) / 12
    signal = float(np.mean(np.square(real.astype(np.float64))))
    estimate = _db(signal, noise)
    float_weight = tensor.original if tensor.original is not None else weights.get(node.label)
    if float_weight is not None and float_weight.shape == real.shape:
        sums = [0.0, 0.0]
        _accumulate(sums, float_weight, real)
        measured = _db(sums[0], sums[1])
        if measured is None or estimate is None or measured > estimate - ANOTHER_DB:
            return {**facts, "weight_db": measured, "weight_from": "float weight"}
    return {**facts, "weight_db": estimate, "weight_from": "estimated"}


def _weights(model: Model) -> dict[str, NDArray[Any]]:
    """Float weights by the node that reads them, with Gemm's alpha folded in as quantisation does."""
    found: dict[str, NDArray[Any]] = {}
    for node in model.graph.graph:
        if node.op_type in WEIGHTED and len(node.inputs) > 1:
            weight = array(node.inputs[0 if node.op_type == "Gather" else 1])
            if weight is not None and weight.dtype.kind == "f":
                alpha = attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
                found[label(node)] = weight * np.float32(alpha) if alpha != 1.0 else weight
    return found


def layer_keys(model: Model) -> tuple[str, ...]:
    """First outputs of the nodes with a quantised weight: the layers that times are told for."""
    found: Sequence[Computed] = computed(model.graph.graph)
    return tuple((c.node.outputs[0].name or "").removesuffix(".float") for c in found if c.weight is not None)
