"""Which nodes of a model run on a target, which fall back, which fail; and what to do about each.

A node is looked up in the precision in which the model asks for it: integers where Q/DQ stand around it, float16 where
its tensors are, else float32. On a DLA the documented limits of its layers are held against the node itself; what it
does not run falls back to the GPU, if TensorRT runs it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import hardware
from ..graph.example_shape import example_shape
from ..graph.quantised import PAIR, computed
from ..graph.rewrite import array, label
from ..graph.shapes import Shape, infer
from ..model import Model, graphs
from . import Entry, Precision, State, Table, place_of, runs_on, table_for, tables
from .dla import DOCUMENT, Limit, Seen, limit

if TYPE_CHECKING:
    import onnx_ir as ir

_OWN = ("", "ai.onnx")
NO_PAIRS = (
    "a DLA takes no Q/DQ: keep the ranges with 'edgeproof inspect MODEL --quant --data D --trt-cache FILE', and build "
    "the float model with that calibration cache"
)
AS_HALF = "a DLA computes in FP16 and INT8 only: float32 nodes are looked at as FP16, so allow FP16 when building"
REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(("BatchNormalization", "Dropout", "Identity"), "run pass simplify, which takes it away"),
    **dict.fromkeys(("HardSigmoid", "HardSwish"), "run pass spell_activations, which writes it as sums and products"),
    **dict.fromkeys(
        ("Shape", "Size", "Range", "ConstantOfShape", "NonZero", "EyeLike"),
        "run passes fix_shapes and simplify: what only computes shapes becomes constant",
    ),
    **dict.fromkeys(
        ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"),
        "quantise the float model with pass int8 for this target, which writes Q/DQ",
    ),
    "If": "run pass fold_branches, where the condition is constant",
    "Upsample": "export it again with opset 11 or later, as Resize",
}
"""Operator → the pass that does away with it."""
FIXED = ("litert:cpu", "ncnn:cpu", "executorch:xnnpack", "coreml:all")
"""Runtimes whose files are built for fixed shapes."""
_ELSEWHERE = 4
"""How many other runtimes a hint names."""


@dataclass(frozen=True, slots=True)
class NodeSupport:
    """One node on a target.

    Attributes:
        node: Its name.
        operator: Its operator; with the domain outside ONNX's own.
        precision: In which the model asks for it.
        state: What becomes of it.
        why: The reason; where it runs, the limits that the runtime documents for it, if any.
        hint: What to do about it; empty where nothing has to be done.
    """

    node: str
    operator: str
    precision: Precision
    state: State
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Support:
    """A model on a target.

    Attributes:
        target: As it was asked for.
        kind: ``probed``, ``built`` or ``published``.
        source: Where the answers come from.
        nodes: Every computing node, in order.
        notes: What holds for the model as a whole.
    """

    target: str
    kind: str
    source: str
    nodes: tuple[NodeSupport, ...]
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[State, int]:
        """Nodes by state."""
        return Counter(n.state for n in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """As JSON; nodes that run are only counted, with the limits of their operators."""
        return {
            "target": self.target,
            "kind": self.kind,
            "source": self.source,
            "nodes": len(self.nodes),
            "counts": dict(self.counts),
            "notes": list(self.notes),
            "not_there": [asdict(n) for n in self.nodes if n.state != "runs"],
            "limits": {n.operator: n.why for n in self.nodes if n.state == "runs" and n.why},
        }


def support(model: Model, target: str, shapes: Mapping[str, Shape] | None = None) -> Support:
    """What becomes of every node.

    Args:
        model: The model.
        target: Name of a target or a device; it need not be installed.
        shapes: Of inputs with open dimensions.

    Raises:
        UnsupportedError: support.unknown.
        InputError: shape.*.
    """
    table = table_for(target)
    asked = _precisions(model.graph.graph)
    nodes = [n for g in graphs(model.graph) for n in g if n.op_type != "Constant" and not _constant(n)]
    if table.runtime == "tensorrt:dla":
        found = _on_dla(nodes, asked, model, target, shapes)
        notes = [NO_PAIRS] if any(n.op_type in PAIR for n in nodes) else []
        if any(asked.get(id(n), "fp32") == "fp32" for n in nodes):
            notes.append(AS_HALF)
        return Support(target, table.kind, f"{DOCUMENT}; on the GPU: {_gpu().source}", found, tuple(notes))
    found = tuple(_looked_up(n, asked, table) for n in nodes)
    return Support(target, table.kind, table.source, found, _notes(model, target, table, shapes or {}))


def _notes(model: Model, target: str, table: Table, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """What stands against a table that looks at one operator at a time."""
    notes = []
    place = place_of(target)
    if ":" in place and ":" in table.runtime and place != table.runtime:
        notes.append(f"{place} has no table of its own: this is that of {table.runtime}, and another device may differ")
    left = [s for s in model.inputs if s.dynamic and s.name not in shapes]
    if left and table.runtime in FIXED:
        flags = " ".join(f"--shape {s.name}={example_shape(s, model.outputs)}" for s in left)
        notes.append(f"files for it have fixed shapes, and inputs of this model are open: build with {flags}")
    if table.release and hardware.knows(target):
        row = hardware.find(target)
        has = next((p.tensorrt for p in reversed(row.jetpacks) if p.tensorrt), "")
        if has and int(has.partition(".")[0]) < table.release:
            notes.append(
                f"the list is that of TensorRT {table.release}, and the last JetPack for {row.name} has "
                f"TensorRT {has}, which may lack some of it: build on the device, which tells"
            )
    return tuple(notes)


def _looked_up(node: ir.Node, asked: Mapping[int, Precision], table: Table) -> NodeSupport:
    operator, precision = _operator(node), asked.get(id(node), "fp32")
    entry = table.entry(operator, precision)
    if entry.state == "runs":
        return NodeSupport(label(node), operator, precision, "runs", entry.why if table.kind == "published" else "")
    return NodeSupport(
        label(node), operator, precision, entry.state, entry.why, _hint(entry, operator, precision, table)
    )


def _on_dla(
    nodes: list[ir.Node],
    asked: Mapping[int, Precision],
    model: Model,
    target: str,
    shapes: Mapping[str, Shape] | None,
) -> tuple[NodeSupport, ...]:
    known = {name: shape for name, (_, shape) in infer(model, shapes).items()}
    generation = hardware.find(target).dla_version if hardware.knows(target) else ""
    gpu, found = _gpu(), []
    for node in nodes:
        operator, precision = _operator(node), asked.get(id(node), "fp16")
        if operator in PAIR:
            continue
        inputs, outputs = (tuple(_shape(v, known) for v in side) for side in (node.inputs, node.outputs))
        stops = limit(Seen(node, inputs, outputs, precision, generation))
        found.append(_placed(node, operator, precision, stops, gpu))
    return tuple(found)


def _placed(node: ir.Node, operator: str, precision: Precision, stops: Limit, gpu: Table) -> NodeSupport:
    if not stops.why:
        return NodeSupport(label(node), operator, precision, "runs")
    if not stops.sure:
        return NodeSupport(label(node), operator, precision, "unknown", stops.why, stops.hint)
    there = gpu.entry(operator, precision)
    if there.state == "fails":
        hint = _hint(there, operator, precision, gpu)
        return NodeSupport(label(node), operator, precision, "fails", f"{stops.why}, and TensorRT {there.why}", hint)
    hint = REMEDIES.get(operator, stops.hint)
    return NodeSupport(label(node), operator, precision, "falls back", f"{stops.why}; it runs on the GPU", hint)


def _gpu() -> Table:
    return tables()["tensorrt"]


def _hint(entry: Entry, operator: str, precision: Precision, table: Table) -> str:
    """What to do about an operator that does not run as asked."""
    others = [n for n in runs_on(operator, precision) if n != table.runtime][:_ELSEWHERE]
    elsewhere = f"runs in {precision.upper()} on {', '.join(others)}" if others else ""
    if operator in REMEDIES and entry.state != "unknown":
        return REMEDIES[operator]
    if entry.state == "unknown":
        return "build or run it once on the target, which tells"
    if entry.state == "fails":
        advice = "run pass simplify, which may fold it away, or write it in other operators"
        return f"{advice}; it {elsewhere}" if elsewhere else advice
    if precision == "int8" and "conversions" in entry.why:
        return f"leave it in float: int8 --keep {operator}"
    if precision == "fp32" and entry.why.startswith("computed in FP16"):
        return "quantise it with pass int8, or hold FP16 against the quality limit"
    if precision == "fp16":
        return "FP16 saves memory here, not time; use FP32 or INT8 for speed"
    return "keep such nodes together, or at the ends: every switch costs a copy"


def _precisions(graph: ir.Graph) -> dict[int, Precision]:
    """Id of a node → the precision in which the model asks for it; float32 is left out."""
    found: dict[int, Precision] = {}
    for node in graph.all_nodes():
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None]
        if any(v.dtype is not None and v.dtype.name == "FLOAT16" for v in values):
            found[id(node)] = "fp16"
    for layer in computed(graph):
        if layer.integer:
            found[id(layer.node)] = "int8"
    return found


def _operator(node: ir.Node) -> str:
    return node.op_type if node.domain in _OWN else f"{node.domain}:{node.op_type}"


def _constant(node: ir.Node) -> bool:
    """Whether a node only rewrites constants, which every runtime folds away."""
    return bool(node.inputs) and all(v is None or array(v) is not None for v in node.inputs)


def _shape(value: ir.Value | None, known: Mapping[str, Shape | None]) -> Shape | None:
    if value is None:
        return None
    held = array(value)
    return tuple(held.shape) if held is not None else known.get(value.name or "")
