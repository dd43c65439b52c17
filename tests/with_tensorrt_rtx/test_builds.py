"""Engines that TensorRT for RTX really builds here, without a GPU, and what it says of them."""

import json
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper

from edgeproof.backends.tensorrt_rtx import IMPL
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.passes.append_nms import AppendNms
from edgeproof.passes.fp16 import Fp16
from edgeproof.passes.int8 import Int8
from edgeproof.quant.schemes import ORT, TENSORRT
from edgeproof.runtimes import find_target
from edgeproof.target import Target
from edgeproof.tensorrt.build import make_engine
from edgeproof.tensorrt.device import find_device
from edgeproof.tensorrt.header import read_header
from edgeproof.tensorrt.network import prepared, refusals
from edgeproof.tensorrt.settings import Plan, capability_of
from small_nets import context, net, node, small_cnn, weight

PLAN = Plan("tensorrt_rtx:sm86", capabilities=("8.6",))


def target(scheme=TENSORRT):
    return Target("tensorrt_rtx:sm86", "tensorrt_rtx", "sm86", scheme)


def quantised(model, scheme=TENSORRT, **settings):
    return Int8(**settings)(model, replace(context(model), target=target(scheme))).model


def layers(model, plan=PLAN):
    return make_engine(trt, model, plan).layers


def two_convolutions(*between):
    """Convolution, what is between (from ``a`` to ``b``), convolution."""
    return net(
        [node("Conv", ["x", "w1"], ["a"], name="c1"), *between, node("Conv", ["b", "w2"], ["y"], name="c2")],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 3, 3)],
    )


@pytest.mark.parametrize("device", [t.device for t in IMPL().planned()])
def test_an_engine_is_built_for_every_planned_target(device, tmp_path):
    made = Fp16()(small_cnn(), context(small_cnn())).model
    built = IMPL().build(made, find_target(f"tensorrt_rtx:{device}", {}, run=False), tmp_path / "net.engine", say)
    header = read_header(built.path.read_bytes())
    assert header is not None
    assert header.text == trt.__version__
    assert device == "gpu" or header.capabilities == (capability_of(device),)
    assert built.format == "tensorrt-rtx-engine"
    record = json.loads((tmp_path / "net.engine.json").read_text())
    assert record["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [1, 3, 16, 16]}
    assert built.command.startswith("tensorrt_rtx --onnx=net.onnx")
    assert ("--computeCapabilities=" in built.command) == (device != "gpu")


def say(what: str, share: float) -> None:
    assert what
    assert 0 <= share <= 1


def test_the_targets_that_it_plans_for_are_those_that_it_compiles_for():
    known = {name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")}
    assert {t.device for t in IMPL().planned()} - {"gpu"} == known


def test_nothing_runs_here_without_a_gpu_and_that_is_said():
    assert find_device() is None, "this test is for machines without an NVIDIA GPU"
    assert IMPL().targets() == ()
    with pytest.raises(UnsupportedError, match="this machine has no NVIDIA GPU") as caught:
        IMPL().compile(small_cnn(), target())
    assert "edgeproof build" in caught.value.hint


def test_layers_are_named_after_the_nodes_that_they_stand_for():
    found = layers(small_cnn())
    named = {n for layer in found for n in layer.nodes}
    assert named >= {"c1", "r1", "c2", "add", "c3"}
    fused = next(layer for layer in found if "c1" in layer.nodes)
    assert set(fused.nodes) == {"c1", "r1"}
    assert fused.precision == "float"


def test_our_fp16_computes_in_half_precision():
    model = Fp16()(small_cnn(), context(small_cnn())).model
    multiplying = [layer for layer in layers(model) if layer.multiplies]
    assert multiplying
    assert {layer.precision for layer in multiplying} == {"float16"}


def test_our_int8_multiplies_in_integers_and_the_activation_is_in_the_kernel_that_quantises():
    found = layers(quantised(small_cnn()))
    multiplying = [layer for layer in found if layer.multiplies]
    assert {n for layer in multiplying for n in layer.nodes} >= {"c1", "c2", "c3"}
    assert all(layer.integers for layer in multiplying)
    assert sum(layer.moves for layer in found) <= 2  # the input, and what the last product reads
    assert sum("r1" in layer.nodes or "Relu" in layer.name for layer in found) <= 3


@pytest.mark.parametrize(
    "between",
    [
        [node("Relu", ["a"], ["b"])],
        [node("Sigmoid", ["a"], ["s"]), node("Mul", ["a", "s"], ["b"])],
        [node("HardSwish", ["a"], ["b"])],
        [node("LeakyRelu", ["a"], ["b"])],
    ],
    ids=["relu", "silu", "hard-swish", "leaky-relu"],
)
def test_an_activation_and_the_quantisation_behind_it_are_one_kernel(between):
    found = layers(quantised(two_convolutions(*between)))
    assert [layer.integers for layer in found if layer.multiplies] == [True, True]
    # The input's quantisation; the first convolution and its kernel; the second and what gives its floats.
    assert len(found) <= 5


def test_a_residual_sum_is_one_kernel_with_what_is_behind_it():
    found = layers(quantised(small_cnn()))
    sums = [layer for layer in found if "add" in layer.nodes]
    assert len(sums) == 1
    assert sums[0].outputs[0] == "int8"


def test_q_dq_for_another_runtime_is_refused_with_the_remedy():
    with pytest.raises(UnsupportedError) as caught:
        layers(quantised(small_cnn(), ORT))
    assert "(QuantizeLinear)" in caught.value.subject or "(DequantizeLinear)" in caught.value.subject
    assert "pass int8 for this target" in caught.value.hint


def test_an_operator_that_it_does_not_know_is_named():
    header = '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>'
    model = Model.of(ir.from_onnx_text(f"{header}\ng (float[4] x) => (float[4] y) {{ y = com.acme.Foo(x) }}"), "m")
    with pytest.raises(UnsupportedError, match=r"node y \(Foo\): Foo is an operator that neither") as caught:
        layers(model)
    assert caught.value.code == "backend.unknown_operator"
    assert [(r.node, r.operator) for r in refusals(trt, prepared(model))] == [("y", "Foo")]


def test_a_model_that_it_takes_has_no_refusals():
    assert refusals(trt, prepared(small_cnn())) == ()


def test_float32_products_on_turing_are_refused_with_the_remedy():
    model = net([node("MatMul", ["x", "w"], ["y"], name="product")], [weight("w", 64, 32)], (8, 64))
    with pytest.raises(UnsupportedError, match=r"node product \(MatMul\).*Turing") as caught:
        layers(model, replace(PLAN, capabilities=("7.5",)))
    assert "fp16" in caught.value.hint


def test_open_sizes_take_a_profile_and_the_engine_is_built_for_it():
    model = net([node("Conv", ["x", "w"], ["y"], name="c")], [weight("w", 8, 3, 3, 3)], ("n", 3, "h", "w"))
    with pytest.raises(InputError, match="for which sizes"):
        layers(model)
    made = make_engine(trt, model, replace(PLAN, shapes="x=1x3x16x16:2x3x32x32:4x3x64x64"))
    assert made.profiles[0]["x"].most == (4, 3, 64, 64)
    assert made.layers


def test_dimensions_that_an_exporter_calls_by_a_question_mark_may_differ():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1, 3, "?", "?"])],
        [value("y", TensorProto.FLOAT, [1, 3, "?", "?"])],
    )
    model = Model.of(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), "g")
    assert make_engine(trt, model, replace(PLAN, shapes="x=1x3x48x192")).data


