"""The models that come with the onnx package, each with an input and the output that ONNX gives for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from edgeproof.model import Model

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
STORED = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    name: str
    model: Model
    feeds: dict[str, Any] | None


@cache
def generated() -> tuple[Any, ...]:
    """The suite of single nodes, made on the fly, sorted by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, while ONNX computes its own edge cases
        return tuple(sorted((c for c in collect_testcases(None) if c.model is not None), key=lambda c: c.name))


def nodes(part: int, parts: int) -> Iterator[Case]:
    """Every ``parts``-th single-node model."""
    for case in generated()[part::parts]:
        yield _case(case.name, case.model, list(case.data_sets[0][0]) if case.data_sets else [])


def stored(kind: str) -> Iterator[Case]:
    """The suites that come as files."""
    for folder in sorted((DATA / kind).iterdir()):
        sets = folder / "test_data_set_0"
        proto = onnx.load(folder / "model.onnx")
        yield _case(folder.name, proto, [_read(sets / f"input_{i}.pb") for i in range(len(list(sets.glob("input*"))))])


def light() -> tuple[str, ...]:
    """Names of the real architectures, whose weights are made by ConstantOfShape nodes."""
    return tuple(sorted(p.stem for p in (DATA / "light").glob("*.onnx")))


def light_case(name: str) -> Case:
    """One of the real architectures; its input is drawn at random."""
    return _case(name, onnx.load(DATA / "light" / f"{name}.onnx"), [])


def _case(name: str, proto: onnx.ModelProto, inputs: list[Any]) -> Case:
    model = Model.of(ir.from_proto(proto), name)
    names = [v.name for v in proto.graph.input]
    arrays = dict(zip(names, inputs, strict=False))
    feeds = {s.name: arrays.get(s.name) for s in model.inputs}
    known = bool(inputs) and all(isinstance(a, np.ndarray) for a in feeds.values())
    return Case(name, model, feeds if known else None)


def _read(path: Path) -> Any:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return numpy_helper.to_array(tensor)
    except Exception:  # a sequence or an optional
        return None
