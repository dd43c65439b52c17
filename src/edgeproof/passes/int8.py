"""Quantise a model to 8-bit integers with ranges from calibration samples, as Q/DQ nodes where the target wants them.

The samples are streamed once; memory does not grow with their number. Nothing is trained and no label is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ..change import Change
from ..errors import InputError, UnsupportedError, did_you_mean
from ..graph.opset import raised
from ..model import Model
from ..protocols import Context, Pass
from ..quant import calibration, expand, guard, layers, numerics, outputs, placement, qdq, ranges
from ..quant.histogram import Histogram
from ..quant.parameters import parameters
from ..quant.refine import Refined, Refinement, Rounding, refine
from ..quant.settle import Settling, told
from ..quant.trt_cache import read_cache, within
from ..target import QuantScheme

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 13
"""First opset whose QuantizeLinear takes one scale per channel."""

OPSET_HARD_SWISH = 14
"""First opset with HardSwish."""

OPSET_16_BITS = 21
"""First opset whose QuantizeLinear makes 16-bit codes."""


@dataclass(frozen=True, slots=True)
class Int8:
    """Static INT8 quantisation.

    Attributes:
        method: How a range is chosen: ``minmax``, ``percentile``, ``entropy``, ``mse`` or ``auto`` (for
            every tensor the one of these that errs least on what was seen). Cutting ``percentile`` bears more samples;
            transformers with few very large values keep more with ``minmax`` or ``auto``.
        percentile: For ``percentile``: share of values that stay inside the range, in percent.
        per_channel: One weight scale per output channel where the target has it.
        keep: What stays in float: node names, operators or output names, comma separated; ``*`` and ``?`` match.
        ops: Quantise only these operators, comma separated; empty means all that the target runs in integers.
        depthwise: Quantise depthwise convolutions (often slower and less accurate than in float).
        first_last: Quantise the layers nearest to the inputs and outputs.
        followers: Run what lies between layers (additions, products, poolings, hard activations) in integers as well
            where that saves changes of precision. Without, only layers run in integers: slower where much lies between
            them, and more accurate. Set it to false behind the pass ``level``.
        channel_outputs: Where only float operators read what a convolution makes, give each channel a range of its own,
            for a product and a sum per value in float; reads the samples once more. With ``followers=False`` that is
            nearly everywhere.
        reduce_range: Weights use 7 bits. For x86 CPUs without VNNI, whose u8 × s8 products are summed in 16 bits and
            can saturate there.
        samples: Calibrate on the first so many samples; 0 means all.
        settle: Stop calibrating once the ranges have settled; the facts say when.
        ranges_from: A calibration cache of TensorRT; tensors that stand in it take their ranges from it.
        bias_correction: Take the mean of every layer's error out of its outputs, through its bias; reads the samples
            once more.
        rounding: ``nearest``, or ``gptq``: round weights so that the layer's output errs least; reads the samples once
            more (the same time as for the biases).
    """

    method: str = "percentile"
    percentile: float = 99.99
    per_channel: bool = True
    keep: str = ""
    ops: str = ""
    depthwise: bool = True
    first_last: bool = True
    followers: bool = True
    channel_outputs: bool = False
    reduce_range: bool = False
    samples: int = 0
    settle: bool = False
    ranges_from: str = ""
    bias_correction: bool = False
    rounding: Rounding = "nearest"

    def __call__(self, model: Model, context: Context) -> Change:
        """Quantise.

        Raises:
            UnsupportedError: int8.target, when the target has no integer path.
            InputError: int8.samples, when there are none; int8.ops; quant.method; quant.percentile; int8.rounding;
                calibration.empty; calibration.not_finite.
        """
        scheme = _scheme(context)
        if not self.followers:
            scheme = replace(scheme, follow=(), share=(), expand=())
        scope = self._scope(scheme)
        # Refuse a bad setting before the samples are read.
        ranges.find_range(Histogram(), self.method, percentile=self.percentile)
        if self.rounding not in get_args(Rounding):
            raise InputError(
                "int8.rounding", self.rounding, "is no way to round", did_you_mean(self.rounding, get_args(Rounding))
            )
        if context.feeds is None:
            raise InputError(
                "int8.samples", model.name, "has no calibration samples; INT8 needs some", "give a data set with --data"
            )
        graph = _prepared(model, scheme)
        if isinstance(graph, str):
            return Change.none(model, (model.name, graph))
        plan = placement.plan(graph.graph, scheme, scope)
        if not plan.layers:
            nothing = (model.name, f"has none of {', '.join(scheme.ops)}, which the target runs in integers")
            return Change.none(model, *(plan.declined or [nothing]))
        seen, settled = self._seen(model, graph, plan, scheme, context)
        activations, facts = self._activations(plan, scheme, seen)
        by_channel = self._by_channel(model, graph, plan, scheme, context)
        refined = self._refine(model, graph, plan, scheme, activations, context)
        qdq.write(graph.graph, plan, scheme, activations, self.reduce_range or scheme.narrow_weights)
        expand.expand(graph.graph, [n for n in graph.graph if n.op_type in scheme.spell])
        spread = outputs.spread(graph.graph, by_channel, activations)
        if scheme.guard:
            guard.guard(graph.graph)
        return Change(
            Model.of(graph, model.name),
            True,
            (
                *told(settled.get("calibration", {})),
                *(f"quantised {layers.label(n)} ({n.op_type})" for n in plan.roles),
            ),
            (*plan.declined, *refined.declined),
            {
                "method": self.method,
                **settled,
                **refined.facts(),
                **({"channel_outputs": spread} if self.channel_outputs else {}),
                "tensors": facts,
                "nodes": _precisions(graph.graph, plan),
            },
        )

    def _by_channel(
        self, model: Model, graph: ir.Model, plan: placement.Plan, scheme: QuantScheme, context: Context
    ) -> dict[str, tuple[ir.Node, numerics.QParams]]:
        """Parameters per channel of what convolutions make for float operators, if they are wanted and possible."""
        able = scheme.bias == "int32" and not scheme.activation_symmetric
        found = outputs.candidates(plan) if self.channel_outputs and able else {}
        if not found:
            return {}
        assert context.feeds is not None
        seen = outputs.bounds(
            Model(model.name, model.digest, model.inputs, model.outputs, graph),
            found,
            context.compile,
            islice(context.feeds(), self.samples or None),
            context.progress,
        )
        return {
            name: (node, outputs.parameters(*seen[name], outputs.dead_zone(node.outputs[0]), scheme.activation))
            for name, node in found.items()
            if name in seen
        }

    def _refine(
        self,
        model: Model,
        graph: ir.Model,
        plan: placement.Plan,
        scheme: QuantScheme,
        activations: dict[str, numerics.QParams],
        context: Context,
    ) -> Refined:
        """Rounded weights and corrected biases, in the plan's layers."""
        wanted = Refinement(self.rounding, self.bias_correction, self.reduce_range or scheme.narrow_weights)
        if not wanted.wanted:
            return Refined()
        assert context.feeds is not None
        kept = context.calibration
        return refine(
            Model(model.name, model.digest, model.inputs, model.outputs, graph),
            plan,
            scheme,
            activations,
            wanted,
            context.compile,
            islice(context.feeds(), self.samples or None),
            total=min(self.samples or context.samples, context.samples),
            progress=context.progress,
            known=None if kept is None else kept.setdefault(f"{model.digest}:{self.samples}:refined", {}),
        )

    def _scope(self, scheme: QuantScheme) -> layers.Scope:
        ops = tuple(_split(self.ops))
        known = (*scheme.ops, *scheme.follow, *scheme.expand)
        for op in ops:
            if op not in known:
                raise InputError(
                    "int8.ops", op, "is no operator that the target runs in integers", did_you_mean(op, known)
                )
        return layers.Scope(tuple(_split(self.keep)), ops, self.depthwise, self.first_last, self.per_channel)

    def _seen(
        self, model: Model, graph: ir.Model, plan: placement.Plan, scheme: QuantScheme, context: Context
    ) -> tuple[calibration.Calibration, dict[str, Any]]:
        """Histograms of the plan's tensors, from the context's cache where it has them; and when they settled."""
        if context.calibration is None:
            return self._calibrate(model, graph, plan.observe, context)
        key = f"{model.digest}:{self.samples}{':settle' if self.settle else ''}"
        seen: calibration.Calibration = context.calibration.setdefault(key, {})
        if not seen:
            # What any narrower scope of this pass would need is seen in the same pass over the samples.
            widest = graph.clone()
            wanted = (*placement.plan(widest.graph, scheme, layers.Scope()).observe, *plan.observe)
            found, context.calibration[f"{key}:settled"] = self._calibrate(model, widest, wanted, context)
            seen.update(found)
        missing = [name for name in plan.observe if name not in seen]
        if missing:
            seen.update(self._calibrate(model, graph, missing, context)[0])
        return seen, context.calibration.get(f"{key}:settled", {})

    def _calibrate(
        self, model: Model, graph: ir.Model, tensors: Sequence[str], context: Context
    ) -> tuple[calibration.Calibration, dict[str, Any]]:
        assert context.feeds is not None
        total = min(self.samples or context.samples, context.samples)
        settling = Settling()
        seen = calibration.calibrate(
            Model(model.name, model.digest, model.inputs, model.outputs, graph),
            tensors,
            context.compile,
            islice(context.feeds(), self.samples or None),
            total=total,
            progress=context.progress,
            enough=settling if self.settle else None,
        )
        return seen, {"calibration": settling.facts(total)} if self.settle else {}

    def _activations(
        self, plan: placement.Plan, scheme: QuantScheme, seen: calibration.Calibration
    ) -> tuple[dict[str, numerics.QParams], dict[str, Any]]:
        """Parameters and facts of every quantised tensor."""
        given = read_cache(Path(self.ranges_from)).ranges() if self.ranges_from else {}
        chosen: dict[str, ranges.Range] = {}
        for source in plan.observe:
            histogram = seen.get(source, Histogram())
            chosen[source] = ranges.find_range(histogram, self.method, percentile=self.percentile)
            if source in given:
                chosen[source] = within(given[source], histogram)
        found = parameters(plan, scheme, chosen)
        facts = {
            source: {
                **ranges.describe(seen.get(source, Histogram()), chosen[source]),
                "scale": float(found[source].scale),
                "zero_point": int(found[source].zero_point),
            }
            for source in plan.observe
        }
        return found, facts


