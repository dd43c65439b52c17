"""Build a small model from text-like parts, run it before and after a pass, and compare."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.change import Change
from edgeproof.model import Model
from edgeproof.protocols import Context
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
CONTEXT = Context(lambda m: OnnxRuntime().compile(m, TARGET))
FLOAT = onnx.TensorProto.FLOAT
RNG = np.random.default_rng(7)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """``node("Add", "x w", "y")``; the node is called like its first output; ``_`` is an absent input."""
    names = ["" if n == "_" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)


def build(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[Any, ...]],
    outputs: str,
    weights: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    dtypes: dict[str, int] | None = None,
) -> Model:
    """A model whose outputs have their inferred shapes; values are float32 unless ``dtypes`` says otherwise."""
    kinds = dtypes or {}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), None) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(proto)
    del proto.graph.output[:]
    proto.graph.output.extend(inferred.graph.output)
    return Model.of(ir.from_proto(proto), "small")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(model: Model, feeds: dict[str, Any]) -> list[Any]:
    """Outputs under ONNX Runtime without its own rewriting."""
    session = OnnxRuntime().compile(model, TARGET.with_settings({"graph_optimization": "disable"}))
    return list(session.run(feeds).values())


def ops(model: Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.graph)


def apply(implementation: Any, model: Model, **feeds: Any) -> Change:
    """Run a pass and demand: the given model untouched, the interface kept, the outputs equal."""
    digest = Model.of(model.graph, "again").digest
    change = implementation(model, CONTEXT)
    assert Model.of(model.graph, "again").digest == digest
    assert change.model.inputs == model.inputs
    assert change.model.outputs == model.outputs
    assert change.modified == (change.model.digest != model.digest)
    for want, got in zip(run(model, feeds), run(change.model, feeds), strict=True):
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return change


def reasons(change: Change) -> str:
    return " | ".join(f"{n}: {r}" for n, r in change.declined)
