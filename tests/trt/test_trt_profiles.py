"""Sizes for open dimensions: given, derived where only a batch is open, asked for otherwise."""

import pytest

from edgeproof.errors import InputError
from edgeproof.model import TensorSpec
from edgeproof.tensorrt.shapes import Span, profiles

IMAGE = TensorSpec("images", "float32", ("n", 3, "h", "w"))
BATCH = TensorSpec("x", "float32", ("n", 3, 8, 8))
FIXED = TensorSpec("k", "int64", (2,))


def test_a_model_of_fixed_sizes_needs_no_profile():
    assert profiles("", (FIXED,)) == ()


def test_an_open_batch_goes_from_one_to_eight_and_is_best_for_one():
    assert profiles("", (BATCH, FIXED)) == ({"x": Span((1, 3, 8, 8), (1, 3, 8, 8), (8, 3, 8, 8))},)


def test_sizes_are_least_best_and_largest_or_one_for_all():
    text = "images=1x3x320x320:4x3x640x640:8x3x640x640;x=2,3,8,8"
    (found,) = profiles(text, (IMAGE, BATCH))
    assert found["images"] == Span((1, 3, 320, 320), (4, 3, 640, 640), (8, 3, 640, 640))
    assert found["x"] == Span((2, 3, 8, 8), (2, 3, 8, 8), (2, 3, 8, 8))


def test_several_profiles_are_separated_by_bars():
    found = profiles("x=1x3x8x8|x=8x3x8x8:16x3x8x8:32x3x8x8", (BATCH,))
    assert [p["x"].best for p in found] == [(1, 3, 8, 8), (16, 3, 8, 8)]


def test_a_scalar_may_be_named():
    assert profiles("s=;x=1x3x8x8", (TensorSpec("s", "float32", ()), BATCH))[0]["s"] == Span((), (), ())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("image=1x3x8x8", "image: is not an input of the model"),
        ("images=1x3x8", r"has 4 dimensions; 1x3x8 has 3"),
        ("images=1x4x8x8", r"1x4x8x8 contradicts it"),
        ("images=8x3x8x8:4x3x8x8:1x3x8x8", "sizes out of order"),
        ("images=1x3x8x8:2x3x8x8", "is not INPUT=SIZES or INPUT=MIN:OPT:MAX"),
        ("images=1x3xhxw", "has the size '1x3xhxw'"),
        ("1x3x8x8", "is not INPUT=SIZES"),
    ],
)
def test_what_does_not_fit_is_named_with_what_was_expected(text, match):
    with pytest.raises(InputError, match=match):
        profiles(text, (IMAGE,))


def test_open_sizes_are_asked_for_with_a_line_to_fill_in():
    with pytest.raises(InputError, match=r"images float32\[n, 3, h, w\]") as caught:
        profiles("", (IMAGE, FIXED))
    assert "images=1x3xHEIGHTxWIDTH:1x3xHEIGHTxWIDTH:1x3xHEIGHTxWIDTH" in caught.value.hint


def test_an_input_of_unknown_rank_takes_any_sizes_that_are_given():
    unknown = TensorSpec("z", "float32", None)
    with pytest.raises(InputError, match="for which sizes"):
        profiles("", (unknown,))
    assert profiles("z=1x2:3x4:5x6", (unknown,)) == ({"z": Span((1, 2), (3, 4), (5, 6))},)
