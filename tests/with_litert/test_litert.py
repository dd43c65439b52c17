"""The backend against ONNX Runtime, its integers against ONNX's own reading of Q/DQ, and its files against readers."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from ai_edge_litert.interpreter import Interpreter

from edgeproof.backends.litert import IMPL
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model, save_model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.schemes import LITERT, ORT
from edgeproof.structure import read_structure
from edgeproof.target import Target
from edgeproof.tflite.convert import convert
from edgeproof.training import load_training, run_training
from small_nets import context, net, node, number, ran, samples, small_cnn, weight

CPU = Target("litert:cpu", "litert", "cpu", LITERT, settings={"threads": 1})


def outputs(model, feeds, **settings):
    session = IMPL().compile(model, CPU.with_settings(settings))
    try:
        return session.run(feeds)
    finally:
        session.close()


def quantised(model, scheme=LITERT, **settings):
    return Int8(**settings)(model, replace(context(model), target=replace(CPU, scheme=scheme))).model


def operators(model, **settings):
    return [(op, dtype) for _, op, dtype in convert(model, **settings).operators]


def steps(model, float_model, feeds):
    """Largest difference to ONNX Runtime on the same Q/DQ graph, as a share of the float model's largest output."""
    want = ran(model, feeds)
    return np.abs(outputs(model, feeds)["y"] - want).max() / np.abs(ran(float_model, feeds)).max()


def mixed():
    """Grouped, depthwise and transposed convolutions, a gate per channel, concatenation and pooling."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="stem", strides=[2, 2], pads=[1] * 4),
        node("HardSwish", ["a"], ["h"], name="swish"),
        node("Conv", ["h", "w2"], ["d"], name="depthwise", group=16, pads=[1] * 4),
        node("GlobalAveragePool", ["d"], ["p"]),
        node("Conv", ["p", "w3", "b3"], ["q"], name="gate"),
        node("HardSigmoid", ["q"], ["g"], alpha=1 / 6, beta=0.5),
        node("Mul", ["d", "g"], ["e"]),
        node("Conv", ["e", "w4", "b4"], ["f"], name="grouped", group=2, pads=[1] * 4),
        node("Clip", ["f", "zero", "six"], ["c"]),
        node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["m", "w5", "b5"], ["u"], name="up", strides=[2, 2]),
        node("Concat", ["u", "c"], ["k"], axis=1),
        node("Conv", ["k", "w6", "b6"], ["y"], name="head"),
    ]
    weights = [
        weight("w1", 16, 3, 3, 3), weight("b1", 16), weight("w2", 16, 1, 3, 3), weight("w3", 16, 16, 1, 1),
        weight("b3", 16), weight("w4", 8, 8, 3, 3), weight("b4", 8), weight("w5", 8, 6, 2, 2), weight("b5", 6),
        weight("w6", 5, 14, 1, 1), weight("b6", 5), number("zero", 0), number("six", 6),
    ]  # fmt: skip
    return net(nodes, weights, (1, 3, 32, 32))


def attention():
    """Self-attention over what a convolution made of an image: a reshape, transposes and two products."""
    shape = [onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("flat", [1, 8, 64]),)]
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1] * 4),
        node("Reshape", ["c", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "wq"], ["q"]),
        node("MatMul", ["t", "wk"], ["k0"]),
        node("Add", ["k0", "bk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "t"], ["y"]),
    ]
    return net(nodes, [weight("w", 8, 3, 3, 3), weight("wq", 8, 8), weight("wk", 8, 8), weight("bk", 8), *shape])


@pytest.mark.parametrize("make", [small_cnn, mixed, attention])
@pytest.mark.parametrize("settings", [{}, {"xnnpack": False}, {"layout": "nhwc"}])
def test_it_gives_what_onnxruntime_gives(make, settings):
    model = make()
    for feeds in samples(model, 2):
        want = ran(model, feeds)
        np.testing.assert_allclose(outputs(model, feeds, **settings)["y"], want, atol=1e-5 * np.abs(want).max() + 1e-6)


@pytest.mark.parametrize("make", [small_cnn, mixed])
@pytest.mark.parametrize("scheme", [LITERT, ORT], ids=["litert", "onnxruntime"])
def test_int8_is_that_of_the_graph_whoever_it_was_placed_for(make, scheme):
    model = make()
    made = quantised(model, scheme)
    for feeds in samples(model, 3, seed=5):
        assert steps(made, model, feeds) < 0.03


def test_a_convolution_alone_gives_the_very_codes_of_onnx():
    model = net(
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)], [weight("w", 8, 4, 3, 3), weight("b", 8)], (1, 4, 9, 9)
    )
    made = quantised(model)
    for feeds in samples(model, 4, seed=2):
        np.testing.assert_allclose(outputs(made, feeds)["y"], ran(made, feeds), atol=1e-6)


@pytest.mark.parametrize("strides", [[2, 2], [2, 3]], ids=str)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], ids=str)
@pytest.mark.parametrize("extra", [[0, 0], [1, 1]], ids=str)
def test_a_transposed_convolution_in_groups_cuts_and_adds_what_onnx_says(strides, pads, extra):
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=strides, pads=pads, output_padding=extra, group=2)]
    model = net(nodes, [weight("w", 4, 3, 3, 3)], (1, 4, 5, 6))
    for feeds in samples(model, 1):
        np.testing.assert_allclose(outputs(model, feeds)["y"], ran(model, feeds), atol=1e-5)


@pytest.mark.parametrize(("kernel", "pads"), [(2, 0), (3, 1), (4, 1), (5, 2)])
def test_a_transposed_convolution_by_stride_two_is_a_plain_one_between_the_points(kernel, pads):
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[pads] * 4)]
    model = net(nodes, [weight("w", 4, 3, kernel, kernel), weight("b", 3)], (1, 4, 6, 5))
    assert "TRANSPOSE_CONV" not in dict(operators(model))
    for made in (model, quantised(model)):
        feeds = samples(model, 1)[0]
        np.testing.assert_allclose(outputs(made, feeds)["y"], ran(made, feeds), atol=1e-5)


@pytest.mark.parametrize(
    ("size", "kernel", "pads"), [(8, 3, (1, 1)), (8, 3, (0, 1)), (10, 5, (2, 2)), (8, 2, (0, 0)), (8, 4, (1, 1))]
)
def test_an_image_taken_in_pairs_of_columns_gives_the_very_same_codes(size, kernel, pads):
    nodes = [node("Conv", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[pads[0], pads[0], pads[1], pads[1]])]
    model = net(nodes, [weight("w", 5, 3, kernel, kernel), weight("b", 5)], (1, 3, size, size))
    made, feeds = quantised(model), samples(model, 1)[0]
    np.testing.assert_allclose(outputs(made, feeds)["y"], ran(made, feeds), atol=1e-6)
    weights = [t for _, t in constants(convert(made).data) if t.dtype == np.int8 and t.ndim == 4]
    assert [w.shape[-1] for w in weights] == [6]


def constants(data):
    """Stored tensors of a file, by LiteRT's own reader."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(data, 0)
    for t in model.subgraphs[0].tensors:
        held = model.buffers[t.buffer].data
        if held is not None and t.type in (schema.TensorType.INT8, schema.TensorType.FLOAT32):
            kind = np.int8 if t.type == schema.TensorType.INT8 else np.float32
            yield t.name.decode(), np.frombuffer(np.asarray(held, np.uint8).tobytes(), kind).reshape(t.shape)


