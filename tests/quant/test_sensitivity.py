"""The simulation behind switches against the true INT8 models that the pass writes, run by the runtime."""

import numpy as np
import pytest

from edgeproof.passes.int8 import Int8
from edgeproof.passes.simplify import Simplify
from edgeproof.quant import sensitivity
from edgeproof.quant.switched import SWITCHES, keep_patterns, switched
from small_nets import CPU, TENSORRT, compiled, context, net, node, number, samples, small_cnn, weight

INPUTS = 3


def hard_swish_net():
    """Conv, HardSwish, Conv, a product with a constant, Conv into a softmax; the first tensor has two readers."""
    return net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1", pads=[1] * 4),
            node("HardSwish", ["a"], ["h"], name="hs"),
            node("Conv", ["h", "w2"], ["b"], name="c2", pads=[1] * 4),
            node("Mul", ["b", "half"], ["m"], name="scale"),
            node("Add", ["m", "h"], ["s"], name="add"),
            node("Conv", ["s", "w3"], ["c"], name="c3"),
            node("GlobalAveragePool", ["c"], ["p"], name="gap"),
            node("Flatten", ["p"], ["f"], name="flat"),
            node("Softmax", ["f"], ["y"], name="soft"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 3, 3), weight("w3", 5, 8, 1, 1), number("half", 0.5)],
    )


def quantised(model, **settings):
    return Int8(method="minmax", **settings)(model, context(model)).model


@pytest.fixture(scope="module", params=[small_cnn, hard_swish_net], ids=["cnn", "hard_swish"])
def pair(request):
    """A float model and its simulation."""
    model = request.param()
    return model, switched(model, quantised(model), CPU.scheme)


def test_with_all_switches_off_it_is_the_float_model(pair):
    model, simulation = pair
    assert sensitivity.subset_error(simulation, compiled, samples(model, INPUTS), ()) == 0.0
    x = samples(model, 1, seed=3)[0]
    session, other = compiled(simulation.model), compiled(model)
    got, want = session.run({**x, **simulation.feeds(())}), other.run(x)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-4, atol=1e-5)
    session.close()
    other.close()


def test_one_layer_alone_errs_as_the_true_int8_model_of_it_does(pair):
    model, simulation = pair
    feeds = samples(model, INPUTS, seed=9)
    found = sensitivity.sensitivities(simulation, compiled, feeds)
    assert list(found) == list(simulation.layers)
    for layer, error in found.items():
        keep = ",".join(keep_patterns(simulation.layers, (layer,)))
        true = sensitivity.model_error(model, quantised(model, keep=keep), compiled, feeds)
        assert error == pytest.approx(true, rel=0.05)


def test_any_subset_errs_as_its_true_int8_model_does(pair):
    model, simulation = pair
    feeds = samples(model, INPUTS, seed=10)
    for subset in (simulation.layers[::2], simulation.layers[1:], simulation.layers):
        keep = ",".join(keep_patterns(simulation.layers, subset))
        true = sensitivity.model_error(model, quantised(model, keep=keep), compiled, feeds)
        # Integer kernels round their sums differently, so single codes may differ by one.
        assert sensitivity.subset_error(simulation, compiled, feeds, subset) == pytest.approx(true, rel=0.25)


def product_net():
    """Products with the sums that are their biases, and a mean away from zero for these to correct."""
    return net(
        [
            node("MatMul", ["x", "w1"], ["a"], name="first"),
            node("Add", ["a", "b1"], ["s"], name="plus"),
            node("Relu", ["s"], ["r"], name="r"),
            node("MatMul", ["r", "w2"], ["c"], name="second"),
            node("Add", ["c", "b2"], ["y"], name="plus2"),
        ],
        [weight("w1", 6, 16), weight("b1", 16), weight("w2", 16, 4), weight("b2", 4)],
        [8, 6],
    )


@pytest.mark.parametrize("make", [small_cnn, product_net])
def test_a_layer_with_corrected_bias_and_chosen_rounding_errs_alone_as_its_true_model_does(make):
    model = make()
    refined = {"bias_correction": True, "rounding": "gptq"}
    simulation = switched(model, quantised(model, **refined), CPU.scheme)
    feeds = samples(model, INPUTS, seed=9)
    assert sensitivity.subset_error(simulation, compiled, feeds, ()) == 0.0
    x = feeds[0]
    session, plain = compiled(simulation.model), compiled(model)
    off = session.run({**x, **simulation.feeds(())})
    np.testing.assert_allclose(off["y"], plain.run(x)["y"], rtol=1e-4, atol=1e-5)
    session.close()
    plain.close()
    for layer, error in sensitivity.sensitivities(simulation, compiled, feeds).items():
        keep = ",".join(keep_patterns(simulation.layers, (layer,)))
        true = sensitivity.model_error(model, quantised(model, keep=keep, **refined), compiled, feeds)
        assert error == pytest.approx(true, rel=0.1)


def test_layers_are_called_by_their_first_output_in_graph_order():
    model = small_cnn()
    assert switched(model, quantised(model), CPU.scheme).layers == ("a", "c", "u", "y")


def test_a_target_that_keeps_float_weights_with_a_pair_is_simulated_too():
    model = small_cnn()
    int8 = Int8(method="minmax")(model, context(model, target=TENSORRT)).model
    simulation = switched(model, int8, TENSORRT.scheme)
    feeds = samples(model, INPUTS, seed=11)
    assert sensitivity.subset_error(simulation, compiled, feeds, ()) == 0.0
    true = sensitivity.model_error(model, int8, compiled, feeds)
    assert sensitivity.subset_error(simulation, compiled, feeds, simulation.layers) == pytest.approx(true, rel=0.25)


