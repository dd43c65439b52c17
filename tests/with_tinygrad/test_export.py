"""Networks of tinygrad written as ONNX, held against tinygrad and against ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tinygrad import Tensor, nn

from edgeproof.errors import UnsupportedError
from edgeproof.model import Model
from edgeproof.train.export_tinygrad import compare, export
from small_nets import ran


@pytest.fixture(autouse=True)
def seeded():
    Tensor.manual_seed(0)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exported(network, x, **settings):
    model = export(network, {"x": x}, **settings)
    onnx.checker.check_model(model.to_bytes(), full_check=True)
    return model


def operators(model):
    return [n.op_type for n in model.graph.graph]


class Cnn:
    def __init__(self):
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4)
        self.second = nn.Conv2d(4, 4, 3, groups=4, bias=False)
        self.middle = [Tensor.relu, Tensor.max_pool2d]  # kept as functions, as tinygrad's own examples do
        self.head = nn.Linear(4, 3)

    def __call__(self, x):
        x = self.second(self.norm(self.first(x)).sequential(self.middle))
        return self.head(x.flatten(1)).softmax()


class Attention:
    def __init__(self, width=4):
        self.table, self.norm = nn.Embedding(9, width), nn.LayerNorm(width)
        self.start, self.places = Tensor.randn(1, 1, width), Tensor.randn(1, 4, width)
        self.qkv, self.out, self.groups = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.GroupNorm(2, 4)

    def __call__(self, ids):
        x = self.start.expand(ids.shape[0], 1, -1).cat(self.table(ids), dim=1) + self.places
        q, k, v = (t.reshape(ids.shape[0], 4, 2, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(ids.shape[0], 4, -1)
        x = self.groups(x + self.out(mixed))
        return x[:, 0].silu(), x[:, ::2, -1]


def test_a_cnn_becomes_one_node_per_layer_with_the_names_of_its_state():
    network = Cnn()
    network.norm.running_mean.assign(Tensor([0.1, -0.2, 0.3, 0.0])).realize()
    network.norm.running_var.assign(Tensor([1.0, 0.5, 2.0, 1.5])).realize()
    model = exported(network, drawn(2, 1, 6, 6))
    assert operators(model) == ["Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "Reshape", "Gemm", "Softmax"]
    names = set(nn.state.get_state_dict(network)) - {"norm.num_batches_tracked"}
    assert names <= set(model.graph.graph.initializers)
    assert [str(s) for s in (*model.inputs, *model.outputs)] == [
        "x float32[batch, 1, 6, 6]",
        "output float32[batch, 3]",
    ]
    fresh = drawn(5, 1, 6, 6, seed=1)
    want = network(Tensor(fresh)).numpy()
    np.testing.assert_allclose(ran(model, {"x": fresh}), want, atol=1e-6)


def test_attention_follows_every_batch():
    network = Attention()
    model = export(network, {"ids": np.array([[1, 2, 3], [4, 5, 6]], np.int32)}, outputs=("start", "rest"))
    onnx.checker.check_model(model.to_bytes(), full_check=True)
    assert [str(s) for s in model.outputs] == ["start float32[batch, 4]", "rest float32[batch, 2]"]
    assert compare(model, network, {"ids": np.array([[8, 0, 1]] * 5, np.int32)}) < 1e-5


LINES = {
    "arithmetic": lambda x: (x * 2 - 1) / (x.abs() + 0.5) + (-x) ** 2 + (1 - x).square() * x.exp(),
    "activations": lambda x: x.relu() + x.gelu() + x.sigmoid() + x.tanh() + x.silu() + x.leaky_relu() + x.elu(),
    "more activations": lambda x: x.softplus() + x.mish() + x.hardswish() + x.relu6() + x.quick_gelu() + x.clip(-1, 1),
    "exact gelu": lambda x: x.gelu(approximate="none"),
    "reductions": lambda x: x.mean(1) + x.sum((1,)) + x.max(1) + x.min(-1) + x.var(1) + x.std(1) + x.logsumexp(1),
    "softmax": lambda x: x.softmax(1) + x.log_softmax(-1),
    "shapes": lambda x: x.reshape(-1, 2, 3).permute(0, 2, 1).unsqueeze(1).squeeze(1).flatten(1).flip(1),
    "parts": lambda x: (
        x[:, 1:4]
        .cat(x[:, :2], x[:, ::3], dim=1)
        .stack(x.split([3, 3], 1)[0].repeat(1, 2)[:, :7].cat(x[:, :1], dim=1)[:, :7])
    ),
    "comparisons": lambda x: (x > 0).where(x, x * 0.1) + (x <= 0.5).float() + (x.argmax(1, keepdim=True) == 2),
    "tables": lambda x: x[:, Tensor([2, 0, 5])] + x.gather(1, Tensor([[0, 1, 2]]).expand(x.shape[0], 3)),
    "products": lambda x: x.matmul(Tensor.ones(6, 3)) + Tensor.einsum("bi,bi->b", x, x).unsqueeze(1),
    "in place": lambda x: _in_place(x),
    "padding": lambda x: x.pad((1, 2), value=3.0).cat(x.pad((2, 2), mode="reflect"), dim=1),
}


def _in_place(x):
    y = x * 2
    y += 1
    return y


@pytest.mark.parametrize("name", LINES)
def test_functions_are_written_with_their_numbers(name):
    exported(LINES[name], drawn(2, 6))  # export holds the numbers against tinygrad itself


WINDOWS = {
    "pools": lambda x: x.avg_pool2d(3, 2, padding=1) + x.max_pool2d((3, 3), 2, padding=1),
    "uncounted": lambda x: x.avg_pool2d(2, 1, padding=1, count_include_pad=False),
    "uneven pads": lambda x: x.conv2d(Tensor.ones(2, 2, 3, 3), padding=(0, 1, 2, 0), stride=(1, 2)),
    "transposed": lambda x: x.conv_transpose2d(Tensor.ones(2, 1, 3, 3), stride=2, padding=1, output_padding=1),
    "larger": lambda x: x.interpolate((12, 9)).cat(x.interpolate((12, 9), "nearest"), dim=1),
    "other sizes": lambda x: x.interpolate((4, 5), align_corners=True) + x.interpolate((4, 5), "nearest-exact"),
    "norms": lambda x: x.layernorm((1, 2, 3)) + x.layernorm(1) + nn.InstanceNorm(2)(x) + nn.LayerNorm2d(2)(x),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_written_with_their_numbers(name):
    exported(WINDOWS[name], drawn(2, 2, 6, 6))


class Layers:
    def __init__(self):
        self.c, self.t = nn.Conv1d(3, 4, 3, padding="same"), nn.ConvTranspose2d(4, 2, (1, 2), stride=(1, 2))
        self.n, self.cell, self.r = nn.GroupNorm(2, 4), nn.LSTMCell(10, 3), nn.RMSNorm(3)

    def __call__(self, x):
        x = self.t(self.n(self.c(x)).unsqueeze(2)).squeeze(2)
        h, c = self.cell(x.mean(1))
        return self.r(self.cell(x.max(1), (h, c))[0]).dropout(0.5)


def test_other_layers_are_written_with_their_numbers():
    model = exported(Layers(), drawn(2, 3, 5))
    assert {"Conv", "ConvTranspose", "InstanceNormalization", "Gemm"} <= set(operators(model))
    assert {"c.weight", "t.weight", "n.weight", "cell.weight_ih", "r.weight"} <= set(model.graph.graph.initializers)


def test_a_function_that_onnx_does_not_have_is_named_with_its_line():
    def network(x):
        return x.relu().trunc().relu()

    with pytest.raises(UnsupportedError, match=r"Tensor\.trunc.*test_export\.py, line \d+.*\n.*") as caught:
        exported(network, drawn(2, 6))
    line = network.__code__.co_firstlineno + 1
    assert f"line {line}" in str(caught.value)
    assert caught.value.code == "export.function"


def test_random_numbers_at_inference_are_refused():
    with pytest.raises(UnsupportedError, match="others in every run"):
        exported(lambda x: x + Tensor.rand(6), drawn(2, 6))


def test_a_number_that_follows_the_batch_is_refused_unless_the_batch_is_fixed():
    def network(x):
        return x * float(x.shape[0])

    with pytest.raises(UnsupportedError, match="one sample more"):
        exported(network, drawn(2, 6))
    assert exported(network, drawn(2, 6), dynamic=False).inputs[0].shape == (2, 6)


def test_the_first_layer_with_other_numbers_is_named():
    network = Cnn()
    x = drawn(2, 1, 6, 6)
    graph = exported(network, x).graph.clone()
    weight = graph.graph.initializers["second.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.01), name="second.weight")
    with pytest.raises(UnsupportedError, match=r"second\.conv2d \(test_export\.py, line") as caught:
        compare(Model.of(graph, "broken"), network, {"x": x})
    assert caught.value.code == "export.differs"
