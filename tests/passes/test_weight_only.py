"""Weights in blocks of 4 or 8 bits: what is stored is what is computed with, in both forms, and the rest is named."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import TARGET, build, floats, node, ops, reasons, run

from edgeproof.backends.onnxruntime import OnnxRuntime
from edgeproof.errors import InputError
from edgeproof.graph.rewrite import array
from edgeproof.model import Model, weight_bytes
from edgeproof.passes.weight_only import WeightOnly
from edgeproof.protocols import Context
from edgeproof.quant.blocks import quantize_blocks

CONTEXT = Context(lambda m: OnnxRuntime().compile(m, TARGET), target=TARGET)
W, V, B, TABLE = floats(70, 48), floats(24, 48), floats(24), floats(50, 70)


def matmul(opset: int = 17) -> Model:
    return build([node("MatMul", "x w", "y")], {"x": (3, 70)}, "y", {"w": W}, opset=opset)


def language() -> Model:
    """A look-up, a product and a Gemm with a transposed weight and a bias."""
    return build(
        [node("Gather", "table i", "e"), node("MatMul", "e w", "m"), node("Gemm", "m v b", "y", transB=1)],
        {"i": (5,)},
        "y",
        {"table": TABLE, "w": W, "v": V, "b": B},
        dtypes={"i": 7},
    )


def stored(weight: np.ndarray, axis: int, bits: int, *, symmetric: bool) -> np.ndarray:
    shrink = {} if bits < 8 else {"shrink": (1.0,)}
    return quantize_blocks(weight, axis, 32, bits, symmetric=symmetric, **shrink).dequantized()


@pytest.mark.parametrize("form", ["onnx", "nbits"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_product_is_that_of_the_stored_weight(form: str, symmetric: bool, bits: int) -> None:
    model = matmul()
    change = WeightOnly(bits=bits, form=form, symmetric=symmetric)(model, CONTEXT)
    x = floats(3, 70)
    got = run(change.model, {"x": x})[0]
    np.testing.assert_allclose(got, x @ stored(W, 0, bits, symmetric=symmetric), rtol=1e-4, atol=1e-4)
    assert change.model.inputs == model.inputs
    assert change.model.outputs == model.outputs
    assert set(ops(change.model)) == ({"DequantizeLinear", "MatMul"} if form == "onnx" else {"MatMulNBits"})


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_convolution_has_a_scale_per_output_channel(symmetric: bool, bits: int) -> None:
    kernel = floats(6, 4, 3, 3)
    nodes = [node("Conv", "x k", "y", pads=[1] * 4)]
    model = build(nodes, {"x": (1, 4, 5, 5)}, "y", {"k": kernel}, opset=17)
    assert not WeightOnly(least=0)(model, CONTEXT).modified  # only when it is named
    change = WeightOnly(bits=bits, symmetric=symmetric, ops="Conv", least=0)(model, CONTEXT)
    shrink = {} if bits < 8 else {"shrink": (1.0,)}
    # Each channel on its own, as one block of all that it holds.
    want = [quantize_blocks(c.reshape(-1), 0, 0, bits, symmetric=symmetric, **shrink).dequantized() for c in kernel]
    same = build(nodes, {"x": (1, 4, 5, 5)}, "y", {"k": np.stack(want).reshape(kernel.shape)}, opset=17)
    x = floats(1, 4, 5, 5)
    np.testing.assert_allclose(run(change.model, {"x": x})[0], run(same, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert ops(change.model) == {"DequantizeLinear": 1, "Conv": 1}
    assert weight_bytes(change.model.graph) <= kernel.size * bits / 8 + 6 * (4 + 1)


def test_a_convolution_is_not_written_for_matmulnbits() -> None:
    model = build([node("Conv", "x k", "y")], {"x": (1, 4, 5, 5)}, "y", {"k": floats(6, 4, 3, 3)}, opset=17)
    change = WeightOnly(form="nbits", ops="Conv", least=0)(model, CONTEXT)
    assert not change.modified
    assert "no convolution" in reasons(change)


@pytest.mark.parametrize("form", ["onnx", "nbits"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_tables_and_gemm_are_stored_too(form: str, symmetric: bool) -> None:
    model = language()
    change = WeightOnly(form=form, symmetric=symmetric)(model, CONTEXT)
    assert len(change.applied) == 3
    i = np.array([0, 49, 7, 7, 1], np.int64)
    table = stored(TABLE, 1, 8 if form == "onnx" else 4, symmetric=symmetric)
    want = table[i] @ stored(W, 0, 4, symmetric=symmetric) @ stored(V, 1, 4, symmetric=symmetric).T + B
    np.testing.assert_allclose(run(change.model, {"i": i})[0], want, rtol=1e-3, atol=1e-3)
    assert not {"w", "v", "table"} & set(change.model.graph.graph.initializers)


def test_4_bits_take_an_eighth_of_the_bytes_and_the_scales() -> None:
    change = WeightOnly(symmetric=True)(matmul(), CONTEXT)
    assert weight_bytes(change.model.graph) == 70 * 48 / 2 + 3 * 48 * 4


def test_onnx_runtime_multiplies_by_the_codes_themselves() -> None:
    change = WeightOnly()(matmul(), CONTEXT)
    session = OnnxRuntime().compile(change.model, TARGET.with_settings({"profile": True}))
    session.run({"x": floats(3, 70)})
    assert {layer.op for layer in session.layers()} == {"MatMulNBits"}


def test_facts_give_the_quality_of_every_weight() -> None:
    facts = WeightOnly(bits=8)(matmul(), CONTEXT).facts["weights"]["w"]
    assert facts["sqnr_db"] > 40
    assert {k: facts[k] for k in ("bits", "block", "axis", "numbers")} == {
        "bits": 8, "block": 32, "axis": 0, "numbers": 3360,
    }  # fmt: skip
    assert WeightOnly()(matmul(), CONTEXT).facts["weights"]["w"]["sqnr_db"] > 18


def test_integer_rounds_activations_as_well() -> None:
    change = WeightOnly(form="nbits", integer=True)(matmul(), CONTEXT)
    x = floats(3, 70)
    want = x @ stored(W, 0, 4, symmetric=False)
    got = run(change.model, {"x": x})[0]
    assert 0 < np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_a_weight_that_two_products_share_is_stored_once() -> None:
    model = build(
        [node("MatMul", "x w", "a"), node("MatMul", "z w", "b")], {"x": (3, 70), "z": (2, 70)}, "a b", {"w": W}
    )
    change = WeightOnly()(model, CONTEXT)
    assert ops(change.model)["DequantizeLinear"] == 1
    assert len(change.applied) == 2


def test_what_is_left_in_float_is_named_with_the_reason() -> None:
    model = build(
        [
            node("MatMul", "x w", "a"),
            node("MatMul", "a s", "b"),
            node("MatMul", "b b2", "c"),
            node("Identity", "w2", "d"),
            node("MatMul", "x w2", "e"),
        ],
        {"x": (3, 70), "b2": (8, 2)},
        "c d e",
        {"w": W, "s": floats(48, 8), "w2": W + 1},
    )
    change = WeightOnly(keep="MatMul_a")(model, CONTEXT)
    assert not change.modified
    told = reasons(change)
    assert "MatMul_a: kept in float by the setting keep=MatMul_a" in told
    assert "MatMul_b: its weight has 384 numbers; the setting least=1024 leaves it in float" in told
    assert "MatMul_c: its weight is not a constant" in told
    assert "MatMul_e: its weight is also read by Identity_d, which stays in float" in told


def test_gemm_with_a_factor_stays_out_of_matmulnbits() -> None:
    model = build([node("Gemm", "x w", "y", alpha=2.0)], {"x": (3, 70)}, "y", {"w": W})
    assert "has transA, alpha or beta" in reasons(WeightOnly(form="nbits")(model, CONTEXT))
    x = floats(3, 70)
    got = run(WeightOnly()(model, CONTEXT).model, {"x": x})[0]
    np.testing.assert_allclose(got, 2 * x @ stored(W, 0, 4, symmetric=False), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 5}, "is 5; expected 4 or 8"),
        ({"form": "gguf"}, "is no form"),
        ({"form": "nbits", "block": 24}, "is 24; expected a power of two from 16"),
        ({"block": -1}, "is -1; expected 0 or more"),
        ({"ops": "Relu"}, "has no weight that is stored so"),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        WeightOnly(**settings)(matmul(), CONTEXT)


def test_the_stored_codes_are_what_the_graph_holds() -> None:
    change = WeightOnly(bits=8, symmetric=True)(matmul(), CONTEXT)
    made = next(n for n in change.model.graph.graph if n.op_type == "DequantizeLinear")
    codes = quantize_blocks(W, 0, 32, 8, symmetric=True, shrink=(1.0,)).codes
    np.testing.assert_array_equal(array(made.inputs[0]), codes)


def test_a_product_that_lacks_an_input_is_left_alone() -> None:
    model = build([node("MatMul", "x", "y")], {"x": (3, 70)}, "y")
    assert "has 1 of the two inputs that it needs" in reasons(WeightOnly()(model, CONTEXT))
