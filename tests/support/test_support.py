"""Tables of what runs where, and a model's nodes held against them."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx_ir as ir
import pytest
from benchmarks.support.page import PAGE, page

from edgeproof.cli import main
from edgeproof.errors import UnsupportedError
from edgeproof.graph.quantised import PAIR
from edgeproof.model import Model, save_model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.schemes import ORT, TENSORRT
from edgeproof.support import PRECISIONS, runs_on, table_for, tables
from edgeproof.support.nodes import support
from edgeproof.target import Target
from small_nets import context, small_cnn

OPERATORS = {s.name for s in __import__("onnx").defs.get_all_schemas_with_history() if not s.domain}


def model(
    body: str, inputs: str = "float[1, 8, 16, 16] x", outputs: str = "float[n, c, h, w] y", extra: str = ""
) -> Model:
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({inputs}) => ({outputs})\n{extra}\n{{ {body} }}'
    return Model.of(ir.from_onnx_text(text), "m")


def half(body: str, **given: str) -> Model:
    """The same with float16 tensors."""
    made = model(body, **given)
    text = ir.to_onnx_text(made.graph).replace("float[", "float16[").replace("float ", "float16 ")
    return Model.of(ir.from_onnx_text(text), "m")


@pytest.mark.parametrize("name", tables())
def test_a_table_names_its_source_and_only_operators_of_onnx(name):
    table = tables()[name]
    assert table.source
    assert {op for op in table.operators if ":" not in op} <= OPERATORS
    assert all(op.startswith("com.microsoft:") for op in table.operators if ":" in op)


@pytest.mark.parametrize("name", tables())
def test_counts_of_a_table_agree_with_its_states(name):
    table = tables()[name]
    for operator, row in table.operators.items():
        assert set(row) <= set(PRECISIONS), operator
        for entry in row.values():
            assert 0 <= entry.passed <= entry.tests
            assert (entry.tests > 0) == (table.kind != "published")
            assert (entry.state == "fails") == (entry.passed == 0) or table.kind == "published"
            assert entry.why or entry.state in ("runs", "unknown")


def test_probed_and_published_tables_are_told_apart():
    kinds = {name: t.kind for name, t in tables().items()}
    assert kinds["onnxruntime:cpu"] == kinds["openvino:cpu"] == "probed"
    assert {
        kinds[n] for n in ("tensorrt", "tensorrt:dla", "onnxruntime:coreml", "onnxruntime:nnapi", "onnxruntime:qnn")
    } == {"published"}


def test_the_page_in_the_docs_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("operator", ["Conv", "Gemm", "MatMul"])
def test_layers_run_in_integers_where_their_scheme_says_so(operator):
    assert operator in ORT.ops
    assert table_for("onnxruntime:cpu").entry(operator, "int8").state == "runs"
    assert operator in TENSORRT.ops
    assert table_for("tensorrt").entry(operator, "int8").state == "runs"


def test_half_precision_falls_back_on_a_processor_without_it():
    # ONNX Runtime's CPU provider has no float16 convolution on x86: it puts casts around a float32 one.
    assert table_for("onnxruntime:cpu").entry("Conv", "fp16").state == "falls back"


@pytest.mark.parametrize(
    ("target", "runtime"),
    [
        ("onnxruntime:cpu", "onnxruntime:cpu"),
        ("onnxruntime", "onnxruntime:cpu"),
        ("tensorrt", "tensorrt"),
        ("tensorrt:gpu", "tensorrt"),
        ("tensorrt:dla1", "tensorrt:dla"),
        ("orin-nx:dla0", "tensorrt:dla"),
        ("orin-nx", "tensorrt"),
    ],
)
def test_a_target_or_a_device_finds_its_table(target, runtime):
    found = table_for(target).runtime
    assert found == runtime


@pytest.mark.parametrize("target", ["", "onnxruntime:cuda", "onnxruntime:nonsense", ":cpu"])
def test_no_other_devices_table_speaks_for_one_without(target):
    with pytest.raises(UnsupportedError, match=r"support\.unknown"):
        table_for(target)


def test_where_a_runtimes_only_table_is_that_of_another_device_this_is_said():
    model = Model.of(
        ir.from_onnx_text('<ir_version: 8, opset_import: ["" : 17]>\ng (float[1] x) => (float[1] y) { y = Relu(x) }'),
        "m",
    )
    assert "that of openvino:cpu" in support(model, "openvino:npu").notes[0]
    assert not support(model, "openvino:cpu").notes


def test_a_target_without_a_table_is_refused_with_what_there_is():
    with pytest.raises(UnsupportedError) as e:
        table_for("tensort")
    assert "tensorrt" in e.value.hint


def test_what_a_runtime_does_not_list_is_what_its_table_says_of_the_rest():
    assert table_for("onnxruntime:coreml").entry("Acosh", "fp32").state == "falls back"
    assert table_for("tensorrt").entry("NoSuchOperator", "fp32").state == "unknown"
    assert "onnxruntime:cpu" in runs_on("Acosh", "fp32")


def test_an_unsupported_node_is_named_with_the_reason_and_a_way_out():
    found = support(model("y = Det(x)"), "tensorrt")
    (node,) = found.nodes
    assert (node.operator, node.state) == ("Det", "fails")
    assert "parser" in node.why
    assert "onnxruntime:cpu" in node.hint
    assert found.kind == "published"


def test_constants_are_no_nodes_that_could_fall_back():
    found = support(
        model("s = Shape(w)  z = Relu(x)  y = Identity(z)", extra="<float[2] w = {1, 2}>"), "onnxruntime:coreml"
    )
    assert [n.operator for n in found.nodes] == ["Relu", "Identity"]


def test_nodes_between_codes_are_looked_up_in_integers():
    target = Target("t:cpu", "t", "cpu", TENSORRT)
    small = small_cnn()
    quantised = Int8()(small, replace(context(small), target=target)).model
    found = support(quantised, "tensorrt")
    states = {n.operator: (n.precision, n.state) for n in found.nodes if n.operator not in PAIR}
    assert states["Conv"] == ("int8", "runs")
    assert found.counts["fails"] == 0


def test_half_precision_nodes_are_looked_up_as_such():
    found = support(half("y = Abs(x)"), "onnxruntime:cpu")
    assert [(n.precision, n.state) for n in found.nodes] == [("fp16", "falls back")]


CONV = "y = Conv<{}>(x, w)"


def on_dla(body: str, extra: str = "", target: str = "orin-nx:dla0", **given: str) -> list[tuple[str, str]]:
    return [(n.state, n.why) for n in support(half(body, extra=extra, **given), target).nodes]


def weights(*shape: int) -> str:
    return f"<float[{', '.join(map(str, shape))}] w = {{{', '.join(['1'] * __import__('math').prod(shape))}}}>"


@pytest.mark.parametrize(
    ("attributes", "shape", "why"),
    [
        ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", (1, 8, 3, 3), ""),
        ("kernel_shape = [1, 33], pads = [0, 0, 0, 31]", (1, 8, 1, 33), "kernel size 33"),
        ("kernel_shape = [3, 3], strides = [9, 9]", (1, 8, 3, 3), "stride 9"),
        ("kernel_shape = [1, 1], pads = [1, 1, 1, 1]", (1, 8, 1, 1), "padding is not smaller"),
        ("kernel_shape = [3, 3], dilations = [33, 33], pads = [40, 40, 40, 40]", (1, 8, 3, 3), "padding 40"),
    ],
)
def test_a_convolution_on_a_dla_keeps_within_the_documented_limits(attributes, shape, why):
    ((state, said),) = on_dla(CONV.format(attributes), weights(*shape))
    assert state == ("runs" if not why else "falls back")
    assert why in said


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = MaxPool<kernel_shape = [8, 8]>(x)", ""),
        ("y = MaxPool<kernel_shape = [9, 9]>(x)", "window 9"),
        ("y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)", "leaves out the padding"),
        ("y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(x)", ""),
        ("y = GlobalAveragePool(x)", "window (all of the input) 16"),
        ("y = Concat<axis = 1>(x, x)", ""),
        ("y = Concat<axis = 2>(x, x)", "another axis"),
        ("y = LRN<size = 5>(x)", ""),
        ("y = LRN<size = 2>(x)", "window of 2"),
        ("y = Erf(x)", "no layer for Erf"),
        ("y = Sigmoid(x)", ""),
        ("y = Softmax<axis = 1>(x)", ""),
    ],
)
def test_other_layers_on_a_dla_keep_within_theirs(body, why):
    ((state, said),) = on_dla(body)
    assert state == ("runs" if not why else "falls back")
    assert why in said


def test_softmax_runs_on_the_dla_of_orin_and_not_of_xavier():
    assert on_dla("y = Softmax<axis = 1>(x)")[0][0] == "runs"
    assert on_dla("y = Softmax<axis = 1>(x)", target="xavier-nx:dla0")[0] == (
        "falls back",
        "runs on the DLA of Orin, not of Xavier; it runs on the GPU",
    )


def test_open_dimensions_keep_a_node_off_a_dla_and_fixing_them_is_the_remedy():
    made = half("y = Relu(x)", inputs="float[batch, 8, 16, 16] x")
    (node,) = support(made, "orin-nx:dla0").nodes
    assert node.state == "falls back"
    assert "fix_shapes" in node.hint
    (node,) = support(made, "orin-nx:dla0", {"x": (1, 8, 16, 16)}).nodes
    assert node.state == "runs"


def test_a_runtime_with_files_of_fixed_shapes_tells_how_to_close_an_open_model():
    made = model("y = Relu(x)", inputs="float[batch, 3, 16, 16] x")
    assert any("--shape x=1,3,16,16" in note for note in support(made, "raspberry-pi-5").notes)
    assert support(made, "raspberry-pi-5", {"x": (1, 3, 16, 16)}).notes == ()
    assert support(made, "openvino:cpu").notes == ()


def test_a_device_with_an_older_tensorrt_than_the_list_is_told_so():
    made = model("y = Relu(x)")
    assert any("TensorRT 8.2.1" in note for note in support(made, "jetson-nano").notes)
    assert support(made, "orin-nx").notes == ()


def test_a_device_that_is_mistyped_is_told_from_a_runtime_without_a_table():
    with pytest.raises(UnsupportedError) as caught:
        table_for("orinnx:dla0")
    assert caught.value.hint == "did you mean 'orin-nx'?"


def test_what_neither_dla_nor_gpu_runs_fails():
    ((state, why),) = on_dla("y = Det(x)")
    assert state == "fails"
    assert "TensorRT" in why


def test_a_scale_per_channel_does_not_keep_a_product_off_a_dla():
    ((state, _),) = on_dla("y = Mul(s, x)", "<float[8, 1, 1] s = {1, 1, 1, 1, 1, 1, 1, 1}>")
    assert state == "runs"


def test_pairs_on_a_dla_are_told_how_ranges_travel():
    small = small_cnn()
    quantised = Int8()(small, replace(context(small), target=Target("t:cpu", "t", "cpu", TENSORRT))).model
    notes = support(quantised, "orin-nx:dla0").notes
    assert any("--trt-cache" in note for note in notes)


def test_the_command_shows_a_section_and_json_has_it(tmp_path, capsys):
    path = save_model(
        model("z = Det(x)  y = Relu(x)", outputs="float[n, c, h, w] y, float[n, c] z"), tmp_path / "m.onnx"
    )
    assert main(["inspect", str(path), "--target", "tensorrt"]) == 0
    text = capsys.readouterr().out
    assert "On tensorrt: 1 of 2 nodes run as asked, 1 fail" in text
    assert "published: onnx-tensorrt" in text
    assert main(["inspect", str(path), "--target", "tensorrt", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["support"]
    assert value["counts"] == {"runs": 1, "fails": 1}
    assert [n["operator"] for n in value["not_there"]] == ["Det"]
    assert main(["inspect", str(path), "--target", "nowhere"]) == UnsupportedError.exit_code
