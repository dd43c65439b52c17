"""One streaming pass: what it sees, what it refuses, and that it keeps nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from edgeproof.dataset import Feeds
from edgeproof.errors import InputError
from edgeproof.quant.calibration import calibrate, observed
from small_nets import compiled, net, node, number, ran, samples, small_cnn, weight


def test_extremes_equal_those_of_the_tensors_themselves() -> None:
    model = small_cnn()
    feeds = samples(model, 5)
    found = calibrate(model, ["x", "r", "s", "y"], compiled, iter(feeds))
    session = compiled(observed(model, ["r", "s"]))
    outputs = [{**f, **session.run(f)} for f in feeds]
    for name, histogram in found.items():
        assert histogram.low == min(o[name].min() for o in outputs)
        assert histogram.high == max(o[name].max() for o in outputs)
        assert histogram.seen == sum(o[name].size for o in outputs)


def test_the_model_is_not_changed_and_its_own_outputs_stay() -> None:
    model = small_cnn()
    before = [v.name for v in model.graph.graph.outputs]
    copy = observed(model, ["r", "r", "y", "x", "no_such_tensor"])
    assert [v.name for v in model.graph.graph.outputs] == before
    assert [v.name for v in copy.graph.graph.outputs] == ["y", "r"]
    assert [spec.name for spec in copy.outputs] == ["y", "r"]


def test_samples_are_read_once_and_let_go_one_by_one() -> None:
    model = small_cnn()
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def stream() -> Iterator[Feeds]:
        nonlocal most
        for _ in range(20):
            array = np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32)
            alive.append(weakref.ref(array))
            gc.collect()
            most = max(most, sum(r() is not None for r in alive))
            yield {"x": array}
            del array

    calibrate(model, ["r"], compiled, stream())
    assert len(alive) == 20
    assert most <= 2


def test_a_copy_for_calibration_alone_computes_nothing_beyond_what_is_observed() -> None:
    model = small_cnn()
    copy = observed(model, ["r", "x"], alone=True)
    assert [v.name for v in copy.graph.graph.outputs] == ["r"]
    assert [n.op_type for n in copy.graph.graph] == ["Conv", "Relu"]
    assert set(copy.graph.graph.initializers) == {"w1", "b1"}
    assert [spec.name for spec in observed(model, ["y"], alone=True).outputs] == ["y"]
    assert [spec.name for spec in observed(model, ["x"], alone=True).outputs] == ["y"]  # a model has some output
    assert len(list(model.graph.graph)) == 10


def test_a_model_of_which_only_the_input_is_observed_is_calibrated() -> None:
    model = small_cnn()
    feeds = samples(model, 3)
    assert calibrate(model, ["x"], compiled, iter(feeds))["x"].high == max(f["x"].max() for f in feeds)


def test_shapes_may_differ_from_sample_to_sample() -> None:
    model = net(
        [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["y"])],
        [weight("w", 4, 3, 3, 3)],
        ["n", 3, "h", "w"],
    )
    feeds = [{"x": np.ones((n, 3, s, 2 * s), np.float32)} for n, s in ((1, 8), (2, 5), (3, 16))]
    found = calibrate(model, ["y"], compiled, iter(feeds))
    assert found["y"].seen == 4 * sum(n * 2 * s * s for n, s in ((1, 8), (2, 5), (3, 16)))


def test_integer_and_empty_tensors_are_seen_as_empty() -> None:
    model = net(
        [
            node("Cast", ["x"], ["i"], to=7),
            node("Cast", ["i"], ["f"], to=1),
            node("Slice", ["f", "zero", "zero"], ["e"]),
            node("Concat", ["e", "f"], ["y"], axis=0),
        ],
        [number("zero", [0], np.int64)],
        [4],
    )
    found = calibrate(model, ["i", "e", "f"], compiled, iter(samples(model, 2)))
    assert {name: h.seen for name, h in found.items()} == {"i": 0, "e": 0, "f": 8}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_tensor_that_is_not_finite_is_named_with_its_sample(bad: float) -> None:
    model = net([node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["y"])], shape=[2])
    feeds = [{"x": np.array([1.0, 2.0], np.float32)}, {"x": np.array([bad, 2.0], np.float32)}]
    with pytest.raises(InputError, match=r"tensor 'r': holds 1 of 2 values that are NaN or infinite on sample 1"):
        calibrate(model, ["r"], compiled, iter(feeds))


def test_no_samples_are_refused() -> None:
    with pytest.raises(InputError, match="got 0 calibration samples; expected at least 1"):
        calibrate(small_cnn(), ["r"], compiled, iter([]))


def test_progress_ends_at_one() -> None:
    told: list[tuple[str, float]] = []
    model = small_cnn()
    calibrate(model, ["r"], compiled, iter(samples(model, 4)), total=4, progress=lambda *a: told.append(a))
    assert [share for _, share in told] == [0.25, 0.5, 0.75, 1.0]


def test_observing_does_not_change_what_is_computed() -> None:
    model = small_cnn()
    sample = samples(model, 1)[0]
    np.testing.assert_allclose(ran(observed(model, ["r", "s", "c"]), sample), ran(model, sample), rtol=1e-4, atol=1e-5)