def test_the_data_of_every_constant_begin_where_the_schema_aligns_them():
    from ai_edge_litert import schema_py_generated as schema

    data = convert(quantised(mixed())).data
    model = schema.Model.GetRootAs(data, 0)
    for i in range(model.BuffersLength()):
        buffer = model.Buffers(i)
        if buffer.DataLength():
            offset = buffer._tab.Vector(buffer._tab.Offset(4))
            assert offset % 16 == 0


def test_every_operator_of_a_quantised_network_runs_in_integers_on_xnnpack():
    session = IMPL().compile(quantised(mixed()), CPU)
    placement = session.placement()
    session.close()
    inner = [n for n in placement.nodes if n[1] not in ("QUANTIZE", "DEQUANTIZE")]
    assert {precision for _, _, _, precision in inner} == {"int8"}
    assert {where for _, _, where, _ in placement.nodes} == {"xnnpack"}
    assert placement.fallbacks == ()


def test_what_xnnpack_leaves_is_told_by_node_and_reason():
    axis = onnx.numpy_helper.from_array(np.array(2, np.int64), "axis")
    session = IMPL().compile(net([node("CumSum", ["x", "axis"], ["y"], name="sum")], [axis]), CPU)
    placement = session.placement()
    session.close()
    assert placement.nodes == (("sum", "CUMSUM", "builtin", "float"),)
    assert placement.fallbacks == (("sum", "XNNPACK left CUMSUM on float32 to LiteRT's own kernel"),)


def test_without_xnnpack_all_is_left_to_the_own_kernels():
    session = IMPL().compile(small_cnn(), CPU.with_settings({"xnnpack": False}))
    assert {where for _, _, where, _ in session.placement().nodes} == {"builtin"}
    session.close()


def test_a_network_of_convolutions_turns_its_image_and_its_map_and_nothing_else():
    assert [op for op, _ in operators(mixed())].count("TRANSPOSE") == 2
    assert [op for op, _ in operators(small_cnn())].count("TRANSPOSE") == 1
    assert "TRANSPOSE" not in dict(operators(mixed(), order="nhwc"))
    assert "TRANSPOSE" not in dict(operators(small_cnn(), order="nhwc"))


