"""The INT8 pass: numbers against NumPy and onnxruntime.quantization, fusions from the runtime's own profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from edgeproof.backends.reference import Reference
from edgeproof.dataset import Feeds
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model, graph_digest
from edgeproof.passes.int8 import Int8
from edgeproof.protocols import Context, Session
from edgeproof.quant.numerics import sqnr_db
from edgeproof.target import Target
from small_nets import CPU, TENSORRT, compiled, context, executed, net, node, number, ran, samples, small_cnn, weight

METHODS = ("minmax", "percentile", "entropy", "mse")


def quality(model: Model, other: Model) -> float:
    """Worst SQNR over samples that the ranges were made of: what rounding costs, without clipping."""
    return min(sqnr_db(ran(model, s), ran(other, s)) for s in samples(model, 3))


def constants(model: Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.graph.initializers.items() if v.const_value is not None}


def ops(model: Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.graph)


def one_conv(bias: bool = True) -> Model:
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    return net(
        [node("Conv", inputs, ["a"], name="c", pads=[1] * 4), node("Relu", ["a"], ["y"], name="r")],
        [weight("w", 5, 3, 3, 3), weight("b", 5)][: len(inputs) - 1],
        [1, 3, 9, 7],
    )


@pytest.mark.parametrize("method", METHODS)
def test_outputs_stay_close_to_those_of_the_float_model(method: str) -> None:
    model = small_cnn()
    change = Int8(method=method)(model, context(model, 16))
    assert change.modified
    assert quality(model, change.model) > 25.0


def test_the_given_model_is_not_changed() -> None:
    model = small_cnn()
    Int8()(model, context(model))
    assert graph_digest(model.graph) == model.digest


def test_the_same_inputs_give_the_same_model() -> None:
    model = small_cnn()
    assert Int8()(model, context(model)).model.digest == Int8()(model, context(model)).model.digest


def test_one_convolution_equals_integer_arithmetic_by_hand() -> None:
    model = one_conv()
    quantised = Int8()(model, context(model)).model
    c = constants(quantised)
    x = samples(model, 1, seed=5)[0]["x"]
    sx, zx, sw, sy = c["x.scale"], int(c["x.zero_point"]), c["w.scale"], c["y.scale"]
    codes = np.clip(np.rint(x / sx) + zx, 0, 255).astype(np.int64)
    padded = np.pad(codes - zx, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, c["w.int8"].astype(np.int64))
    sums += c["b.int32"].astype(np.int64)[None, :, None, None]
    real = sums * (sx.astype(np.float64) * sw.astype(np.float64))[None, :, None, None]
    expected = np.clip(np.rint(real / sy), 0, 255) * sy
    got = ran(quantised, {"x": x})
    assert np.abs(got - expected).max() <= sy * 1.001  # the runtime's float32 multiplier may round a tie otherwise
    assert np.mean(np.abs(got - expected) > sy / 2) < 0.01


def test_the_reference_evaluator_agrees_with_onnx_runtime() -> None:
    model = small_cnn(opset=21)  # its evaluator has no DequantizeLinear of opsets 13 to 18
    quantised = Int8()(model, context(model)).model
    sample = samples(model, 1, seed=3)[0]
    reference = Reference().compile(quantised, Target("reference:cpu", "reference", "cpu"))
    assert sqnr_db(reference.run(sample)["y"], ran(quantised, sample)) > 30.0


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_every_quantised_layer_really_runs_as_an_integer_kernel(opset: int) -> None:
    model = small_cnn(opset)
    ran_as = Counter(executed(Int8()(model, context(model)).model).values())
    assert ran_as["QLinearConv"] == 3
    assert ran_as["QGemm"] == 1
    assert ran_as["QLinearAdd"] == 1
    assert ran_as["QLinearGlobalAveragePool"] == 1
    assert ran_as["QuantizeLinear"] == 1
    assert ran_as["DequantizeLinear"] == ran_as["Conv"] == ran_as["Relu"] == ran_as["Gemm"] == ran_as["Add"] == 0


def test_a_hard_swish_between_layers_runs_as_two_integer_kernels() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("HardSwish", ["a"], ["h"], name="h1"),
            node("Conv", ["h", "w2"], ["y"], name="c2"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3)],
    )
    change = Int8()(model, context(model))
    ran_as = Counter(executed(change.model).values())
    assert (ran_as["QLinearConv"], ran_as["QLinearAdd"], ran_as["QLinearMul"]) == (2, 1, 1)
    assert (ran_as["QuantizeLinear"], ran_as["DequantizeLinear"]) == (1, 1)
    assert not {"Div", "Mul", "Clip", "HardSwish", "HardSigmoid"} & set(ran_as)
    assert quality(model, change.model) > 25.0


def test_a_squeeze_and_excite_block_runs_in_integers() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("GlobalAveragePool", ["a"], ["p"], name="pool"),
            node("Conv", ["p", "w2"], ["b"], name="c2"),
            node("HardSigmoid", ["b"], ["g"], name="gate", alpha=1 / 6, beta=0.5),
            node("Mul", ["a", "g"], ["m"], name="mul"),
            node("Conv", ["m", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 1, 1), weight("w3", 4, 4, 3, 3)],
    )
    change = Int8()(model, context(model))
    ran_as = Counter(executed(change.model).values())
    assert ran_as["QLinearConv"] == 3
    assert (ran_as["QuantizeLinear"], ran_as["DequantizeLinear"]) == (1, 1)
    assert quality(model, change.model) > 20.0


def test_scales_equal_those_of_onnxruntime_quantization_where_definitions_agree(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model = one_conv()
    feeds = samples(model, 8)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> Feeds | None:  # type: ignore[override]
            return next(self.left, None)

    source, result = tmp_path / "m.onnx", tmp_path / "q.onnx"
    source.write_bytes(model.to_bytes())
    quantize_static(
        source,
        result,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    theirs = {i.name: numpy_helper.to_array(i) for i in onnx.load(result).graph.initializer}
    mine = constants(Int8("minmax")(model, context(model)).model)
    for name in ("x", "y", "w"):
        np.testing.assert_allclose(mine[f"{name}.scale"], theirs[f"{name}_scale"], rtol=1e-6)
        np.testing.assert_array_equal(mine[f"{name}.zero_point"], theirs[f"{name}_zero_point"])
    np.testing.assert_array_equal(mine["w.int8"], theirs["w_quantized"])
    np.testing.assert_array_equal(mine["b.int32"], theirs["b_quantized"])


def test_entropy_differs_from_minmax_where_onnxruntime_gives_the_same() -> None:
    model = one_conv()
    heavy = [{"x": np.random.default_rng(i).standard_t(3, (1, 3, 9, 7)).astype(np.float32)} for i in range(64)]
    ctx = replace(context(model), feeds=lambda: iter(heavy), samples=64)
    scales = {m: constants(Int8(method=m)(model, ctx).model)["x.scale"].item() for m in METHODS}
    assert scales["entropy"] < 0.9 * scales["minmax"]
    assert len(set(scales.values())) == len(METHODS)


def test_one_scale_per_channel_beats_one_per_tensor_on_unequal_channels() -> None:
    w = numpy_helper.to_array(weight("w", 8, 3, 3, 3)) * np.geomspace(0.01, 10, 8).reshape(8, 1, 1, 1)
    model = net([node("Conv", ["x", "w"], ["y"], name="c")], [number("w", w)])

    def worst(per_channel: bool) -> float:
        quantised = Int8(per_channel=per_channel)(model, context(model)).model
        codes, scale = constants(quantised)["w.int8"], constants(quantised)["w.scale"]
        back = codes * (scale.reshape(8, 1, 1, 1) if per_channel else scale)
        return min(sqnr_db(w[i], back[i]) for i in range(8))

    assert worst(per_channel=True) > worst(per_channel=False) + 20.0


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_is_quantised_along_its_output_channels_with_its_factors(transposed: int) -> None:
    w = numpy_helper.to_array(weight("w", 6, 4)) * np.geomspace(0.1, 10, 6, dtype=np.float32).reshape(6, 1)
    model = net(
        [node("Gemm", ["x", "w", "b"], ["y"], name="g", transB=transposed, alpha=2.0, beta=0.5)],
        [number("w", w if transposed else w.T), weight("b", 6)],
        [3, 4],
    )
    quantised = Int8()(model, context(model)).model
    c = constants(quantised)
    np.testing.assert_allclose(c["w.scale"], 2 * np.abs(w).max(1) / 127, rtol=1e-6)
    assert quality(model, quantised) > 35.0
    assert Counter(executed(quantised).values())["QGemm"] == 1


def test_matmul_with_a_constant_weight_is_quantised_per_column() -> None:
    model = net([node("MatMul", ["x", "w"], ["y"], name="m")], [weight("w", 4, 6)], [2, 3, 4])
    quantised = Int8()(model, context(model)).model
    assert constants(quantised)["w.scale"].shape == (6,)
    assert quality(model, quantised) > 35.0
    assert "MatMul" not in executed(quantised).values()


def test_a_tensor_with_several_readers_is_quantised_once() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["x", "w2"], ["b"], name="c2"),
            node("Conv", ["x", "w1"], ["c"], name="c3"),
            node("Sum", ["a", "b", "c"], ["y"], name="s"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 3, 3, 3)],
    )
    quantised = Int8()(model, context(model)).model
    assert sum(n.op_type == "QuantizeLinear" and n.inputs[0].name == "x" for n in quantised.graph.graph) == 1
    assert sum(name.startswith("w1.int8") for name in constants(quantised)) == 1
    assert quality(model, quantised) > 25.0


def test_an_output_that_layers_read_too_keeps_its_name() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["mid"], name="c1"),
            node("Conv", ["mid", "w2"], ["y"], name="c2"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3)],
        outputs=("mid", "y"),
    )
    quantised = Int8()(model, context(model)).model
    assert [o.name for o in quantised.outputs] == ["mid", "y"]
    sample = samples(model, 1)[0]
    want, got = compiled(model).run(sample), compiled(quantised).run(sample)
    assert all(sqnr_db(want[k], got[k]) > 25.0 for k in want)
    assert Counter(executed(quantised).values())["QLinearConv"] == 2


def test_tensorrt_gets_symmetric_int8_float_bias_and_pairs_on_weights() -> None:
    model = small_cnn()
    quantised = Int8()(model, context(model, target=TENSORRT)).model
    c = constants(quantised)
    zero_points = [v for name, v in c.items() if name.endswith(".zero_point")]
    assert all(z.dtype == np.int8 for z in zero_points)
    assert not any(z.any() for z in zero_points)
    assert c["w1"].dtype == c["b1"].dtype == np.float32
    pairs = {n.inputs[0].name for n in quantised.graph.graph if n.op_type == "QuantizeLinear"}
    assert {"w1", "w2", "w3", "w4"} <= {name.removesuffix(".float") for name in pairs}
    assert quality(model, quantised) > 25.0


def test_reduced_range_uses_seven_bits_of_every_weight() -> None:
    model = small_cnn()
    c = constants(Int8(reduce_range=True)(model, context(model)).model)
    assert all(np.abs(v).max() <= 64 for name, v in c.items() if name.endswith(".int8"))


def test_an_older_opset_is_raised() -> None:
    model = net(
        [node("Conv", ["x", "w"], ["a"], name="c"), node("Clip", ["a"], ["y"], min=0.0, max=6.0)],
        [weight("w", 4, 3, 3, 3)],
        opset=9,
    )
    change = Int8()(model, context(model))
    assert change.model.graph.opset_imports[""] == 13
    assert Counter(executed(change.model).values())["QLinearConv"] == 1
    assert quality(model, change.model) > 25.0


def test_weights_that_are_listed_as_inputs_are_quantised() -> None:
    from onnx import TensorProto, helper

    proto = ir.to_proto(one_conv().graph)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [5, 3, 3, 3]))
    model = Model.of(ir.from_proto(proto), "listed")
    change = Int8()(model, context(model))
    assert "w.int8" in constants(change.model)
    assert [i.name for i in change.model.inputs] == ["x"]


def test_dynamic_shapes_and_several_inputs_are_calibrated() -> None:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["z", "w2"], ["b"], name="c2"),
            node("Add", ["a", "b"], ["s"], name="add"),
            node("Conv", ["s", "w3"], ["y"], name="c3"),
        ],
        "two",
        [info("x", TensorProto.FLOAT, ["n", 3, "h", "w"]), info("z", TensorProto.FLOAT, ["n", 2, "h", "w"])],
        [info("y", TensorProto.FLOAT, None)],
        [weight("w1", 4, 3, 1, 1), weight("w2", 4, 2, 1, 1), weight("w3", 4, 4, 1, 1)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = Model.of(ir.from_proto(proto), "two")
    change = Int8()(model, context(model))
    assert len(change.facts["tensors"]) >= 5
    assert quality(model, change.model) > 25.0


def test_all_methods_and_scopes_share_one_pass_over_the_samples() -> None:
    model = small_cnn()
    cache: dict[str, object] = {}
    read = 0

    def feeds() -> Iterator[Feeds]:
        nonlocal read
        for sample in samples(model, 8):
            read += 1
            yield sample

    ctx = Context(compiled, feeds, 8, CPU, calibration=cache)
    shared = [Int8(method=m)(model, ctx).model for m in METHODS]
    shared += [Int8(keep="c2")(model, ctx).model, Int8(ops="Conv")(model, ctx).model]
    assert read == 8
    alone = [Int8(method=m)(model, context(model)).model for m in METHODS]
    alone += [Int8(keep="c2")(model, context(model)).model, Int8(ops="Conv")(model, context(model)).model]
    assert [m.digest for m in shared] == [m.digest for m in alone]


def test_samples_limits_what_is_read() -> None:
    model = small_cnn()
    few, all_of_three = Int8(samples=3)(model, context(model, 8)), Int8()(model, context(model, 3))
    assert few.model.digest == all_of_three.model.digest


def test_facts_name_range_scale_and_precision() -> None:
    model = small_cnn()
    change = Int8(method="percentile", percentile=99.0, keep="c2")(model, context(model))
    fact = change.facts["tensors"]["r"]
    assert fact["min"] == fact["low"] == 0.0
    assert 0 < fact["high"] < fact["max"]
    assert fact["scale"] == pytest.approx(fact["high"] / 255)
    assert 0 < fact["clipped_share"] < 0.02
    assert change.facts["method"] == "percentile"
    assert change.facts["nodes"]["c1"] == "int8"
    assert change.facts["nodes"]["c2"] == "float"
    assert ("c2", "kept in float by the setting keep=c2") in change.declined


def test_a_model_without_layers_is_declined() -> None:
    model = net([node("Relu", ["x"], ["y"])])
    change = Int8()(model, context(model))
    assert not change.modified
    assert change.model is model
    assert change.declined == (("net", "has none of Conv, Gemm, MatMul, which the target runs in integers"),)


def test_without_samples_it_says_what_to_give() -> None:
    model = small_cnn()
    with pytest.raises(InputError, match="give a data set with --data") as caught:
        Int8()(model, replace(context(model), feeds=None))
    assert caught.value.code == "int8.samples"


@pytest.mark.parametrize("target", [None, Target("reference:cpu", "reference", "cpu")])
def test_a_target_without_integers_is_refused(target: Target | None) -> None:
    model = small_cnn()
    with pytest.raises(UnsupportedError, match="has no integer path"):
        Int8()(model, context(model, target=target))


def test_bad_settings_are_refused_before_samples_are_read() -> None:
    model = small_cnn()

    def never() -> Iterator[Feeds]:
        raise AssertionError("samples were read")

    def no_session(_model: Model) -> Session:
        raise AssertionError("a session was made")

    ctx = Context(no_session, never, 1, CPU)
    with pytest.raises(InputError, match="did you mean 'minmax'"):
        Int8(method="minmaxx")(model, ctx)
    with pytest.raises(InputError, match="expected above 50"):
        Int8(method="percentile", percentile=0.99)(model, ctx)
    with pytest.raises(InputError, match="did you mean 'Conv'"):
        Int8(ops="conv")(model, ctx)
