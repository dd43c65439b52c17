"""Move what is hard to quantise from the inputs of matrix products into their weights, which take one scale a channel.

A normalisation's outputs have channels of very different size; one scale for all of them spends its codes on the
largest. Dividing channel j by s_j, where the values are made, and multiplying row j of every weight that reads them by
s_j leaves the model as it is: ``(x / s) (s W) = x W``. With ``s_j = max|x_j|^α / max|W_j|^(1-α)`` both sides share the
difficulty. The division goes into the constants of what makes x: a normalisation, a product or sum with a constant. Who
else reads x (the addition around the block) gets it back through one multiplication. Factors are powers of two, so that
not a bit of the float model's results changes.

Source: Xiao et al. 2023, SmoothQuant, eq. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..change import Change
from ..errors import InputError
from ..graph.rewrite import Editor, array
from ..model import Model, attribute
from ..protocols import Context, Pass
from ..quant.calibration import observed

if TYPE_CHECKING:
    import onnx_ir as ir

LEAST = 1e-5
"""Least largest magnitude of a channel, of its weights too: below, factors mean nothing."""


@dataclass(frozen=True, slots=True)
class Smooth:
    """SmoothQuant.

    Attributes:
        alpha: How much of the difficulty moves into the weights, 0 to 1.
        insert_above: Where no constant can take the division, add one multiplication per tensor if its largest channel
            is at least so many times the median one; 0 adds none.
        samples: Look at the first so many samples; 0 means all.
    """

    alpha: float = 0.85
    insert_above: float = 4.0
    samples: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Smooth every product that allows it.

        Raises:
            InputError: smooth.alpha; smooth.samples, when there are none.
        """
        if not 0.0 <= self.alpha <= 1.0:
            raise InputError("smooth.alpha", "alpha", f"is {self.alpha}; expected 0 to 1", "try 0.5")
        editor = Editor(model.graph.clone())
        groups = list(_groups(editor))
        if not groups:
            return Change.none(model, *(editor.declined or ((model.name, "has no matrix product to smooth"),)))
        if context.feeds is None:
            raise InputError(
                "smooth.samples", model.name, "has no samples; smoothing needs some", "give a data set with --data"
            )
        tops = self._tops(model, [g.name for g in groups], context)
        spread: dict[str, list[float]] = {}
        for group in groups:
            if group.name not in tops:
                editor.decline(group.readers[0], f"no sample showed values of {group.name}")
                continue
            before = tops[group.name]
            if group.reason and not 0.0 < self.insert_above <= _spread(before):
                editor.decline(group.readers[0], group.reason)
                continue
            factor = self._factor(before, group)
            name = group.name
            _apply(editor, group, factor)
            spread[name] = [_spread(before), _spread(before / factor)]
        if not editor.edits:
            return Change.none(model, *editor.declined)
        return Change(
            Model.of(editor.model, model.name),
            True,
            editor.applied(),
            editor.declined,
            {"alpha": self.alpha, "largest_over_median_channel": spread},
        )

    def _tops(self, model: Model, names: list[str], context: Context) -> dict[str, NDArray[np.float64]]:
        """Largest magnitude per channel (last axis) of every tensor, over the samples."""
        assert context.feeds is not None
        session = context.compile(observed(model, names))
        tops: dict[str, NDArray[np.float64]] = {}
        total = min(self.samples or context.samples, context.samples)
        try:
            for count, sample in enumerate(islice(context.feeds(), self.samples or None), start=1):
                outputs = session.run(sample)
                for name in names:
                    x = outputs[name] if name in outputs else sample[name]
                    if x.size:
                        top = np.abs(x.reshape(-1, x.shape[-1])).max(axis=0).astype(np.float64)
                        tops[name] = np.maximum(tops.get(name, top), top)
                context.progress(f"smoothing, sample {count}", min(1.0, count / total) if total else 0.0)
        finally:
            session.close()
        return {name: top for name, top in tops.items() if np.isfinite(top).all()}

    def _factor(self, tops: NDArray[np.float64], group: _Group) -> NDArray[np.float64]:
        """S per channel, a power of two; a channel that never spoke keeps 1."""
        rows = np.max([np.abs(w).max(axis=1) for w in group.weights()], axis=0).astype(np.float64)
        factor = np.maximum(tops, LEAST) ** self.alpha / np.maximum(rows, LEAST) ** (1 - self.alpha)
        return np.where((tops > LEAST) & (rows > LEAST), np.exp2(np.clip(np.rint(np.log2(factor)), -10, 10)), 1.0)


@dataclass(frozen=True, slots=True)
class _Group:
    """A tensor, the products that read it, and who else does.

    Attributes:
        constants: (node, input): what is divided by s in place of the tensor itself; empty when nothing can be.
        reason: Why nothing can be.
    """

    value: ir.Value
    readers: tuple[ir.Node, ...]
    others: tuple[tuple[ir.Node, int], ...]
    constants: tuple[tuple[ir.Node, int], ...]
    reason: str = ""

    @property
    def name(self) -> str:
        return self.value.name or ""

    def weights(self) -> list[NDArray[Any]]:
        found = [array(node.inputs[1]) for node in self.readers]
        return [w for w in found if w is not None]


