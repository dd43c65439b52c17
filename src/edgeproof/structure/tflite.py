"""TensorFlow Lite (LiteRT) flatbuffers: tensors, buffers, operators, quantisation.

Source: the TFLite schema, version 3; field numbers are those of its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digest import digest_bytes
from ..errors import InputError
from ..model import TensorSpec
from . import Assessment, Structure, Weight, part, weight_digest
from ._arrays import FINITE, bytes_needed, check_finite, check_scales, numbers, quantised
from ._flatbuffer import Buffer, Table
from ._tflite_names import BUILTIN

_TYPES = (
    "float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
    "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_CUSTOM = 32


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a subgraph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    data: memoryview | None
    sparse: bool
    scale: NDArray[Any] | None
    zero_point: NDArray[Any]
    axis: int | None


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: structure.truncated, structure.count, structure.malformed.
    """
    model, buffers = _open(path)
    assessed = Assessment()
    weights, quantisation, operators = [], [], Counter[str]()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    names = _operator_names(model, str(path))
    unread = 0
    for index, graph in enumerate(model.tables(2)):
        tensors = [_tensor(t, buffers, str(path)) for t in graph.tables(0)]
        if index == 0:
            inputs = _interface(graph, 1, tensors, str(path))
            outputs = _interface(graph, 2, tensors, str(path))
        operators += _operators(graph, names, str(path), assessed)
        for t in _named(tensors, index):
            if t.scale is not None and t.scale.size:
                check_scales(assessed, t.name, t.scale)
                quantisation.append(quantised(t.name, t.dtype, t.axis, t.scale, t.zero_point))
            if t.data is None:
                continue
            weights.append(Weight(t.name, t.dtype, t.shape, weight_digest(t.dtype, t.shape, t.data)))
            array = None if t.sparse else numbers(t.dtype, t.shape, t.data) if t.dtype != "string" else None
            unread += array is None and t.dtype not in ("string",)
            check_finite(assessed, t.name, array)
    part_state = ("partial", f"{unread} sparse or unreadable tensors") if unread else ("assessed", "")
    assessed.check("operators", "Every operator is a builtin of TFLite's own.")
    assessed.check("finite_weights", FINITE, *part_state)  # type: ignore[arg-type]
    assessed.check("quantisation", "Every scale is positive and finite.")
    assessed.check("weight_digests", "Every tensor has a digest.", "assessed", f"{len(weights):,} tensors digested")
    file = part(path, path.parent)
    facts: dict[str, str | int | float] = {"schema_version": int(model.number(0, "I")), "subgraphs": index + 1}
    if model.text(3):
        facts["description"] = model.text(3)[:200]
    return Structure(
        "tflite", path.stem, file.digest, (file,), inputs, outputs, dict(operators.most_common()), tuple(weights),
        tuple(quantisation), assessed.sorted(), tuple(assessed.checks), facts, _skeleton(model),
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """Real values of stored tensors: codes are read back through their scales."""
    model, buffers = _open(path)
    wanted, found = set(names), {}
    for index, graph in enumerate(model.tables(2)):
        tensors = [_tensor(t, buffers, str(path)) for t in graph.tables(0)]
        for t in _named(tensors, index):
            if t.name not in wanted or t.data is None or t.sparse or t.dtype == "string":
                continue
            array = numbers(t.dtype, t.shape, t.data)
            if array is not None:
                found[t.name] = _real(t, array)
    return found


def _open(path: Path) -> tuple[Table, list[memoryview | None]]:
    data = memoryview(path.read_bytes())
    model = Buffer(data, str(path)).root()
    buffers: list[memoryview | None] = []
    for b in model.tables(4):
        raw, offset, size = b.raw(0), b.number(1, "Q"), b.number(2, "Q")
        if offset > 1:  # beyond the flatbuffer, in the same file; 0 and 1 stand for "not used"
            b.buffer.check(offset, size)
            raw = data[offset : offset + size]
        buffers.append(raw if raw is not None and len(raw) else None)
    if not any(True for _ in model.tables(2)):
        raise _malformed(str(path), "has no subgraph")
    return model, buffers


def _skeleton(model: Table) -> str:
    """Digest of the file without its tensors' bytes, scales and zero points.

    Settings of operators are tables of many schemas, so what is equal byte by byte is equal, and what is not may still
    be: another writer, or the same one on another day, may have put things elsewhere.
    """
    data = bytearray(model.buffer.data)
    spans: list[tuple[int, int]] = []
    for b in model.tables(4):
        beyond = (b.number(1, "Q"), b.number(2, "Q"))
        spans += [b.span(0), beyond] if beyond[0] > 1 else [b.span(0)]
    for graph in model.tables(2):
        for q in filter(None, (t.table(4) for t in graph.tables(0))):
            spans += [q.span(0, 4), q.span(1, 4), q.span(2, 4), q.span(3, 8)]
    for start, size in spans:
        data[start : start + size] = bytes(size)
    return digest_bytes(bytes(data))


def _malformed(subject: str, problem: str) -> InputError:
    return InputError("structure.malformed", subject, problem, "convert the model again")


def _operator_names(model: Table, subject: str) -> list[str]:
    names = []
    for code in model.tables(1):
        builtin = max(code.number(0, "b"), code.number(3, "i"))
        if builtin < 0:
            raise _malformed(subject, f"has the operator code {builtin}")
        known = BUILTIN[builtin] if builtin < len(BUILTIN) else f"BUILTIN_{builtin}"
        names.append(f"custom.{code.text(1) or '?'}" if builtin == _CUSTOM else known)
    return names


def _operators(graph: Table, names: list[str], subject: str, assessed: Assessment) -> Counter[str]:
    found: Counter[str] = Counter()
    for operator in graph.tables(3):
        index = operator.number(0, "I")
        if index >= len(names):
            raise _malformed(subject, f"uses operator code {index} of {len(names)}")
        found[names[index]] += 1
    for name, count in found.items():
        if name.startswith("custom."):
            problem = f"used {count}×; only a runtime that was given this operator runs it"
            assessed.found("caution", "operators", name, problem, "convert with builtin operators only")
        elif name.startswith("BUILTIN_"):
            problem = f"used {count}×; no operator of this number is known here"
            assessed.found("gap", "operators", name, problem, "check that the runtime on the device knows it")
    return found


def _tensor(t: Table, buffers: list[memoryview | None], subject: str) -> _Stored:
    name, code, index = t.text(3), t.number(1, "b"), t.number(2, "I")
    if not 0 <= code < len(_TYPES):
        raise _malformed(f"{subject}: tensor {name!r}", f"has the element type {code}")
    dtype = _TYPES[code]
    dims, signed = t.vector(0, "<i4"), t.vector(7, "<i4")
    shape = () if dims is None else tuple(map(int, dims))
    signature = shape if signed is None or len(signed) != len(shape) else tuple(map(int, signed))
    if index >= len(buffers):
        raise _malformed(f"{subject}: tensor {name!r}", f"keeps its data in buffer {index} of {len(buffers)}")
    data, sparse = buffers[index] if index else None, t.table(6) is not None
    if data is not None and not sparse:
        need = bytes_needed(dtype, shape)
        if min(shape, default=0) < 0 or (need is not None and need != len(data)):
            problem = f"holds {len(data):,} bytes; {dtype}{list(shape)} needs {need or 0:,}"
            raise _malformed(f"{subject}: tensor {name!r}", problem)
    scale, zero, axis = _scales(t.table(4))
    return _Stored(name, dtype, shape, signature, data, sparse, scale, zero, axis)


def _scales(q: Table | None) -> tuple[NDArray[Any] | None, NDArray[Any], int | None]:
    none = np.zeros(0, np.int64)
    if q is None:
        return None, none, None
    scale, zero = q.vector(2, "<f4"), q.vector(3, "<i8")
    if scale is None or not scale.size:
        return None, none, None
    axis = int(q.number(6, "i")) if scale.size > 1 else None
    return scale, none if zero is None else zero, axis


def _interface(graph: Table, field: int, tensors: list[_Stored], subject: str) -> tuple[TensorSpec, ...]:
    indices = graph.vector(field, "<i4")
    specs = []
    for i in () if indices is None else map(int, indices):
        if not 0 <= i < len(tensors):
            raise _malformed(subject, f"names tensor {i} of {len(tensors)} as an input or output")
        t = tensors[i]
        specs.append(TensorSpec(t.name, t.dtype, tuple(d if d >= 0 else "?" for d in t.signature)))
    return tuple(specs)


def _named(tensors: list[_Stored], graph: int) -> Iterator[_Stored]:
    """Tensors under names that are unique in the file: the graph's number in front, a count behind, where needed."""
    from dataclasses import replace

    seen: Counter[str] = Counter()
    for t in tensors:
        name = f"{graph}/{t.name}" if graph else t.name
        seen[name] += 1
        yield replace(t, name=name if seen[name] == 1 else f"{name}#{seen[name]}")


def _real(t: _Stored, array: NDArray[Any]) -> NDArray[np.float32]:
    codes: NDArray[np.float64] = array.astype(np.float64)
    if t.scale is not None:
        zero = t.zero_point if t.zero_point.size else np.zeros(1, np.int64)
        spread = [-1 if i == t.axis else 1 for i in range(array.ndim)]
        if t.axis is None or not 0 <= t.axis < array.ndim:
            codes = (codes - zero[0]) * t.scale[0]
        else:
            codes = (codes - (zero.reshape(spread) if zero.size > 1 else zero[0])) * t.scale.reshape(spread)
    real: NDArray[np.float32] = codes.astype(np.float32)
    return real
