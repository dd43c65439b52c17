"""The backend against ONNX Runtime, its integers against ONNX's own reading of Q/DQ, and its files against ncnn."""

from dataclasses import replace

import ncnn
import numpy as np
import pytest
from onnx import TensorProto, helper

from edgeproof.backends.ncnn import IMPL, NcnnSession
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.ncnn.integers import SCALES
from edgeproof.ncnn.netfile import read
from edgeproof.passes.int8 import Int8
from edgeproof.quant.schemes import NCNN
from edgeproof.target import Target
from small_nets import context, net, node, number, ran, samples, small_cnn, weight

CPU = Target("ncnn:cpu", "ncnn", "cpu", NCNN, settings={"threads": 1})
HERE = {t.name: t for t in IMPL().targets()}


def outputs(model, feeds, target=CPU):
    session = IMPL().compile(model, target)
    try:
        return session.run(feeds)
    finally:
        session.close()


def quantised(model, **settings):
    return Int8(**settings)(model, replace(context(model), target=CPU)).model


def chain():
    """Layers that only feed layers: convolution, depthwise convolution, convolution, inner product."""
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="relu"),
            node("Conv", ["r", "w2"], ["c"], name="depthwise", pads=[1] * 4, group=8),
            node("Clip", ["c", "low", "high"], ["k"], name="clip"),
            node("Conv", ["k", "w3"], ["d"], name="pointwise"),
            node("Flatten", ["d"], ["f"], name="flat"),
            node("Gemm", ["f", "w4", "b4"], ["y"], name="last", transB=1),
        ],
        [
            weight("w1", 8, 3, 3, 3),
            weight("b1", 8),
            weight("w2", 8, 1, 3, 3),
            weight("w3", 16, 8, 1, 1),
            weight("w4", 10, 16 * 8 * 8),
            weight("b4", 10),
            number("low", 0.0),
            number("high", 6.0),
        ],
        (1, 3, 8, 8),
    )


def raw(session: NcnnSession, name: str, feeds):
    """What a layer writes, as ncnn holds it."""
    extractor = session._net.create_extractor()
    extractor.set_light_mode(False)
    extractor.input("in0", ncnn.Mat(np.ascontiguousarray(feeds["x"]), batch_index=0).clone())
    (layer,) = [x for x in session.network.layers if x.name == name]
    code, found = extractor.extract(layer.outputs[0], 1)
    assert code == 0
    return found.elembits()


def test_it_gives_what_onnxruntime_gives():
    model = small_cnn()
    for feeds in samples(model, 3):
        np.testing.assert_allclose(outputs(model, feeds)["y"], ran(model, feeds), atol=1e-4)


def test_integers_are_those_of_the_qdq_graph():
    model = quantised(chain())
    for feeds in samples(model, 3):
        want = ran(model, feeds)
        np.testing.assert_allclose(outputs(model, feeds)["y"], want, atol=0.02 * np.abs(want).max())


