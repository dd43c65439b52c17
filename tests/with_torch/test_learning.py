"""Training of ONNX graphs: exact forward, right gradients, and what is learned comes back as ONNX."""

import numpy as np
import pytest
import torch

from edgeproof.errors import InputError
from edgeproof.passes.int8 import Int8
from edgeproof.passes.weight_only import WeightOnly
from edgeproof.quant import numerics
from edgeproof.runtimes import compile_for
from edgeproof.train.fit import Training, fit
from edgeproof.train.losses import Term, distillation
from edgeproof.train.quantisers import find
from edgeproof.train.snapping import real, rounded, snapped
from edgeproof.train.teacher import features, heads
from edgeproof.train.torch import Torch
from small_nets import CPU, context, net, node, number, ran, samples, small_cnn, weight

UNCHANGED = CPU.with_settings({"graph_optimization": "disable"})
MSE = (Term("mse", "y"),)


@pytest.fixture(scope="module")
def pair():
    """A float network and its INT8 form, coarse enough to learn from."""
    model = small_cnn()
    return model, Int8(per_channel=False)(model, context(model, 16)).model


def taught(model, count=32, seed=5):
    """Inputs with what the float model says of them."""
    session = compile_for(CPU, model)
    found = [(f, session.run(f)) for f in samples(model, count, seed)]
    session.close()
    return found


