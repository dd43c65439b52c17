"""The engine against finite differences of ONNX Runtime and against the arithmetic of ONNX."""

import numpy as np
import pytest

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.numerics import QParams, dequantize, fake_quantize, quantize
from edgeproof.train.child import engine, train
from edgeproof.train.fit import Training, fit
from edgeproof.train.losses import Term
from edgeproof.train.tinygrad import IMPL
from small_nets import context, net, node, number, ran, samples, weight

MSE = (Term("mse", "y"),)


def net_of_layers():
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4),
            node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], momentum=0.8),
            node("Tanh", ["n"], ["t"]),
            node("GlobalAveragePool", ["t"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "w2", "b2"], ["y"], transB=1),
        ],
        [
            weight("w1", 4, 3, 3, 3),
            weight("b1", 4),
            number("g", [1.0, 0.5, 1.5, 2.0]),
            weight("b", 4),
            number("m", [0.1, -0.1, 0.0, 0.2]),
            number("v", [1.0, 0.5, 2.0, 1.0]),
            weight("w2", 3, 4),
            weight("b2", 3),
        ],
        ("n", 3, 4, 4),
    )


def feeds_of(seed=0, batch=2):
    return {"x": np.random.default_rng(seed).standard_normal((batch, 3, 4, 4)).astype(np.float32)}


def learner(model, original=None, **settings):
    return IMPL().learner(model, original, Training(terms=settings.pop("terms", MSE), threads=1, **settings))


def with_weight(model, name, array):
    import onnx_ir as ir

    clone = model.graph.clone()
    clone.graph.initializers[name].const_value = ir.tensor(array.astype(np.float32), name=name)
    return Model.of(clone, model.name)


def loss_of(model, feeds, wanted):
    y = ran(model, feeds).astype(np.float64)
    return float(((y - wanted) ** 2).mean() / wanted.var())


def test_gradients_agree_with_finite_differences_of_onnx_runtime():
    model, feeds = net_of_layers(), feeds_of()
    rng = np.random.default_rng(1)
    wanted = rng.standard_normal((2, 3)).astype(np.float32)
    loss, gradients = learner(model).gradients(feeds, {"y": wanted})
    assert loss == pytest.approx(loss_of(model, feeds, wanted), rel=1e-5)
    assert set(gradients) == {"w1", "b1", "g", "b", "w2", "b2"}
    for name, gradient in gradients.items():
        start = model.graph.graph.initializers[name].const_value.numpy()
        way = rng.standard_normal(start.shape)
        way /= np.linalg.norm(way)
        above, below = (loss_of(with_weight(model, name, start + s * 1e-2 * way), feeds, wanted) for s in (1, -1))
        assert (above - below) / 2e-2 == pytest.approx(float((gradient * way).sum()), rel=2e-2, abs=1e-3), name


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_weights_and_activations_are_those_of_numerics_to_the_last_bit(per_channel):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, 4)).astype(np.float32)
    scale = np.abs(w).max(0 if per_channel else None).astype(np.float32) / np.float32(127)
    p = QParams(scale, np.zeros(scale.shape, np.int8), 1 if per_channel else None)
    a = QParams(np.float32(0.0371), np.uint8(128), None)
    model = net(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xr"]),
            node("DequantizeLinear", ["w.int8", "ws", "wz"], ["wr"], axis=1),
        ],
        [
            number("xs", a.scale),
            number("xz", 128, np.uint8),
            number("w.int8", quantize(w, p), np.int8),
            number("ws", scale),
            number("wz", np.zeros(scale.shape), np.int8),
        ],
        (5, 4),
        outputs=("xr", "wr"),
    )
    original = net([node("Mul", ["x", "w"], ["y"])], [number("w", w)], (5, 4))
    x = (rng.standard_normal((5, 4)) * 3).astype(np.float32)
    x[0] = [0.0371 * 0.5, 0.0371 * 1.5, 99, -99]  # halves, and what saturates
    got = learner(model, original, terms=()).outputs({"x": x})
    assert np.array_equal(got["xr"], fake_quantize(x, a))
    assert np.array_equal(got["wr"], dequantize(quantize(w, p), p))


def two_layers():
    return net(
        [node("Gemm", ["x", "w1", "b1"], ["h"]), node("Relu", ["h"], ["r"]), node("Gemm", ["r", "w2"], ["y"])],
        [weight("w1", 4, 6), weight("b1", 6), weight("w2", 6, 3)],
        ("n", 4),
    )


