"""Gradients reach every weight and agree with finite differences of ONNX Runtime; what is learned returns to ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from edgeproof.errors import InputError
from edgeproof.fx import import_model, write_back
from edgeproof.model import Model
from small_nets import net, node, number, small_cnn, weight
from with_torch.nets import by_runtime, by_torch, drawn


def normed(train_shape: tuple[int | str, ...] = (4, 3, 8, 8)) -> Model:
    """A convolution, a batch norm and a smooth activation."""
    return net(
        [
            node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
            node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], name="norm", momentum=0.8),
            node("Tanh", ["n"], ["t"]),
            node("GlobalAveragePool", ["t"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "w2", "b2"], ["y"], transB=1),
        ],
        [
            weight("w", 6, 3, 3, 3),
            weight("g", 6),
            weight("b", 6),
            weight("m", 6),
            number("v", np.linspace(0.5, 2, 6)),
            weight("w2", 5, 6),
            weight("b2", 5),
        ],
        train_shape,
    )


def gated() -> Model:
    """An LSTM, a layer norm, a gather from a table and a squeeze-and-excite gate."""
    return net(
        [
            node("LSTM", ["x", "w", "r", "b"], ["h", "", ""], hidden_size=4),
            node("Squeeze", ["h", "one"], ["s"]),
            node("LayerNormalization", ["s", "g", "c"], ["l"], axis=-1),
            node("ReduceMean", ["l"], ["mean"], axes=[0], keepdims=1),
            node("MatMul", ["mean", "w2"], ["z"]),
            node("Sigmoid", ["z"], ["gate"]),
            node("Mul", ["l", "gate"], ["scaled"]),
            node("Gather", ["table", "rows"], ["picked"], axis=0),
            node("MatMul", ["scaled", "picked"], ["y"]),
        ],
        [
            weight("w", 1, 16, 3),
            weight("r", 1, 16, 4),
            weight("b", 1, 32),
            number("one", [1], np.int64),
            weight("g", 4),
            weight("c", 4),
            weight("w2", 4, 4),
            weight("table", 9, 3),
            number("rows", [7, 0, 3, 7], np.int64),
        ],
        (5, 2, 3),
    )


def with_constants() -> Model:
    """Weights held by Constant nodes, as some exporters write them."""
    held = [weight("k", 4, 3, 1, 1), weight("bias", 4)]
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in held]
    return net([*constants, node("Conv", ["x", "k", "bias"], ["a"]), node("Softplus", ["a"], ["y"])], [], (2, 3, 4, 4))


NETS: dict[str, Callable[[], Model]] = {"normed": normed, "gated": gated, "constants": with_constants}


@pytest.mark.parametrize("name", NETS)
def test_gradients_agree_with_finite_differences_of_onnx_runtime(name: str) -> None:
    model = NETS[name]()
    imported = import_model(model)
    x = drawn(imported)
    rng = np.random.default_rng(1)
    pull = rng.standard_normal(by_runtime(model, *x)[0].shape).astype(np.float32)
    (imported.module(*map(torch.from_numpy, x))[0] * torch.from_numpy(pull)).sum().backward()

    def loss() -> float:
        return float((by_runtime(write_back(model, imported), *x)[0].astype(np.float64) * pull).sum())

    parameters = dict(imported.module.named_parameters())
    assert set(imported.parameters) == set(parameters)
    for ours in imported.parameters:
        parameter = parameters[ours]
        way = torch.from_numpy(rng.standard_normal(tuple(parameter.shape)).astype(np.float32))
        way /= way.norm()
        assert parameter.grad is not None, ours
        with torch.no_grad():
            start = parameter.clone()
            parameter.copy_(start + 1e-2 * way)
            above = loss()
            parameter.copy_(start - 1e-2 * way)
            below = loss()
            parameter.copy_(start)
        expected = float((parameter.grad * way).sum())
        assert (above - below) / 2e-2 == pytest.approx(expected, rel=2e-2, abs=5e-3 * (1 + abs(expected))), ours


def test_every_weight_has_a_gradient() -> None:
    imported = import_model(small_cnn())
    (y,) = imported.module(*map(torch.from_numpy, drawn(imported)))
    y.square().sum().backward()
    assert sorted(imported.parameters.values()) == ["b1", "b2", "b4", "w1", "w2", "w3", "w4"]
    assert all(p.grad is not None and bool(p.grad.any()) for p in imported.module.parameters())


@pytest.mark.parametrize("name", NETS)
def test_writing_back_what_was_not_trained_changes_nothing(name: str) -> None:
    model = NETS[name]()
    assert write_back(model, import_model(model)).digest == model.digest


def test_trained_weights_and_statistics_give_the_same_in_onnx() -> None:
    model = normed()
    imported = import_model(model, train=True)
    x = drawn(imported)
    optimiser = torch.optim.SGD(imported.module.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        imported.module(*map(torch.from_numpy, x))[0].square().mean().backward()
        optimiser.step()
    trained = write_back(model, imported)
    assert trained.digest != model.digest
    assert by_runtime(model, *x)[0].shape == by_runtime(trained, *x)[0].shape
    imported.module.eval()
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], by_runtime(trained, *x)[0], rtol=1e-4, atol=1e-5)


def test_running_statistics_follow_onnx_momentum() -> None:
    model = normed()
    imported = import_model(model, train=True)
    x = drawn(imported)
    with torch.no_grad():
        imported.module(torch.from_numpy(x[0]))
    before = model.graph.graph.initializers["m"].const_value
    assert before is not None
    after = write_back(model, imported).graph.graph.initializers["m"].const_value
    assert after is not None
    kernel = model.graph.graph.initializers["w"].const_value
    assert kernel is not None
    batch = torch.nn.functional.conv2d(torch.from_numpy(x[0]), torch.from_numpy(kernel.numpy().copy()), padding=1)
    want = 0.8 * before.numpy() + 0.2 * batch.mean((0, 2, 3)).numpy()
    np.testing.assert_allclose(after.numpy(), want, rtol=1e-5, atol=1e-6)


def test_dropout_drops_in_training_only() -> None:
    model = net([node("Dropout", ["x", "ratio"], ["y"])], [number("ratio", 0.5)], (64, 64))
    x = np.ones((64, 64), np.float32)
    assert by_torch(import_model(model).module, x)[0].min() == 1
    dropped = by_torch(import_model(model, train=True).module, x)[0]
    assert set(np.unique(dropped)) == {0.0, 2.0}


def test_scalars_train_only_when_asked_to() -> None:
    model = net([node("Mul", ["x", "s"], ["y"])], [number("s", [2.5])], (1, 3))
    assert dict(import_model(model).parameters) == {}
    assert dict(import_model(model, scalars=True).parameters) == {"s": "s"}


def test_a_parameter_of_another_shape_is_not_written_back() -> None:
    model = small_cnn()
    imported = import_model(model)
    imported.module.w1 = torch.nn.Parameter(torch.zeros(4, 3, 3, 3))
    with pytest.raises(InputError, match=r"\(4, 3, 3, 3\), expected \(8, 3, 3, 3\)"):
        write_back(model, imported)


def test_numbers_that_are_not_finite_are_not_written_back() -> None:
    model = small_cnn()
    imported = import_model(model)
    with torch.no_grad():
        imported.module.b1[0] = float("nan")
    with pytest.raises(InputError, match="b1"):
        write_back(model, imported)


def test_a_model_without_the_tensor_is_not_written_to() -> None:
    other = Model.of(ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}), ir_version=8), "other")
    with pytest.raises(InputError, match="no stored tensor"):
        write_back(other, import_model(small_cnn()))
