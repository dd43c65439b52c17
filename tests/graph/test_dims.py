"""A dimension is a number, a symbol that means one size, or unknown: the same everywhere."""

import onnx_ir as ir
import pytest

from edgeproof.graph.dims import dims, known, static


def value(*shape):
    return ir.Value(name="v", shape=ir.Shape(shape))


def test_numbers_and_symbols_are_read_as_they_are():
    assert dims(value(2, "n", 0)) == (2, "n", 0)
    assert known(value(2, "n", 0)) == (2, "n", 0)
    assert static(value(2, "n", 0)) is None
    assert static(value(2, 3, 0)) == (2, 3, 0)
    assert static(value()) == ()


@pytest.mark.parametrize("name", [None, "", "?", "-1", "None", "none", "unknown", "unk__0", "unk__17"])
def test_a_name_that_need_not_be_one_size_is_unknown(name):
    assert dims(value(4, name)) == (4, None)
    assert known(value(4, name)) is None
    assert static(value(4, name)) is None


@pytest.mark.parametrize("name", ["N", "batch", "unknown_length", "unk", "2*n", "x[0]"])
def test_any_other_name_is_a_symbol(name):
    assert dims(value(4, name)) == (4, name)


def test_a_negative_number_is_unknown():
    assert dims(value(-1, 3)) == (None, 3)


def test_without_a_rank_nothing_is_known():
    bare = ir.Value(name="v")
    assert [f(v) for f in (dims, known, static) for v in (None, bare)] == [None] * 6
