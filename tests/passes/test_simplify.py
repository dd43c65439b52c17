"""Simplify joins the rules, keeps the interface whatever happens, and takes back what changes the outputs."""

import sys
import types
from dataclasses import replace

import numpy as np
import onnx
import pytest
from small_models import CONTEXT, apply, build, floats, node, ops

from edgeproof.errors import UnsupportedError
from edgeproof.passes.simplify import Simplify

WEIGHTS = {
    "w": floats(6, 4, 3, 3),
    "g": floats(6),
    "b": floats(6),
    "m": floats(6),
    "v": np.abs(floats(6)) + 0.1,
    "s": floats(6, 1, 1),
    "t": floats(6, 1, 1),
    "first": np.int64([0]),
    "rest": np.int64([6, -1]),
}


def network(shape=("n", 4, "h", "w")):
    nodes = [
        node("Identity", "x", "i"),
        node("Conv", "i w", "c"),
        node("BatchNormalization", "c g b m v", "n"),
        node("Mul", "n s", "p"),
        node("Add", "p t", "q"),
        node("Dropout", "q", "d"),
        node("Relu", "d", "r"),
        node("Shape", "r", "sh"),
        node("Gather", "sh first", "nb", axis=0),
        node("Concat", "nb rest", "target", axis=0),
        node("Reshape", "r target", "y"),
    ]
    return build(nodes, {"x": shape}, "y", WEIGHTS)


@pytest.mark.parametrize("with_onnxslim", [False, True])
@pytest.mark.parametrize("shape", [("n", 4, "h", "w"), (2, 4, 7, 5)])
def test_a_small_network_comes_down_to_three_nodes(shape, with_onnxslim):
    change = apply(Simplify(onnxslim=with_onnxslim), network(shape), x=floats(2, 4, 7, 5))
    assert ops(change.model) == {"Conv": 1, "Relu": 1, "Reshape": 1}
    assert change.facts == {"nodes_before": 11, "nodes_after": 3}


def test_an_open_batch_stays_open():
    change = apply(Simplify(), network(), x=floats(2, 4, 7, 5))
    apply(Simplify(), network(), x=floats(3, 4, 9, 9))
    assert change.model.inputs[0].shape == ("n", 4, "h", "w")


def test_a_model_with_nothing_to_do_is_returned_as_it_is():
    model = build([node("Relu", "x", "y")], {"x": (2,)}, "y")
    assert Simplify()(model, CONTEXT).model is model


def test_an_unused_input_survives_onnxslim():
    model = build([node("Identity", "x", "i"), node("Relu", "i", "y")], {"x": (2,), "u": ("k",)}, "y")
    change = apply(Simplify(), model, x=floats(2), u=floats(3))
    assert ops(change.model) == {"Relu": 1}


def fake_onnxslim(monkeypatch, slim):
    module = types.ModuleType("onnxslim")
    module.slim = slim
    monkeypatch.setitem(sys.modules, "onnxslim", module)


def test_when_onnxslim_fails_the_own_rules_go_on(monkeypatch):
    def slim(model, **_):
        raise KeyError("boom")

    fake_onnxslim(monkeypatch, slim)
    change = apply(Simplify(), network(), x=floats(2, 4, 7, 5))
    assert ops(change.model).total() == 3
    assert ("onnxslim", "it failed with KeyError: 'boom'") in change.declined


def test_what_onnxslim_prints_and_mutates_reaches_nobody(monkeypatch, capsys):
    def slim(model, **_):
        print("noise")
        print("noise", file=sys.stderr)
        model.graph.node[0].name = "changed"
        return model

    fake_onnxslim(monkeypatch, slim)
    apply(Simplify(), network(), x=floats(2, 4, 7, 5))
    assert "noise" not in "".join(capsys.readouterr())


def test_a_wrong_result_of_onnxslim_is_thrown_away(monkeypatch):
    def slim(model, **_):
        del model.graph.node[:]
        model.graph.node.append(onnx.helper.make_node("Exp", ["x"], ["y"]))
        return model

    fake_onnxslim(monkeypatch, slim)
    nodes = [node("Abs", "x", "a"), node("Identity", "a", "b"), node("Neg", "b", "c"), node("Relu", "c", "y")]
    model = build(nodes, {"x": (2,)}, "y")
    change = apply(Simplify(), model, x=floats(2))
    assert ops(change.model) == {"Abs": 1, "Neg": 1, "Relu": 1}
    assert any(n == "onnxslim" and "thrown away: output y differs" in r for n, r in change.declined)


def test_a_changed_output_name_of_onnxslim_is_refused(monkeypatch):
    def slim(model, **_):
        model.graph.output[0].name = model.graph.node[-1].output[0] = "other"
        return model

    fake_onnxslim(monkeypatch, slim)
    change = apply(Simplify(), network(), x=floats(2, 4, 7, 5))
    assert ("onnxslim", "its result has other outputs") in change.declined


def test_a_model_that_does_not_run_here_is_simplified_by_exact_rules_and_says_so():
    def refuse(model):
        raise UnsupportedError("backend.refused", "small", "no such operator", "")

    change = Simplify()(network(), replace(CONTEXT, compile=refuse))
    assert ops(change.model).total() == 3
    assert change.declined[0][0] == "verification"
    assert "no such operator" in change.declined[0][1]


def test_a_result_beyond_the_tolerance_is_declined():
    change = Simplify(tolerance=-1.0)(network((2, 4, 7, 5)), CONTEXT)
    assert change.modified or "thrown away" in str(change.declined)
    exact = Simplify(tolerance=0.0)(
        build([node("Identity", "x", "i"), node("Relu", "i", "y")], {"x": (2,)}, "y"), CONTEXT
    )
    assert exact.modified


def test_quantised_weights_stay_quantised():
    nodes = [node("DequantizeLinear", "q s", "w"), node("MatMul", "x w", "h"), node("Identity", "h", "y")]
    model = build(nodes, {"x": (2, 3)}, "y", {"q": np.ones((3, 4), np.int8), "s": np.float32(0.1)})
    change = apply(Simplify(), model, x=floats(2, 3))
    assert ops(change.model) == {"DequantizeLinear": 1, "MatMul": 1}
    assert any("quantised" in r for n, r in change.declined if n == "onnxslim")


def test_metadata_survives():
    model = network()
    graph = model.graph.clone()
    graph.metadata_props["character"] = "abc"
    change = Simplify()(type(model).of(graph, "m"), CONTEXT)
    assert change.model.metadata["character"] == "abc"


def test_a_matrix_product_and_its_bias_become_one_gemm():
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    change = apply(
        Simplify(onnxslim=False), build(nodes, {"x": (2, 3)}, "y", {"w": floats(3, 4), "b": floats(4)}), x=floats(2, 3)
    )
    assert ops(change.model) == {"Gemm": 1}
