"""Small layers with scales and offsets around them, and what is demanded of folding these."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgeproof.change import Change
from edgeproof.model import Model
from edgeproof.passes.fold_affine import FoldAffine
from edgeproof.protocols import Context

SHAPE = (2, 4, 6, 5)
step = helper.make_node


def never(_model: Model):
    raise AssertionError("the pass needs no session")


def weights(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def build(
    nodes, constants, *, outputs=("y",), shape=SHAPE, opset=13, dtype=np.float32, as_nodes=False, extra_inputs=()
):
    """A model with one input x; shapes of outputs come from ONNX's shape inference."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    stored = [numpy_helper.from_array(np.asarray(v, dtype), k) for k, v in constants.items()]
    for i, node in enumerate(nodes):
        node.name = node.name or f"n{i}"
    made = [step("Constant", [], [c.name], value=c) for c in stored] if as_nodes else []
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    inputs += [helper.make_tensor_value_info(n, kind, s) for n, s in extra_inputs]
    outs = [helper.make_tensor_value_info(o, kind, None) for o in outputs]
    graph = helper.make_graph([*made, *nodes], "g", inputs, outs, [] if as_nodes else stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.of(ir.from_proto(onnx.shape_inference.infer_shapes(proto)), "m")


def apply(model: Model, **fields) -> Change:
    before = model.to_bytes()
    change = FoldAffine(**fields)(model, Context(compile=never))
    assert model.to_bytes() == before
    onnx.checker.check_model(onnx.load_from_string(change.model.to_bytes()), full_check=True)
    for old, new in ((model.inputs, change.model.inputs), (model.outputs, change.model.outputs)):
        assert [(v.name, v.dtype, v.shape) for v in old] == [(v.name, v.dtype, v.shape) for v in new]
    assert change.modified == bool(change.applied) == (change.model.digest != model.digest)
    return change


def ops(model: Model) -> dict[str, int]:
    return dict(Counter(n.op_type for n in model.graph.graph if n.op_type != "Constant"))


def feeds(model: Model, dtype=np.float32):
    return {i.name: weights(*i.shape, seed=7, dtype=dtype) for i in model.inputs}


def run(model: Model, given_feeds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(onnx.load_from_string(model.to_bytes())).run(None, given_feeds)


def run_ort(model: Model, given_feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given_feeds)


def same(model: Model, change: Change, tolerance=2e-5, dtype=np.float32):
    x = feeds(model, dtype)
    grouped = any(n.op_type == "ConvTranspose" and n.attributes.get_int("group", 1) > 1 for n in model.graph.graph)
    for runner in (run_ort,) if grouped else (run, run_ort):  # onnx 1.23's evaluator cannot run the originals of those
        for want, got in zip(runner(model, x), runner(change.model, x), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max()))


def left_alone(model: Model, **fields) -> dict[str, str]:
    change = apply(model, **fields)
    assert not change.modified
    assert change.model is model
    return dict(change.declined)


def conv(source="x", target="h", weight="w", bias="b", **attributes):
    inputs = [source, weight, bias] if bias else [source, weight]
    return step("Conv", inputs, [target], **attributes)


def folds_to(nodes, constants, expected, **fields):
    model = build(nodes, constants, **fields)
    change = apply(model)
    assert ops(change.model) == expected
    same(model, change)
    return change
