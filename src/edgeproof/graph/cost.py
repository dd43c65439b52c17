"""What a model costs: parameters, multiply-accumulates and activation memory, per operator and in total.

Parameters are the elements of every constant tensor that a data-dependent operator reads, stored or computed from
constants only (a dequantised weight counts once, its scale does not); scalars, integers that hold shapes, booleans and
text are settings, not parameters. Activation memory at an operator is the sum of all tensors that live while it runs:
every input, and every result from its operator until its last reader has run; weights excluded, no buffer shared.
What cannot be known is None with a reason, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model import Model, attribute
from .constants import Constants
from .dims import known
from .macs import ZERO, UnknownAmountError, elements, macs, storage
from .shapes import Shape, Shaped, shaped
from .symbolic import Amount, Monomial, largest, total

if TYPE_CHECKING:
    import onnx_ir as ir

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
FOLDED = "computed from constants only: counted 0, a runtime folds it"


@dataclass(frozen=True, slots=True)
class Layer:
    """The cost of one operator, that of its subgraphs included.

    Attributes:
        name: Node name, or operator and position when it has none.
        op: Operator, with its domain unless it is ONNX's own.
        shape: Shape of the first output; None when unknown.
        parameters: Elements of the constants that it is the first to read.
        macs: Multiply-accumulates.
        output_bytes: Size of its outputs.
        live_bytes: All tensors alive while it runs.
        notes: Why something is None or how it was counted.
    """

    name: str
    op: str
    shape: Shape | None
    parameters: Amount | None
    macs: Amount | None
    output_bytes: Amount | None
    live_bytes: Amount | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON; amounts with open dimensions are text."""
        return {
            "name": self.name,
            "op": self.op,
            "shape": None if self.shape is None else list(self.shape),
            "parameters": _json(self.parameters),
            "macs": _json(self.macs),
            "output_bytes": _json(self.output_bytes),
            "live_bytes": _json(self.live_bytes),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a model.

    Attributes:
        layers: One per operator of the main graph, in order, functions inlined.
        parameters: Sum over layers; None when a layer's is.
        macs: Sum over layers; None when a layer's is.
        known_macs: Sum over the layers that are known.
        peak_bytes: Largest `Layer.live_bytes`; None when one is unknown or open dimensions decide which is largest.
        peak_layer: Name of the layer where it is reached.
        reasons: (layer, why it is unknown or how it was counted).
    """

    layers: tuple[Layer, ...]
    parameters: Amount | None
    macs: Amount | None
    known_macs: Amount
    peak_bytes: Amount | None
    peak_layer: str
    reasons: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Totals as JSON, without the layers."""
        return {
            "parameters": _json(self.parameters),
            "macs": _json(self.macs),
            "known_macs": self.known_macs.to_json(),
            "peak_activation_bytes": _json(self.peak_bytes),
            "peak_layer": self.peak_layer,
            "reasons": [{"layer": name, "reason": why} for name, why in self.reasons],
        }


def cost(model: Model, shapes: Mapping[str, Shape] | None = None) -> Cost:
    """The cost of one inference.

    Args:
        model: The model; not changed.
        shapes: Input shapes that override the declared ones, as for `edgeproof.graph.shapes.infer`.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    return cost_of(shaped(model, shapes))


def cost_of(what: Shaped) -> Cost:
    """The cost of a model whose shapes are inferred already."""
    count = _Count(Constants(what.graph))
    layers = tuple(count.layers(what.graph.graph, set()))
    lives = [layer.live_bytes for layer in layers if layer.live_bytes is not None]
    peak = largest(lives) if len(lives) == len(layers) else None
    reasons = [(layer.name, note) for layer in layers for note in layer.notes if note != FOLDED]
    if peak is None and lives and len(lives) == len(layers):
        reasons.append(("", "where activation memory peaks depends on the open dimensions; give --shape"))
    known_macs = [layer.macs for layer in layers if layer.macs is not None]
    return Cost(
        layers,
        _sum(layer.parameters for layer in layers),
        total(known_macs) if len(known_macs) == len(layers) else None,
        total(known_macs),
        peak,
        next((layer.name for layer in layers if peak is not None and layer.live_bytes == peak), ""),
        tuple(reasons),
    )


class _Count:
    """Counts one model; remembers which weights were counted."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._counted: set[int] = set()

    def layers(self, graph: ir.Graph, outer_fixed: set[int]) -> list[Layer]:
        """One layer per node of a graph; `outer_fixed` are ids of constant values that it may capture."""
        fixed = outer_fixed | fixed_values(graph)
        memory = _Memory(graph, fixed)
        result = []
        for i, node in enumerate(graph):
            notes: list[str] = []
            inner = self._inner(node, fixed, notes)
            result.append(
                Layer(
                    name=node.name or f"{node.op_type}_{i}",
                    op=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}",
                    shape=known(node.outputs[0]) if node.outputs else None,
                    parameters=_sum([self._parameters(node, fixed, notes), *(b.parameters for b in inner.values())]),
                    macs=self._macs(node, fixed, inner, notes),
                    output_bytes=memory.outputs(node),
                    live_bytes=memory.step(i, node, inner),
                    notes=(*notes, *memory.notes),
                )
            )
        return result

    def _inner(self, node: ir.Node, fixed: set[int], notes: list[str]) -> dict[str, _Body]:
        """The cost of one run of every subgraph."""
        found = {}
        for name, graph in subgraphs(node):
            layers = self.layers(graph, fixed)
            notes.extend(f"{name}: {layer.name}: {note}" for layer in layers for note in layer.notes if note != FOLDED)
            lives = [layer.live_bytes for layer in layers if layer.live_bytes is not None]
            peak = (largest(lives) if lives else ZERO) if len(lives) == len(layers) else None
            found[name] = _Body(_sum(x.parameters for x in layers), _sum(x.macs for x in layers), peak)
        return found

    def _macs(
        self,
        node: ir.Node,
        fixed: set[int],
        inner: dict[str, _Body],
        notes: list[str],
    ) -> Amount | None:
        if node.outputs and id(node.outputs[0]) in fixed:
            if node.inputs:
                notes.append(FOLDED)
            return ZERO
        if inner:
            return self._repeated(node, {k: body.macs for k, body in inner.items()}, notes)
        try:
            return macs(node)
        except UnknownAmountError as e:
            notes.append(f"MACs unknown: {e}")
        except (ValueError, IndexError, TypeError, KeyError) as e:
            notes.append(f"MACs unknown: inputs or attributes do not fit the operator ({e})")
        return None

    def _repeated(self, node: ir.Node, bodies: Mapping[str, Amount | None], notes: list[str]) -> Amount | None:
        known_bodies = [b for b in bodies.values() if b is not None]
        if len(known_bodies) < len(bodies):
            return None
        if not any(b.terms for b in known_bodies):
            return ZERO
        if node.op_type == "If":
            heavier = largest(known_bodies)
            notes.append(
                "MACs unknown: which branch is heavier depends on the open dimensions"
                if heavier is None
                else "counted with the heavier branch"
            )
            return heavier
        body = total(known_bodies)
        trips: Amount | None = None
        if node.op_type == "Loop":
            number = self._constants.number(node.inputs[0])
            trips = None if number is None else Amount.of(max(0, int(number.reshape(-1)[0])))
            notes.append("counted for all trips; its condition may end it earlier")
        elif node.op_type == "Scan":
            shape = known(node.inputs[-1])
            axes = attribute(node, "scan_input_axes", ())
            axis = axes[-1] if axes else 0
            trips = Amount.of(shape[axis]) if shape and -len(shape) <= axis < len(shape) else None
        if trips is None:
            symbol = f"trips[{node.name or node.outputs[0].name}]"
            notes.append(f"the number of runs of its body is not constant: {symbol}")
            trips = Amount.of(symbol)
        return body * trips

    def _parameters(self, node: ir.Node, fixed: set[int], notes: list[str]) -> Amount | None:
        if node.outputs and id(node.outputs[0]) in fixed:
            return ZERO
        found = ZERO
        for value in node.inputs:
            if value is None or id(value) not in fixed or id(value) in self._counted:
                continue
            self._counted.add(id(value))
            try:
                if is_parameter(value):
                    found += elements(value)
            except UnknownAmountError as e:
                notes.append(f"parameters unknown: {e}")
                return None
        return found


