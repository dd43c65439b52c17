"""Every rule against a count of another kind.

A contraction of all ones without padding sums one per multiplication, so the sum of the outputs that ONNX Runtime
computes is the number of multiply-accumulates. Recurrences and attention are worked out by hand.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgeproof.graph.cost import Cost, cost
from edgeproof.model import Model


def single(op: str, shapes: list[tuple[int | str, ...]], domain: str = "", opset: int = 17, outputs: int = 1,
           dtype: int = TensorProto.FLOAT, **attributes: object) -> onnx.ModelProto:  # fmt: skip
    """A model of one node whose inputs are all fed."""
    inputs = [helper.make_tensor_value_info(f"x{i}", dtype, s) for i, s in enumerate(shapes) if s is not None]
    names = ["" if s is None else f"x{i}" for i, s in enumerate(shapes)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="n", domain=domain, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y0", dtype, None)])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def counted(proto: onnx.ModelProto) -> Cost:
    return cost(Model.of(ir.from_proto(proto), "m"))


def macs(proto: onnx.ModelProto) -> int | str | None:
    return counted(proto).to_json()["macs"]


CONTRACTIONS: dict[str, tuple[str, list[tuple[int, ...]], dict[str, object]]] = {
    "conv": ("Conv", [(2, 3, 9, 8), (4, 3, 3, 2)], {}),
    "conv-strided-dilated": ("Conv", [(1, 3, 11, 12), (5, 3, 3, 3)], {"strides": [2, 3], "dilations": [2, 1]}),
    "conv-grouped": ("Conv", [(2, 6, 7, 7), (4, 3, 3, 3)], {"group": 2}),
    "conv-depthwise": ("Conv", [(1, 6, 7, 7), (6, 1, 3, 3)], {"group": 6}),
    "conv-1d": ("Conv", [(2, 3, 20), (4, 3, 5)], {}),
    "conv-3d": ("Conv", [(1, 2, 5, 6, 7), (3, 2, 2, 3, 3)], {}),
    "conv-transpose": ("ConvTranspose", [(2, 3, 5, 4), (3, 4, 3, 3)], {"strides": [2, 2]}),
    "conv-transpose-grouped": ("ConvTranspose", [(1, 4, 5, 5), (4, 3, 2, 2)], {"group": 2}),
    "gemm": ("Gemm", [(5, 7), (7, 3)], {}),
    "gemm-transposed": ("Gemm", [(7, 5), (3, 7)], {"transA": 1, "transB": 1}),
    "matmul": ("MatMul", [(5, 7), (7, 3)], {}),
    "matmul-batched": ("MatMul", [(4, 2, 5, 7), (4, 2, 7, 3)], {}),
    "matmul-broadcast": ("MatMul", [(4, 1, 5, 7), (2, 7, 3)], {}),
    "matmul-vector-left": ("MatMul", [(7,), (7, 3)], {}),
    "matmul-vector-right": ("MatMul", [(2, 5, 7), (7,)], {}),
    "matmul-dot": ("MatMul", [(7,), (7,)], {}),
    "einsum-matrix": ("Einsum", [(5, 7), (7, 3)], {"equation": "ij,jk->ik"}),
    "einsum-attention": ("Einsum", [(2, 4, 5, 6), (2, 4, 7, 6)], {"equation": "bhqd,bhkd->bhqk"}),
    "einsum-implicit": ("Einsum", [(5, 7), (7, 3)], {"equation": "ij, jk"}),
    "einsum-ellipsis": ("Einsum", [(2, 5, 7), (7, 3)], {"equation": "...ij,jk->...ik"}),
    "einsum-broadcast": ("Einsum", [(2, 1, 5), (1, 3, 5)], {"equation": "...i,...i->..."}),
    "einsum-outer": ("Einsum", [(4,), (6,)], {"equation": "i,j->ij"}),
    "einsum-element-wise": ("Einsum", [(4, 6), (4, 6)], {"equation": "ij,ij->ij"}),
    "einsum-diagonal": ("Einsum", [(4, 4), (4, 3)], {"equation": "ii,ij->j"}),
}


@pytest.mark.parametrize("case", CONTRACTIONS)
def test_contraction_of_ones_sums_to_its_macs(case: str) -> None:
    op, shapes, attributes = CONTRACTIONS[case]
    proto = single(op, list(shapes), **attributes)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {f"x{i}": np.ones(s, np.float32) for i, s in enumerate(shapes)})
    assert macs(proto) == int(np.sum(result))


def test_padding_counts_as_data() -> None:
    proto = single("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], pads=[1, 1, 1, 1])
    assert macs(proto) == 8 * 8 * 4 * 3 * 3 * 3


def test_integer_convolution_and_product_count_as_their_float_forms() -> None:
    conv = single("ConvInteger", [(2, 3, 9, 8), (4, 3, 3, 2)], dtype=TensorProto.UINT8)
    conv.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    assert macs(conv) == macs(single("Conv", [(2, 3, 9, 8), (4, 3, 3, 2)]))
    product = single("MatMulInteger", [(4, 5, 7), (7, 3)], dtype=TensorProto.UINT8)
    product.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    assert macs(product) == 4 * 5 * 7 * 3


def test_a_sum_over_one_operand_is_no_multiplication() -> None:
    assert macs(single("Einsum", [(4, 6)], equation="ij->j")) == 0


def test_a_chain_of_three_is_contracted_from_the_left() -> None:
    # (2×3)·(3×5) is 30, then (2×5)·(5×7) is 70.
    assert macs(single("Einsum", [(2, 3), (3, 5), (5, 7)], equation="ij,jk,kl->il")) == 100


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("direction", "directions"), [("forward", 1), ("bidirectional", 2)])
def test_recurrences_count_gates_times_input_and_hidden(op: str, gates: int, direction: str, directions: int) -> None:
    steps, batch, width, hidden = 6, 2, 5, 7
    shapes: list[tuple[int | str, ...]] = [
        (steps, batch, width),
        (directions, gates * hidden, width),
        (directions, gates * hidden, hidden),
    ]
    by_hand = sum(gates * hidden * width + gates * hidden * hidden for _ in range(steps * batch * directions))
    assert macs(single(op, shapes, hidden_size=hidden, direction=direction)) == by_hand


def test_batch_first_recurrence_counts_the_same() -> None:
    shapes: list[tuple[int | str, ...]] = [(2, 6, 5), (1, 28, 5), (1, 28, 7)]
    assert macs(single("LSTM", shapes, hidden_size=7, layout=1)) == 2 * 6 * (28 * 5 + 28 * 7)


def test_attention_is_its_two_products() -> None:
    # Q·Kᵀ: 2·4·5·7·8, times V: 2·4·5·7·6
    proto = single("Attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)], opset=23)
    assert macs(proto) == 2 * 4 * 5 * 7 * (8 + 6)


def test_attention_with_heads_folded_into_the_width() -> None:
    shapes: list[tuple[int | str, ...]] = [(2, 5, 32), (2, 7, 32), (2, 7, 24)]
    proto = single("Attention", shapes, opset=23, q_num_heads=4, kv_num_heads=4)
    assert macs(proto) == 2 * 4 * 5 * 7 * (8 + 6)


def test_grouped_attention_works_once_per_query_head() -> None:
    shapes: list[tuple[int | str, ...]] = [(1, 8, 5, 16), (1, 2, 5, 16), (1, 2, 5, 16)]
    assert macs(single("Attention", shapes, opset=23)) == 8 * 5 * 5 * 16 * 2


def test_attention_reads_the_past_keys_too() -> None:
    shapes = [(1, 4, 1, 8), (1, 4, 1, 8), (1, 4, 1, 8), None, (1, 4, 9, 8), (1, 4, 9, 8)]
    proto = single("Attention", shapes, opset=23, outputs=3)
    assert macs(proto) == 4 * 1 * 10 * (8 + 8)


def test_packed_attention_projects_and_attends() -> None:
    # Projection 2·5·32·96, then 2·5·5·32 for Q·Kᵀ and again for V.
    proto = single("Attention", [(2, 5, 32), (32, 96), (96,)], domain="com.microsoft", num_heads=4)
    found = counted(proto)
    assert found.to_json()["macs"] == 2 * 5 * 32 * 96 + 2 * (2 * 5 * 5 * 32)
    assert found.layers[0].shape == (2, 5, 32)


def test_multi_head_attention_has_no_projection() -> None:
    proto = single("MultiHeadAttention", [(2, 5, 32), (2, 7, 32), (2, 7, 48)], domain="com.microsoft", num_heads=4)
    assert macs(proto) == 2 * 5 * 7 * (32 + 48)


def test_fused_forms_count_as_their_parts() -> None:
    fused = single("FusedConv", [(1, 3, 8, 8), (4, 3, 3, 3)], domain="com.microsoft", activation="Relu")
    assert macs(fused) == macs(single("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)]))
    product = single("FusedMatMul", [(2, 7, 5), (2, 3, 7)], domain="com.microsoft", transA=1, transB=1)
    assert macs(product) == 2 * 5 * 7 * 3


def test_the_attention_pattern_of_plain_operators_counts_the_same() -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {"q": [2, 4, 5, 8], "k": [2, 4, 8, 7], "v": [2, 4, 7, 6]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    assert macs(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])) == 2 * 4 * 5 * 7 * (8 + 6)


def test_an_open_batch_gives_an_expression() -> None:
    assert macs(single("Conv", [("N", 3, 8, 8), (4, 3, 3, 3)], pads=[1, 1, 1, 1])) == "6912*N"
    assert macs(single("MatMul", [("N", "T", 8), (8, 4)])) == "32*N*T"


def test_an_operator_without_a_rule_is_unknown_with_a_reason() -> None:
    found = counted(single("FlashEverything", [(1, 3)], domain="com.microsoft"))
    assert found.macs is None
    assert ("n", "MACs unknown: no rule for operator com.microsoft.FlashEverything") in found.reasons


def test_an_unknown_shape_is_named() -> None:
    proto = single("MatMul", [(2, 3), (3, 4)])
    proto.graph.node.insert(0, helper.make_node("Strange", ["x0"], ["s"], domain="com.microsoft", name="strange"))
    proto.graph.node[1].input[0] = "s"
    found = counted(proto)
    assert found.layers[1].macs is None
    assert ("n", "MACs unknown: the shape of 's' is unknown") in found.reasons


# --- published figures ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "macs.py"
    spec = importlib.util.spec_from_file_location("benchmark_macs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_mobilenet_v2_has_300_million_macs(networks: ModuleType) -> None:
    found = cost(networks.mobilenet_v2(), {"x": (1, 3, 224, 224)}).macs
    assert found is not None
    assert round((found.value or 0) / 1e6, -1) == 300  # Sandler et al. 2018, table 4


def test_an_open_batch_of_mobilenet_v2_is_a_multiple_of_one(networks: ModuleType) -> None:
    m = networks.mobilenet_v2()
    one, many = cost(m, {"x": (1, 3, 224, 224)}), cost(m)
    assert one.macs is not None
    assert many.macs is not None
    assert str(many.macs) == f"{one.macs.value}*N"
    assert one.peak_bytes is not None
    assert str(many.peak_bytes) == f"{one.peak_bytes.value}*N"


def test_efficientnet_lite0_agrees_with_its_ports(networks: ModuleType) -> None:
    found = cost(networks.efficientnet_lite0(), {"x": (1, 3, 224, 224)})
    assert found.macs is not None
    assert round((found.macs.value or 0) / 1e9, 3) == 0.385  # README of d-li14/efficientnet-lite.pytorch


@pytest.mark.parametrize(
    ("name", "giga"),
    # `_ops` of torchvision's ResNet50_Weights, SqueezeNet1_1_Weights, DenseNet121_Weights, VGG19_Weights
    [("resnet50", 4.089), ("squeezenet", 0.349), ("densenet121", 2.834), ("vgg19", 19.632)],
)
def test_light_architectures_have_the_published_macs(networks: ModuleType, name: str, giga: float) -> None:
    found = cost(networks.light(name)).macs
    assert found is not None
    assert round((found.value or 0) / 1e9, 3) == giga


@pytest.mark.parametrize(
    ("name", "parameters"),
    # `num_params` of the same; a ResNet's running means and variances (2 per channel, 26,560 channels) come on top
    [("squeezenet", 1_235_496), ("vgg19", 143_667_240), ("resnet50", 25_557_032 + 2 * 26_560)],
)
def test_light_architectures_have_the_published_parameters(networks: ModuleType, name: str, parameters: int) -> None:
    found = cost(networks.light(name)).parameters
    assert found is not None
    assert found.value == parameters
