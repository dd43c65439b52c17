"""Samples share a run only where every tensor stays what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeproof.dataset import Feeds
from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.quant.batches import MOST, Run, runs
from edgeproof.quant.calibration import calibrate, observed
from edgeproof.quant.settle import Settling
from small_nets import compiled, net, node, number, samples, weight

OPEN = ["n", 3, 8, 8]


def cnn(first: str | int = "n") -> Model:
    return net(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["b"]),
            node("GlobalAveragePool", ["b"], ["c"]),
            node("Flatten", ["c"], ["d"]),
            node("Gemm", ["d", "v"], ["y"]),
        ],
        [weight("w", 4, 3, 3, 3), weight("v", 4, 5)],
        [first, 3, 8, 8],
    )


def stream(count: int, side: int = 8, batch: int = 1) -> list[Feeds]:
    rng = np.random.default_rng(side)
    return [{"x": rng.standard_normal((batch, 3, side, side), np.float32)} for _ in range(count)]


def ran(model: Model, feeds: list[Feeds]) -> list[Run]:
    session = compiled(model)
    try:
        return [(n, {k: np.array(a) for k, a in values.items()}) for n, values in runs(session, model, feeds)]
    finally:
        session.close()


def alone(model: Model, feeds: list[Feeds]) -> list[Mapping[str, NDArray[np.float32]]]:
    session = compiled(model)
    try:
        return [{**f, **session.run(f)} for f in feeds]
    finally:
        session.close()


def test_after_a_trial_of_single_runs_samples_share_runs_and_give_the_same_values() -> None:
    model, feeds = observed(cnn(), ["a", "b", "d"]), stream(2 * MOST + 3)
    found = ran(model, feeds)
    assert [n for n, _ in found] == [1] * MOST + [MOST] + [1] * 3
    for name in ("x", "a", "b", "d", "y"):
        want = np.concatenate([values[name] for values in alone(model, feeds)])
        np.testing.assert_allclose(np.concatenate([values[name] for _, values in found]), want, rtol=1e-4, atol=1e-6)


def test_samples_of_another_shape_end_a_shared_run_and_none_is_lost_or_moved() -> None:
    model = net([node("Relu", ["x"], ["y"])], shape=["n", 3, "h", "w"])
    feeds = [*stream(MOST), *stream(5), *stream(MOST, 6), *stream(2, 7), *stream(1, 5, batch=2)]
    found = ran(model, feeds)
    assert [n for n, _ in found] == [1] * MOST + [1] * 5 + [MOST] + [1] * 3
    got = np.concatenate([values["x"].reshape(-1) for _, values in found])
    np.testing.assert_array_equal(got, np.concatenate([f["x"].reshape(-1) for f in feeds]))


@pytest.mark.parametrize(
    "model",
    [
        cnn(1),  # the first axis is fixed
        net([node("Softmax", ["x"], ["y"], axis=0)], shape=OPEN),
        net([node("ReduceMax", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"])], shape=OPEN),
        net([node("ReduceMax", ["x"], ["y"], keepdims=0)], shape=OPEN),
        net([node("Transpose", ["x"], ["y"], perm=[1, 0, 2, 3])], shape=OPEN),
        net([node("RandomNormalLike", ["x"], ["r"], seed=1.0), node("Add", ["x", "r"], ["y"])], shape=OPEN),
        net([node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["y"], to=1)], shape=OPEN),
    ],
    ids=["fixed", "softmax", "extreme", "scalar", "transposed", "random", "indices"],
)
def test_samples_that_would_meet_each_other_run_alone(model: Model) -> None:
    assert [n for n, _ in ran(model, stream(2 * MOST))] == [1] * (2 * MOST)


def test_a_branch_keeps_samples_apart() -> None:
    from onnx import TensorProto, helper

    def body(op: str) -> object:
        out = helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, None)
        return helper.make_graph([node(op, ["x"], [f"{op}_y"])], op, [], [out])

    model = net(
        [
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            node("Greater", ["m", "limit"], ["big"]),
            node("If", ["big"], ["y"], then_branch=body("Abs"), else_branch=body("Neg")),
        ],
        [number("limit", 1e9)],
        OPEN,
    )
    assert [n for n, _ in ran(model, stream(MOST + 1))] == [1] * (MOST + 1)


def test_models_that_hand_out_much_run_one_sample_at_a_time() -> None:
    model = net([node("Tile", ["x", "t"], ["y"])], [number("t", [1, 1, 200, 100], np.int64)], OPEN)
    assert [n for n, _ in ran(model, stream(4))] == [1] * 4


def test_ranges_are_those_of_single_runs() -> None:
    feeds = stream(3 * MOST)
    shared = calibrate(cnn(), ["x", "a", "d", "y"], compiled, iter(feeds))
    single = calibrate(cnn(1), ["x", "a", "d", "y"], compiled, iter(feeds))
    for name, histogram in shared.items():
        assert histogram.bounds() == pytest.approx(single[name].bounds(), rel=1e-4)
        assert (histogram.seen, histogram.samples) == (single[name].seen, 3 * MOST)


def test_a_bad_sample_of_a_shared_run_is_named_by_its_own_number() -> None:
    feeds = stream(2 * MOST)
    feeds[MOST + 5]["x"][0, 1, 2, 3] = np.nan
    with pytest.raises(InputError, match=f"holds 1 of 192 values that are NaN or infinite on sample {MOST + 5}"):
        calibrate(cnn(), ["x", "a"], compiled, iter(feeds))


def test_no_more_than_one_shared_run_of_samples_is_held() -> None:
    read = 0

    def counted() -> Iterator[Feeds]:
        nonlocal read
        for sample in samples(cnn(1), 1) * (4 * MOST):
            read += 1
            yield sample

    model = cnn()
    session = compiled(model)
    done = 0
    for n, _ in runs(session, model, counted()):
        done += n
        assert read - done < MOST
    assert done == 4 * MOST


def test_calibration_of_shared_runs_stops_where_it_settles() -> None:
    settling = Settling()
    calibrate(cnn(), ["x", "a"], compiled, iter(stream(1) * 100), enough=settling)
    assert settling.samples == 32
