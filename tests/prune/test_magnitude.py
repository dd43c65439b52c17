"""Masks of single weights, and two of every four."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.prune.magnitude import is_two_of_four, masks, two_of_four, zeroed
from passes.small_models import build, node
from prune.nets import HEAD, NETS, head, w

CHAIN = NETS["a chain"]
LAYERS = ("a", "b", "fc")


def test_globally_the_smallest_weights_of_all_layers_become_zero() -> None:
    stays, declined = masks(CHAIN.model(dead=False), "global", 0.3)
    assert not declined
    sizes = np.concatenate([np.abs(CHAIN.weights[n]).reshape(-1) for n in LAYERS])
    kept = np.concatenate([stays[n].reshape(-1) for n in LAYERS])
    assert np.count_nonzero(~kept) == round(0.3 * len(sizes))
    assert sizes[~kept].max() <= sizes[kept].min()


def test_by_layer_each_loses_the_same_share() -> None:
    stays, _ = masks(CHAIN.model(dead=False), "layer", 0.25)
    for name in LAYERS:
        assert np.count_nonzero(~stays[name]) == round(0.25 * stays[name].size)
        size = np.abs(CHAIN.weights[name])
        assert size[~stays[name]].max() <= size[stays[name]].min()


def test_weights_of_one_size_lose_exactly_the_share() -> None:
    model = build([node("MatMul", "x a", "y")], {"x": (2, 8)}, "y", {"a": np.ones((8, 8), np.float32)})
    stays, _ = masks(model, "layer", 0.5)
    assert np.count_nonzero(stays["a"]) == 32


def tensorrt_accepts(weights: np.ndarray) -> bool:
    """The developer guide's check, of weights [K, C, R, S]."""
    k_all, c_all, r_all, s_all = weights.shape
    for k in range(k_all):
        for r in range(r_all):
            for s in range(s_all):
                for c in range(c_all // 4):
                    if np.count_nonzero(weights[k, c * 4 : (c + 1) * 4, r, s]) > 2:
                        return False
    return c_all % 4 == 0


def test_two_of_four_is_what_tensorrt_accepts_and_loses_least() -> None:
    model = build(
        [node("Conv", "x a", "c"), node("Conv", "c b", "h"), *HEAD],
        {"x": (1, 3, 4, 4)},
        "y",
        {"a": w(8, 3, 1, 1), "b": w(16, 8, 3, 3), **head(16)},
    )
    stays, declined = masks(model, "2:4")
    assert declined == (("Conv_c", "reads 3 channels a group, no multiple of four"),)
    assert set(stays) == {"b", "fc"}
    made = np.where(stays["b"], w(16, 8, 3, 3), 0)
    assert tensorrt_accepts(made)
    assert is_two_of_four(made, 1)
    assert not is_two_of_four(w(16, 8, 3, 3), 1)
    assert stays["b"].mean() == 0.5
    fours = np.sort(np.abs(w(16, 8, 3, 3).reshape(16, 2, 4, 3, 3)), axis=2)
    assert np.abs(made).sum() == pytest.approx(fours[:, :, 2:].sum(), rel=1e-5)


@pytest.mark.parametrize(("turned", "axis"), [(0, 0), (1, 1)])
def test_two_of_four_lies_along_what_a_matrix_product_sums_over(turned: int, axis: int) -> None:
    shape = (12, 8) if turned == 0 else (8, 12)
    model = build([node("Gemm", "x a", "y", transB=turned)], {"x": (2, 12)}, "y", {"a": w(*shape)})
    stays, _ = masks(model, "2:4")
    assert (stays["a"].take(range(4), axis).sum(axis) == 2).all()
    matrix = build([node("MatMul", "x a", "y")], {"x": (2, 12)}, "y", {"a": w(12, 8)})
    assert (masks(matrix, "2:4")[0]["a"][:4].sum(0) == 2).all()


def test_of_equal_weights_the_first_two_stay() -> None:
    np.testing.assert_array_equal(two_of_four(np.ones((1, 4)), 1), [[True, True, False, False]])


def test_zeroing_touches_nothing_else() -> None:
    model = CHAIN.model(dead=False)
    stays, _ = masks(model, "layer", 0.5)
    made = zeroed(model, stays)
    held = {n: v.const_value.numpy() for n, v in made.graph.graph.initializers.items() if v.const_value is not None}
    for name, array in held.items():
        np.testing.assert_array_equal(array, np.where(stays.get(name, True), CHAIN.weights[name], 0))


def test_a_mask_of_another_model_is_refused() -> None:
    model = CHAIN.model(dead=False)
    with pytest.raises(InputError, match="no weight"):
        zeroed(model, {"nope": np.ones(3, bool)})
    with pytest.raises(InputError, match="its mask has"):
        zeroed(model, {"a": np.ones(3, bool)})


def test_what_makes_no_sense_is_refused() -> None:
    model = CHAIN.model(dead=False)
    with pytest.raises(InputError, match="did you mean 'global'"):
        masks(model, "globl")
    with pytest.raises(InputError, match="below 1"):
        masks(model, "global", 1.0)


def test_a_pattern_that_excludes_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="matches no node"):
        masks(CHAIN.model(dead=False), "layer", 0.5, exclude=("nope*",))


def test_an_excluded_layer_keeps_its_weights() -> None:
    stays, declined = masks(CHAIN.model(dead=False), "layer", 0.5, exclude=("Conv_*",))
    assert set(stays) == {"fc"}
    assert {name for name, _ in declined} == {"Conv_c", "Conv_h"}