def test_attention_over_an_image_turns_nothing_but_the_image():
    # The reshape joins axes that lie together channels last, and the keys are read turned by the product itself.
    assert [op for op, _ in operators(attention())].count("TRANSPOSE") == 1


def test_float16_weights_halve_the_file_and_cost_a_thousandth():
    model = net([node("Conv", ["x", "w"], ["y"])], [weight("w", 64, 32, 3, 3)], (1, 32, 8, 8))
    whole, half = convert(model), convert(model, half=True)
    assert len(half.data) < 0.55 * len(whole.data)
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    assert 0 < np.abs(outputs(model, feeds, half=True)["y"] - want).max() < 2e-3 * np.abs(want).max()


def test_a_float16_model_is_stored_in_float16_and_fed_and_read_so():
    model = net([node("Conv", ["x", "w"], ["y"])], [weight("w", 32, 16, 3, 3)], (1, 16, 6, 6))
    small = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight("w", 32, 16, 3, 3)).astype(np.float16), "w")
    half, info = onnx.TensorProto.FLOAT16, onnx.helper.make_tensor_value_info
    ends = [info("x", half, [1, 16, 6, 6])], [info("y", half, [1, 32, 4, 4])]
    graph = onnx.helper.make_graph([node("Conv", ["x", "w"], ["y"])], "half", *ends, [small])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    made = Model.of(ir.from_proto(proto), "half")
    assert len(convert(made).data) < 0.6 * len(convert(model).data)
    feeds = {"x": samples(model, 1)[0]["x"].astype(np.float16)}
    got = outputs(made, feeds)["y"]
    want = ran(model, {"x": feeds["x"].astype(np.float32)})
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want, atol=5e-3 * np.abs(want).max())


@pytest.mark.parametrize("weights", ["float", "dynamic"])
def test_eight_bit_weights_under_float_activations_stay_so_in_the_file(weights):
    scale = np.linspace(0.01, 0.02, 256, dtype="f4")
    codes = np.random.default_rng(1).integers(-127, 128, (128, 256)).astype("i1")
    nodes = [node("DequantizeLinear", ["w", "s"], ["r"], axis=1), node("MatMul", ["x", "r"], ["y"])]
    made = net(nodes, [onnx.numpy_helper.from_array(a, n) for a, n in ((codes, "w"), (scale, "s"))], (4, 128))
    feeds = samples(made, 1)[0]
    assert len(convert(made, weights=weights).data) < 128 * 256 + 8000
    want, got = feeds["x"] @ (codes * scale), outputs(made, feeds, weights=weights)["y"]
    # Activations that are quantised as they come have 255 steps between their ends.
    assert np.abs(got - want).max() < (1e-5 if weights == "float" else 0.02) * np.abs(want).max()


def test_a_file_is_built_that_readers_know(tmp_path):
    model = quantised(small_cnn())
    told = []
    built = IMPL().build(model, CPU, tmp_path / "net.tflite", lambda what, share: told.append((what, share)))
    assert built.format == "tflite"
    assert built.files == (tmp_path / "net.tflite",)
    assert told[-1] == ("written", 1.0)
    structure = read_structure(built.path)
    assert [str(s) for s in structure.inputs] == ["x float32[1, 3, 16, 16]"]
    assert [s.name for s in structure.outputs] == ["y"]
    assert structure.operators["CONV_2D"] == 3
    assert not [f for f in structure.findings if f.level in ("gap", "block")]
    interpreter = Interpreter(str(built.path))
    assert interpreter.get_signature_list()["serving_default"] == {"inputs": ["x"], "outputs": ["y"]}


def test_a_file_for_cameras_takes_channels_last(tmp_path):
    target = CPU.with_settings({"layout": "nhwc"})
    built = IMPL().build(small_cnn(), target, tmp_path / "net", lambda _what, _share: None)
    assert built.path.name == "net.tflite"
    interpreter = Interpreter(str(built.path))
    assert list(interpreter.get_input_details()[0]["shape"]) == [1, 16, 16, 3]
    assert "NHWC" in built.notes[0]


def test_files_of_open_dimensions_are_refused_with_the_shape_that_closes_them():
    with pytest.raises(UnsupportedError, match="--shape x=1,3,8,8") as caught:
        convert(net([node("Relu", ["x"], ["y"])], shape=("n", 3, 8, 8)))
    assert caught.value.subject == "x"


