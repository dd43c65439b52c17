"""Q/DQ graphs taken apart for ncnn: the float graph, and what every layer needs to run in integers."""

from dataclasses import replace

import numpy as np

from edgeproof.graph.quantised import is_quantised
from edgeproof.ncnn.convert import Network
from edgeproof.ncnn.integers import FEATURES, SCALES, as_float, with_integers
from edgeproof.ncnn.netfile import Layer, Weight
from edgeproof.passes.int8 import Int8
from edgeproof.quant.schemes import NCNN
from edgeproof.target import Target
from small_nets import context, ran, samples, small_cnn

CPU = Target("ncnn:cpu", "ncnn", "cpu", NCNN)


def quantised():
    model = small_cnn()
    return Int8()(model, replace(context(model), target=CPU)).model


def test_the_float_graph_holds_the_numbers_that_the_codes_stand_for():
    model = quantised()
    plain, wanted, declined = as_float(model)
    assert not is_quantised(plain.graph.graph)
    assert declined == ()
    assert set(wanted) == {"c1", "c2", "c3", "fc"}
    held = {k: v.const_value.numpy() for k, v in plain.graph.graph.initializers.items()}
    for name, weight in (("c1", "w1"), ("c2", "w2"), ("c3", "w3"), ("fc", "w4")):
        scales = wanted[name].scales.reshape(-1, *[1] * (wanted[name].codes.ndim - 1))
        np.testing.assert_array_equal(held[f"{weight}.real.float"], wanted[name].codes * scales)


def test_without_rounding_of_activations_it_stays_close_to_the_quantised_graph():
    model = quantised()
    plain, _, _ = as_float(model)
    for feeds in samples(model, 3):
        want = ran(model, feeds)
        assert np.abs(ran(plain, feeds) - want).max() < 0.05 * np.abs(want).max()


def test_the_graph_given_is_left_as_it_was():
    model = quantised()
    before = model.to_bytes()
    as_float(model)
    assert model.to_bytes() == before


def convolution(name, weights, reads, writes, kernel=3):
    held = (Weight(weights.reshape(-1), True),)
    params = {0: str(len(weights)), 1: str(kernel), 6: str(weights.size)}
    return Layer("Convolution", name, (reads,), (writes,), params, held)


def network(*layers):
    return Network(layers, (), (), {layer.name: layer.name for layer in layers})


def test_a_layer_whose_readers_are_integer_layers_of_one_scale_writes_codes():
    wanted = as_float(quantised())[1]
    floats = {n: wanted[n].codes.astype(np.float32) for n in ("c1", "c2", "c3")}
    made, declined = with_integers(
        network(
            convolution("c1", floats["c1"], "x", "a"),
            Layer("Split", "s", ("a",), ("b", "c"), {}),
            convolution("c2", floats["c2"], "b", "d"),
            convolution("c3", floats["c3"], "c", "e"),
        ),
        {**{n: wanted[n] for n in ("c1", "c2")}, "c3": replace(wanted["c3"], input_scale=wanted["c2"].input_scale)},
    )
    assert declined == ()
    first, _, second, _ = made.layers
    assert (first.params[SCALES], second.params[SCALES]) == ("101", "1")
    np.testing.assert_allclose(first.weights[-1].values, [1 / wanted["c2"].input_scale])
    np.testing.assert_allclose(first.weights[-2].values, [1 / wanted["c1"].input_scale])
    np.testing.assert_allclose(first.weights[-3].values, 1 / wanted["c1"].scales)


def test_readers_of_two_scales_get_floats():
    wanted = as_float(quantised())[1]
    made, _ = with_integers(
        network(
            convolution("c1", wanted["c1"].codes.astype(np.float32), "x", "a"),
            Layer("Split", "s", ("a",), ("b", "c"), {}),
            convolution("c2", wanted["c2"].codes.astype(np.float32), "b", "d"),
            convolution("c3", wanted["c3"].codes.astype(np.float32), "c", "e"),
        ),
        {n: wanted[n] for n in ("c1", "c2", "c3")},
    )
    assert made.layers[0].params[SCALES] == "1"


def test_only_3x3_convolutions_of_stride_1_are_kept_from_winograd():
    wanted = {"c1": as_float(quantised())[1]["c1"]}
    codes = wanted["c1"].codes.astype(np.float32)
    plain = with_integers(network(convolution("c1", codes, "x", "a")), wanted)[0].layers[0]
    wide = convolution("c1", codes, "x", "a").with_params({3: "2"})
    assert plain.params[FEATURES] == "64"
    assert FEATURES not in with_integers(network(wide), wanted)[0].layers[0].params


def test_a_layer_that_takes_no_scales_is_named():
    wanted = {"fc": as_float(quantised())[1]["fc"]}
    gemm = Layer("Gemm", "fc", ("x",), ("y",), {}, (Weight(np.zeros(160, np.float32), True),))
    _, declined = with_integers(network(gemm), wanted)
    assert declined == (("fc", "ncnn computes it as Gemm, which takes no scales from a file"),)
    _, declined = with_integers(network(), wanted)
    assert declined[0][0] == "fc"
