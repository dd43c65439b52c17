"""Give the channels between two layers like ranges, without changing what the model computes.

A tensor takes one scale, so channels that stay small get few codes. Dividing output channel i of the first layer by s_i
and multiplying input channel i of the second by s_i changes nothing as long as what lies between is positively
homogeneous, ``f(s x) = s f(x)`` for s > 0: ReLU, LeakyReLU, PReLU, pooling, nothing. Chains are walked until they rest.
Factors are powers of two, so that not a bit of the float model's results changes.

* ReLU6 and other clips are not homogeneous: their upper bound would need one number per channel. Where no sample comes
  near it, the clip is a ReLU on these data and is made one, if the setting allows; else the pair is left, with how many
  channels reach the bound.
* Hard-swish, sigmoid and the like are left: ``x · relu6(x + 3)`` has a scale of its own.

Source: Nagel et al. 2019, data-free quantization through weight equalization and bias correction, eq. 9 to 11. With
samples, the range of a channel is that of its values instead of its weights', which is what one scale has to cover.
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
from ..graph.rewrite import Editor, array, label, sole_user
from ..model import Model, attribute
from ..protocols import Context, Pass
from ..quant.calibration import observed

if TYPE_CHECKING:
    import onnx_ir as ir

HOMOGENEOUS = ("Relu", "LeakyRelu", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity")
"""Operators with f(s x) = s f(x) for every s > 0, channel by channel."""

LAYERS = ("Conv", "Gemm")
LEAST = 1e-5
"""Range below which a channel counts as silent, and keeps its factor 1."""

Ranges = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Equalize:
    """Cross-layer equalisation.

    Attributes:
        relu6: Make a clip from 0 a ReLU where no sample reaches its upper end; needs samples.
        rounds: Walks over all pairs; chains of layers need a few.
        samples: Look at the first so many samples; 0 means all. Without any, weights alone decide.
    """

    relu6: bool = True
    rounds: int = 4
    samples: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Equalise every pair of layers that allows it.

        Raises:
            InputError: equalize.rounds.
        """
        if self.rounds < 1:
            raise InputError("equalize.rounds", "rounds", f"is {self.rounds}; expected at least 1", "try 4")
        editor = Editor(model.graph.clone())
        pairs = list(_pairs(editor))
        if not pairs:
            return Change.none(model, *(editor.declined or ((model.name, "has no two layers in a row"),)))
        tops = self._tops(model, pairs, context)
        ready = [pair for pair in pairs if self._unclipped(editor, pair, tops)]
        factors = {pair.name: np.ones(pair.channels) for pair in ready}
        for _ in range(self.rounds):
            moved = [self._balance(pair, tops.get(pair.name), factors) for pair in ready]
            if not any(moved):
                break
        for pair in ready:
            if (factors[pair.name] != 1.0).any():
                _write(editor, pair, factors[pair.name])
        if not editor.edits:
            return Change.none(model, *(editor.declined or ((model.name, "is as even as powers of two make it"),)))
        facts = {name: [float(f.min()), float(f.max())] for name, f in factors.items() if (f != 1.0).any()}
        return Change(
            Model.of(editor.model, model.name), True, editor.applied(), editor.declined, {"least_and_most": facts}
        )

    def _tops(self, model: Model, pairs: list[_Pair], context: Context) -> dict[str, Ranges]:
        """Largest magnitude per channel of what every second layer reads, over the samples."""
        if context.feeds is None:
            return {}
        session = context.compile(observed(model, [pair.name for pair in pairs]))
        tops: dict[str, Ranges] = {}
        total = min(self.samples or context.samples, context.samples)
        try:
            for count, sample in enumerate(islice(context.feeds(), self.samples or None), start=1):
                outputs = session.run(sample)
                for pair in pairs:
                    x = outputs[pair.name]
                    if x.size:
                        top = np.abs(np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)).max(axis=1).astype(np.float64)
                        tops[pair.name] = np.maximum(tops.get(pair.name, top), top)
                context.progress(f"equalising, sample {count}", min(1.0, count / total) if total else 0.0)
        finally:
            session.close()
        return {name: top for name, top in tops.items() if np.isfinite(top).all()}

    def _unclipped(self, editor: Editor, pair: _Pair, tops: dict[str, Ranges]) -> bool:
        """Whether nothing between the layers clips any sample."""
        for node, end in pair.clips:
            seen = tops.get(pair.name)
            if not self.relu6 or seen is None:
                why = "setting relu6=false" if not self.relu6 else "there are no samples"
                editor.decline(node, f"clips at {end:g}, which is not homogeneous ({why})")
                return False
            reach = int(np.count_nonzero(seen >= 0.999 * end))
            if reach:
                editor.decline(node, f"clips at {end:g}, which {reach} of {pair.channels} channels reach")
                return False
        return True

    def _balance(self, pair: _Pair, seen: Ranges | None, factors: dict[str, Ranges]) -> bool:
        """Adjust a pair's factors to those of its neighbours; whether they moved.

        Source: Nagel et al. 2019, eq. 11: ``s_i = sqrt(r1_i / r2_i)``, up to a factor for all channels.
        """
        first = seen if seen is not None else pair.first_ranges(factors)
        second = pair.second_ranges(factors)
        live = (first > LEAST) & (second > LEAST)
        if not live.any():
            return False
        # A depthwise weight has a scale per input channel where weights are per channel: it can take all of it.
        ratio = first if pair.depthwise and seen is not None else np.sqrt(first / np.maximum(second, LEAST))
        power = np.where(live, np.log2(np.maximum(ratio, LEAST)), 0.0)
        power = np.where(live, np.rint(power - np.median(power[live])), 0.0)
        made = np.exp2(np.clip(power, -10, 10))
        moved = bool((made != factors[pair.name]).any())
        factors[pair.name] = made
        return moved


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two layers and what lies between.

    Attributes:
        value: What the second reads.
        clips: Clips from 0 in between, with their upper ends.
    """

    first: ir.Node
    second: ir.Node
    value: ir.Value
    channels: int
    clips: tuple[tuple[ir.Node, float], ...]
    before: str

    @property
    def name(self) -> str:
        return self.value.name or ""

    @property
    def depthwise(self) -> bool:
        return self.second.op_type == "Conv" and attribute(self.second, "group", 1) == self.channels > 1

    def first_ranges(self, factors: dict[str, Ranges]) -> Ranges:
        """Largest weight per output channel of the first layer, its own inputs as they stand."""
        weight: NDArray[Any] = _by_output(self.first)
        groups = attribute(self.first, "group", 1) if self.first.op_type == "Conv" else 1
        inputs = factors.get(self.before)
        if inputs is not None:
            each = inputs.reshape(groups, 1, -1).repeat(weight.shape[0] // groups, 1).reshape(weight.shape[0], -1)
            weight = weight * each[..., None]
        return np.asarray(np.abs(weight).max(axis=(1, 2)), np.float64)

    def second_ranges(self, factors: dict[str, Ranges]) -> Ranges:
        """Largest weight per input channel of the second layer."""
        weight = _by_output(self.second)
        groups = attribute(self.second, "group", 1) if self.second.op_type == "Conv" else 1
        grouped = np.abs(weight).reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        return np.asarray(grouped.max(axis=(1, 3)).reshape(-1), np.float64)


def _by_output(node: ir.Node) -> NDArray[np.float32]:
    """A layer's weight as [O, I / groups, taps]."""
    weight = array(node.inputs[1])
    assert weight is not None
    if node.op_type == "Gemm":
        weight = weight if attribute(node, "transB", 0) else weight.T
    return weight.reshape(weight.shape[0], weight.shape[1], -1)


