"""Round a plan's weights and correct its biases from what the samples show of the layers' inputs.

Both techniques need the same sums (`moments`), so one further pass over the samples serves both; it runs the float
model. Results go into the plan's layers, which `qdq.write` then writes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..model import Model
from ..protocols import Progress, Session
from ..target import QuantScheme
from . import bias, columns, moments, numerics, rounding
from .calibration import observed
from .layers import Layer, constant, label
from .placement import Plan

if TYPE_CHECKING:
    import onnx_ir as ir

Rounding = Literal["nearest", "gptq"]


@dataclass(frozen=True, slots=True)
class Refinement:
    """What is to be done to the layers.

    Attributes:
        rounding: How weights are rounded.
        bias_correction: Take the mean of the error out of the outputs.
        reduce_range: Weights use 7 bits.
    """

    rounding: Rounding = "nearest"
    bias_correction: bool = False
    reduce_range: bool = False

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.bias_correction or self.rounding != "nearest"


@dataclass(frozen=True, slots=True)
class Made:
    """What was found for one layer. It holds whatever else is quantised, so that a search need not find it again.

    Attributes:
        layer: With its rounded weight, or as it was.
        rounded: Whether its rounding was chosen from second moments.
        gain_db: How much less the output errs through its weight than with rounding to nearest.
        shift: What to add to its bias; None to leave it.
        reason: Why it was not refined, or not fully; empty otherwise.
    """

    layer: Layer
    rounded: bool = False
    gain_db: float | None = None
    shift: NDArray[np.float64] | None = None
    reason: str = ""


@dataclass(slots=True)
class Refined:
    """What was done.

    Attributes:
        rounded: Layers whose rounding was chosen from second moments.
        corrected: Layers whose bias was corrected.
        declined: (node, reason).
        error_db: By layer, how much less the output errs through its weights than with rounding to nearest, in dB.
    """

    rounded: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    declined: list[tuple[str, str]] = field(default_factory=list)
    error_db: dict[str, float] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rounded": self.rounded, "corrected": self.corrected, "rounding_gain_db": self.error_db}


def refine(
    model: Model,
    plan: Plan,
    scheme: QuantScheme,
    activations: Mapping[str, numerics.QParams],
    wanted: Refinement,
    compile: Callable[[Model], Session],  # noqa: A002  (the name that Context has)
    feeds: Iterable[Feeds],
    *,
    total: int = 0,
    progress: Progress = lambda _what, _share: None,
    known: dict[Any, Made] | None = None,
) -> Refined:
    """Change the layers of a plan, and where a bias is an addition of its own, that constant of the plan's graph.

    Args:
        model: The float model whose graph the plan was made for.
        plan: The placement; its layers are replaced.
        scheme: The target's scheme.
        activations: Parameters of every quantised tensor.
        wanted: What is to be done.
        compile: Makes a runnable session.
        feeds: One entry per sample. Read once.
        total: Number of samples, for progress; 0 when unknown.
        progress: Told after every sample.
        known: What was found for these very samples before, by layer and settings; it is used and added to, and the
            samples are read only for what it lacks.

    Raises:
        InputError: calibration.empty, without samples.
    """
    result, found = Refined(), {} if known is None else known
    keys = {node: _key(node, layer, scheme, activations, wanted) for node, layer in plan.layers.items()}
    missing = {node: layer for node, layer in plan.layers.items() if keys[node] not in found}
    for node, made in _find(model, missing, scheme, activations, wanted, compile, feeds, total, progress).items():
        found[keys[node]] = made
    for node in list(plan.layers):
        plan.layers[node] = _applied(node, plan.layers[node], found[keys[node]], result)
    return result


def _find(
    model: Model,
    layers: Mapping[ir.Node, Layer],
    scheme: QuantScheme,
    activations: Mapping[str, numerics.QParams],
    wanted: Refinement,
    compile: Callable[[Model], Session],  # noqa: A002
    feeds: Iterable[Feeds],
    total: int,
    progress: Progress,
) -> dict[ir.Node, Made]:
    """What the samples say about these layers; they are read once, if at all."""
    held, reasons = moments.blank(layers, wanted.rounding == "gptq")
    made = {node: Made(layers[node], reason=reason) for node, reason in reasons.items()}
    if not held:
        return made
    names = dict.fromkeys(v.name or "" for node in held if (v := node.inputs[0]) is not None)
    session = compile(observed(model, list(names)))
    try:
        moments.collect(session, layers, held, activations, feeds, total=total, progress=progress)
    finally:
        session.close()
    for done, (node, seen) in enumerate(held.items()):
        source = node.inputs[0]
        assert source is not None
        step = float(activations[source.name or ""].scale)
        made[node] = replace(_layer(node, layers[node], seen, scheme, step, wanted), reason=reasons.get(node, ""))
        progress(f"rounding layer {done + 1} of {len(held)}", (done + 1) / len(held))
    return made


def _key(
    node: ir.Node,
    layer: Layer,
    scheme: QuantScheme,
    activations: Mapping[str, numerics.QParams],
    wanted: Refinement,
) -> tuple[Any, ...]:
    """All that decides what is found for a layer of one float model and one set of samples."""
    source = node.inputs[0]
    p = activations.get((source.name if source is not None else "") or "")
    codes = None if p is None else (float(p.scale), int(p.zero_point), str(p.zero_point.dtype))
    return (node.outputs[0].name, layer.axis, codes, scheme.bias, wanted)


def _layer(
    node: ir.Node,
    layer: Layer,
    seen: moments.Moments,
    scheme: QuantScheme,
    activation_scale: float,
    wanted: Refinement,
) -> Made:
    p = numerics.weight_params(layer.weight, layer.axis, reduce_range=wanted.reduce_range)
    if layer.bias is not None and scheme.bias == "int32":
        p = numerics.fit_bias(p, layer.bias, activation_scale)
    weight = columns.matrix(node, layer)
    rounded = columns.matrix(node, replace(layer, weight=numerics.fake_quantize(layer.weight, p)))
    covariance = seen.covariance(wanted.bias_correction) if wanted.rounding == "gptq" else None
    gain_db = None
    if covariance is not None:
        before = rounding.output_error(weight - rounded, covariance).sum()
        rounded, p = rounding.round_weight(weight, covariance, p, reduce_range=wanted.reduce_range)
        if layer.bias is not None and scheme.bias == "int32":
            p = numerics.fit_bias(p, layer.bias, activation_scale)
        after = rounding.output_error(weight - rounded, covariance).sum()
        if after > 0 and before > 0:
            gain_db = round(10 * float(np.log10(before / after)), 2)
        layer = replace(layer, weight=columns.weight_like(node, layer, rounded), params=p)
    shift = bias.shift(weight, rounded, seen) if wanted.bias_correction else None
    return Made(layer, covariance is not None, gain_db, shift)


def _applied(node: ir.Node, layer: Layer, made: Made, result: Refined) -> Layer:
    """A layer with what was found for it; where its bias is an addition of its own, the graph gets it."""
    name = label(node)
    if made.reason:
        result.declined.append((name, f"not refined: {made.reason}"))
    if made.rounded:
        result.rounded.append(name)
        layer = replace(layer, weight=made.layer.weight, params=made.layer.params)
    if made.gain_db is not None:
        result.error_db[name] = made.gain_db
    return layer if made.shift is None else _corrected(node, layer, made.shift, result)


def _corrected(node: ir.Node, layer: Layer, shift: NDArray[np.float64], result: Refined) -> Layer:
    if node.op_type == "MatMul":
        if not _shift_addition(node, shift):
            result.declined.append((label(node), "bias not corrected: no constant is added to its output"))
            return layer
        result.corrected.append(label(node))
        return layer
    result.corrected.append(label(node))
    held = np.zeros(len(shift)) if layer.bias is None else layer.bias
    if layer.bias is None:
        _give_bias(node, len(shift))
    return replace(layer, bias=(held + shift).astype(np.float32))


def _give_bias(node: ir.Node, channels: int) -> None:
    """A bias of zeros, where the writer will put the corrected one."""
    node.resize_inputs(3)
    node.replace_input_with(2, _initializer(node, np.zeros(channels, np.float32)))


def _shift_addition(node: ir.Node, shift: NDArray[np.float64]) -> bool:
    """Add to the constant that is added to a product, if there is one per output."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output() or uses[0].node.op_type != "Add":
        return False
    adder, index = uses[0].node, 1 - uses[0].idx
    held = constant(adder.inputs[index])
    if held is None or held.dtype != np.float32 or held.shape[-1:] != shift.shape or held.size != len(shift):
        return False
    adder.replace_input_with(index, _initializer(adder, (held + shift).astype(np.float32)))
    return True


def _initializer(node: ir.Node, array: NDArray[np.float32]) -> ir.Value:
    import onnx_ir as ir

    graph = node.graph
    assert isinstance(graph, ir.Graph)
    taken = {v.name for n in graph.all_nodes() for v in (*n.inputs, *n.outputs) if v is not None}
    name, count = f"{label(node)}.bias", 2
    while name in taken or name in graph.initializers:
        name, count = f"{label(node)}.bias.{count}", count + 1
    tensor = ir.tensor(array, name=name)
    value = ir.val(name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=array.shape)
    graph.register_initializer(value)
    return value
