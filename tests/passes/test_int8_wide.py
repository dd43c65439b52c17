"""Activations of 16 bits, where a target's scheme says so: nearer to float, and as the target wants them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeproof.backends.onnxruntime import SCHEMES
from edgeproof.passes.int8 import Int8
from edgeproof.quant.numerics import sqnr_db
from edgeproof.target import Target
from small_nets import CPU, context, ran, samples, small_cnn

CPU_SCHEME = SCHEMES["cpu"]
assert CPU_SCHEME is not None


def wide(activation: str, *, symmetric: bool) -> Target:
    scheme = replace(CPU_SCHEME, activation=activation, activation_symmetric=symmetric)
    return Target("some:npu", "onnxruntime", "cpu", scheme)


@pytest.mark.parametrize(("activation", "symmetric"), [("uint16", False), ("int16", True), ("int16", False)])
def test_16_bit_activations_leave_only_the_error_of_the_weights(activation: str, symmetric: bool) -> None:
    model = small_cnn()
    change = Int8()(model, context(model, target=wide(activation, symmetric=symmetric)))
    narrow = Int8()(model, context(model))
    codes = {n.outputs[0].dtype.numpy().name for n in change.model.graph.graph if n.op_type == "QuantizeLinear"
             if n.outputs[0].dtype is not None}  # fmt: skip
    assert codes <= {activation}
    assert change.model.graph.opset_imports[""] >= 21
    sample = samples(model, 1, seed=9)[0]
    want = ran(model, sample)
    assert sqnr_db(want, ran(change.model, sample)) > sqnr_db(want, ran(narrow.model, sample))


def test_16_bit_codes_are_256_times_finer() -> None:
    model = small_cnn()
    fine = Int8()(model, context(model, target=wide("uint16", symmetric=False))).facts["tensors"]["r"]
    coarse = Int8()(model, context(model, target=CPU)).facts["tensors"]["r"]
    assert coarse["scale"] / fine["scale"] == pytest.approx(65535 / 255)
    assert np.isclose(coarse["high"], fine["high"])
