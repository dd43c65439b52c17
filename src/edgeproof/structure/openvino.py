"""OpenVINO IR: an XML file that names layers and edges, and a .bin beside it with the constants.

Source: OpenVINO's description of the IR format, versions 10 and 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digest import digest_json
from ..errors import InputError
from ..model import TensorSpec
from ..onnxfile import contained
from . import Assessment, Quantisation, Structure, Weight, part, weight_digest
from ._arrays import FINITE, bytes_needed, check_finite, numbers, quantised
from ._xml import Element, parse

_TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4", "u2": "uint2", "u1": "uint1",
    "boolean": "bool", "string": "string",
}  # fmt: skip
_PORTS = {
    "FP64": "float64", "FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "STRING": "string",
}  # fmt: skip
_SETTINGS_OF_CONSTANTS = ("offset", "size")
"""Where a constant's bytes lie says nothing about the graph."""


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant of the main graph or a body."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: structure.xml_*, structure.malformed, structure.truncated, model.external_missing.
        TrustError: model.external_data, when the .bin is a link.
    """
    net, data, files = _open(path)
    assessed = Assessment()
    constants = {id(layer): c for layer, c in _constants(net, data, path)}
    weights = []
    unread = 0
    for c in constants.values():
        weights.append(Weight(c.name, c.dtype, c.shape, weight_digest(c.dtype, c.shape, c.data)))
        array = None if c.dtype == "string" else numbers(c.dtype, c.shape, c.data)
        unread += array is None and c.dtype != "string"
        check_finite(assessed, c.name, array)
    operators = Counter(_operator(layer) for layer in _layers(net))
    quantisation = _fake_quantised(net, constants, assessed)
    partial = f"{unread} tensors of types that cannot be computed with here" if unread else ""
    assessed.check("finite_weights", FINITE, "partial" if partial else "assessed", partial)
    assessed.check("quantisation", "Every range of a FakeQuantize has its lower end below its upper.")
    assessed.check("weight_digests", "Every tensor has a digest.", "assessed", f"{len(weights):,} tensors digested")
    digest = digest_json({p.name.rpartition(".")[2]: p.digest for p in files})
    return Structure(
        "openvino", path.stem, digest, files, _inputs(net), _outputs(net), dict(operators.most_common()),
        tuple(weights), quantisation, assessed.sorted(), tuple(assessed.checks), _facts(net), _topology(net),
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """Stored values; codes of compressed weights are not read back, since their scales are operators of the graph."""
    net, data, _ = _open(path)
    wanted, found = set(names), {}
    for _, c in _constants(net, data, path):
        if c.name in wanted and c.dtype != "string":
            array = numbers(c.dtype, c.shape, c.data)
            if array is not None:
                found[c.name] = array.astype(np.float32)
    return found


def _open(path: Path) -> tuple[Element, memoryview, tuple[Any, ...]]:
    net = parse(path.read_bytes(), str(path))
    if net.tag != "net" or not any(True for _ in net.one("layers").all("layer")):
        raise _malformed(str(path), f"holds <{net.tag}>; expected a <net> with layers")
    weights = path.with_suffix(".bin")
    needed = any(layer.get("type") == "Const" for layer in _layers(net))
    if not needed and not weights.exists():
        return net, memoryview(b""), (part(path, path.parent),)
    contained(path, weights.name, f"{path}: constants")
    return net, memoryview(weights.read_bytes()), (part(path, path.parent), part(weights, path.parent))


def _malformed(subject: str, problem: str) -> InputError:
    return InputError("structure.malformed", subject, problem, "convert the model again")


def _layers(net: Element) -> Iterator[Element]:
    """Every layer, those of bodies (loops, branches) included, outer first."""
    todo = [net]
    while todo:
        element = todo.pop(0)
        for layer in element.one("layers").all("layer"):
            yield layer
            todo += [c for c in layer.children if c.one("layers").children]


def _operator(layer: Element) -> str:
    version = layer.get("version")
    known = version.startswith("opset") or version in ("", "extension")
    return layer.get("type") if known and version != "extension" else f"{version}.{layer.get('type')}"


def _constants(net: Element, data: memoryview, path: Path) -> Iterator[tuple[Element, _Constant]]:
    seen: Counter[str] = Counter()
    for layer in _layers(net):
        if layer.get("type") != "Const":
            continue
        name, settings = layer.get("name"), layer.one("data")
        subject = f"{path}: constant {name!r}"
        dtype = _TYPES.get(settings.get("element_type"), settings.get("element_type"))
        shape = tuple(_whole(d, subject) for d in settings.get("shape").split(",") if d.strip())
        offset, size = _whole(settings.get("offset"), subject), _whole(settings.get("size"), subject)
        if offset + size > len(data):
            raise InputError(
                "structure.truncated",
                subject,
                f"reads {size:,} bytes at {offset:,} of the .bin, which has {len(data):,}",
                "the files do not belong together or are truncated; convert the model again",
            )
        need = bytes_needed(dtype, shape)
        if need is not None and need != size:
            raise _malformed(subject, f"holds {size:,} bytes; {dtype}{list(shape)} needs {need:,}")
        seen[name] += 1
        unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
        yield layer, _Constant(unique, dtype, shape, data[offset : offset + size])


def _whole(text: str, subject: str) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise _malformed(subject, f"has {text[:40]!r} where a whole number is needed")
    return int(text)


def _dims(text: str) -> tuple[int | str, ...]:
    parts = [d.strip() for d in text.split(",") if d.strip()]
    return tuple(int(d) if d.isascii() and d.isdigit() and len(d) < 19 else "?" for d in parts)


def _inputs(net: Element) -> tuple[TensorSpec, ...]:
    specs = []
    for layer in net.one("layers").all("layer"):
        if layer.get("type") in ("Parameter", "Input"):
            settings, port = layer.one("data"), layer.one("output").one("port")
            dtype = _TYPES.get(settings.get("element_type"), "unknown")
            name = _first(port.get("names")) or layer.get("name")
            shape = None if settings.get("shape") == "..." else _dims(settings.get("shape"))
            specs.append(TensorSpec(name, dtype, shape))
    return tuple(specs)


def _first(names: str) -> str:
    return names.split(",")[0]


def _outputs(net: Element) -> tuple[TensorSpec, ...]:
    by_id = {layer.get("id"): layer for layer in net.one("layers").all("layer")}
    makers = {e.get("to-layer"): e for e in net.one("edges").all("edge")}
    specs = []
    for layer in by_id.values():
        if layer.get("type") != "Result":
            continue
        edge = makers.get(layer.get("id"), Element("edge", {}))
        maker = by_id.get(edge.get("from-layer"), Element("layer", {}))
        ports = maker.one("output").all("port")
        port = next((p for p in ports if p.get("id") == edge.get("from-port")), Element("port", {}))
        name = _first(layer.get("output_names") or port.get("names")) or layer.get("name")
        shape = tuple(_port_dim(d) for d in layer.one("input").one("port").all("dim"))
        specs.append(TensorSpec(name, _PORTS.get(port.get("precision"), "unknown"), shape))
    return tuple(specs)


def _port_dim(dim: Element) -> int | str:
    text = dim.text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else "?"


def _topology(net: Element) -> str:
    """Layers with their settings and edges, without the constants' places."""
    layers = [
        [
            layer.get("name"), layer.get("type"), layer.get("version"),
            {k: v for k, v in layer.one("data").attributes.items() if k not in _SETTINGS_OF_CONSTANTS},
        ]
        for layer in _layers(net)
    ]  # fmt: skip
    edges = [sorted(e.attributes.items()) for e in net.one("edges").all("edge")]
    return digest_json({"layers": layers, "edges": edges})


