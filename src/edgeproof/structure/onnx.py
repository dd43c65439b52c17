"""ONNX: everything that `graph.inspection` says, in the form that all formats share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..graph.inspection import inspect_model
from ..graph.quantised import coded
from ..model import Model, load_model, tensors, topology_digest
from ..onnxfile import external_files, read_proto
from . import Structure, Weight, part
from ._arrays import quantised


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: model.*; TrustError: model.external_data; UnsupportedError: model.sparse.
    """
    model = load_model(path)
    found = inspect_model(model)  # without its path, which findings would name: the same file has the same structure
    beside = sorted(external_files(read_proto(path), path.parent))
    facts: dict[str, str | int | float] = {
        "opsets": ", ".join(f"{domain} {version}" for domain, version in found.opsets.items()),
        "ir_version": found.ir_version,
        "weight_bytes": found.weight_bytes,
    }
    if found.producer:
        facts["producer"] = found.producer[:200]
    if found.cost.macs is not None and found.cost.macs.value is not None and found.cost.macs.value < 2**53:
        facts["macs"] = found.cost.macs.value
    held = {c.name: c for c in coded(model.graph.graph).values()}
    return Structure(
        "onnx", path.stem, model.digest, tuple(part(p, path.parent) for p in (path, *beside)), found.inputs,
        found.outputs, found.ops, tuple(Weight(n, _dtype(t), s, d) for n, t, s, d in found.tensors),
        tuple(quantised(n, c.dtype, c.axis, c.scale, c.zero_point) for n, c in held.items()),
        found.findings, found.checks, facts, topology_digest(model.graph),
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """Real values of stored tensors: codes that a DequantizeLinear reads back are read back."""
    model = load_model(path)
    wanted, found = set(names), _read_back(model)
    for name, tensor in tensors(model.graph):
        if name in wanted and name not in found and tensor.dtype.name != "STRING":
            found[name] = tensor.numpy().astype(np.float32)
    return {name: array for name, array in found.items() if name in wanted}


def _read_back(model: Model) -> dict[str, Any]:
    held = coded(model.graph.graph).values()
    return {c.name: real for c in held if c.codes is not None and (real := c.real()) is not None}


def _dtype(name: str) -> str:
    import onnx_ir as ir

    return "string" if name == "string" else ir.DataType[name.upper()].numpy().name
