"""Q/DQ graphs: ONNX's numbers bit for bit, the calls that partitioners know, and gradients for training."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from edgeproof.errors import InputError
from edgeproof.fx import export, import_model
from edgeproof.model import Model
from small_nets import net, node, number, small_cnn, weight
from with_torch.nets import by_runtime, by_torch, drawn


def quantised_layer() -> Model:
    """An activation per tensor in uint8, weights per channel in int8, as a convolution wants them."""
    return net(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], axis=0),
            node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
            node("Conv", ["d", "wd"], ["y"]),
        ],
        [
            weight("w", 4, 3, 1, 1),
            number("s", 0.0371),
            number("z", 117, np.uint8),
            number("ws", [0.011, 0.013, 0.005, 0.03]),
            number("wz", [0, 0, 0, 0], np.int8),
        ],
        (2, 3, 8, 8),
    )


def pair(dtype: int, axis: int | None, opset: int, block: int = 0) -> Model:
    """Q and DQ of one tensor, to codes of a type."""
    size = 1 if axis is None else 6
    scale = np.linspace(0.01, 0.2, size, dtype=np.float32)
    zero = [3 % (1 << (helper.tensor_dtype_to_np_dtype(dtype).itemsize * 2))] * size
    if block:
        scale, zero = np.linspace(0.01, 0.2, 12, dtype=np.float32).reshape(6, 2), [1] * 12
    shape = scale.shape if axis is not None else ()
    tensors = [number("s", scale.reshape(shape)), helper.make_tensor("z", dtype, shape, zero)]
    settings = {"axis": 1 if block else axis} if axis is not None else {}
    settings |= {"block_size": block} if block else {}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], **settings),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], **settings),
    ]
    model = net(nodes, tensors, (6, 4), opset=opset).graph
    model.ir_version = 10
    return Model.of(model, "pair")


KINDS = [
    (TensorProto.INT8, None, 13, 0),
    (TensorProto.UINT8, 0, 13, 0),
    (TensorProto.INT16, None, 21, 0),
    (TensorProto.UINT16, 0, 21, 0),
    (TensorProto.INT4, 0, 21, 0),
    (TensorProto.UINT4, None, 21, 0),
    (TensorProto.INT8, 1, 21, 2),
    (TensorProto.INT4, 1, 21, 2),
]


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_those_of_onnx_runtime_bit_for_bit(kind: tuple[int, int | None, int, int]) -> None:
    model = pair(*kind)
    imported = import_model(model)
    x = drawn(imported)
    x[0] *= 3
    x[0].flat[:4] = [0.5 * 0.01, 1.5 * 0.01, -1e9, 1e9]  # halves, and what is clipped
    np.testing.assert_array_equal(by_torch(imported.module, *x)[0], by_runtime(model, *x)[0])


@pytest.mark.parametrize("way", ["exact", "decomposed"])
def test_a_quantised_layer_gives_what_onnx_runtime_gives_before_and_after_export(way: str) -> None:
    model = quantised_layer()
    imported = import_model(model, quantised=way)
    x = drawn(imported)
    (want,) = by_runtime(model, *x)
    for module in (imported.module, export(imported).module()):
        np.testing.assert_allclose(by_torch(module, *x)[0], want, rtol=1e-5, atol=1e-5)


def test_decomposed_calls_are_those_of_torch_quantisers() -> None:
    graph = import_model(quantised_layer(), quantised="decomposed").module.graph
    ops = torch.ops.quantized_decomposed
    calls = [n for n in graph.nodes if "quantized_decomposed" in str(n.target)]
    assert [n.target for n in calls] == [
        ops.quantize_per_tensor.default,
        ops.dequantize_per_tensor.default,
        ops.quantize_per_channel.default,
        ops.dequantize_per_channel.default,
    ]
    assert calls[0].args[1:] == (pytest.approx(0.0371), 117, 0, 255, torch.uint8)


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="decomposed"):
        import_model(small_cnn(), quantised="decompose")


def test_a_model_of_codes_keeps_their_names() -> None:
    model = net(
        [node("DequantizeLinear", ["w", "s"], ["d"], axis=0), node("MatMul", ["x", "d"], ["y"])],
        [number("w", np.arange(12).reshape(3, 4), np.int8), number("s", [0.1, 0.2, 0.3])],
        (2, 3),
    )
    module = import_model(model).module
    assert module.w.dtype == torch.int8
    assert isinstance(ir.to_proto(model.graph).SerializeToString(), bytes)