# -- forward -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "axis"), [("uint8", None), ("int8", None), ("int8", 0), ("int8", 1), ("uint16", None), ("int16", None)]
)
def test_rounding_is_onnx_bit_for_bit(dtype, axis):
    """Against the quantisation arithmetic of `numerics`, which is itself held against ONNX's reference."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 5, 6)).astype("f4") * 3
    x[0, 0] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5]  # ties
    p = numerics.params(x.min(), x.max(), dtype, symmetric=False) if axis is None else numerics.weight_params(x, axis)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    scale, zero = torch.from_numpy(np.asarray(p.scale)), torch.from_numpy(np.asarray(p.zero_point).astype("i8"))
    codes = rounded(torch.from_numpy(x).requires_grad_(), scale, zero, low, high, axis or 0)
    np.testing.assert_array_equal(codes.detach().numpy().astype(dtype), numerics.quantize(x, p))
    back = real(codes, scale, zero, axis or 0)
    np.testing.assert_array_equal(back.detach().numpy(), numerics.dequantize(numerics.quantize(x, p), p))
    at_once = snapped(torch.from_numpy(x).requires_grad_(), scale, zero, low, high, axis or 0)
    np.testing.assert_array_equal(at_once.detach().numpy(), back.detach().numpy())


def test_a_quantised_network_computes_what_onnx_runtime_does(pair):
    model, quantised = pair
    learner = Torch().learner(quantised, model, Training(terms=MSE, threads=1))
    session = compile_for(UNCHANGED, quantised)
    for feeds in samples(model, 4, seed=9):
        np.testing.assert_allclose(learner.outputs(feeds)["y"], session.run(feeds)["y"], atol=2e-6)
    session.close()


def test_what_was_not_trained_is_written_as_it_came(pair):
    model, quantised = pair
    again = Torch().learner(quantised, model, Training(terms=MSE, threads=1)).model()
    stored, before = again.graph.graph.initializers, quantised.graph.graph.initializers
    for name, value in before.items():
        np.testing.assert_array_equal(stored[name].const_value.numpy(), value.const_value.numpy(), err_msg=name)


# -- gradients ---------------------------------------------------------------


def test_gradients_of_a_float_network_are_those_of_finite_differences():
    model = small_cnn()
    (feeds, wanted), *_ = taught(model, 1)
    wanted = {"y": wanted["y"] + 0.3}
    training = Training(terms=MSE, threads=1)
    loss, found = Torch().learner(model, None, training).gradients(feeds, wanted)
    rng = np.random.default_rng(0)
    for name in ("w1", "b2", "w4"):
        original = model.graph.graph.initializers[name].const_value.numpy()
        direction = rng.normal(size=original.shape).astype("f4")
        direction /= np.linalg.norm(direction)
        step, values = 1e-2, []
        for sign in (1, -1):
            moved = Torch().learner(model, None, training)
            state = moved.state()
            state[f"module/{name}"] = original + sign * step * direction
            moved.restore(state)
            values.append(moved.loss(feeds, wanted))
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx(float((found[name] * direction).sum()), rel=0.02, abs=1e-4), name
    assert loss > 0


def test_a_clipped_value_passes_no_gradient_and_others_pass_it_whole():
    x = torch.tensor([-9.0, -0.3, 0.4, 9.0], requires_grad=True)
    real(rounded(x, torch.tensor(0.05), None, -128, 127, 0), torch.tensor(0.05), None, 0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 1, 1, 0], rtol=1e-6)


def test_the_gradient_of_a_scale_is_that_of_lsq():
    """Esser et al. 2020, equations 3 and the scale of section 2.2, written out."""
    x = np.array([-9.0, -0.33, 0.41, 0.02, 9.0], "f4")
    s, low, high = np.float32(0.05), -128, 127
    scale = torch.tensor(s, requires_grad=True)
    real(rounded(torch.from_numpy(x), scale, None, low, high, 0), scale, None, 0).sum().backward()
    v = x / s
    inside = (v > low) & (v < high)
    want = np.where(inside, np.rint(v) - v, np.clip(v, low, high))
    assert float(scale.grad) == pytest.approx(float(want.sum()), rel=1e-5)


@pytest.mark.parametrize("axis", [None, 1])
def test_both_steps_at_once_pass_the_gradients_of_one_after_the_other(axis):
    rng = np.random.default_rng(4)
    x, weights = (torch.from_numpy(rng.normal(size=(4, 5, 6)).astype("f4") * 3) for _ in range(2))
    scales = torch.from_numpy(np.asarray(0.03 if axis is None else rng.uniform(0.01, 0.05, 5), "f4"))
    zero = torch.tensor(7)
    found = []
    for way in ("halves", "whole"):
        v, s = x.clone().requires_grad_(), scales.clone().requires_grad_()
        if way == "halves":
            y = real(rounded(v, s, zero, -128, 127, axis or 0), s, zero, axis or 0)
        else:
            y = snapped(v, s, zero, -128, 127, axis or 0)
        (y * weights).sum().backward()
        found.append((v.grad.numpy(), s.grad.numpy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-3, atol=1e-2)


def test_gradients_of_a_quantised_network_reach_every_weight_bias_and_scale(pair):
    model, quantised = pair
    learner = Torch().learner(quantised, model, Training(terms=MSE, threads=1))
    feeds, wanted = taught(model, 1)[0]
    _, found = learner.gradients(feeds, {"y": wanted["y"] + 1})
    points = find(quantised, model)
    assert set(found) >= {*points.held, *points.activations, *points.weights}
    for name in (*points.held, *points.weights):
        assert np.abs(found[name]).max() > 0, name


# -- what is trained ---------------------------------------------------------


def test_weights_start_from_the_float_model_and_biases_follow_their_scales(pair):
    model, quantised = pair
    points = find(quantised, model)
    stored = model.graph.graph.initializers
    weights = [h for h in points.held.values() if h.tied is None]
    assert len(weights) == 4
    for held in weights:
        np.testing.assert_array_equal(held.floats, stored[held.name.partition(".")[0]].const_value.numpy())
    assert {h.tied is not None for h in points.held.values() if "int32" in h.name} == {True}


def test_learning_brings_the_int8_network_closer_to_its_teacher(pair):
    model, quantised = pair
    learner = Torch().learner(quantised, model, Training(terms=MSE, threads=1, epochs=8, rate=3e-3))
    epochs = fit(learner, taught(model, 64), learner._training)
    trained = learner.model()
    fresh = taught(model, 32, seed=77)

    def error(candidate):
        return float(np.mean([((ran(candidate, f) - w["y"]) ** 2).mean() for f, w in fresh]))

    assert error(trained) < 0.5 * error(quantised)
    assert epochs[-1].held_out is not None


def test_the_written_graph_answers_as_the_trained_one(pair):
    model, quantised = pair
    learner = Torch().learner(quantised, model, Training(terms=MSE, threads=1, epochs=2, rate=5e-3))
    fit(learner, taught(model, 16), learner._training)
    session = compile_for(UNCHANGED, learner.model())
    for feeds in samples(model, 4, seed=9):
        np.testing.assert_allclose(session.run(feeds)["y"], learner.outputs(feeds)["y"], atol=1e-5)
    session.close()


def test_scales_that_are_fixed_stay(pair):
    model, quantised = pair
    training = Training(terms=MSE, threads=1, epochs=1, rate=5e-3, scales="fixed", held_out=0)
    learner = Torch().learner(quantised, model, training)
    fit(learner, taught(model, 16), training)
    stored, before = learner.model().graph.graph.initializers, quantised.graph.graph.initializers
    points = find(quantised, model)
    for name in (*points.activations, *points.weights):
        np.testing.assert_array_equal(stored[name].const_value.numpy(), before[name].const_value.numpy())
    changed = [n for n in points.held if (stored[n].const_value.numpy() != before[n].const_value.numpy()).any()]
    assert changed


def test_four_bit_blocks_learn_what_rounding_alone_cannot():
    """Inputs that move together: the errors of their weights can cancel, which rounding one by one does not see."""
    model = net([node("MatMul", ["x", "w"], ["y"], name="fc")], [weight("w", 64, 48)], (4, 64))
    quantised = WeightOnly(bits=4, block=16, ops="MatMul")(model, context(model)).model
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((6, 64)).astype("f4")
    feeds = [{"x": rng.standard_normal((4, 6)).astype("f4") @ mix} for _ in range(56)]
    session = compile_for(CPU, model)
    data = [(f, session.run(f)) for f in feeds]
    session.close()
    training = Training(terms=MSE, threads=1, epochs=10, rate=1e-2, batch=4)
    learner = Torch().learner(quantised, model, training)
    written = compile_for(UNCHANGED, quantised)
    np.testing.assert_allclose(learner.outputs(feeds[0])["y"], written.run(feeds[0])["y"], atol=1e-4)
    written.close()
    before = np.mean([learner.loss(f, w) for f, w in data[48:]])
    fit(learner, data[:48], training)
    assert np.mean([learner.loss(f, w) for f, w in data[48:]]) < 0.5 * before
    kept = learner.model().graph.graph.initializers
    assert any(v.const_value.dtype.name in ("INT4", "UINT4") for v in kept.values())


def test_a_mask_holds_through_training():
    model = small_cnn()
    mask = np.random.default_rng(0).random((8, 8, 3, 3)) < 0.5
    training = Training(terms=MSE, threads=1, epochs=1, rate=5e-3, masks={"w2": mask})
    learner = Torch().learner(model, None, training)
    fit(learner, taught(model, 16), training)
    trained = learner.model().graph.graph.initializers["w2"].const_value.numpy()
    assert (trained[~mask] == 0).all()
    assert (trained[mask] != 0).all()


def test_only_what_is_named_changes():
    model = small_cnn()
    training = Training(terms=MSE, threads=1, epochs=1, rate=5e-3, only=("w4", "b4"), held_out=0)
    learner = Torch().learner(model, None, training)
    fit(learner, [(f, {"y": w["y"] + 1}) for f, w in taught(model, 8)], training)
    stored, before = learner.model().graph.graph.initializers, model.graph.graph.initializers
    changed = {n for n in before if (stored[n].const_value.numpy() != before[n].const_value.numpy()).any()}
    assert changed == {"w4", "b4"}


# -- losses ------------------------------------------------------------------


def test_hintons_loss_is_as_written_in_the_paper():
    model = small_cnn()
    (feeds, _), *_ = taught(model, 1)
    teacher = np.random.default_rng(2).normal(size=(1, 10)).astype("f4")
    terms, t = distillation("y", temperature=3.0, share=0.7), 3.0
    learner = Torch().learner(model, None, Training(terms=terms, threads=1))
    got = learner.loss(feeds, {"y": teacher, "labels": np.array([4])})
    z = ran(model, feeds).astype("f8")

    def softmax(v):
        e = np.exp(v - v.max())
        return e / e.sum()

    p, q = softmax(teacher[0].astype("f8") / t), softmax(z[0] / t)
    want = 0.7 * t * t * float((p * np.log(p / q)).sum()) - 0.3 * float(np.log(softmax(z[0])[4]))
    assert got == pytest.approx(want, rel=1e-5)


def test_what_a_loss_needs_and_is_not_given_is_named():
    model = small_cnn()
    learner = Torch().learner(model, None, Training(terms=distillation("y"), threads=1))
    feeds, wanted = taught(model, 1)[0]
    with pytest.raises(InputError, match=r"(?s)labels.*train\.wanted"):
        learner.loss(feeds, wanted)


# -- precision ---------------------------------------------------------------


def test_gradients_that_float16_cannot_hold_train_with_a_scaled_loss_and_vanish_without():
    """1e-8 is below half of float16's smallest number (6e-8): it is lost unless the loss is scaled first."""
    w = torch.tensor([1.0], requires_grad=True)
    x = torch.tensor([1e-8])

    def gradient(scale):
        w.grad = None
        half = (w.half() * 1.0).float() * scale  # the gradient of this value passes through float16
        (half * x).sum().backward()
        return float(w.grad) / scale

    assert gradient(1.0) == 0.0
    assert gradient(2.0**14) == pytest.approx(1e-8, rel=1e-2)


