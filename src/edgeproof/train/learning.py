"""What the engines do alike, without any of their packages: what is watched, what may change, what is written back."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..model import Model, attribute, graphs
from ..protocols import Outputs
from ..quant.calibration import observed
from .fit import Training
from .losses import Term
from .quantisers import Held, Points, aligned

if TYPE_CHECKING:
    import onnx_ir as ir

LEAST_SIZE = 1e-3
"""A tensor of zeros, such as a fresh bias, is taken to be of this size."""

LABELS = "labels"
"""Where class indices stand among what is wanted."""


def watched(model: Model, training: Training) -> tuple[Model, tuple[str, ...]]:
    """The model with the tensors of the loss as its outputs, and their names.

    Raises:
        InputError: train.tensor, for a name that the model lacks.
    """
    names = tuple(dict.fromkeys(t.tensor for t in training.terms))
    seen = observed(model, names or tuple(o.name for o in model.outputs), alone=True)
    found = tuple(o.name for o in seen.outputs)
    absent = [t.tensor for t in training.terms if t.tensor not in found]
    if absent:
        raise InputError(
            "train.tensor", absent[0], f"is no tensor of {model.name}", "name an output, or a tensor that both have"
        )
    return seen, found


def wanted_of(term: Term, wanted: Outputs) -> NDArray[Any]:
    """What a part of the loss is held against.

    Raises:
        InputError: train.wanted.
    """
    name = LABELS if term.kind == "cross_entropy" else term.tensor
    if name not in wanted:
        raise InputError(
            "train.wanted", name, f"is not given, and the loss {term.kind} needs it", "give it, or drop the term"
        )
    return np.array(wanted[name])


def trained(name: str, only: tuple[str, ...]) -> bool:
    """Whether a tensor may change."""
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def share(size: float, training: Training, *, scale: bool) -> float:
    """A tensor's rate as a multiple of the training's: its own size, and less for quantisation scales.

    Args:
        size: Its root mean square.
        training: For the rate of scales.
        scale: Whether it is one.
    """
    return size * training.scale_rate if scale else max(size, LEAST_SIZE)


def nothing_trained(training: Training) -> InputError:
    """The error of a training in which nothing may change."""
    return InputError("train.only", ", ".join(training.only), "is no trained tensor", "leave 'only' out to train all")


def written(model: Model, points: Points, table: Mapping[str, NDArray[Any]]) -> Model:
    """A model with trained tensors in the place of the stored ones; codes are rounded from the trained floats.

    Args:
        model: What was trained.
        points: Its quantisers.
        table: Name of a stored tensor → float32 array; for codes, the floats behind them.

    Raises:
        InputError: train.not_finite.
    """
    clone = model.graph.clone()
    for graph in graphs(clone):
        stored = graph.initializers
        for node in graph:
            codes = node.inputs[0] if node.op_type == "DequantizeLinear" else None
            held = points.held.get(codes.name or "") if codes is not None else None
            if codes is None or held is None or held.name not in table:
                continue
            if held.tied:
                pair = [_stored(table, stored, name) for name in held.tied]
                _store(stored[held.scale], pair[0] * pair[1])
            scale = _stored({} if held.tied else table, stored, held.scale)
            zero = node.inputs[2] if len(node.inputs) > 2 else None
            point = None if zero is None else _stored({}, stored, zero.name or "")
            axis, block = int(attribute(node, "axis", 1)), int(attribute(node, "block_size", 0))
            _store(codes, rounded(table[held.name], scale, point, held, axis, block))
        for name, value in stored.items():
            if name in table and name not in points.held:
                _store(value, table[name])
        for node in graph:
            name = node.outputs[0].name or "" if node.outputs else ""
            if node.op_type == "Constant" and name in table and "value" in node.attributes:
                _store_constant(node, table[name])
    return Model.of(clone, model.name)


def rounded(
    x: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None, held: Held, axis: int, block: int = 0
) -> NDArray[Any]:
    """Codes of floats, in floats: divide, round half to even, add the zero point, saturate (QuantizeLinear-21).

    Args:
        x: Floats.
        scale: One, or one per channel along ``axis``, or one per block.
        zero: Likewise, or None for 0.
        held: For the codes that may be used.
        axis: Of the channels.
        block: Values along ``axis`` that share a scale; 0 for one scale per channel.
    """
    # Counts of 32 bits need more digits than float32 has.
    kind = np.float64 if held.high > 1 << 24 else np.float32
    wide = x.astype(kind)
    codes = np.rint(wide / aligned(scale, x, axis, block).astype(kind))
    if zero is not None:
        codes = codes + aligned(zero, x, axis, block).astype(kind)
    clipped: NDArray[Any] = np.clip(codes, held.low, held.high)
    return clipped


def _stored(table: Mapping[str, NDArray[Any]], stored: Mapping[str, Any], name: str) -> NDArray[Any]:
    """A tensor as it was trained, or else as the file has it."""
    if name in table:
        return table[name]
    array: NDArray[Any] = stored[name].const_value.numpy()
    return array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)


def _store(value: Any, array: NDArray[Any]) -> None:
    value.const_value = _tensor(value.name, value.const_value, array)


def _store_constant(node: ir.Node, array: NDArray[Any]) -> None:
    """As `_store`, where a node holds the tensor."""
    import onnx_ir as ir

    made = _tensor(node.outputs[0].name or "", node.attributes["value"].value, array)
    node.attributes["value"] = ir.AttrTensor("value", made)
    node.outputs[0].const_value = made


def _tensor(name: str, old: Any, array: NDArray[Any]) -> ir.TensorProtocol:
    import onnx_ir as ir

    if not np.isfinite(array).all():
        raise InputError(
            "train.not_finite", name, "was trained to NaN or infinity", "use a lower rate, or clip the gradients"
        )
    new = array.reshape(old.numpy().shape).astype(old.numpy().dtype)
    return ir.Tensor(new, dtype=old.dtype, name=old.name)
