"""ONNX element types as torch has them, and stored ONNX tensors as torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

TORCH = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "BOOL": "bool",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "INT4": "int8",
    "UINT4": "uint8",
    "INT2": "int8",
    "UINT2": "uint8",
}
"""Name of the ONNX type → name of the torch type that holds it. Two and four bits are held in eight."""


def torch_dtype(torch: Any, number: int, node: str) -> Any:
    """The torch dtype of an ONNX data type.

    Raises:
        UnsupportedError: fx.dtype.
    """
    import onnx_ir as ir

    name = ir.DataType(number).name
    if name not in TORCH:
        raise UnsupportedError(
            "fx.dtype", node, f"uses element type {name.lower()}, which torch does not have", "export with another type"
        )
    return getattr(torch, TORCH[name])


def by_name(torch: Any, name: str) -> Any:
    """The torch dtype of a NumPy dtype name as in `TensorSpec`; None when there is none."""
    name = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}.get(name, name)
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def to_torch(torch: Any, tensor: ir.TensorProtocol, node: str) -> Any:
    """A torch tensor with a copy of the values of a stored tensor.

    Raises:
        UnsupportedError: fx.dtype.
    """
    import numpy as np

    dtype = torch_dtype(torch, int(tensor.dtype), node)
    array = tensor.numpy()
    if tensor.dtype.name.startswith(("INT2", "INT4", "UINT2", "UINT4")):
        array = array.astype(np.uint8 if tensor.dtype.name.startswith("U") else np.int8)
    if tensor.dtype.name.startswith(("BFLOAT16", "FLOAT8")):  # NumPy has them from another package; the bits are equal
        bits = np.uint16 if tensor.dtype.name == "BFLOAT16" else np.uint8
        whole = torch.from_numpy(np.array(array).view(bits))
        return (whole.view(torch.int16) if bits is np.uint16 else whole).view(dtype)
    return torch.from_numpy(np.array(array, order="C"))