def test_bfloat16_computes_what_float32_does_but_for_its_digits():
    model = small_cnn()
    data = taught(model, 32)
    spoilt = [(f, {"y": w["y"] * 0.5}) for f, w in data]
    losses = {}
    for precision in ("float32", "bfloat16"):
        training = Training(terms=MSE, threads=1, epochs=2, rate=1e-2, precision=precision)
        learner = Torch().learner(model, None, training)
        losses[precision] = [e.loss for e in fit(learner, spoilt, training)]
        kept = learner.model().graph.graph.initializers["w1"].const_value
        assert kept.dtype.name == "FLOAT"  # master weights
    assert losses["bfloat16"][-1] == pytest.approx(losses["float32"][-1], rel=0.1)
    assert losses["bfloat16"][-1] < losses["bfloat16"][0]


# -- the loop ----------------------------------------------------------------


def test_an_interrupted_training_ends_where_the_uninterrupted_does(pair, tmp_path):
    model, quantised = pair
    data, training = taught(model, 24), Training(terms=MSE, threads=1, epochs=4, rate=3e-3)
    whole = Torch().learner(quantised, model, training)
    fit(whole, data, training)

    class StopError(Exception):
        pass

    def stop(epoch):
        if epoch.number == 3:
            raise StopError

    first = Torch().learner(quantised, model, training)
    with pytest.raises(StopError):
        fit(first, data, training, checkpoint=tmp_path / "c.npz", on_epoch=stop)
    second = Torch().learner(quantised, model, training)
    epochs = fit(second, data, training, checkpoint=tmp_path / "c.npz")
    assert [e.number for e in epochs] == [1, 2, 3, 4]
    for name, array in whole.model().graph.graph.initializers.items():
        np.testing.assert_array_equal(
            second.model().graph.graph.initializers[name].const_value.numpy(), array.const_value.numpy()
        )


