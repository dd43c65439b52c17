"""Scales per channel out of multiplications: the same codes, as ONNX defines them, and nothing else touched."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from edgeproof.model import Model
from edgeproof.quant.scales import fold
from small_nets import net, node, number

FACTORS = np.array([0.5, 1.0, 4.0], np.float32).reshape(1, 3, 1, 1)


def paired(scale_before: bool, scale_behind: bool, factors: np.ndarray = FACTORS, opset: int = 19) -> Model:
    """x [· c] → Q → DQ [· c] → y."""
    first = [node("Mul", ["x", "c"], ["m"], name="ahead")] if scale_before else []
    last = [node("Mul", ["r", "c"], ["y"], name="behind")] if scale_behind else [node("Identity", ["r"], ["y"])]
    source = "m" if scale_before else "x"
    return net(
        [
            *first,
            node("QuantizeLinear", [source, "s", "z"], ["q"], name="quantize"),
            node("DequantizeLinear", ["q", "s", "z"], ["r"], name="dequantize"),
            *last,
            node("Relu", ["y"], ["out"], name="end"),
        ],
        [
            numpy_helper.from_array(factors.astype(np.float32), "c"),
            number("s", 0.03125),
            number("z", 100, np.uint8),
        ],
        shape=(1, 3, 4, 4),
        outputs=("out",),
        opset=opset,
    )


def shaped(model: Model) -> Model:
    """With the shapes of intermediate values, as passes have them."""
    import onnx_ir as ir

    return Model.of(ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model.graph))), "shaped")


def reference(model: Model, x: np.ndarray) -> np.ndarray:
    import onnx_ir as ir

    made: np.ndarray = ReferenceEvaluator(ir.to_proto(model.graph)).run(None, {"x": x})[0]
    return made


@pytest.mark.parametrize(("before", "behind"), [(True, False), (False, True), (True, True)])
def test_the_reference_evaluator_gets_the_same_results_without_the_multiplications(before: bool, behind: bool) -> None:
    model = shaped(paired(before, behind))
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    want = reference(model, x)
    graph = model.graph.clone()
    assert fold(graph.graph) == before + behind
    folded = Model.of(graph, "folded")
    assert not [n for n in graph.graph if n.op_type == "Mul"]
    np.testing.assert_array_equal(reference(folded, x), want)  # factors are powers of two


def test_a_negative_factor_is_left_alone() -> None:
    model = shaped(paired(True, True, FACTORS * np.array([1, -1, 1], np.float32).reshape(1, 3, 1, 1)))
    assert fold(model.graph.graph) == 0


def test_a_factor_per_pixel_is_left_alone() -> None:
    model = shaped(paired(True, True, np.ones((1, 3, 4, 4), np.float32) * 2))
    assert fold(model.graph.graph) == 0
