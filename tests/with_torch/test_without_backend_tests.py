"""Claimed operators for which ONNX has no backend test, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgeproof.fx import import_model
from edgeproof.model import Model
from small_nets import net, node, number, weight
from with_torch.nets import by_runtime, by_torch, drawn


def scatter() -> Model:
    numbers = [number("i", [[1, -1, 0], [0, 2, 1]], np.int64), weight("u", 2, 3)]
    return net([node("Scatter", ["x", "i", "u"], ["y"], axis=0)], numbers, (3, 3), opset=9)


def global_lp_pool() -> Model:
    return net([node("GlobalLpPool", ["x"], ["y"], p=3)], [], (2, 3, 4, 5))


def max_roi_pool() -> Model:
    rois = number("r", [[0, 0, 0, 6, 6], [1, 2, 3, 7, 5], [0, 4, 4, 4, 4]])
    return net([node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[2, 3])], [rois], (2, 3, 8, 8))


def optional() -> Model:
    nodes = [node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["y"])]
    return net(nodes, [], (2, 3))


def sequences() -> Model:
    """Two tensors and an empty list: put in, taken out, counted and joined."""
    return net(
        [
            node("Neg", ["x"], ["n"]),
            node("SequenceConstruct", ["x", "n"], ["s"]),
            node("SequenceInsert", ["s", "half", "zero"], ["t"]),
            node("SequenceErase", ["t", "one"], ["u"]),
            node("SequenceAt", ["u", "last"], ["a"]),
            node("SequenceEmpty", [], ["e"], dtype=TensorProto.FLOAT),
            node("SequenceInsert", ["e", "a"], ["f"]),
            node("SequenceLength", ["u"], ["length"]),
            node("Cast", ["length"], ["many"], to=TensorProto.FLOAT),
            node("ConcatFromSequence", ["u"], ["joined"], axis=0),
            node("ConcatFromSequence", ["f"], ["stacked"], axis=0, new_axis=1),
            node("Add", ["joined", "many"], ["more"]),
            node("Squeeze", ["stacked", "first"], ["flat"]),
            node("Concat", ["more", "flat"], ["y"], axis=0),
        ],
        [
            weight("half", 1, 3),
            number("zero", 0, np.int64),
            number("one", 1, np.int64),
            number("last", -1, np.int64),
            number("first", [0], np.int64),
        ],
        (2, 3),
    )


def split_to_sequence() -> Model:
    parts = number("parts", [1, 3], np.int64)
    nodes = [
        node("SplitToSequence", ["x", "parts"], ["s"], axis=1),
        node("SequenceAt", ["s", "second"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["y"]),
    ]
    return net(nodes, [parts, number("second", 1, np.int64)], (2, 4))


@pytest.mark.parametrize("build", [scatter, global_lp_pool, max_roi_pool, optional, sequences, split_to_sequence])
def test_it_gives_what_onnx_runtime_gives(build: Callable[[], Model]) -> None:
    model = build()
    imported = import_model(model)
    x = drawn(imported)
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], by_runtime(model, *x)[0], rtol=1e-5, atol=1e-6)