def test_a_checkpoint_of_another_training_is_not_taken(pair, tmp_path):
    model, quantised = pair
    data = taught(model, 16)
    for rate in (3e-3, 1e-3):
        training = Training(terms=MSE, threads=1, epochs=1, rate=rate)
        learner = Torch().learner(quantised, model, training)
        assert len(fit(learner, data, training, checkpoint=tmp_path / "c.npz")) == 1


def test_a_loss_that_is_no_number_any_more_is_an_error(pair):
    model, quantised = pair
    training = Training(terms=MSE, threads=1, epochs=1)
    learner = Torch().learner(quantised, model, training)
    spoilt = [(f, {"y": w["y"] * np.float32(np.nan)}) for f, w in taught(model, 8)]
    with pytest.raises(InputError, match=r"train\.not_finite"):
        fit(learner, spoilt, training)


def test_it_stops_when_nothing_gets_better(pair):
    model, quantised = pair
    training = Training(terms=MSE, threads=1, epochs=50, rate=1e-12, patience=2, scale_rate=0)
    learner = Torch().learner(quantised, model, training)
    assert len(fit(learner, taught(model, 16), training)) < 6


# -- where models can be taught ----------------------------------------------


def test_a_detector_is_taught_at_the_layers_ahead_of_its_top_k():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1", pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="r"),
            node("Conv", ["r", "w2"], ["heat"], name="c2"),
            node("Conv", ["r", "w3"], ["size"], name="c3"),
            node("Sigmoid", ["heat"], ["h"], name="s"),
            node("Flatten", ["h"], ["flat"], name="f"),
            node("ArgMax", ["flat"], ["best"], name="top", axis=1),
            node("Cast", ["best"], ["y"], name="cast", to=1),
            node("Exp", ["size"], ["z"], name="e"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 4, 8, 1, 1), weight("w3", 2, 8, 1, 1)],
        outputs=("y", "z"),
    )
    quantised = Int8()(model, context(model, 4)).model
    assert heads(quantised, model) == ("heat", "size")
    assert features(quantised, model, 1) == ("a",)


def test_a_single_number_in_codes_is_trained_and_written_like_any_other():
    model = net(
        [node("DequantizeLinear", ["c", "s"], ["d"], name="dq"), node("Mul", ["x", "d"], ["y"], name="mul")],
        [number("c", 40, np.int8), number("s", 0.05)],
        (4,),
    )
    training = Training(terms=MSE, threads=1, epochs=20, batch=2, rate=2e-2, held_out=0)
    learner = Torch().learner(model, None, training)
    data = [(f, {"y": f["x"] * np.float32(3)}) for f in samples(model, 16)]
    fit(learner, data, training)
    stored = learner.model().graph.graph.initializers
    got = float(stored["c"].const_value.numpy()) * float(stored["s"].const_value.numpy())
    assert got == pytest.approx(3, abs=0.1)