def _pairs(editor: Editor) -> Iterator[_Pair]:
    for node in editor.nodes(*LAYERS):
        if node.graph is not editor.model.graph or not _plain(node):
            continue
        found = _below(node)
        if isinstance(found, str):
            editor.decline(node, found)
        elif found is not None:
            yield found


def _plain(node: ir.Node) -> bool:
    """Whether a layer has float32 constants, so that its channels can be scaled."""
    held = [array(v) for v in node.inputs[1:] if v is not None]
    fine = bool(held) and all(a is not None and a.dtype == np.float32 and bool(np.isfinite(a).all()) for a in held)
    if not fine or node.op_type == "Conv":
        return fine
    return not attribute(node, "transA", 0)


def _below(node: ir.Node) -> _Pair | str | None:
    """The pair that a layer begins; why there is none; or None, when no layer follows at all."""
    value, clips = node.outputs[0], []
    while True:
        user = sole_user(value)
        if user is None:
            return "its output is read more than once" if value.uses() else None
        if user.op_type in LAYERS and user.inputs[0] is value:
            break
        end = _clip_end(user)
        if end is not None:
            clips.append((user, end))
        elif user.op_type not in HOMOGENEOUS or not _slopes_stay(user):
            return f"{label(user)} ({user.op_type}) follows, which is not homogeneous"
        value = user.outputs[0]
    weight = array(node.inputs[1])
    if not _plain(user) or weight is None:
        return f"{label(user)} has no constant weight"
    channels = _by_output(node).shape[0]
    groups = attribute(user, "group", 1) if user.op_type == "Conv" else 1
    if _by_output(user).shape[1] * groups != channels:
        return f"{label(user)} reads {_by_output(user).shape[1] * groups} channels of {channels}"
    source = node.inputs[0]
    return _Pair(node, user, value, channels, tuple(clips), (source.name if source is not None else "") or "")


