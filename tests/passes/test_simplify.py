"""Simplify joins the rules, keeps the interface whatever happens, and takes back what changes the outputs."""

import re
from dataclasses import replace

import numpy as np
import pytest
from small_models import CONTEXT, apply, build, floats, node, ops

from edgeproof.errors import UnsupportedError
from edgeproof.graph.equivalence import probes
from edgeproof.passes import simplify
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


@pytest.mark.parametrize("shape", [("n", 4, "h", "w"), (2, 4, 7, 5)])
def test_a_small_network_comes_down_to_three_nodes(shape):
    change = apply(Simplify(), network(shape), x=floats(2, 4, 7, 5))
    assert ops(change.model) == {"Conv": 1, "Relu": 1, "Reshape": 1}
    assert change.facts == {"nodes_before": 11, "nodes_after": 3}


def test_an_open_batch_stays_open():
    change = apply(Simplify(), network(), x=floats(2, 4, 7, 5))
    apply(Simplify(), network(), x=floats(3, 4, 9, 9))
    assert change.model.inputs[0].shape == ("n", 4, "h", "w")


def test_a_model_with_nothing_to_do_is_returned_as_it_is():
    model = build([node("Relu", "x", "y")], {"x": (2,)}, "y")
    assert Simplify()(model, CONTEXT).model is model


def test_an_unused_input_survives():
    model = build([node("Identity", "x", "i"), node("Relu", "i", "y")], {"x": (2,), "u": ("k",)}, "y")
    change = apply(Simplify(), model, x=floats(2), u=floats(3))
    assert ops(change.model) == {"Relu": 1}


def test_what_a_rule_breaks_is_thrown_away(monkeypatch):
    def wrong(editor):
        for neg in editor.nodes("Neg"):
            neg.op_type = "Exp"
            editor.did("broke", neg)

    monkeypatch.setattr(simplify, "RULES", (*simplify.RULES, wrong))
    nodes = [node("Abs", "x", "a"), node("Identity", "a", "b"), node("Neg", "b", "c"), node("Relu", "c", "y")]
    model = build(nodes, {"x": (2,)}, "y")
    change = Simplify()(model, CONTEXT)
    assert change.model is model
    assert any("thrown away: output y differs" in r for _, r in change.declined)


def test_a_rule_that_changes_an_outputs_name_is_refused(monkeypatch):
    def rename(editor):
        editor.model.graph.outputs[0].name = "other"

    monkeypatch.setattr(simplify, "RULES", (*simplify.RULES, rename))
    model = network((2, 4, 7, 5))
    change = Simplify()(model, CONTEXT)
    assert change.model is model
    assert any("thrown away" in r and "other" in r for _, r in change.declined)


def test_a_model_that_does_not_run_here_is_simplified_by_exact_rules_and_says_so():
    def refuse(model):
        raise UnsupportedError("backend.refused", "small", "no such operator", "")

    change = Simplify()(network(), replace(CONTEXT, compile=refuse))
    assert ops(change.model).total() == 3
    assert change.declined[0][0] == "verification"
    assert "no such operator" in change.declined[0][1]


def test_a_result_beyond_the_tolerance_is_declined(monkeypatch):
    def wrong(editor):
        for relu in editor.nodes("Relu"):
            relu.op_type = "LeakyRelu"

    monkeypatch.setattr(simplify, "RULES", (*simplify.RULES, wrong))
    model = network((2, 4, 7, 5))
    change = Simplify()(model, CONTEXT)
    assert change.model is model
    ((whose, why),) = [d for d in change.declined if "thrown away" in d[1]]
    assert whose == "result"
    assert re.fullmatch(r"was thrown away: output y differs by 0.0\d+ of its scale; at most 1e-05 .*", why)
    assert Simplify(tolerance=0.1)(model, CONTEXT).modified


def test_no_tolerance_is_needed_where_no_number_changes():
    nodes = [node("Identity", "x", "i"), node("Relu", "i", "y")]
    assert Simplify(tolerance=0.0)(build(nodes, {"x": (2,)}, "y"), CONTEXT).modified


def test_a_tie_in_the_inputs_that_are_drawn_is_avoided():
    """Ties are broken by the last place: TopK of what a fold rounds anew, on inputs where two are almost equal."""
    rng = np.random.default_rng(0)

    class Session:
        def run(self, feeds):
            tied = calls[0] < 2  # the first draw and its neighbour
            calls[0] += 1
            return {"y": feeds["x"] + (rng.standard_normal() if tied else 0)}

        def close(self):
            calls.append("closed")

    calls = [0]
    model = build([node("Relu", "x", "y")], {"x": (2,)}, "y")
    (probe,) = probes(model, replace(CONTEXT, compile=lambda _: Session()))
    assert calls == [4, "closed"]
    assert probe.noise["y"] < 1e-6


def test_a_hard_swish_is_fused_before_its_constants_could_be_folded():
    nodes = [
        node("Conv", "x w", "h"),
        node("Add", "h three", "a"),
        node("Clip", "a zero six", "c"),
        node("Mul", "h c", "m"),
        node("Div", "m six", "d"),
        node("Conv", "d w2", "y"),
    ]
    numbers = {"zero": np.float32(0), "three": np.float32(3), "six": np.float32(6)}
    weights = {"w": WEIGHTS["w"], "w2": floats(2, 6, 1, 1), **numbers}
    for opset, fused in ((17, {"HardSwish": 1}), (13, {"HardSigmoid": 1, "Mul": 1})):
        model = build(nodes, {"x": (1, 4, 5, 5)}, "y", weights, opset=opset)
        assert ops(apply(Simplify(), model, x=floats(1, 4, 5, 5)).model) == {"Conv": 2, **fused}


def test_a_model_beyond_the_limit_of_protobuf_is_simplified_and_verified(monkeypatch):
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    monkeypatch.setattr("edgeproof.backends.onnxruntime.PROTO_LIMIT_BYTES", 100)
    change = Simplify()(network((2, 4, 7, 5)), CONTEXT)
    assert ops(change.model) == {"Conv": 1, "Relu": 1, "Reshape": 1}
    assert change.declined == ()


def test_a_model_beyond_the_limit_that_the_backend_cannot_take_says_so(monkeypatch):
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    change = Simplify()(network((2, 4, 7, 5)), CONTEXT)
    assert ops(change.model) == {"Conv": 1, "Relu": 1, "Reshape": 1}
    assert change.declined == (
        (
            "verification",
            "not possible, so only rules that are exact by themselves ran: the original does not load: "
            "weights of 1,032 bytes do not fit one protobuf message",
        ),
    )


def test_quantised_weights_stay_quantised():
    nodes = [node("DequantizeLinear", "q s", "w"), node("MatMul", "x w", "h"), node("Identity", "h", "y")]
    model = build(nodes, {"x": (2, 3)}, "y", {"q": np.ones((3, 4), np.int8), "s": np.float32(0.1)})
    change = apply(Simplify(), model, x=floats(2, 3))
    assert ops(change.model) == {"DequantizeLinear": 1, "MatMul": 1}


def test_metadata_survives():
    model = network()
    graph = model.graph.clone()
    graph.metadata_props["character"] = "abc"
    change = Simplify()(type(model).of(graph, "m"), CONTEXT)
    assert change.model.metadata["character"] == "abc"


def test_a_matrix_product_and_its_bias_become_one_gemm():
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    model = build(nodes, {"x": (2, 3)}, "y", {"w": floats(3, 4), "b": floats(4)})
    change = apply(Simplify(), model, x=floats(2, 3))
    assert ops(change.model) == {"Gemm": 1}
