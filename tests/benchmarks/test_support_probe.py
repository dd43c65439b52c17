"""How a runtime is asked what it runs: the tests that it is given, and how their outcomes become a row."""

from __future__ import annotations

import signal
import threading

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from benchmarks.support.__main__ import Child, summed
from benchmarks.support.cases import NODE, case, chosen, quantised, suite
from benchmarks.support.child import compare, elsewhere, find, first, probe
from onnx.reference import ReferenceEvaluator

from edgeproof.quant.schemes import LITERT, ORT, TENSORRT

SPREAD = (
    "Abs",
    "Conv",
    "Gemm",
    "MatMul",
    "Resize",
    "Reshape",
    "Slice",
    "TopK",
    "Clip",
    "Where",
    "Cast",
    "Dropout",
    "LSTM",
)


@pytest.mark.parametrize("op", SPREAD)
def test_a_test_still_expects_what_onnxs_own_evaluator_computes(op):
    for name in chosen(op, 2):
        given = case(op, name)
        got = dict(
            zip(given.wants, ReferenceEvaluator(ir.to_proto(given.model.graph)).run(None, given.feeds), strict=True)
        )
        assert compare(given, got, "fp32") == ""


def test_parameters_are_constants_and_the_opset_is_one_that_models_have():
    given = case("Conv", chosen("Conv", 1)[0])
    assert list(given.feeds) == ["x"]
    assert given.model.graph.opset_imports[""] == 17
    assert len(given.model.graph.graph.initializers) == 1


def test_a_newer_operator_keeps_the_opset_that_has_it():
    given = case("Gelu", chosen("Gelu", 1)[0])
    assert given.model.graph.opset_imports[""] == 20  # Source: ONNX changelog, Gelu since 20


def test_most_operators_have_a_test():
    without = [op for op in suite() if not chosen(op, 1)]
    assert len(without) < 12
    assert not {"Conv", "Gemm", "Cast", "Resize", "Einsum", "OneHot"} & set(without)


@pytest.mark.parametrize(
    ("op", "scheme"), [("Add", ORT), ("MaxPool", TENSORRT), ("Sigmoid", LITERT), ("Concat", LITERT)]
)
def test_codes_around_a_follower_stand_where_the_scheme_wants_them(op, scheme):
    name = next(n for n in chosen(op, 9) if case(op, n).floats)
    given = case(op, name)
    made = quantised(given, scheme)
    assert made is not None
    proto = ir.to_proto(made.model.graph)
    onnx.checker.check_model(proto, full_check=True)
    node = next(n for n in made.model.graph.graph if n.name == NODE)
    assert all(
        v.producer().op_type == "DequantizeLinear" for v in node.inputs if v is not None and v.name in given.feeds
    )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    got = dict(zip(made.wants, session.run(list(made.wants), made.feeds), strict=True))
    assert compare(made, got, "int8") == ""
    scales = {float(n.inputs[1].const_value.numpy()) for n in made.model.graph.graph if n.op_type == "QuantizeLinear"}
    if op in scheme.fixed_output:
        assert np.float32(scheme.fixed_output[op][0]) in {np.float32(s) for s in scales}
    if op in (*scheme.share, *scheme.one_scale):
        assert len(scales) == 1


def test_outcomes_become_one_row():
    runs, back, fails = (
        {"state": "runs", "why": ""},
        {"state": "falls back", "why": "b"},
        {"state": "fails", "why": "f"},
    )
    assert summed([{"state": "not asked", "why": "x"}]) == []
    assert summed([runs, fails]) == ["runs", 1, 2, "f"]
    assert summed([back, fails]) == ["falls back", 1, 2, "b"]
    assert summed([fails]) == ["fails", 0, 1, "f"]


@pytest.mark.parametrize(
    ("nodes", "precision", "says"),
    [
        ([(NODE, "Abs", "CPU", "float16")], "fp16", ""),
        ([(NODE, "Abs", "CPU", "float")], "fp16", "float32"),
        ([("InsertedPrecisionFreeCast_x", "Cast", "CPU", "float"), (NODE, "Conv", "CPU", "float")], "fp16", "casts"),
        ([("fused", "QLinearConv", "CPU", "uint8"), ("y_dq", "DequantizeLinear", "CPU", "float")], "int8", ""),
        ([("x_q", "QuantizeLinear", "CPU", "uint8"), (NODE, "Elu", "CPU", "float")], "int8", "float"),
        ([("other", "Kernel", "CPU", "")], "int8", ""),
    ],
)
def test_a_runtimes_record_tells_whether_it_kept_the_precision(nodes, precision, says):
    given = case("Abs", chosen("Abs", 1)[0])
    assert says in elsewhere(given, nodes, precision) if says else elsewhere(given, nodes, precision) == ""


def test_a_wrong_result_is_a_failure_with_its_size():
    given = case("Abs", chosen("Abs", 1)[0])
    assert compare(given, dict(given.wants), "fp32") == ""
    (name,) = given.wants
    assert "differs by" in compare(given, {name: given.wants[name] * 1.5}, "int8")
    assert "shape" in compare(given, {name: given.wants[name][:1]}, "fp32")


def test_a_reason_is_one_short_line_without_paths():
    said = first("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : /src/core/x.cc:12 no kernel\nfor it " + "x" * 300)
    assert said.startswith("no kernel for it")
    assert len(said) <= 160


def test_the_reference_runs_a_layer_and_has_no_integers():
    target = find("reference", "cpu")
    name = chosen("Conv", 1)[0]
    assert probe(target, "Conv", name, "fp32")["state"] == "runs"
    assert probe(target, "Conv", name, "int8") == {"state": "not asked", "why": "the target has no integer path"}


def test_a_test_that_ends_its_process_is_a_row_and_the_next_one_is_asked():
    child = Child("reference", "cpu", 60)
    name = chosen("Abs", 1)[0]
    try:
        assert child.ask("Abs", name, "fp32")["state"] == "runs"
        process = child._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        threading.Timer(0.2, process.kill).start()
        assert child.ask("Abs", name, "fp32") == {"state": "fails", "why": "ended its process (code -9)"}
        assert child.ask("Abs", name, "fp32")["state"] == "runs"
    finally:
        child.close()
