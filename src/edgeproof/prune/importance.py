"""How much each unit matters, by several criteria; higher is more important.

* ``l1``, ``l2``: norm of what a layer makes the channel with, averaged over the layers of a group.
  Source: Li et al. 2017, pruning filters for efficient ConvNets, section 3.1.
* ``bn``: magnitude of the batch norm's scale. Source: Liu et al. 2017, network slimming, section 3.
* ``activation``: root mean square of the channel, over samples, as its readers see it.
* ``contribution``: the same times the norm of the weights that read it, which is what the sums of the next layer lose.
  Source: the score of Sun et al. 2024, Wanda, section 3, taken for a whole input channel.
* ``taylor``: (Σ gradient · weight)² over all of a unit's parameters: to first order, what the loss changes by when they
  become zero. Source: Molchanov et al. 2019, importance estimation for neural network pruning, eq. 8. There is no
  first-order estimate without gradients; a training engine gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from ..model import Model, TensorSpec
from ..protocols import Context
from .channels import FIXED, Channels, Group
from .trace import Weight

if TYPE_CHECKING:
    import onnx_ir as ir

Criterion = Literal["l1", "l2", "bn", "activation", "contribution", "taylor"]
CRITERIA: tuple[Criterion, ...] = ("l1", "l2", "bn", "activation", "contribution", "taylor")
SEEN: tuple[Criterion, ...] = ("activation", "contribution")
"""Criteria that need samples."""
Scale = Literal["mean", "max", "none"]
SCALES: tuple[Scale, ...] = ("mean", "max", "none")

Scores = NDArray[np.float64]
"""One number a unit, [units]; NaN where a criterion has nothing to say."""
Seen = Mapping[tuple[str, int], NDArray[np.float64]]
"""(value, axis) → mean square along that axis."""
Change = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def scores(
    channels: Channels,
    criterion: str = "l2",
    *,
    gradients: Mapping[str, NDArray[np.floating[Any]]] | None = None,
    seen: Seen | None = None,
    scale: str = "mean",
) -> Scores:
    """Importance of every unit.

    Args:
        channels: What can be removed.
        criterion: One of `CRITERIA`.
        gradients: For ``taylor``: weight name → derivative of the loss, shaped like the weight.
        seen: For ``activation`` and ``contribution``: from `watch`.
        scale: Divide the scores of a group by their ``mean`` or ``max``, so that groups compare; or ``none``.

    Raises:
        InputError: prune.criterion, prune.scale, prune.samples, prune.gradients.
    """
    for name, value, known in (("criterion", criterion, CRITERIA), ("scale", scale, SCALES)):
        if value not in known:
            raise InputError(f"prune.{name}", value, "is unknown", did_you_mean(value, known))
    if criterion in SEEN and seen is None:
        raise InputError("prune.samples", criterion, "needs samples, and there are none", "give data, or take l2")
    if criterion == "taylor":
        if not gradients:
            hint = "give gradients of the loss by weight name (a training engine has them), or take contribution"
            raise InputError("prune.gradients", "taylor", "needs gradients, and there are none", hint)
        found = _taylor(channels, gradients)
    elif criterion in SEEN:
        found = _activation(channels, seen or {}, weighted=criterion == "contribution")
    elif criterion == "bn":
        found = _over_weights(channels, "scale", np.abs, np.asarray)
    elif criterion == "l1":
        found = _over_weights(channels, "out", np.abs, np.asarray)
    else:
        found = _over_weights(channels, "out", np.square, np.sqrt)
    return found if scale == "none" else _scaled(channels.groups, found, scale)


def watch(channels: Channels, context: Context, *, samples: int = 0) -> Seen:
    """Mean square, per channel, of every tensor that a layer with weights reads.

    Args:
        channels: What can be removed.
        context: Compiles the model, and has the samples.
        samples: Look at the first so many; 0 means all.

    Raises:
        InputError: prune.samples, without any.
    """
    places = sorted({(name, axis) for name, axis, labels, _ in channels.trace.reads if name and len(labels)})
    inputs = {spec.name for spec in channels.model.inputs}
    total: dict[tuple[str, int], NDArray[np.float64]] = {}
    count: dict[tuple[str, int], int] = {}
    session = context.compile(_handing_out(channels, [name for name, _ in places if name not in inputs]))
    number = 0
    try:
        for feeds in islice(context.feeds() if context.feeds is not None else (), samples or None):
            number += 1
            got = {**feeds, **session.run(feeds)}
            for name, axis in places:
                x = np.moveaxis(np.asarray(got[name], np.float64), axis, 0)
                x = x.reshape(len(x), -1)
                total[name, axis] = total.get((name, axis), 0.0) + np.square(x).sum(axis=1)
                count[name, axis] = count.get((name, axis), 0) + x.shape[1]
            context.progress(f"looking at channels, sample {number}", number / max(number, samples or context.samples))
    finally:
        session.close()
    if not number:
        raise InputError("prune.samples", channels.model.name, "got 0 samples; expected at least 1", "give a data set")
    return {place: sums / count[place] for place, sums in total.items()}


def _handing_out(channels: Channels, names: list[str]) -> Model:
    """The traced graph with further outputs."""
    graph = channels.graph.clone()
    have = {v.name for v in graph.graph.outputs}
    values = {v.name: v for node in graph.graph for v in node.outputs}
    graph.graph.outputs.extend([values[n] for n in dict.fromkeys(names) if n in values and n not in have])
    specs = tuple(TensorSpec(v.name or "", "float32", None) for v in graph.graph.outputs)
    return Model(f"{channels.model.name}-observed", channels.model.digest, channels.model.inputs, specs, graph)


def _over_weights(channels: Channels, role: str, each: Change, whole: Change) -> Scores:
    """Mean over weights of ``whole(Σ each(w))`` over a unit's share of each."""
    total, count = np.zeros(channels.units), np.zeros(channels.units)
    for weight in channels.trace.weights.values():
        for axis, labels in weight.labels.items():
            if weight.roles[axis] != role:
                continue
            units = channels.of(labels)
            sums = _per_index(weight, axis, each)
            free = units != FIXED
            if not free.any():
                continue
            got = np.asarray(np.bincount(units[free], sums[free], channels.units), np.float64)
            has = np.bincount(units[free], minlength=channels.units) > 0
            total += np.where(has, whole(got), 0.0)
            count += has
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(count > 0, count, np.nan))


