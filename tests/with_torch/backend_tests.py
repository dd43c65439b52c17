"""ONNX's backend tests as torch tensors, and how far outputs are from what they should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from conformance.onnx_suite import DATA, generated


@dataclass(frozen=True)
class BackendTest:
    """A model with inputs and what they should give."""

    suite: str
    name: str
    operator: str
    model: Any
    sets: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float = 1e-3
    atol: float = 1e-7


def backend_tests(*suites: str) -> Iterator[BackendTest]:
    """The tests of these suites, of all when none is named."""
    wanted = suites or ("node", "simple", "pytorch-operator", "pytorch-converted")
    for case in generated() if "node" in wanted else ():
        yield BackendTest(
            "node", case.name, _operator(case.model), case.model, tuple(case.data_sets), case.rtol, case.atol
        )
    for suite in (s for s in wanted if s != "node"):
        for folder in sorted((DATA / suite).iterdir()):
            model = onnx.load(folder / "model.onnx")
            yield BackendTest(suite, folder.name, _operator(model), model, tuple(_stored(folder)))


def _operator(model: Any) -> str:
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    return nodes[0].op_type if len(nodes) == 1 else ""


def _stored(folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield _side(data, "input"), _side(data, "output")


def _side(data: Path, side: str) -> list[Any]:
    files = [data / f"{side}_{i}.pb" for i in range(len(list(data.glob(f"{side}_*.pb"))))]
    return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]


def in_scope(test: BackendTest) -> bool:
    """Whether a test is about numbers, by operators of ONNX's own domain."""
    if any(n.domain not in ("", "ai.onnx") for n in test.model.graph.node) and not test.model.functions:
        return False
    values = (*test.model.graph.input, *test.model.graph.output)
    return not any(_text(v.type) for v in values) and test.operator != "ImageDecoder"


def _text(kind: Any) -> bool:
    if kind.HasField("sequence_type"):
        return _text(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _text(kind.optional_type.elem_type)
    return bool(kind.tensor_type.elem_type == onnx.TensorProto.STRING)


def tensor(value: Any) -> Any:
    """A torch tensor (or a list of them, or None) of what a test holds."""
    import torch

    if value is None:
        return None
    if isinstance(value, list):
        return [tensor(v) for v in value]
    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    name = array.dtype.name
    if name in ("int4", "uint4", "int2", "uint2"):
        array = array.astype(np.uint8 if name[0] == "u" else np.int8)
    if name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8).copy()).view(getattr(torch, name))
    return torch.from_numpy(array.copy())


def problem(got: Any, want: Any, test: BackendTest) -> str:
    """What is wrong with an output, or empty."""
    import torch

    if isinstance(want, list):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            return "another number of elements"
        return next((p for p in (problem(g, w, test) for g, w in zip(got, want, strict=True)) if p), "")
    if want is None or not isinstance(got, torch.Tensor):
        return "" if want is got else f"is {type(got).__name__}"
    expected = tensor(want)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"is {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    pair = [torch.view_as_real(t) if t.is_complex() else t for t in (got.detach(), expected)]
    left, right = (t.to(torch.float64).numpy() for t in pair)
    with np.errstate(all="ignore"):
        if np.allclose(left, right, rtol=test.rtol, atol=test.atol, equal_nan=True):
            return ""
        return f"differs by {np.nanmax(np.abs(left - right)):.3g}"


def outputs_problem(made: Any, want: list[Any], test: BackendTest) -> str:
    """What is wrong with the outputs, or empty."""
    got = list(made) if isinstance(made, list | tuple) else [made]
    if len(got) != len(want) and len(want) == 1:
        got = [got]
    if len(got) != len(want):
        return f"{len(got)} outputs, expected {len(want)}"
    return next((p for p in (problem(g, w, test) for g, w in zip(got, want, strict=True)) if p), "")