def test_an_integer_layer_alone_is_exact_where_no_value_lies_between_two_codes():
    alone = net(
        [node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)], [weight("w", 8, 16, 3, 3)], (1, 16, 12, 12)
    )
    model = quantised(alone)
    (scale,) = [v.const_value.numpy() for k, v in model.graph.graph.initializers.items() if k == "x.scale"]
    codes = np.random.default_rng(5).integers(-127, 128, (1, 16, 12, 12))
    feeds = {"x": (codes * scale).astype(np.float32)}
    want = ran(model, feeds)
    np.testing.assert_allclose(outputs(model, feeds)["y"], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_layers_that_feed_integer_layers_write_eight_bits():
    session = NcnnSession(quantised(chain()), CPU)
    feeds = samples(chain(), 1)[0]
    assert {n: raw(session, n, feeds) for n in ("first", "depthwise", "pointwise")} == {
        "first": 8,
        "depthwise": 8,
        "pointwise": 32,
    }
    session.close()


def test_placement_names_the_layers_of_the_model_and_says_which_run_in_integers():
    session = NcnnSession(quantised(chain()), CPU)
    placement = session.placement()
    session.close()
    found = {name: (op, where, precision) for name, op, where, precision in placement.nodes}
    assert found["first"] == ("Convolution", "CPU", "int8")
    assert found["depthwise"] == ("ConvolutionDepthWise", "CPU", "int8")
    assert found["last"] == ("InnerProduct", "CPU", "int8")
    assert placement.fallbacks == ()


def test_a_layer_whose_input_has_a_zero_point_stays_in_float_and_says_so():
    model = small_cnn()
    other = Target(
        "onnxruntime:cpu", "onnxruntime", "cpu", replace(NCNN, activation="uint8", activation_symmetric=False)
    )
    model = Int8()(model, replace(context(model), target=other)).model
    session = NcnnSession(model, CPU)
    fallbacks = dict(session.placement().fallbacks)
    session.close()
    assert "zero point" in fallbacks["c1"]


def test_a_profile_has_a_time_for_every_layer():
    model = small_cnn()
    session = IMPL().compile(model, CPU.with_settings({"profile": True}))
    for feeds in samples(model, 3):
        session.run(feeds)
    layers = session.layers()
    session.close()
    assert {"c1", "c2", "c3", "fc"} <= {x.name for x in layers}
    assert all(len(x.time_ns) == 3 and min(x.time_ns) > 0 for x in layers)


def test_half_precision_is_only_used_when_asked_for():
    model = small_cnn()
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    plain = np.abs(outputs(model, feeds)["y"] - want).max()
    half = np.abs(outputs(model, feeds, CPU.with_settings({"precision": "fp16"}))["y"] - want).max()
    assert plain < 1e-5 * np.abs(want).max()
    assert half < 1e-2 * np.abs(want).max()


@pytest.mark.parametrize("integer", [False, True])
def test_what_is_built_loads_in_ncnn_and_gives_the_same(integer, tmp_path):
    model = quantised(chain()) if integer else chain()
    built = IMPL().build(model, CPU, tmp_path / "model", lambda _what, _share: None)
    assert built.path == tmp_path / "model.param"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.bin", "model.param"]
    layers = read(built.path.read_text(), built.path.with_suffix(".bin").read_bytes())
    assert any(x.number(SCALES) for x in layers if x.type == "Convolution") is integer
    feeds = samples(model, 1)[0]
    loaded = ncnn.Net()
    loaded.opt.use_fp16_storage = loaded.opt.use_fp16_packed = loaded.opt.use_fp16_arithmetic = False
    assert loaded.load_param(str(built.path)) == 0
    assert loaded.load_model(str(built.path.with_suffix(".bin"))) == 0
    extractor = loaded.create_extractor()
    extractor.input(built.facts["blobs"]["x"], ncnn.Mat(feeds["x"], batch_index=0).clone())
    _, found = extractor.extract(built.facts["blobs"]["y"])
    np.testing.assert_allclose(found.numpy(batch_index=0), outputs(model, feeds)["y"], atol=1e-5)


def test_half_weights_halve_the_file(tmp_path):
    sizes = {}
    for form in ("float32", "float16"):
        target = CPU.with_settings({"weights": form})
        built = IMPL().build(chain(), target, tmp_path / form, lambda _what, _share: None)
        sizes[form] = built.path.with_suffix(".bin").stat().st_size
    assert 0.5 < sizes["float16"] / sizes["float32"] < 0.52


def test_integers_that_are_only_flags_become_floats():
    graph = helper.make_graph(
        [node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT), node("Mul", ["x", "m"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 3]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 4, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 3])],
    )
    import onnx_ir as ir

    model = Model.of(
        ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)), "m"
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    mask = np.array([1, 0, 1, 0]).reshape(1, 4, 1)
    np.testing.assert_array_equal(outputs(model, {"x": x, "mask": mask})["y"], x * mask)


def test_files_of_open_shapes_are_refused_with_the_shape_that_closes_them(tmp_path):
    model = net([node("Relu", ["x"], ["y"])], shape=("n", 3, 8, 8))
    with pytest.raises(UnsupportedError, match="--shape x=1,3,8,8") as caught:
        IMPL().build(model, CPU, tmp_path / "m", lambda _what, _share: None)
    assert caught.value.code == "backend.dynamic_shapes"


def test_a_session_of_open_shapes_takes_the_sizes_that_it_is_fed():
    session = IMPL().compile(net([node("Relu", ["x"], ["y"])], shape=(1, 3, "h", "w")), CPU)
    for size in (4, 6, 4):
        x = np.linspace(-1, 1, 3 * size * 8, dtype=np.float32).reshape(1, 3, size, 8)
        np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x, 0), rtol=1e-6)
    session.close()


def test_an_operator_without_a_form_in_ncnn_is_named():
    model = net(
        [
            node("Relu", ["x"], ["r"], name="fine"),
            node("IsNaN", ["r"], ["b"], name="culprit"),
            node("Cast", ["b"], ["y"], name="after", to=TensorProto.FLOAT),
        ]
    )
    with pytest.raises(UnsupportedError, match=r"IsNaN.*culprit"):
        IMPL().compile(model, CPU)


def test_arrays_of_another_shape_are_refused():
    session = IMPL().compile(small_cnn(), CPU)
    with pytest.raises(InputError, match="has the shape"):
        session.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
    session.close()


@pytest.mark.parametrize("name", [n for n in HERE if n == "ncnn:vulkan"])
def test_vulkan_computes_on_the_device_that_it_names(name):
    model = small_cnn()
    session = IMPL().compile(model, HERE[name])
    feeds = samples(model, 1)[0]
    np.testing.assert_allclose(session.run(feeds)["y"], ran(model, feeds), atol=1e-3)
    device = ncnn.get_gpu_info(0).device_name()
    assert {where for _, op, where, _ in session.placement().nodes if op == "Convolution"} == {device}
    session.close()


def test_codes_that_are_read_by_another_scale_are_numbers_times_the_ratio():
    """Written by 0.5 and read by 0.125: a quarter of every value, as hard-swish spelled out for LiteRT has it."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("QuantizeLinear", ["r", "written", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "read", "zero"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    known = [number("written", 0.5), number("read", 0.125), number("zero", 0, np.int8)]
    model = net(nodes, known, (1, 3, 4, 4), opset=13)
    x = np.random.default_rng(0).integers(-8, 8, (1, 3, 4, 4)).astype(np.float32) / 2
    session = IMPL().compile(model, CPU)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x, 0) / 4, rtol=1e-6)
    session.close()
