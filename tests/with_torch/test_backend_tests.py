"""Every operator that is claimed, against ONNX's own backend tests."""

from __future__ import annotations

import re
import warnings

import onnx_ir as ir
import pytest
import torch

from edgeproof.errors import UnsupportedError
from edgeproof.fx import claimed, import_model
from edgeproof.fx.expand import EXPANDED
from edgeproof.model import Model
from with_torch.backend_tests import BackendTest, backend_tests, in_scope, outputs_problem, tensor

PARTS = 8

REFUSED = (
    "test_if", "test_loop", "test_scan_sum", "test_sequence_map", "test_range_",  # decided by a value of run time
    "test_affine_grid_2d_", "test_affine_grid_3d_",  # their expansions branch likewise
    "test_training_dropout", "test_bernoulli", "test_randomuniformlike", "test_random",  # random numbers
    # Torch lacks the types:
    "test_cast_FLOAT", "test_cast_e8m0", "test_castlike_FLOAT", "test_quantizelinear_float4e2m1",
    "test_tfidfvectorizer", "test_constant_text",
)  # fmt: skip
"""What is refused begins with one of these."""
ROUNDED = {
    "test_attention_3d_causal_bf16", "test_attention_4d_attn_mask_causal_bf16", "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_fp16", "test_attention_4d_causal_padded_kv_bf16", "test_attention_4d_padded_kv_bf16",
    "test_dft_inverse", "test_dft_inverse_opset19",
}  # fmt: skip
"""Off by one unit in the last place, of bfloat16 or float16 (a product is rounded elsewhere) or beside a zero."""
FLOAT4 = {
    "test_cast_FLOAT4E2M1_to_FLOAT", "test_cast_FLOAT4E2M1_to_FLOAT16", "test_castlike_FLOAT4E2M1_to_FLOAT",
    "test_castlike_FLOAT4E2M1_to_FLOAT16", "test_castlike_FLOAT4E2M1_to_FLOAT_expanded",
    "test_castlike_FLOAT4E2M1_to_FLOAT16_expanded", "test_dequantizelinear_float4e2m1",
}  # fmt: skip
"""Their inputs are of a type that torch lacks, so they cannot even be given."""

SMALL = re.compile(r"test_cast(like)?_FLOAT(16)?_to_U?INT[24](_expanded)?")
"""ONNX makes these cases with NumPy's cast of numbers that do not fit, which is another one in every ml_dtypes."""


def outcome(test: BackendTest) -> str:
    """Empty, ``refused``, or what is wrong."""
    try:
        module = import_model(Model.of(ir.from_proto(test.model), test.name)).module
    except UnsupportedError:
        return "refused"
    with torch.no_grad():
        wrong = (outputs_problem(module(*(tensor(i) for i in ins)), outs, test) for ins, outs in test.sets)
        return next((w for w in wrong if w), "")


@pytest.mark.parametrize("part", range(PARTS))
def test_single_operators_give_what_onnx_says(part: int) -> None:
    wrong = {}
    for test in [t for t in backend_tests("node") if in_scope(t)][part::PARTS]:
        if test.name in FLOAT4 or SMALL.fullmatch(test.name):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of division by zero and the like, which the tests are about
            said = outcome(test)
        known = test.name.startswith(REFUSED) if said == "refused" else test.name.removesuffix("_expanded") in ROUNDED
        if said and not known:
            wrong[test.name] = said
    assert wrong == {}


@pytest.mark.parametrize("suite", ["simple", "pytorch-operator", "pytorch-converted"])
def test_stored_models_give_what_onnx_says(suite: str) -> None:
    wrong = {t.name: said for t in backend_tests(suite) if in_scope(t) and (said := outcome(t))}
    assert wrong == {}


def test_every_claimed_operator_has_a_test_that_is_run() -> None:
    tested = {t.operator for t in backend_tests() if in_scope(t)}
    elsewhere = {"Constant", "Optional", "Scatter", "ConcatFromSequence", "SequenceConstruct", "SequenceEmpty",
                 "SequenceAt", "SequenceErase", "SequenceLength", "GlobalLpPool", "MaxRoiPool"}  # fmt: skip
    assert not (set(claimed()) | EXPANDED) - tested - elsewhere