def _facts(net: Element) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float] = {"ir_version": net.get("version")}
    for info in net.one("rt_info").all("info"):
        if info.get("name") == "OpenVINO Runtime":
            facts["producer"] = f"OpenVINO {info.get('value')}"[:200]
    return facts


def _fake_quantised(net: Element, constants: dict[int, _Constant], assessed: Assessment) -> tuple[Quantisation, ...]:
    """FakeQuantize layers of the main graph whose four ends are constants."""
    by_id = {layer.get("id"): layer for layer in net.one("layers").all("layer")}
    reads = {(e.get("to-layer"), e.get("to-port")): e.get("from-layer") for e in net.one("edges").all("edge")}
    found = []
    for key, layer in by_id.items():
        if layer.get("type") != "FakeQuantize":
            continue
        ends = [_real(constants.get(id(by_id.get(reads.get((key, str(p)), ""))))) for p in (1, 2, 3, 4)]
        name = layer.get("name")
        if any(e is None for e in ends):
            problem = "has a range that is computed, so its ends are unknown here"
            assessed.found("gap", "quantisation", name, problem, "fold constants before converting")
            continue
        low, high, *out = (e for e in ends if e is not None)
        bad = int((low >= high).sum()) if low.shape == high.shape else 0
        if bad:
            assessed.found("defect", "quantisation", name, f"{bad} of {low.size} ranges are empty", "quantise it again")
        levels = max(_whole(layer.one("data").get("levels") or "256", f"FakeQuantize {name!r}"), 2)
        both = np.concatenate([e.reshape(-1) for e in (low, high, *out)])
        with np.errstate(over="ignore"):
            steps = (high - low) / (levels - 1) if low.shape == high.shape else high
        step = (float(steps.min()), float(steps.max())) if np.isfinite(steps).all() else (0.0, 0.0)
        q = quantised(name, f"levels{levels}", None, both, np.zeros(0, np.int64))
        found.append(Quantisation(name, q.dtype, None, int(steps.size), *step, q.digest))
    return tuple(found)


def _real(c: _Constant | None) -> NDArray[Any] | None:
    if c is None or c.dtype == "string":
        return None
    array = numbers(c.dtype, c.shape, c.data)
    return None if array is None or not array.size or not np.isfinite(array).all() else array.astype(np.float64)