def _groups(editor: Editor) -> Iterator[_Group]:
    seen: set[str] = set()
    for node in editor.nodes("MatMul"):
        value = node.inputs[0]
        if value is None or not _has_weight(node) or value.name in seen:
            continue
        seen.add(value.name or "")
        made = _group(value) if node.graph is editor.model.graph else "it is inside a control-flow operator"
        if isinstance(made, str):
            editor.decline(node, made)
        else:
            yield made


def _group(value: ir.Value) -> _Group | str:
    """The group of a tensor, or why it is left as it is."""
    uses = [(use.node, use.idx) for use in value.uses()]
    readers = tuple(n for n, i in uses if i == 0 and _has_weight(n))
    others = tuple((n, i) for n, i in uses if not (i == 0 and _has_weight(n)))
    if value.is_graph_output():
        return f"{value.name} is an output of the model too"
    if any(n.graph is not readers[0].graph for n, _ in others):
        return f"{value.name} is read inside a control-flow operator too"
    weight = array(readers[0].inputs[1])
    assert weight is not None
    constants = _divisors(value, weight.shape[0])
    if isinstance(constants, str):
        return _Group(value, readers, others, (), constants)
    return _Group(value, readers, others, constants)


def _divisors(value: ir.Value, channels: int) -> tuple[tuple[ir.Node, int], ...] | str:
    """The constants whose division by s divides a tensor's channels, or why there are none."""
    maker = value.producer()
    if maker is None:
        return "its input is an input of the model; dividing it would cost a node"
    if maker.op_type == "LayerNormalization":
        axis, rank = attribute(maker, "axis", -1), None if value.shape is None else len(value.shape)
        if axis != -1 and (rank is None or axis != rank - 1):
            return "its normalisation spans more than the last axis"
        found = [(maker, i) for i, v in enumerate(maker.inputs) if i > 0 and v is not None]
    elif maker.op_type == "Mul":
        found = [(maker, i) for i in (0, 1) if array(maker.inputs[i]) is not None][:1]
    elif maker.op_type == "MatMul" and _has_weight(maker):
        found = [(maker, 1)]
    elif maker.op_type == "Add":
        return _sum_divisors(maker, channels)
    else:
        return f"{maker.op_type} makes its input; dividing per channel there would cost a node"
    if not found or not all(_fits(node.inputs[i], channels) for node, i in found):
        return f"{maker.op_type} makes its input without constants per channel; dividing there would cost a node"
    return tuple(found)


def _sum_divisors(maker: ir.Node, channels: int) -> tuple[tuple[ir.Node, int], ...] | str:
    """Of a sum with a constant: that constant, and those of what is summed."""
    for i in (0, 1):
        other = maker.inputs[1 - i]
        if other is None or not _fits(maker.inputs[i], channels):
            continue
        if len(list(other.uses())) != 1 or other.is_graph_output():
            return "what its input is a sum of is read elsewhere too"
        below = _divisors(other, channels)
        return below if isinstance(below, str) else ((maker, i), *below)
    return "Add makes its input from two activations; dividing there would cost a node"


def _has_weight(node: ir.Node) -> bool:
    weight = array(node.inputs[1]) if node.op_type == "MatMul" and len(node.inputs) == 2 else None
    return weight is not None and weight.ndim == 2 and weight.dtype == np.float32


def _fits(value: ir.Value | None, channels: int) -> bool:
    """Whether a constant has one number per channel of the last axis.

    A single number for all (the half of a GELU) would fit too, but runtimes recognise patterns by it.
    """
    held = array(value)
    return held is not None and held.dtype == np.float32 and held.shape[-1:] == (channels,)


def _apply(editor: Editor, group: _Group, factor: NDArray[np.float64]) -> None:
    for node, index in group.constants:
        held = array(node.inputs[index])
        assert held is not None
        _replace(editor, node, index, held / factor)
    value, maker = group.value, group.value.producer()
    divided = value if group.constants else _product(editor, group, 1.0 / factor, "divided")
    for node in group.readers:
        held = array(node.inputs[1])
        assert held is not None
        node.replace_input_with(0, divided)
        _replace(editor, node, 1, held * factor[:, None])
        editor.did("smooth", node)
    if group.constants and group.others:
        assert maker is not None
        whole = _product(editor, group, factor, "whole")
        for node, index in group.others:
            node.replace_input_with(index, whole)


def _replace(editor: Editor, node: ir.Node, index: int, made: NDArray[Any]) -> None:
    held = node.inputs[index]
    assert held is not None
    new = editor.constant(editor.model.graph, f"{held.name}_smoothed", made.astype(np.float32))
    node.replace_input_with(index, new)
    editor.drop(held)


def _product(editor: Editor, group: _Group, factor: NDArray[np.float64], hint: str) -> ir.Value:
    """The tensor times one number per channel, computed as early as can be."""
    import onnx_ir as ir

    value, graph, maker = group.value, editor.model.graph, group.value.producer()
    number = editor.constant(graph, f"{group.name}_{hint}_factor", factor.astype(np.float32))
    name = editor.fresh(f"{group.name}_{hint}")
    out = ir.Value(name=name, type=value.type, shape=value.shape.copy() if value.shape is not None else None)
    node = ir.node("Mul", [value, number], outputs=[out], name=name)
    if maker is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(maker, node)
    return out


def _spread(tops: NDArray[np.float64]) -> float:
    return round(float(tops.max() / max(float(np.median(tops)), LEAST)), 3)


IMPL: type[Pass] = Smooth
