"""Columns against the runtime: a layer is the product of its matrix and its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.model import Model
from edgeproof.quant import columns
from edgeproof.quant.layers import Layer, Scope, layer
from small_nets import CPU, net, node, ran, samples, weight


def only_layer(model: Model) -> tuple[ir.Node, Layer]:
    assert CPU.scheme is not None
    made = next(n for n in model.graph.graph if n.op_type in ("Conv", "Gemm", "MatMul"))
    found = layer(made, CPU.scheme, Scope())
    assert isinstance(found, Layer)
    return made, found


CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("pointwise", (5, 4, 1, 1), (2, 4, 7, 5), {}),
    ("padded", (5, 4, 3, 3), (2, 4, 7, 5), {"pads": [1, 0, 1, 2]}),
    ("strided and dilated", (5, 4, 3, 3), (2, 4, 9, 8), {"strides": [2, 1], "dilations": [1, 2], "pads": [1] * 4}),
    ("depthwise", (4, 1, 3, 3), (2, 4, 7, 5), {"group": 4, "pads": [1] * 4}),
    ("grouped", (6, 2, 3, 3), (2, 4, 7, 5), {"group": 2}),
    ("same upper", (5, 4, 3, 3), (2, 4, 8, 5), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("same lower", (5, 4, 2, 2), (2, 4, 8, 5), {"auto_pad": "SAME_LOWER"}),
    ("one-dimensional", (5, 4, 3), (2, 4, 9), {"pads": [1, 1]}),
]


@pytest.mark.parametrize(("shape", "x", "attributes"), [c[1:] for c in CONVOLUTIONS], ids=[c[0] for c in CONVOLUTIONS])
def test_a_convolution_is_the_product_of_its_matrix_and_columns(
    shape: tuple[int, ...], x: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    model = net([node("Conv", ["x", "w"], ["y"], name="c", **attributes)], [weight("w", *shape)], x)
    made, found = only_layer(model)
    sample = samples(model, 1)[0]
    product = columns.matrix(made, found) @ columns.columns(made, found, sample["x"], 10**6)
    want = np.moveaxis(ran(model, sample), 1, 0).reshape(shape[0], -1)
    np.testing.assert_allclose(product.reshape(shape[0], -1), want, atol=1e-5)


@pytest.mark.parametrize(("op", "shape", "attributes"), [("MatMul", (6, 5), {}), ("Gemm", (5, 6), {"transB": 1})])
def test_a_matrix_product_is_the_product_of_its_matrix_and_columns(
    op: str, shape: tuple[int, ...], attributes: dict[str, int]
) -> None:
    model = net([node(op, ["x", "w"], ["y"], name="m", **attributes)], [weight("w", *shape)], [7, 6])
    made, found = only_layer(model)
    sample = samples(model, 1)[0]
    product = columns.matrix(made, found) @ columns.columns(made, found, sample["x"], 100)
    np.testing.assert_allclose(product[0].T, ran(model, sample), atol=1e-5)


def test_a_weight_survives_the_way_to_its_matrix_and_back() -> None:
    for op, shape, attributes in (("MatMul", (6, 5), {}), ("Gemm", (6, 5), {}), ("Gemm", (5, 6), {"transB": 1})):
        model = net([node(op, ["x", "w"], ["y"], name="m", **attributes)], [weight("w", *shape)], [7, 6])
        made, found = only_layer(model)
        np.testing.assert_array_equal(columns.weight_like(made, found, columns.matrix(made, found)), found.weight)


def test_a_draw_takes_columns_that_exist_and_no_more_than_asked_for() -> None:
    model = net([node("Conv", ["x", "w"], ["y"], name="c", pads=[1] * 4)], [weight("w", 5, 4, 3, 3)], [1, 4, 9, 9])
    made, found = only_layer(model)
    x = samples(model, 1)[0]["x"]
    every = {c.tobytes() for c in columns.columns(made, found, x, 81)[0].T.copy()}
    some = columns.columns(made, found, x, 20)[0]
    assert some.shape == (36, 20)
    assert {c.tobytes() for c in some.T.copy()} <= every
