"""Single weights that become zero: the smallest of the model or of each layer, or two of every four.

A mask is True where a weight stays. Masks are data: who trains multiplies by them after every step.

Two of four: along the input channels of every output channel and kernel position, each four neighbours hold two zeros.
Source: NVIDIA TensorRT developer guide, structured sparsity: for weights [K, C, R, S] with C divisible by 4, among
``weights[k, 4 c : 4 c + 4, r, s]`` at most two are non-zero; a matrix product's rows likewise along what it sums over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from ..graph.rewrite import array, label
from ..model import Model, attribute
from .channels import excluded

if TYPE_CHECKING:
    import onnx_ir as ir

Pattern = Literal["global", "layer", "2:4"]
PATTERNS: tuple[Pattern, ...] = ("global", "layer", "2:4")
FOUR = 4
Masks = dict[str, NDArray[np.bool_]]
"""Weight name → bool, shaped like the weight; True stays."""


def masks(
    model: Model, pattern: str = "global", sparsity: float = 0.5, *, exclude: tuple[str, ...] = ()
) -> tuple[Masks, tuple[tuple[str, str], ...]]:
    """Which weights stay.

    Args:
        model: The model.
        pattern: ``global`` zeroes the smallest of all layers together; ``layer`` the same share of each; ``2:4`` the
            two smallest of every four neighbours along the input channels.
        sparsity: Share of zeros, 0 to 1; with ``2:4`` it is one half.
        exclude: Layers left alone: node names, operators or patterns with ``*`` and ``?``.

    Returns:
        The masks, and (layer, why) for those without.

    Raises:
        InputError: prune.pattern, prune.sparsity, prune.exclude.
    """
    if pattern not in PATTERNS:
        raise InputError("prune.pattern", pattern, "is unknown", did_you_mean(pattern, PATTERNS))
    if not 0 <= sparsity < 1:
        raise InputError(
            "prune.sparsity", "sparsity", f"is {sparsity}; expected 0 to below 1", "0.5 zeroes every other"
        )
    found: dict[str, NDArray[Any]] = {}
    axes: dict[str, int] = {}
    declined: list[tuple[str, str]] = []
    whole = {node: f"excluded by {text!r}" for text in exclude for node in excluded(model.graph.graph, text)}
    for node in model.graph.graph:
        weight, why = _weight(node)
        if weight is not None and node in whole:
            weight, why = None, whole[node]
        if weight is None:
            declined += [(label(node), why)] if why else []
            continue
        name, held = weight
        axis = _input_axis(node, held)
        if pattern == "2:4" and held.shape[axis] % FOUR:
            declined.append((label(node), f"reads {held.shape[axis]} channels a group, no multiple of four"))
        elif axes.setdefault(name, axis) != axis:
            declined.append((label(node), f"shares {name!r} with a layer that reads it the other way round"))
        else:
            found[name] = held
    if pattern == "2:4":
        return {name: two_of_four(held, axes[name]) for name, held in found.items()}, tuple(declined)
    if pattern == "layer":
        return {name: _largest([held], sparsity)[0] for name, held in found.items()}, tuple(declined)
    return dict(zip(found, _largest(list(found.values()), sparsity), strict=True)), tuple(declined)


def two_of_four(weight: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """The two largest of every four neighbours; of equal ones the first.

    Args:
        weight: Any shape, ``axis`` a multiple of 4.
        axis: The axis of input channels.

    Returns:
        bool, shaped like the weight.

    >>> two_of_four(np.array([[1.0, -3.0, 2.0, 0.5]]), 1)
    array([[False,  True,  True, False]])
    """
    size = np.abs(np.moveaxis(weight, axis, -1))
    fours = size.reshape(*size.shape[:-1], -1, FOUR)
    order = np.argsort(-fours, axis=-1, kind="stable")
    stays = np.zeros(fours.shape, bool)
    np.put_along_axis(stays, order[..., :2], True, axis=-1)
    return np.moveaxis(stays.reshape(size.shape), -1, axis)


def is_two_of_four(weight: NDArray[Any], axis: int) -> bool:
    """Whether every four neighbours along an axis hold at least two zeros."""
    if weight.shape[axis] % FOUR:
        return False
    last = np.moveaxis(weight, axis, -1)
    return bool((np.count_nonzero(last.reshape(*last.shape[:-1], -1, FOUR), axis=-1) <= 2).all())


def zeroed(model: Model, stays: Mapping[str, NDArray[np.bool_]]) -> Model:
    """The model with every weight zero where its mask is False.

    Raises:
        InputError: prune.mask, for a mask that fits no weight.
    """
    from ..model import tensors

    names = {name for name, _ in tensors(model.graph)}
    unknown = sorted(set(stays) - names)
    if unknown:
        raise InputError("prune.mask", unknown[0], "is no weight of the model", did_you_mean(unknown[0], names))
    graph = model.graph.clone()
    for value in [*graph.graph.initializers.values(), *(v for n in graph.graph for v in n.outputs)]:
        mask = stays.get(value.name or "")
        if mask is not None:
            _set(value, mask)
    return Model.of(graph, model.name)


def _set(value: ir.Value, mask: NDArray[np.bool_]) -> None:
    import onnx_ir as ir

    held = array(value)
    if held is None or held.shape != mask.shape:
        problem = f"has the shape {None if held is None else list(held.shape)}; its mask has {list(mask.shape)}"
        raise InputError("prune.mask", value.name or "", problem, "make masks of this very model")
    made = ir.Tensor(np.where(mask, held, held.dtype.type(0)), dtype=value.dtype, name=value.name)
    producer = value.producer()
    if producer is None:
        value.const_value = made
    else:
        producer.attributes.clear()
        producer.attributes["value"] = ir.AttrTensor("value", made)


def _weight(node: ir.Node) -> tuple[tuple[str, NDArray[Any]] | None, str]:
    """Name and array of a layer's weight, or why it has none; no reason for what is no layer."""
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx"):
        return None, ""
    held = array(node.inputs[1])
    value = node.inputs[1]
    if held is None or value is None or held.ndim < 2:
        return None, "" if node.op_type == "MatMul" else "its weight is computed"
    if held.dtype.kind != "f":
        return None, f"its weight is {held.dtype.name}; expected floats"
    return (value.name or "", held), ""


def _input_axis(node: ir.Node, held: NDArray[Any]) -> int:
    """The axis of a weight that a layer sums over (within a group)."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    if node.op_type == "Gemm":
        return 1 if attribute(node, "transB", 0) else 0
    return held.ndim - 2


def _largest(weights: list[NDArray[Any]], sparsity: float) -> list[NDArray[np.bool_]]:
    """True for all but the smallest share of some arrays together; of equal ones the last become zero first."""
    total = sum(w.size for w in weights)
    count = round(sparsity * total)
    if not count:
        return [np.ones(w.shape, bool) for w in weights]
    size = np.concatenate([np.abs(w).reshape(-1) for w in weights])
    cut = np.partition(size, count - 1)[count - 1]
    stays = size > cut
    equal = np.nonzero(size == cut)[0]
    stays[equal[: len(equal) - (count - int((size < cut).sum()))]] = True
    at = np.cumsum([0, *(w.size for w in weights)])
    return [stays[at[i] : at[i + 1]].reshape(w.shape) for i, w in enumerate(weights)]
