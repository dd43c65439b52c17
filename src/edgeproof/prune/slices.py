"""Rules for what takes a part, or adds one: Split, Slice, Gather, Pad, Resize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.rewrite import array, integers
from ..model import attribute
from .atoms import Labels
from .targets import numbers_of, retarget
from .trace import Axes, Edits, Keep, Trace, UnfollowedError

if TYPE_CHECKING:
    import onnx_ir as ir


def split(t: Trace, node: ir.Node) -> None:
    """Split: every part has the atoms of its stretch; unequal parts are written out."""
    before = t.read(node, 0)
    axis = int(attribute(node, "axis", 0)) % len(before)
    labels = before[axis]
    parts: list[Labels] = []
    at = 0
    for out in node.outputs:
        size = t.dims(out)[axis]
        if labels is not None:
            parts.append(labels[at : at + size])
        t.put(out, [parts[-1] if labels is not None and i == axis else a for i, a in enumerate(before)])
        at += size
    if labels is None:
        return
    for part in parts:
        if len(part) == 1:
            t.stay(part, "it is split off alone")

    def apply(found: ir.Node, edits: Edits, keep: Keep) -> None:
        import onnx_ir as ir

        sizes = [int(keep(part).sum()) for part in parts]
        if found.graph is not None and opset(found) < 13:
            found.attributes["split"] = ir.AttrInt64s("split", sizes)
            return
        found.attributes.pop("num_outputs", None)
        value = edits.constant(f"{found.outputs[0].name}_sizes", np.asarray(sizes, np.int64))
        if len(found.inputs) < 2:
            found.resize_inputs(2)
        found.replace_input_with(1, value)

    t.edit(node, parts, apply)


def opset(node: ir.Node) -> int:
    """Version of the default operator set that a node is of."""
    graph = node.graph
    imports = {} if graph is None else graph.opset_imports
    return int(imports.get("", imports.get("ai.onnx", 1)))


def slice_(t: Trace, node: ir.Node) -> None:
    """Slice with steps of 1 or whole axes; bounds are counted anew among what stays."""
    before = t.read(node, 0)
    rank = len(before)
    shape = t.dims(node.inputs[0])
    axes: Axes = list(before)
    try:
        starts = numbers_of(node, 1, "starts") or []
        ends = numbers_of(node, 2, "ends") or []
        steps = numbers_of(node, 4, "steps") or [1] * len(starts)
    except UnfollowedError:
        for axis in numbers_of(node, 3, "axes", rank) or range(rank):
            t.stay(before[axis], "it is cut at a computed place")
            axes[axis] = None
        t.put(node.outputs[0], axes)
        return
    along = numbers_of(node, 3, "axes", rank) or list(range(len(starts)))
    cut: dict[int, tuple[int, int]] = {}
    for k, axis in enumerate(along):
        labels = before[axis]
        if labels is None:
            continue
        taken = range(shape[axis])[starts[k] : ends[k] : steps[k]]
        if steps[k] != 1:
            t.stay(labels, f"it is cut with step {steps[k]}")
        axes[axis] = labels[taken.start : taken.stop : taken.step]
        cut[k] = (taken.start, taken.stop)
    if cut:
        whole = {k: labels for k in cut if (labels := before[along[k]]) is not None}
        t.edit(node, list(whole.values()), _Cut(whole, cut, starts, ends))
    t.put(node.outputs[0], axes)


class _Cut:
    """New bounds of a Slice."""

    def __init__(
        self, labels: dict[int, Labels], cut: dict[int, tuple[int, int]], starts: list[int], ends: list[int]
    ) -> None:
        self._labels = labels
        self._cut = cut
        self._bounds = starts, ends

    def __call__(self, node: ir.Node, edits: Edits, keep: Keep) -> None:
        import onnx_ir as ir

        bounds = [list(b) for b in self._bounds]
        for k, where in self._cut.items():
            stays = keep(self._labels[k])
            for side in (0, 1):
                bounds[side][k] = int(stays[: where[side]].sum())
        for index, name in ((1, "starts"), (2, "ends")):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, bounds[index - 1])
            else:
                value = edits.constant(f"{node.outputs[0].name}_{name}", np.asarray(bounds[index - 1], np.int64))
                node.replace_input_with(index, value)


def gather(t: Trace, node: ir.Node) -> None:
    """Gather: constant indices are counted anew; what is picked alone stays; a table keeps all of its rows."""
    shape = t.dims(node.inputs[0])
    axis = int(attribute(node, "axis", 0)) % len(shape)
    indices = array(node.inputs[1])
    before = [t.axis(node, 0, i, "out") for i in range(len(shape)) if i != axis]
    between: Axes = [None] * len(t.dims(node.inputs[1]))
    labels = t.axis(node, 0, axis)
    if labels is not None and (indices is None or sum(d > 1 for d in indices.shape) > 1):
        t.stay(labels, "it is looked up by computed indices" if indices is None else "its indices are a matrix")
    elif labels is not None and indices is not None:
        picked = np.asarray(indices, np.int64) % len(labels)
        along = next((i for i, d in enumerate(picked.shape) if d > 1), None)
        if along is None:
            t.stay(labels[picked.reshape(-1)], "it is picked alone")
        else:
            between[along] = labels[picked.reshape(-1)]
        t.edit(node, [labels], _Renumber(labels, picked, along))
    t.put(node.outputs[0], [*before[:axis], *between, *before[axis:]])


class _Renumber:
    """Indices among what stays."""

    def __init__(self, labels: Labels, picked: Labels, along: int | None) -> None:
        self._labels = labels
        self._picked = picked
        self._along = along

    def __call__(self, node: ir.Node, edits: Edits, keep: Keep) -> None:
        stays = keep(self._labels)
        places = np.cumsum(stays) - 1
        picked = self._picked
        if self._along is not None:
            picked = np.compress(stays[picked.reshape(-1)], picked, axis=self._along)
        value = edits.constant(f"{node.outputs[0].name}_indices", np.asarray(places[picked], np.int64))
        node.replace_input_with(1, value)


def gather_nd(t: Trace, node: ir.Node) -> None:
    """GatherND: axes that are looked up stay, those behind them go through."""
    depth = t.dims(node.inputs[1])[-1]
    if attribute(node, "batch_dims", 0):
        raise UnfollowedError("it has batch dimensions")
    data = [t.axis(node, 0, i, "data" if i < depth else "out") for i in range(len(t.dims(node.inputs[0])))]
    for labels in data[:depth]:
        t.stay(labels, "it is looked up")
    t.put(node.outputs[0], [*[None] * (len(t.dims(node.inputs[1])) - 1), *data[depth:]])


def pad(t: Trace, node: ir.Node) -> None:
    """Pad: channels of zeros are channels that may go too."""
    before = t.read(node, 0)
    rank = len(before)
    widths = numbers_of(node, 1, "pads") or []
    along = numbers_of(node, 3, "axes", rank) or list(range(rank))
    axes: Axes = list(before)
    grown: dict[int, tuple[Labels, Labels]] = {}
    for k, axis in enumerate(along):
        low, high = widths[k], widths[k + len(along)]
        labels = before[axis]
        if labels is None or not (low or high):
            continue
        if min(low, high) < 0 or attribute(node, "mode", "constant") != "constant":
            t.stay(labels, "it is padded with itself, or cut")
            axes[axis] = None
            continue
        grown[k] = t.atoms.fresh(low), t.atoms.fresh(high)
        axes[axis] = np.concatenate([grown[k][0], labels, grown[k][1]])
    if grown:

        def apply(found: ir.Node, edits: Edits, keep: Keep) -> None:
            import onnx_ir as ir

            new = list(widths)
            for k, sides in grown.items():
                for side, labels in enumerate(sides):
                    new[k + side * len(along)] = int(keep(labels).sum())
            if "pads" in found.attributes:
                found.attributes["pads"] = ir.AttrInt64s("pads", new)
            else:
                value = edits.constant(f"{found.outputs[0].name}_pads", np.asarray(new, np.int64))
                found.replace_input_with(1, value)

        t.edit(node, [side for sides in grown.values() for side in sides], apply)
    t.put(node.outputs[0], axes)


def resize(t: Trace, node: ir.Node) -> None:
    """Resize, Upsample: axes that keep their length keep their atoms."""
    before = t.read(node, 0)
    source, out = t.dims(node.inputs[0]), t.dims(node.outputs[0])
    axes: Axes = []
    for i, labels in enumerate(before):
        if labels is not None and source[i] != out[i]:
            t.stay(labels, "it is resized")
        axes.append(labels if source[i] == out[i] else None)
    sizes = node.inputs[3] if len(node.inputs) > 3 else None
    if sizes is not None:
        given = attribute(node, "axes", None)
        places = {a % len(source): k for k, a in enumerate(given)} if given else {i: i for i in range(len(source))}
        labels_at = {places[i]: a for i, a in enumerate(axes) if a is not None and i in places}
        retarget(t, node, 3, labels_at, copied={})
    t.put(node.outputs[0], axes)


def shape(t: Trace, node: ir.Node) -> None:
    """Shape, Size: they read what there is."""


def constant_axes(node: ir.Node, index: int, rank: int) -> list[int] | None:
    """The axes that an operator is given, as an attribute or an input; None when all or computed."""
    given = attribute(node, "axes", None)
    if given is None and len(node.inputs) > index:
        given = integers(node.inputs[index])
    return None if given is None else [a % rank for a in given]