def _slopes_stay(node: ir.Node) -> bool:
    """Whether an operator works channel by channel; a PRelu's slope may be anything that is constant."""
    return node.op_type != "PRelu" or array(node.inputs[1]) is not None


def _clip_end(node: ir.Node) -> float | None:
    """The upper end of a clip from 0; None for anything else."""
    if node.op_type != "Clip" or len(node.inputs) < 3:
        return None
    low, high = array(node.inputs[1]), array(node.inputs[2])
    if low is None or high is None or float(low.reshape(-1)[0]) != 0.0:
        return None
    return float(high.reshape(-1)[0])


def _write(editor: Editor, pair: _Pair, factor: Ranges) -> None:
    """Divide the outputs of the first layer, multiply the inputs of the second; clips that never clip become ReLUs."""
    for node, _ in pair.clips:
        name = label(node)
        value = editor.insert(node, "Relu", [node.inputs[0]], node.outputs[0])
        # A pair's value is never an output of the graph, so it can always be replaced.
        editor.replace(node.outputs[0], value)
        editor.remove(node)
        editor.done["clip made a ReLU"].append(name)
    _scale(editor, pair.first, 1, _out_axis(pair.first), 1.0 / factor)
    if len(pair.first.inputs) > 2 and pair.first.inputs[2] is not None:
        _scale(editor, pair.first, 2, -1, 1.0 / factor)
    node = pair.second
    groups = attribute(node, "group", 1) if node.op_type == "Conv" else 1
    weight = array(node.inputs[1])
    assert weight is not None
    if groups == 1:
        _scale(editor, node, 1, 1 - _out_axis(node), factor)
    else:
        each = factor.reshape(groups, 1, -1).repeat(weight.shape[0] // groups, 1).reshape(weight.shape[:2])
        made = weight * each.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
        _put(editor, node, 1, made)
    editor.did("equalise", pair.first)


def _out_axis(node: ir.Node) -> int:
    return 1 if node.op_type == "Gemm" and not attribute(node, "transB", 0) else 0


def _scale(editor: Editor, node: ir.Node, index: int, axis: int, factor: Ranges) -> None:
    held = array(node.inputs[index])
    assert held is not None
    if held.size == 1 and len(factor) > 1:
        held = np.broadcast_to(held.reshape(-1), factor.shape)
    shape = [1] * held.ndim
    shape[axis] = -1
    _put(editor, node, index, held * factor.reshape(shape))


def _put(editor: Editor, node: ir.Node, index: int, made: NDArray[np.float64]) -> None:
    held = node.inputs[index]
    assert held is not None
    new = editor.constant(editor.model.graph, f"{held.name}_equalised", made.astype(np.float32))
    node.replace_input_with(index, new)
    editor.drop(held)


IMPL: type[Pass] = Equalize