def test_several_capabilities_go_into_one_engine():
    one = make_engine(trt, small_cnn(), PLAN)
    three = make_engine(trt, small_cnn(), replace(PLAN, capabilities=("8.6", "8.9", "12.0")))
    assert one.data != three.data


def test_a_capability_that_it_does_not_compile_for_is_refused_with_those_that_it_does():
    with pytest.raises(UnsupportedError, match=r"compute capability 8\.7; it does for .*8\.6"):
        layers(small_cnn(), replace(PLAN, capabilities=("8.7",)))


@pytest.mark.parametrize(
    "changes", [{"sparse": True}, {"tf32": True}, {"workspace_bytes": 64 << 20}, {"layer_info": False}]
)
def test_options_are_taken(changes):
    made = make_engine(trt, small_cnn(), replace(PLAN, **changes))
    assert made.data
    assert bool(made.layers) == made.plan.layer_info


def test_bfloat16_is_refused_where_it_is_not_computed():
    model = small_cnn()
    graph = model.graph.clone()
    for name, value in list(graph.graph.initializers.items()):
        array = value.const_value.numpy()
        value.const_value = ir.Tensor(array.astype(ir.DataType.BFLOAT16.numpy()), dtype=ir.DataType.BFLOAT16, name=name)
        value.dtype = ir.DataType.BFLOAT16
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.dtype = ir.DataType.BFLOAT16
    made = Model.of(graph, "bf16")
    assert {x.precision for x in layers(made) if x.multiplies} == {"bfloat16"}
    with pytest.raises(UnsupportedError, match=r"BF16: needs compute capability 8\.0 .*; this is 7\.5"):
        layers(made, replace(PLAN, capabilities=("7.5",)))


def test_suppression_is_parsed_and_what_has_no_kernel_is_named():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["b"], ["boxes"]), helper.make_node("Sigmoid", ["s"], ["scores"])],
        "head",
        [value("b", TensorProto.FLOAT, [1, 40, 4]), value("s", TensorProto.FLOAT, [1, 40, 3])],
        [value("boxes", TensorProto.FLOAT, [1, 40, 4]), value("scores", TensorProto.FLOAT, [1, 40, 3])],
    )
    model = Model.of(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), "head")
    standard, plugin = (
        AppendNms(boxes="boxes", scores="scores", form=form, max_boxes=20)(model, context(model)).model
        for form in ("onnx", "plugin")
    )
    assert refusals(trt, prepared(standard)) == ()
    for made, operator in ((standard, "NonMaxSuppression"), (plugin, "EfficientNMS_TRT")):
        with pytest.raises(UnsupportedError, match=rf"node nms\w* \({operator}\)") as caught:
            make_engine(trt, made, PLAN)
        assert "leave suppression to the processor" in caught.value.hint


def test_weights_beyond_one_message_go_through_a_file(monkeypatch):
    want = make_engine(trt, small_cnn(), PLAN)
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    monkeypatch.setattr("edgeproof.tensorrt.network.PROTO_LIMIT_BYTES", 100)
    got = make_engine(trt, small_cnn(), PLAN)
    assert [x.name for x in got.layers] == [x.name for x in want.layers]
    assert np.isclose(len(got.data), len(want.data), rtol=0.01)
