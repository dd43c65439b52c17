"""Questions about Q/DQ graphs, ours and other people's, with answers worked out by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from edgeproof.graph.quantised import coded, computed, is_quantised
from edgeproof.passes.int8 import Int8
from edgeproof.passes.weight_only import WeightOnly
from small_nets import TENSORRT, context, net, node, number, small_cnn, weight


def by_label(model) -> dict:
    return {c.label: c for c in computed(model.graph.graph)}


def test_precision_of_every_node_of_an_int8_model():
    model = small_cnn()
    change = Int8(keep="gap")(model, context(model))
    found = {name: c.precision for name, c in by_label(change.model).items()}
    assert found == {
        "c1": "uint8×int8", "r1": "uint8", "c2": "uint8×int8", "add": "uint8", "r2": "uint8", "c3": "uint8×int8",
        "r3": "uint8", "gap": "float", "flat": "float", "fc": "uint8×int8→float",
    }  # fmt: skip


def test_float_weights_ahead_of_a_pair_are_found():
    model = small_cnn()
    change = Int8()(model, context(model, target=TENSORRT))
    conv = by_label(change.model)["c1"]
    assert conv.precision == "int8×int8"
    assert conv.weight.original.shape == (8, 3, 3, 3)
    assert np.abs(conv.weight.real() - conv.weight.original).max() <= conv.weight.scale.max() / 2 * (1 + 1e-5)


def test_a_range_is_what_the_end_codes_mean():
    q = [number("s", 0.5), number("z", 10, np.uint8)]
    model = net(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("Sqrt", ["d"], ["y"], name="root"),
        ],
        q,
        [4],
    )
    held = coded(model.graph.graph)["d"]
    assert (held.name, held.kind, held.dtype) == ("x", "activation", "uint8")
    assert held.range == ((0 - 10) * 0.5, (255 - 10) * 0.5)
    # 0.25 / 0.5 is half way between the codes 0 and 1, and goes to the even one.
    np.testing.assert_array_equal(held.through(np.array([0.25, 0.75, 1000, -1000], np.float32)), [0, 1, 122.5, -5])
    assert by_label(model)["root"].precision == "float"
    assert is_quantised(model.graph.graph)
    assert not is_quantised(small_cnn().graph.graph)


def test_a_pair_without_zero_point_is_uint8_around_zero():
    model = net(
        [node("QuantizeLinear", ["x", "s"], ["q"]), node("DequantizeLinear", ["q", "s"], ["y"])],
        [number("s", 2.0)],
        [4],
    )
    held = coded(model.graph.graph)["y"]
    assert (held.dtype, held.range) == ("uint8", (0.0, 510.0))


def test_weights_in_blocks_are_read_back_as_onnx_does():
    w = weight("w", 64, 48)
    model = net([node("MatMul", ["x", "w"], ["y"], name="m")], [w], [3, 64])
    change = WeightOnly(bits=4, symmetric=True)(model, context(model))
    found = by_label(change.model)["m"]
    assert found.precision == "float×int4"
    assert not found.integer
    assert found.weight.block == 32
    session = ReferenceEvaluator(onnx.load_from_string(change.model.to_bytes()))
    eye = session.run(None, {"x": np.eye(3, 64, dtype=np.float32)})[0]
    np.testing.assert_allclose(found.weight.real()[:3], eye, atol=1e-6)


def test_operators_in_integer_form_are_recognised():
    one = net(
        [node("MatMulInteger", ["i", "w"], ["m"], name="mi"), node("Cast", ["m"], ["y"], to=1),
         node("Cast", ["x"], ["i"], to=2)][::-1],
        [number("w", np.ones((4, 2)), np.uint8)],
        [3, 4],
    )  # fmt: skip
    assert by_label(one)["mi"].precision == "integer operator"
    assert is_quantised(one.graph.graph)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn"])
def test_8_bit_floats_have_a_range_too(dtype):
    zero = helper.make_tensor("z", onnx.TensorProto.FLOAT8E4M3FN, [], [0.0])
    model = net(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        [number("s", 1.0), zero],
        [4],
        opset=21,
    )
    held = coded(model.graph.graph)["y"]
    assert held.dtype == dtype
    assert held.range == (-448.0, 448.0)
    assert float(ml_dtypes.finfo(dtype).max) == 448.0