@dataclass(frozen=True, slots=True)
class _Body:
    """The cost of one run of a subgraph."""

    parameters: Amount | None
    macs: Amount | None
    peak_bytes: Amount | None


class _Memory:
    """Which tensors live while a graph runs."""

    def __init__(self, graph: ir.Graph, fixed: set[int]) -> None:
        self.notes: tuple[str, ...] = ()
        self._fixed = fixed
        self._last: dict[int, int] = {}
        for i, node in enumerate(graph):
            for value in read_values(node):
                self._last[id(value)] = i
        for value in graph.outputs:
            self._last[id(value)] = len(graph)
        self._live: Counter[Monomial] = Counter()
        self._unknown: dict[int, str] = {}
        self._ends: dict[int, list[ir.Value]] = {}
        for value in graph.inputs:
            self._add(value, 0)

    def outputs(self, node: ir.Node) -> Amount | None:
        """Size of a node's outputs."""
        try:
            return total(storage(v) for v in node.outputs if self._made(v))
        except UnknownAmountError:
            return None

    def step(self, i: int, node: ir.Node, inner: Mapping[str, _Body]) -> Amount | None:
        """Bytes alive while a node runs; then what it was the last to read is dropped."""
        for value in node.outputs:
            if self._made(value):
                self._add(value, i)
        peaks = [body.peak_bytes for body in inner.values()]
        inside = largest(p for p in peaks if p is not None) if peaks and None not in peaks else None
        self.notes = tuple(f"memory unknown: {why}" for why in list(self._unknown.values())[:1])
        live = None
        if not self._unknown and (not peaks or inside is not None):
            live = Amount({m: n for m, n in self._live.items() if n})
            live = live + inside if inside is not None else live
        for value in self._ends.pop(i, ()):
            if id(value) in self._unknown:
                del self._unknown[id(value)]
            else:
                self._live.subtract(storage(value).terms)
        return live

    def _made(self, value: ir.Value) -> bool:
        """A further output that nobody reads (a Dropout's mask) is not made."""
        return bool(value.name) and (not value.index() or id(value) in self._last)

    def _add(self, value: ir.Value, i: int) -> None:
        if id(value) in self._fixed:
            return
        try:
            self._live.update(storage(value).terms)
        except UnknownAmountError as e:
            self._unknown[id(value)] = str(e)
        self._ends.setdefault(max(i, self._last.get(id(value), i)), []).append(value)


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Attribute name and graph of every subgraph of a node."""
    import onnx_ir as ir

    for name, attr in node.attributes.items():
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.GRAPH:
            yield name, attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS:
            yield from ((f"{name}[{i}]", g) for i, g in enumerate(attr.as_graphs()))


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Everything that a node reads: its inputs and what its subgraphs capture or hold."""
    yield from (v for v in node.inputs if v is not None)
    for _, graph in subgraphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from read_values(inner)


def fixed_values(graph: ir.Graph) -> set[int]:
    """Ids of a graph's values that are the same in every run: weights, and what is computed from them alone."""
    inputs = {id(v) for v in graph.inputs}
    fixed = {id(v) for v in graph.initializers.values()} - inputs
    for node in graph:
        if node.op_type in RANDOM or any(True for _ in subgraphs(node)):
            continue
        if all(v is None or id(v) in fixed for v in node.inputs):
            fixed.update(id(v) for v in node.outputs)
    return fixed


def is_parameter(value: ir.Value) -> bool:
    """Whether a constant is a weight rather than a setting such as a shape or a bound."""
    import onnx_ir as ir

    settings = (None, ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.BOOL, ir.DataType.STRING)
    return value.dtype not in settings and (value.shape is None or len(value.shape) > 0)


def _sum(amounts: Iterable[Amount | None]) -> Amount | None:
    found = list(amounts)
    known_ones = [a for a in found if a is not None]
    return total(known_ones) if len(known_ones) == len(found) else None


def _json(amount: Amount | None) -> int | str | None:
    return None if amount is None else amount.to_json()