def _scheme(context: Context) -> QuantScheme:
    if context.target is None or context.target.scheme is None:
        name = context.target.name if context.target else "no target"
        raise UnsupportedError(
            "int8.target", name, "has no integer path", "choose another target with --target; see 'edgeproof targets'"
        )
    return context.target.scheme


def _prepared(model: Model, scheme: QuantScheme) -> ir.Model | str:
    """A copy that may be changed, at an opset that has the Q/DQ that the scheme needs; or why there is none."""
    sixteen, joined = scheme.activation.endswith("16"), "HardSwish" in scheme.fuse
    need = OPSET_16_BITS if sixteen else OPSET
    graph = model.graph.clone()
    opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", need))
    made = raised(graph, max(need, OPSET_HARD_SWISH) if joined else need)
    if isinstance(made, str):
        return f"opset {opset} has no {'16-bit' if sixteen else 'per-channel'} Q/DQ, and {made}"
    if joined:
        expand.join(made.graph)
    # Initializers that are also listed as inputs are weights with a default that nobody overrides.
    weights = set(made.graph.initializers)
    for value in [v for v in made.graph.inputs if v.name in weights]:
        made.graph.inputs.remove(value)
    return made


def _precisions(graph: ir.Graph, plan: placement.Plan) -> dict[str, str]:
    """Precision of every computing node of the result."""
    moves = ("QuantizeLinear", "DequantizeLinear", "Constant")
    return {layers.label(n): "int8" if n in plan.roles else "float" for n in graph if n.op_type not in moves}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


IMPL: type[Pass] = Int8
