"""Arrays in requests and answers: npz, or JSON lists. A size that strangers' bytes claim is checked first."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import strictjson
from ..errors import InputError

LIMIT_BYTES = 64 << 20
"""Largest request, and most bytes of all its arrays."""
_DTYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(uint16)": "uint16",
    "tensor(int32)": "int32",
    "tensor(uint32)": "uint32",
    "tensor(int64)": "int64",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}
"""ONNX Runtime's names of types → numpy's."""


def from_npz(data: bytes, limit: int = LIMIT_BYTES) -> dict[str, NDArray[Any]]:
    """Arrays of an npz file, without anything that could name code.

    Raises:
        InputError: serve.npz.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if sum(i.file_size for i in infos) > limit or len(infos) > 256:
                raise _no_npz(f"holds more than {limit} bytes or 256 arrays")
            for info in infos:
                with archive.open(info) as f:
                    arrays[info.filename.removesuffix(".npy")] = _npy(f.read(limit + 1))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as e:
        raise _no_npz(f"cannot be read: {e}") from e
    return arrays


def to_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as an npz file, not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getvalue())
    return out.getvalue()


def from_json(data: bytes, inputs: Any) -> dict[str, NDArray[Any]]:
    """Arrays of ``{"inputs": {name: nested lists}}``, in the types that the model takes.

    Args:
        data: The text.
        inputs: What the model says of its inputs: ``name`` and ``type`` of each.

    Raises:
        InputError: json.*, serve.json.
    """
    value = strictjson.loads(data, "request", limit_bytes=LIMIT_BYTES)
    value = strictjson.keys(value, ("inputs",), (), "request")["inputs"]
    if not isinstance(value, dict):
        raise InputError("serve.json", "inputs", f"is a {type(value).__name__}", "give an object of name: lists")
    types = {entry["name"]: _DTYPES.get(entry["type"], "") for entry in inputs}
    arrays: dict[str, NDArray[Any]] = {}
    for name, lists in value.items():
        if not types.get(name):
            raise InputError("serve.json", name, "is no input of numbers", f"known: {', '.join(sorted(types))}")
        try:
            with np.errstate(
                over="ignore"
            ):  # what is too large becomes infinite, which is refused where all inputs are
                arrays[name] = np.asarray(lists, types[name])
        except (ValueError, TypeError, OverflowError) as e:
            raise InputError("serve.json", name, f"is no {types[name]} array: {e}", "give nested lists") from e
    return arrays


def to_json(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Arrays as nested lists; what is not finite has no number in JSON and becomes null."""
    return {name: _finite(np.asarray(array).tolist()) for name, array in arrays.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _npy(data: bytes) -> NDArray[Any]:
    """One array; its header is held against the bytes that are there before memory is taken for it.

    Source: NEP 1, the npy format, versions 1.0 and 2.0.
    """
    f = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(f)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(f)
    except (ValueError, KeyError, EOFError) as e:
        raise _no_npz(f"has a member that is no array: {e}") from e
    count, left = math.prod(shape), len(data) - f.tell()
    if dtype.hasobject or dtype.kind not in "biuf" or count * dtype.itemsize != left:
        raise _no_npz(f"has an array of {dtype} {shape} in {left} bytes")
    return np.frombuffer(data, dtype, count, f.tell()).reshape(shape, order="F" if fortran else "C")


def _no_npz(problem: str) -> InputError:
    return InputError("serve.npz", "request", problem, "write it with numpy.savez, numbers and booleans only")