def _per_index(weight: Weight, axis: int, each: Change) -> NDArray[np.float64]:
    array = weight.array()
    if array.strides and not any(array.strides):  # one number all over: no need to look at each
        n = array.size // array.shape[axis]
        return np.full(array.shape[axis], float(each(array.reshape(-1)[:1].astype(np.float64))[0]) * n)
    moved = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return np.asarray([each(row.astype(np.float64)).sum() for row in moved])


def _activation(channels: Channels, seen: Seen, *, weighted: bool) -> Scores:
    total, count = np.zeros(channels.units), np.zeros(channels.units)
    for name, axis, labels, node in channels.trace.reads:
        squares = seen.get((name, axis))
        if squares is None or len(squares) != len(labels):
            continue
        units = channels.of(labels)
        free = units != FIXED
        if weighted:
            squares = np.asarray(squares * _reading(channels, node, len(labels)), np.float64)
        got = np.bincount(units[free], squares[free], channels.units)
        has = np.bincount(units[free], minlength=channels.units)
        total += np.sqrt(got / np.maximum(has, 1))
        count += has > 0
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(count > 0, count, np.nan))


def _reading(channels: Channels, node: ir.Node, size: int) -> NDArray[np.float64]:
    """Square of the weights that read each channel, [size]."""
    for weight in channels.trace.weights.values():
        if (node, 1) not in weight.uses:
            continue
        axis = next((a for a in weight.labels if weight.roles[a] == "in"), None)
        if axis is None:  # grouped: each output channel reads its own group
            out = _per_index(weight, 0, np.square)
            return (
                out
                if len(out) == size
                else out.reshape(min(len(out), size), -1).mean(axis=1).repeat(max(1, size // len(out)))
            )
        sums = _per_index(weight, axis, np.square)
        return sums if len(sums) == size else np.tile(sums, size // len(sums))
    return np.ones(size)


def _taylor(channels: Channels, gradients: Mapping[str, NDArray[np.floating[Any]]]) -> Scores:
    total, known = np.zeros(channels.units), np.zeros(channels.units, bool)
    for weight in channels.trace.weights.values():
        gradient = gradients.get(weight.value.name or "")
        for axis, labels in weight.labels.items():
            units = channels.of(labels)
            free = units != FIXED
            if weight.roles[axis] in ("in", "data") or not free.any():
                continue
            if gradient is None:
                if weight.roles[axis] == "out":
                    raise InputError(
                        "prune.gradients", str(weight.value.name), "has no gradient", "give one for every weight"
                    )
                continue
            if gradient.shape != weight.shape:
                problem = f"has the shape {list(weight.shape)}; its gradient has {list(gradient.shape)}"
                raise InputError(
                    "prune.gradients", str(weight.value.name), problem, "give gradients shaped like weights"
                )
            product = np.asarray(weight.array(), np.float64) * gradient
            each = np.moveaxis(product, axis, 0).reshape(len(labels), -1).sum(axis=1)
            total += np.bincount(units[free], each[free], channels.units)
            known[units[free]] = True
    return np.where(known, np.square(total), np.nan)


def _scaled(groups: tuple[Group, ...], found: Scores, scale: str) -> Scores:
    out = found.copy()
    for group in groups:
        held = found[group.units]
        if np.isnan(held).all():
            continue
        by = float(np.nanmean(held) if scale == "mean" else np.nanmax(held))
        out[group.units] = held / by if by > 0 else held
    return out
