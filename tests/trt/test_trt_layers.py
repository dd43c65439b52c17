"""Tables of layers, as TensorRT for RTX 1.7 logs them and as TensorRT's inspector writes them."""

import pytest

from edgeproof.tensorrt.layers import Layer, from_inspector, from_log, placement


def tensor(name: str, kind: str) -> str:
    return (
        f"{{ Name: {name}, Dimensions: [1,8,16,16], Strides: [2048,1,128,8], StrideOrder: [3,0,2,1], Datatype: {kind}, "
        "Format: (NHWC) Channel major format }"
    )


LOG = (
    "Layers:\n"
    f"Name: c1_myl0_1, LayerType: correlation, Inputs: [ {tensor('a', 'Int8')}], Constants: [ {tensor('w', 'Int8')}, "
    f"{tensor('s', 'Float')}], Outputs: [ {tensor('b', 'Float')}], TacticName: __myelin_CASK_STUB, StreamId: 0, "
    "Metadata: [ONNX Layer: c1]\x1f[ONNX Layer: x.dequantize]\n"
    f"Name: __myl_MulAddReluMulMinMaxRounCast_myl0_2, LayerType: kgen, Inputs: [ {tensor('b', 'Float')}], "
    f"Constants: [], Outputs: [ {tensor('d', 'Int8')}], TacticName: , StreamId: 0, "
    "Metadata: [ONNX Layer: /m.0/c[1], a][ONNX Layer: r1]\n"
    "\nI/O Tensors:\n Name: x, IOMode: Input, DataType: Float"
)


def test_a_log_gives_types_and_nodes_of_every_layer():
    first, second = from_log([LOG])
    assert first == Layer(
        "c1_myl0_1",
        "correlation",
        ("int8",),
        ("float",),
        ("c1", "x.dequantize"),
        "__myelin_CASK_STUB",
        ("int8", "float"),
    )
    assert (second.inputs, second.outputs, second.constants) == (("float",), ("int8",), ())


def test_names_may_hold_brackets_and_commas():
    assert from_log([LOG])[1].nodes == ("/m.0/c[1], a", "r1")


def test_a_table_that_is_logged_twice_counts_once():
    assert from_log([LOG, LOG]) == from_log([LOG])


def test_a_product_of_codes_is_in_integers_and_its_kernel_does_more_than_move():
    first, second = from_log([LOG])
    assert (first.multiplies, first.integers, first.moves) == (True, True, False)
    assert (second.multiplies, second.integers, second.moves) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "moves"),
    [
        ("__myl_MulMinMaxRounCast_myl0_3", ("float",), ("int8",), True),
        ("__myl_CastMul_myl0_3", ("int8",), ("float",), True),
        ("__myl_MulMax_myl0_3", ("float",), ("float",), False),
        ("__myl_TranResh_myl0_3", ("float",), ("float",), True),
        ("__myl_MeanMulMinMaxRounCast_myl0_3", ("float",), ("int8",), False),
    ],
)
def test_what_only_changes_type_or_place_is_told_by_its_parts(name, inputs, outputs, moves):
    assert Layer(name, "kgen", inputs, outputs).moves == moves


def test_an_inspector_without_layer_information_gives_names():
    assert from_inspector('{"Layers": ["conv1 + relu1", "fc"]}') == (Layer("conv1 + relu1", ""), Layer("fc", ""))
    assert from_inspector("") == ()


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("Row major linear FP32", "float"),
        ("Two wide channel vectorized row major FP16 format", "float16"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("Row major linear INT32", "int32"),
        ("Row major linear BOOL", "bool"),
    ],
)
def test_types_are_read_out_of_the_words_of_the_inspector(words, want):
    text = '{"Layers": [{"Name": "a", "LayerType": "Reformat", "Outputs": [{"Name": "o", "Format/Datatype": "%s"}]}]}'
    assert from_inspector(text % words)[0].outputs == (want,)


def test_a_placement_is_named_after_the_nodes_of_the_model():
    found = placement(from_log([LOG]), "tensorrt_rtx:sm86", [("n", "why")], "build log")
    assert found.nodes[0] == ("c1 + x.dequantize", "correlation", "tensorrt_rtx:sm86", "float")
    assert found.fallbacks == (("n", "why"),)