def test_the_cost_is_announced_and_kept():
    model = small_cnn()
    simulation = switched(model, quantised(model), CPU.scheme)
    feeds, said, runs = samples(model, INPUTS), [], []

    class Counting:
        def __init__(self, session):
            self.session = session

        def run(self, sample):
            runs.append(1)
            return self.session.run(sample)

        def close(self):
            self.session.close()

    sensitivity.sensitivities(simulation, lambda m: Counting(compiled(m)), feeds, lambda what, _: said.append(what))
    assert said[0] == "sensitivity of 4 layers, 15 inferences"
    assert len(runs) == sensitivity.cost(simulation, INPUTS) == (4 + 1) * INPUTS


def test_neither_model_is_changed():
    model = small_cnn()
    int8 = quantised(model)
    before = [n.name for n in model.graph.graph], [n.name for n in int8.graph.graph]
    simulation = switched(model, int8, CPU.scheme)
    assert ([n.name for n in model.graph.graph], [n.name for n in int8.graph.graph]) == before
    assert SWITCHES in {spec.name for spec in simulation.model.inputs}


def test_outputs_are_compared_ahead_of_their_softmax():
    ahead = sensitivity.decisive(hard_swish_net())
    assert [v.name for v in ahead.graph.graph.outputs] == ["f"]


def test_an_output_that_nothing_squashes_is_compared_itself():
    assert [v.name for v in sensitivity.decisive(small_cnn()).graph.graph.outputs] == ["y"]


def test_values_and_indices_of_one_choice_are_not_compared_twice():
    model = net(
        [node("Flatten", ["x"], ["f"]), node("TopK", ["f", "k"], ["v", "i"])],
        [number("k", [2], np.int64)],
        outputs=("v",),
    )
    graph = model.graph.clone()
    graph.graph.outputs.append(next(n for n in graph.graph if n.op_type == "TopK").outputs[1])
    both = type(model)(model.name, model.digest, model.inputs, model.outputs, graph)
    assert [v.name for v in sensitivity.decisive(both).graph.graph.outputs] == ["f", "i"]


def detector():
    """Scores that are sorted, and boxes that are picked in their order."""
    return net(
        [
            node("Conv", ["x", "w1"], ["scores"], name="scorer"),
            node("Conv", ["x", "w2"], ["boxes"], name="boxer"),
            node("Mul", ["boxes", "half"], ["sized"], name="sizes"),
            node("Sigmoid", ["scores"], ["s"], name="sigmoid"),
            node("Reshape", ["s", "flat"], ["f"], name="flat_scores"),
            node("TopK", ["f", "k"], ["best", "places"], name="best"),
            node("Reshape", ["sized", "flat"], ["g"], name="flat_boxes"),
            node("Gather", ["g", "places"], ["picked"], name="pick"),
            node("Concat", ["best", "picked"], ["y"], name="both", axis=0),
        ],
        [
            weight("w1", 1, 3, 1, 1),
            weight("w2", 1, 3, 1, 1),
            number("half", 0.5),
            number("flat", [-1], np.int64),
            number("k", [9], np.int64),
        ],
    )


def test_what_is_sorted_is_compared_where_its_last_layers_made_it():
    model = detector()
    assert [v.name for v in sensitivity.decisive(model).graph.graph.outputs] == ["scores", "sized"]


@pytest.mark.parametrize("settings", [{}, {"followers": False, "channel_outputs": True}])
def test_scores_and_boxes_of_a_quantised_detector_are_compared_apart(settings):
    model = detector()
    feeds = samples(model, INPUTS, seed=2)
    want = sensitivity.decided(model, compiled, feeds)
    errors = sensitivity.output_errors(want, sensitivity.decided(quantised(model, **settings), compiled, feeds))
    assert len(errors) == 2
    # 8 bits over a range of some six standard deviations leave about 40 dB; the weights' rounding adds to it.
    assert all(1e-6 < error < 1e-3 for error in errors)


def test_the_error_is_noise_over_signal_averaged_over_outputs():
    want = [[np.array([3.0, 4.0]), np.array([1.0])]]
    got = [[np.array([3.0, 4.5]), np.array([0.0])]]
    # 0.5² / (3² + 4²) = 0.01 and 1² / 1² = 1.
    assert sensitivity.output_error(want, got) == pytest.approx((0.01 + 1.0) / 2)


def test_of_integers_the_share_that_differs_counts():
    assert sensitivity.output_error([[np.array([1, 2, 3, 4])]], [[np.array([1, 2, 9, 4])]]) == 0.25


def test_an_output_that_is_not_finite_or_of_another_shape_is_infinitely_wrong():
    one = [[np.ones(2)]]
    assert sensitivity.output_error(one, [[np.array([np.nan, 1])]]) == float("inf")
    assert sensitivity.output_error(one, [[np.ones(3)]]) == float("inf")


def test_a_layer_that_the_pass_left_in_float_is_no_layer_of_the_simulation():
    model = hard_swish_net()
    simulation = switched(model, quantised(model, keep="c2"), CPU.scheme)
    assert simulation.layers == ("a", "c")
    assert sensitivity.subset_error(simulation, compiled, samples(model, 1), ()) == 0.0


def test_a_graph_is_simulated_after_simplifying_too():
    model = Simplify()(small_cnn(), context(small_cnn())).model
    simulation = switched(model, quantised(model), CPU.scheme)
    assert sensitivity.subset_error(simulation, compiled, samples(model, 1), simulation.layers) > 0
