"""MIL's operators for codes and for compressed weights: quantised, in blocks, from tables, sparse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._mil_arguments import Arguments, Operator, along, get, ints


def _quantize(torch: Any, a: Arguments) -> Any:
    x, axis = a["input"], int(get(a, "axis", 0))
    scale = along(torch, a["scale"], x.dim(), axis)
    zero = along(torch, get(a, "zero_point", 0), x.dim(), axis)
    low, high = (-128, 127) if str(a["output_dtype"]) == "int8" else (0, 255)
    return torch.clamp(torch.round(x / scale) + zero, low, high)


def _dequantize(torch: Any, a: Arguments) -> Any:
    codes = a.get("input", a.get("quantized_data"))
    assert codes is not None
    axis = int(get(a, "axis", 0))
    zero = along(torch, get(a, "zero_point", 0), codes.dim(), axis)
    return (codes - zero).to(torch.float32) * along(torch, a["scale"], codes.dim(), axis)


def _blocks(torch: Any, value: Any, shape: list[int]) -> Any:
    """A tensor with one entry per block, spread over the blocks."""
    for axis, size in enumerate(shape):
        value = torch.repeat_interleave(value, size // value.shape[axis], dim=axis)
    return value


def _blockwise(torch: Any, a: Arguments) -> Any:
    data, shape = a["data"], list(a["data"].shape)
    offset = _blocks(torch, a["offset"], shape) if a.get("offset") is not None else 0
    return (data - offset) * _blocks(torch, a["scale"], shape)


def _sparse_blockwise(torch: Any, a: Arguments) -> Any:
    mask = a["data_mask"].to(torch.bool)
    shape = list(mask.shape)
    offset = _blocks(torch, a["offset"], shape)[mask] if a.get("offset") is not None else 0
    return a["data_mask"], (a["nonzero_data"] - offset) * _blocks(torch, a["scale"], shape)[mask]


def _bits(torch: Any, data: Any, width: int, count: int) -> Any:
    """Numbers of ``width`` bits, packed from the least significant bit of every byte on."""
    octets = np.unpackbits(data.numpy().astype(np.uint8), bitorder="little")[: width * count].reshape(count, width)
    return torch.from_numpy((octets.astype(np.int64) << np.arange(width)).sum(1))


def _lut(torch: Any, a: Arguments) -> Any:
    indices, lut = a["indices"], a["lut"]
    if a.get("shape") is not None:  # iOS16: packed, one table
        shape = ints(a["shape"])
        return lut[_bits(torch, indices, int(np.log2(lut.numel())), int(np.prod(shape)))].reshape(shape)
    rank = indices.dim()  # iOS18: a table per group; scalars only
    tables = _blocks(torch, lut.squeeze(-1), [*indices.shape, lut.shape[rank]])
    return torch.gather(tables, rank, indices.unsqueeze(-1)).squeeze(-1)


def _sparse(torch: Any, a: Arguments) -> Any:
    if a.get("shape") is not None:  # iOS16: a packed mask
        shape = ints(a["shape"])
        mask = _bits(torch, a["mask"], 1, int(np.prod(shape))).to(torch.bool).reshape(shape)
    else:
        mask = a["mask"].to(torch.bool)
    made = torch.zeros(mask.shape, dtype=a["nonzero_data"].dtype)
    made[mask] = a["nonzero_data"]
    return made


COMPRESSED: Mapping[str, Operator] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "constexpr_affine_dequantize": _dequantize,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_sparse_blockwise_shift_scale": _sparse_blockwise,
    "constexpr_lut_to_dense": _lut,
    "constexpr_sparse_to_dense": _sparse,
    "constexpr_cast": lambda t, a: a["source_val"],
}
"""MIL operator → what it computes."""