def test_a_quantised_model_learns_and_what_is_written_gives_the_numbers_that_were_trained():
    model = two_layers()
    quantised = Int8(per_channel=False)(model, context(model, 8)).model
    trained = learner(quantised, model)
    feeds = samples(model, 1)[0]
    wanted = {"y": ran(model, feeds) * np.float32(1.1)}
    before = trained.loss(feeds, wanted)
    for _ in range(6):
        trained.step([(feeds, wanted)], 5e-3)
    assert trained.loss(feeds, wanted) < 0.7 * before
    written = trained.model()
    np.testing.assert_allclose(trained.outputs(feeds)["y"], ran(written, feeds), atol=1e-4)
    assert {n.op_type for n in written.graph.graph} == {n.op_type for n in quantised.graph.graph}


def test_the_process_that_trains_takes_this_engine():
    model = two_layers()
    quantised = Int8(per_channel=False)(model, context(model, 8)).model
    how = Training(terms=MSE, epochs=2, batch=4, threads=1)
    taught, epochs = train(quantised, model, samples(model, 8), how, engine_name="tinygrad")
    assert [e.number for e in epochs] == [1, 2]
    assert taught.digest != quantised.digest


def test_a_state_brings_back_the_very_same_next_step():
    model, feeds = net_of_layers(), feeds_of()
    wanted = {"y": np.ones((2, 3), np.float32) * np.array([1, -1, 2], np.float32)}
    trained = learner(model)
    trained.step([(feeds, wanted)], 1e-2)
    state = trained.state()
    trained.step([(feeds, wanted)], 1e-2)
    first = trained.loss(feeds, wanted)
    trained.step([(feeds, wanted)], 1e-2)
    trained.restore(state)
    trained.step([(feeds, wanted)], 1e-2)
    assert trained.loss(feeds, wanted) == first


def test_masked_weights_stay_zero_and_what_is_not_named_stays_as_it_is():
    model, feeds = net_of_layers(), feeds_of()
    mask = np.ones((3, 4), bool)
    mask[1] = False
    trained = learner(model, masks={"w2": mask}, only=("w2", "b2"), l1=1e-3)
    for _ in range(3):
        trained.step([(feeds, {"y": np.eye(3, dtype=np.float32)[:2]})], 1e-2)
    stored = trained.model().graph.graph.initializers
    start = model.graph.graph.initializers
    assert not stored["w2"].const_value.numpy()[1].any()
    assert stored["w2"].const_value.numpy()[0].all()
    assert np.array_equal(stored["w1"].const_value.numpy(), start["w1"].const_value.numpy())


def test_trained_norms_follow_the_batch_by_onnx_momentum():
    model, feeds = net_of_layers(), feeds_of(batch=3)
    trained = learner(model, norms="trained")
    trained.step([(feeds, {"y": np.eye(3, dtype=np.float32)})], 0.0)
    observed = net(
        [node("Conv", ["x", "w1", "b1"], ["y"], pads=[1] * 4)],
        [weight("w1", 4, 3, 3, 3), weight("b1", 4)],
        ("n", 3, 4, 4),
    )
    a = ran(observed, feeds)
    stored = trained.model().graph.graph.initializers
    start = model.graph.graph.initializers
    for name, now in (("m", a.mean((0, 2, 3))), ("v", a.var((0, 2, 3), ddof=1))):
        want = 0.8 * start[name].const_value.numpy() + 0.2 * now
        np.testing.assert_allclose(stored[name].const_value.numpy(), want, rtol=1e-5, atol=1e-6)


def test_the_loop_trains_with_labels():
    model = net([node("Gemm", ["x", "w", "b"], ["y"])], [weight("w", 3, 4), weight("b", 4)], ("n", 3))
    rng = np.random.default_rng(0)
    samples = []
    for i in range(16):
        x = rng.standard_normal((1, 3)).astype(np.float32)
        x[0, i % 3] += 3
        samples.append(({"x": x}, {"labels": np.array([i % 3])}))
    terms = (Term("cross_entropy", "y"),)
    trained = learner(model, terms=terms)
    epochs = fit(trained, samples, Training(terms=terms, epochs=4, rate=0.1, batch=4), stack=True)
    assert epochs[-1].held_out < 0.5 * epochs[0].loss


def test_the_engine_is_found_by_name_and_says_what_it_cannot_do():
    assert type(engine("tinygrad")) is type(IMPL())
    with pytest.raises(UnsupportedError, match=r"train\.precision"):
        learner(net_of_layers(), precision="float16")
    with pytest.raises(InputError, match=r"train\.only"):
        learner(net_of_layers(), only=("nothing",))
    odd = net([node("Gemm", ["x", "w"], ["h"]), node("Det", ["h"], ["y"])], [weight("w", 2, 2)], (2, 2))
    with pytest.raises(UnsupportedError, match="Det"):
        learner(odd).outputs({"x": np.ones((2, 2), np.float32)})
