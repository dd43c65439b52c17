"""Put what torch has learned back into the ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..model import Model
from .graph import Imported

if TYPE_CHECKING:
    import onnx_ir as ir


def write_back(model: Model, imported: Imported, *, name: str | None = None) -> Model:
    """A new model with the parameters and running statistics of a module.

    Args:
        model: The model that was imported; not changed.
        imported: Its import, trained.
        name: Name of the new model; that of the old one by default.

    Raises:
        InputError: fx.changed_shape, when a parameter no longer has the shape of its tensor; fx.not_stored, when the
            model has no such tensor; fx.not_finite, for NaN or infinite numbers.
    """
    clone = model.graph.clone()
    state = dict(imported.module.state_dict())
    table = {onnx: state[ours] for ours, onnx in (*imported.parameters.items(), *imported.buffers.items())}
    left = _replace(clone, table)
    if left:
        raise InputError(
            "fx.not_stored",
            model.name,
            f"has no stored tensor {sorted(left)[0]!r}",
            "write back into the model that was imported",
        )
    return Model.of(clone, name or model.name)


def _replace(graph: ir.Model, table: Mapping[str, Any]) -> set[str]:
    """Put tensors in the place of those with the same names; returns the names that were not found."""
    import onnx_ir as ir

    from ..model import graphs

    left = set(table)
    for g in graphs(graph):
        for name, value in g.initializers.items():
            if name in table and value.const_value is not None:
                value.const_value = _tensor(name, table[name], value.const_value)
                left.discard(name)
        for node in g:
            name = node.outputs[0].name or "" if node.outputs else ""
            if node.op_type == "Constant" and name in table and "value" in node.attributes:
                old = node.attributes["value"].value
                node.attributes["value"] = ir.AttrTensor("value", _tensor(name, table[name], old))
                left.discard(name)
    return left


def _tensor(name: str, new: Any, old: ir.TensorProtocol) -> ir.TensorProtocol:
    import onnx_ir as ir

    if tuple(new.shape) != tuple(old.shape.numpy()):
        raise InputError(
            "fx.changed_shape",
            name,
            f"has shape {tuple(new.shape)}, expected {tuple(old.shape.numpy())}",
            "write back before the module is changed, or prune the ONNX graph itself",
        )
    if not bool(new.isfinite().all()):
        raise InputError(
            "fx.not_finite", name, "holds NaN or infinite numbers", "train with a lower rate, or clip the gradients"
        )
    new = new.detach().cpu().contiguous()
    if old.dtype.name == "BFLOAT16":
        import ml_dtypes
        import torch

        return ir.Tensor(new.view(torch.int16).numpy().view(ml_dtypes.bfloat16), name=old.name)
    return ir.Tensor(new.numpy().copy(), dtype=old.dtype, name=old.name)
