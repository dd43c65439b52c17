"""Orders of axes against NumPy, which really moves the numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.tflite import layout

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


def numbers(shape):
    return np.arange(int(np.prod(shape))).reshape(shape)


@given(st.data())
def test_a_change_of_order_is_the_transpose_between_both_storages(data):
    shape = data.draw(SHAPES)
    have, want = (tuple(data.draw(st.permutations(range(len(shape))))) for _ in range(2))
    value = numbers(shape)
    moved = value.transpose(have).transpose(layout.change(have, want))
    np.testing.assert_array_equal(moved, value.transpose(want))


@given(st.data())
def test_what_moves_nothing_is_a_plain_reshape(data):
    shape = data.draw(SHAPES)
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    value = numbers(shape)
    same = bool(np.array_equal(value.transpose(order).reshape(-1), value.reshape(-1)))
    assert layout.moves(order, shape) == (not same)


@given(st.data())
def test_a_transpose_renames_the_axes_of_the_same_storage(data):
    shape = data.draw(SHAPES)
    perm, order = (tuple(data.draw(st.permutations(range(len(shape))))) for _ in range(2))
    value = numbers(shape)
    held = value.transpose(perm)
    np.testing.assert_array_equal(held, value.transpose(order).transpose(layout.transposed(perm, order)))


@given(st.data())
def test_a_reshape_of_the_storage_holds_the_reshaped_value_or_is_refused(data):
    shape = data.draw(SHAPES)
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    size = int(np.prod(shape))
    first = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    new = data.draw(st.sampled_from([(first, size // first), (size,), (1, first, 1, size // first), shape]))
    made = layout.regrouped(shape, perm, new)
    if made is None:
        assert layout.moves(perm, shape)
        return
    value = numbers(shape)
    stored = value.transpose(perm).reshape(layout.stored(new, made))
    np.testing.assert_array_equal(stored, value.reshape(new).transpose(made))


def test_the_order_of_onnx_is_kept_by_a_reshape_of_it():
    assert layout.regrouped((2, 3, 4), (0, 1, 2), (6, 1, 4)) == (0, 1, 2)


def test_an_axis_that_is_summed_away_leaves_the_order_of_the_others():
    assert layout.without((0, 2, 3, 1), (2, 3)) == (0, 1)
    assert layout.without((0, 2, 3, 1), (1,)) == (0, 1, 2)