def test_a_session_of_open_dimensions_takes_the_sizes_that_it_is_fed():
    model = net([node("Conv", ["x", "w"], ["y"])], [weight("w", 4, 3, 3, 3)], ("n", 3, "h", 8))
    session = IMPL().compile(model, CPU)
    assert session.placement().nodes == ()
    for shape in ((1, 3, 8, 8), (2, 3, 5, 8), (1, 3, 8, 8)):
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], ran(model, {"x": x}), atol=1e-5)
    assert [op for _, op, _, _ in session.placement().nodes if op == "CONV_2D"]
    with pytest.raises(InputError, match="shape"):
        session.run({"x": np.zeros((1, 4, 8, 8), np.float32)})
    session.close()


def test_a_constant_that_is_quantised_by_a_node_is_stored_as_its_codes():
    """Codes and values by hand: 0.3 / 0.1 + 5 = 8, and back; 20 saturates at 127, which is 12.2."""
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        node("QuantizeLinear", ["b", "scale", "zero"], ["bq"]),
        node("DequantizeLinear", ["bq", "scale", "zero"], ["bd"]),
        node("Add", ["xd", "bd"], ["y"]),
    ]
    known = [number("scale", 0.1), number("zero", 5, np.int8), number("b", [0.3, 20.0])]
    model = net(nodes, known, (1, 2), opset=13)
    x = np.zeros((1, 2), np.float32)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], [[0.3, 12.2]], rtol=1e-6)


def test_training_by_a_file_exports_a_model_of_an_open_batch(tmp_path):
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"]),
            node("Relu", ["a"], ["r"]),
            node("Conv", ["r", "w2"], ["c"]),
            node("GlobalAveragePool", ["c"], ["p"]),
            node("Flatten", ["p"], ["y"]),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 4, 8, 3, 3)],
        ("n", 3, 8, 8),
    )
    save_model(model, tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((8, 3, 8, 8), np.float32)
    np.savez(tmp_path / "samples.npz", x=x, labels=np.arange(8) % 4)
    stages = "[{prune: {keep: 0.6, round_to: 1}}, {export: {targets: 'litert:cpu'}}]"
    (tmp_path / "spec.yaml").write_text(f"model: net.onnx\ndata: samples.npz\nstages: {stages}\n")
    spec = load_training(tmp_path / "spec.yaml")
    run_training(spec)
    (file,) = spec.out.glob("*/*.tflite")
    assert list(Interpreter(model_path=str(file)).get_input_details()[0]["shape"]) == [1, 3, 8, 8]


@pytest.mark.parametrize(
    ("nodes", "shape", "named"),
    [
        ([node("MaxPool", ["x"], ["y"], name="p", kernel_shape=[2, 2], dilations=[2, 2])], (1, 3, 8, 8), "dilated"),
        ([node("Conv", ["x", "w"], ["y"], name="p")], (1, 3, 4, 4, 4), "axes of space"),
        ([node("Mod", ["x", "x"], ["y"], name="p", fmod=1)], (4,), "fmod"),
        ([node("Det", ["x"], ["y"], name="p")], (3, 3), "builtin operators"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_node_and_operator(nodes, shape, named):
    weights = [weight("w", 2, 3, 2, 2, 2)] if nodes[0].op_type == "Conv" else []
    with pytest.raises(UnsupportedError, match=named) as caught:
        convert(net(nodes, weights, shape))
    assert caught.value.subject == f"p ({nodes[0].op_type})"
    assert caught.value.hint


def test_arrays_of_another_shape_are_refused():
    session = IMPL().compile(small_cnn(), CPU)
    with pytest.raises(InputError, match="shape"):
        session.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
    session.close()


def test_gelu_written_with_erf_is_one_operator():
    nodes = [
        node("Div", ["x", "root"], ["a"]),
        node("Erf", ["a"], ["e"]),
        node("Add", ["e", "one"], ["s"]),
        node("Mul", ["x", "s"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    model = net(nodes, [number("root", 2**0.5), number("one", 1), number("half", 0.5)], (3, 5))
    assert operators(model) == [("GELU", "float32")]
    feeds = samples(model, 1)[0]
    np.testing.assert_allclose(outputs(model, feeds)["y"], ran(model, feeds), atol=1e-5)


def test_codes_that_are_read_by_another_scale_lose_nothing():
    # Hard-swish spelled out in integers ends with a product with 1/6 that only changes the scale.
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        node("HardSwish", ["a"], ["h"]),
        node("Conv", ["h", "w2"], ["c"], pads=[1] * 4),
        node("Add", ["c", "h"], ["s"]),
        node("Conv", ["s", "w3"], ["y"]),
    ]
    weights = [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 3, 3), weight("w3", 4, 8, 1, 1)]
    model = net(nodes, weights, (1, 3, 12, 12))
    made = quantised(model)
    for feeds in samples(model, 3, seed=9):
        assert steps(made, model, feeds) < 0.02
