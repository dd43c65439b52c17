"""The backend against ONNX Runtime and what OpenVINO itself says."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import openvino
import pytest

from edgeproof.backends import openvino as backend
from edgeproof.backends.openvino import CHOOSING, IMPL, read, save_ir
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model, load_model, save_model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.latency import layer_times, owners
from edgeproof.quant.schemes import OPENVINO
from edgeproof.runtimes import find_target
from edgeproof.target import Target
from small_nets import context, net, node, ran, samples, small_cnn, weight

TARGET = find_target("openvino:cpu", {"threads": 1})
PROFILED = TARGET.with_settings({"profile": True})


def outputs(model, feeds, target=TARGET):
    session = IMPL().compile(model, target)
    try:
        return session.run(feeds)
    finally:
        session.close()


def quantised(model):
    return Int8()(model, replace(context(model), target=TARGET)).model


def counters(model, feeds):
    session = IMPL().compile(model, PROFILED)
    try:
        for _ in range(3):
            session.run(feeds)
        return session.layers()
    finally:
        session.close()


def test_it_gives_what_onnxruntime_gives():
    model = small_cnn()
    for feeds in samples(model, 3):
        np.testing.assert_allclose(outputs(model, feeds)["y"], ran(model, feeds), atol=1e-4)


def test_floats_are_computed_in_the_precision_that_they_are_written_in():
    layers = counters(small_cnn(), samples(small_cnn(), 1)[0])
    assert {x.precision for x in layers} == {"float"}
    assert all("bf16" not in x.kernel for x in layers)


def test_layers_of_an_int8_model_run_in_integers_with_their_activations_within():
    model = small_cnn()
    layers = counters(quantised(model), samples(model, 1)[0])
    own = [x for x in layers if x.op in ("Convolution", "FullyConnectedQuantizedLegacy", "FullyConnected")]
    assert [x.precision for x in own] == ["uint8"] * len(own)
    assert {x.name for x in own} >= {"c1", "c2", "c3"}
    assert not any(x.op in ("Relu", "Add", "FakeQuantize") for x in layers)


def test_int8_stays_close_to_the_float_model():
    model = small_cnn()
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    assert np.abs(outputs(quantised(model), feeds)["y"] - want).max() < 0.1 * np.abs(want).max()


def test_a_product_of_signed_values_runs_in_signed_integers():
    model = net([node("MatMul", ["x", "w"], ["y"], name="m")], [weight("w", 64, 32)], (8, 64))
    layers = counters(quantised(model), samples(model, 1)[0])
    assert {x.precision for x in layers if x.op.startswith("FullyConnected")} == {"int8"}


@pytest.mark.parametrize("op", ["HardSwish", "Sigmoid"])
def test_activations_are_within_the_convolution_ahead_of_them(op):
    gate = [node(op, ["a"], ["b"])] if op == "HardSwish" else [node(op, ["a"], ["s"]), node("Mul", ["a", "s"], ["b"])]
    model = net(
        [node("Conv", ["x", "w1"], ["a"], name="c1"), *gate, node("Conv", ["b", "w2"], ["y"], name="c2")],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 3, 3)],
    )
    layers = counters(quantised(model), samples(model, 1)[0])
    assert [x.precision for x in layers if x.op == "Convolution"] == ["uint8", "uint8"]
    assert {x.op for x in layers} <= {"Convolution", "Reorder", "Subgraph", "FakeQuantize"}


def test_times_find_back_to_the_layers_of_the_model():
    model = small_cnn()
    keys = ("a", "c", "t", "y")
    times = layer_times(
        owners(model.graph.graph, [k for k in keys if k in _made(model)]), counters(model, samples(model, 1)[0])
    )
    assert times
    assert all(value >= 0 for value in times.values())


def _made(model):
    return {v.name for n in model.graph.graph for v in n.outputs}


def test_without_the_setting_there_are_no_times():
    session = IMPL().compile(small_cnn(), TARGET)
    session.run(samples(small_cnn(), 1)[0])
    assert session.layers() == ()


def test_placement_says_what_the_runtime_executed_and_where():
    placement = IMPL().compile(small_cnn(), TARGET).placement()
    assert {where for _, _, where, _ in placement.nodes} == {"CPU"}
    assert {"c1", "c2", "c3"} <= {name for name, *_ in placement.nodes}
    assert "EXECUTION_DEVICES" in placement.source
    assert placement.fallbacks == ()


@pytest.mark.parametrize("device", CHOOSING)
def test_devices_that_choose_say_which_they_chose(device):
    target = Target(f"openvino:{device}", "openvino", device, settings={"threads": 1})
    model = small_cnn()
    feeds = samples(model, 1)[0]
    session = IMPL().compile(model, target)
    np.testing.assert_allclose(session.run(feeds)["y"], ran(model, feeds), atol=1e-4)
    assert {where for _, _, where, _ in session.placement().nodes} == {"CPU"}


@pytest.mark.parametrize(
    ("device", "devices", "absent"),
    [
        ("gpu", "", "GPU"),
        ("npu", "", "NPU"),
        ("auto", "GPU,CPU", "GPU"),
        ("multi", "NPU,CPU", "NPU"),
        ("hetero", "GPU", "GPU"),
    ],
)
def test_a_device_that_is_not_here_is_refused_and_never_replaced_by_another(device, devices, absent):
    assert absent not in openvino.Core().available_devices, "this test is for machines without Intel graphics and NPU"
    target = Target(f"openvino:{device}", "openvino", device, settings={"devices": devices})
    with pytest.raises(UnsupportedError, match=f"asks for {absent}, which OpenVINO does not find") as caught:
        IMPL().compile(small_cnn(), target)
    assert caught.value.code == "target.not_installed"


def test_a_device_that_was_asked_for_and_executed_nothing_is_told():
    session = IMPL().compile(small_cnn(), TARGET)
    session._asked = ["GPU", "CPU"]  # what AUTO was given where graphics are present but idle
    assert session.placement().fallbacks == (("GPU", "asked for, and executed nothing; the model ran on CPU"),)


def test_wrong_dtypes_and_unknown_inputs_are_refused_before_the_runtime_converts_them():
    session = IMPL().compile(small_cnn(), TARGET)
    feeds = samples(small_cnn(), 1)[0]
    for wrong in ({"x": feeds["x"].astype(np.float64)}, {**feeds, "z": feeds["x"]}, {"x": feeds["x"][:, :1]}):
        with pytest.raises(InputError):
            session.run(wrong)


def test_an_unknown_operator_is_named():
    header = '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>'
    model = Model.of(ir.from_onnx_text(f"{header}\ng (float[4] x) => (float[4] y) {{ y = com.acme.Foo(x) }}"), "m")
    with pytest.raises(UnsupportedError, match=r"com\.acme\.Foo") as caught:
        IMPL().compile(model, TARGET)
    assert caught.value.code == "backend.unknown_operator"


def test_many_requests_at_once_give_the_same_in_order():
    model = small_cnn()
    feeds = samples(model, 9)
    session = IMPL().compile(model, TARGET.with_settings({"hint": "throughput"}))
    for got, one in zip(session.run_all(feeds, requests=3), feeds, strict=True):
        np.testing.assert_allclose(got["y"], ran(model, one), atol=1e-4)


def test_weights_beyond_one_message_go_through_a_file(monkeypatch, tmp_path):
    model = small_cnn()
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    monkeypatch.setattr(backend, "PROTO_LIMIT_BYTES", 100)
    external = load_model(save_model(model, tmp_path / "large.onnx"))
    assert len(list(tmp_path.iterdir())) == 2
    np.testing.assert_allclose(outputs(external, feeds)["y"], want, atol=1e-4)


@pytest.mark.parametrize(("half", "share"), [(False, 1.0), (True, 0.5)])
def test_ir_holds_the_same_model_with_weights_in_full_or_half(tmp_path, half, share):
    model = small_cnn()
    feeds = samples(model, 1)[0]
    path = save_ir(model, tmp_path / "net.xml", half=half)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.bin", "net.xml"]
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled(feeds)[0], ran(model, feeds), atol=2e-2 if half else 1e-4)
    weights = sum(t.nbytes for t in (v.const_value for v in model.graph.graph.initializers.values()) if t is not None)
    assert abs((tmp_path / "net.bin").stat().st_size / weights - share) < 0.1


def test_ir_of_our_int8_runs_in_integers(tmp_path):
    model = small_cnn()
    path = save_ir(quantised(model), tmp_path / "net.xml")
    core = openvino.Core()
    graph = core.compile_model(core.read_model(str(path)), "CPU").get_runtime_model()
    kernels = [
        str(n.get_rt_info()["primitiveType"].value) for n in graph.get_ordered_ops() if "c1" in n.get_friendly_name()
    ]
    assert any(k.lower().endswith("i8") for k in kernels)


def test_the_graph_that_was_given_is_not_renamed():
    model = small_cnn()
    before = [n.name for n in model.graph.graph]
    read(openvino.Core(), model)
    assert [n.name for n in model.graph.graph] == before


def test_the_target_wants_what_the_scheme_says():
    assert all(target.scheme == OPENVINO for target in IMPL().targets())


def test_an_input_that_only_a_dropout_reads_is_still_fed():
    model = net([node("Dropout", ["x"], ["d"], name="drop"), node("Relu", ["d"], ["y"], name="relu")])
    feeds = samples(model, 1)[0]
    np.testing.assert_array_equal(outputs(model, feeds)["y"], np.maximum(feeds["x"], 0))
