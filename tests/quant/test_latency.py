import pytest

from edgeproof.measurement import LayerTime
from edgeproof.passes.int8 import Int8
from edgeproof.quant.latency import FIXED, crossings, layer_times, owners
from small_nets import context, net, node, small_cnn, weight

LAYERS = ("a", "c", "u", "y")
"""First outputs of c1, c2, c3 and fc."""


def timed(*rows):
    return [LayerTime(name, "Op", "cpu", "float", tuple(int(t * 1e6) for t in ms)) for name, *ms in rows]


def test_a_node_belongs_to_the_latest_layer_ahead_of_it():
    owned = owners(small_cnn().graph.graph, LAYERS)
    assert owned["r1"] == owned["r"] == "a"
    assert owned["add"] == owned["r2"] == "c"  # reads c1 and c2
    assert owned["gap"] == owned["flat"] == "u"


def test_what_comes_before_the_first_layer_belongs_to_it():
    model = net(
        [node("Transpose", ["x"], ["t"], name="t"), node("Conv", ["t", "w"], ["y"], name="c")],
        [weight("w", 4, 3, 1, 1)],
    )
    assert owners(model.graph.graph, ("y",))["t"] == "y"


def test_conversions_of_an_int8_graph_belong_to_the_layer_that_they_follow_or_lead_to():
    model = small_cnn()
    int8 = Int8(method="minmax")(model, context(model)).model
    owned = owners(int8.graph.graph, LAYERS)
    assert {owned[n] for n in ("c1", "c2", "c3", "fc")} == set(LAYERS)
    by_op = {n.name: owned[n.name] for n in int8.graph.graph if n.op_type == "QuantizeLinear"}
    assert by_op["x.quantize"] == "a"
    assert set(by_op.values()) <= set(LAYERS)
    assert all(n.name in owned for n in int8.graph.graph)


@pytest.mark.parametrize("name", ["c1", "a", "c1_nchwc", "c1_token_7", "c1/r1", "a_nchwc", "r1.fused"])
def test_executed_nodes_are_found_by_the_beginning_of_their_name(name):
    owned = owners(small_cnn().graph.graph, LAYERS)
    assert layer_times(owned, timed((name, 2.0))) == {"a": pytest.approx(2.0)}


def test_a_name_that_only_starts_alike_is_not_taken_for_a_layer():
    owned = owners(small_cnn().graph.graph, LAYERS)
    # c11 is not c1; a node that the graph does not know stays with the one before it.
    assert layer_times(owned, timed(("c3", 1.0), ("c11", 2.0))) == {"u": pytest.approx(3.0)}


def test_times_are_medians_summed_per_layer_and_a_beginning_without_name_waits_for_the_first():
    owned = owners(small_cnn().graph.graph, LAYERS)
    profile = timed(("ReorderInput", 1.0), ("c1", 1.0, 9.0, 2.0), ("r1", 0.5), ("fc", 4.0))
    assert layer_times(owned, profile) == {"a": pytest.approx(3.5), "y": pytest.approx(4.0)}


def test_the_excess_is_spread_over_what_changed_precision_by_its_size():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["a", "w2"], ["b"], name="c2"),
            node("Conv", ["b", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 4, 3, 1, 1), weight("w2", 16, 4, 1, 1), weight("w3", 4, 16, 1, 1)],
    )
    graph = model.graph
    for n, channels in (("c1", 4), ("c2", 16), ("c3", 4)):
        import onnx_ir as ir

        next(x for x in graph.graph if x.name == n).outputs[0].shape = ir.Shape([1, channels, 16, 16])
    found = {c.maker: c for c in crossings(model, ("a", "b", "y"), 1.0, ("a",))}
    assert found["a"].readers == ("b",)
    assert found["a"].ms == pytest.approx(1.0)  # alone changed precision
    ratio = (16 * 256 + FIXED) / (4 * 256 + FIXED)
    assert found["b"].ms == pytest.approx(ratio)


def test_a_mixed_model_that_takes_no_longer_makes_changes_free():
    assert all(c.ms == 0.0 for c in crossings(small_cnn(), LAYERS, -0.3, ("a", "u")))
