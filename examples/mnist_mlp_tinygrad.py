"""Quantise an MLP that reads handwritten digits, in nothing but tinygrad: from 16 bits down to 4.

    pip install tinygrad            # on a processor it compiles with clang
    python -m benchmarks.zoo data mnist --samples 2000 --out mnist/digits
    DEV=CPU python examples/mnist_mlp_tinygrad.py mnist/digits/data.yaml

The network is trained here on two thirds of the digits and scored on the rest. Each weight matrix is then snapped to a
grid of so many bits, with one scale for all of it or one for each of its rows, and the activations to as many; whatever
is printed was computed by tinygrad.
"""

import sys
from collections.abc import Callable

import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context
from tinygrad.nn.optim import AdamW
from tinygrad.nn.state import get_parameters

from edgeproof.bounds import proportion_bounds
from edgeproof.dataset import load_spec
from edgeproof.evaluate import open_dataset
from edgeproof.model import Model

BITS = (16, 12, 10, 8, 7, 6, 5, 4)
HIDDEN = 64
BATCH = 50


class Mlp:
    """784 → 64 → 64 → 10."""

    def __init__(self) -> None:
        self.l1, self.l2, self.l3 = nn.Linear(784, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return self.l3(self.l2(self.l1(x).relu()).relu())


def snapped(x: Tensor, bits: int, rows: bool = False) -> Tensor:
    """Symmetric quantisation: the nearest of 2^bits − 1 steps around 0; one scale, or one for each row."""
    peak = x.abs().max(axis=1, keepdim=True) if rows else x.abs().max()
    top = 2 ** (bits - 1) - 1
    step = (peak / top).maximum(1e-12)
    return (x / step).round().clip(-top, top) * step


def quantised(net: Mlp, bits: int, rows: bool) -> Callable[[Tensor], Tensor]:
    """The network with weights and activations on grids; biases stay as they are."""
    layers = [(snapped(layer.weight, bits, rows).realize(), layer.bias) for layer in (net.l1, net.l2, net.l3)]

    def forward(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers):
            x = snapped(x if i == 0 else x.relu(), bits).linear(weight.transpose(), bias)
        return x

    return forward


def read(data: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 784] and digits [n], in an order at random."""
    dataset = open_dataset(load_spec(data), _picture())
    order = np.random.default_rng(0).permutation(len(dataset))
    examples = [dataset[int(i)] for i in order]
    pictures = np.stack([next(iter(e.feeds.values())).reshape(-1) for e in examples])
    return pictures, np.array([int(e.truth) for e in examples], np.int32)


def _picture() -> Model:
    """What the reader of pictures fits them to."""
    import onnx_ir as ir

    kind = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="picture", shape=ir.Shape(["n", 1, 28, 28]), type=kind)
    y = ir.Value(name="digit", shape=ir.Shape(["n", 1, 28, 28]), type=kind)
    node = ir.Node("", "Identity", [x], outputs=[y])
    return Model.of(ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"": 17}), ir_version=8), "picture")


def train(net: Mlp, x: np.ndarray, y: np.ndarray, epochs: int) -> float:
    """Train with cross entropy; the last loss."""
    optimizer = AdamW(get_parameters(net), lr=2e-3, weight_decay=1e-2)

    @TinyJit
    def step(pictures: Tensor, digits: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(pictures).sparse_categorical_crossentropy(digits).backward()
        optimizer.step()
        return loss.realize()

    rng, loss = np.random.default_rng(0), 0.0
    with Context(TRAINING=1):
        for _ in range(epochs):
            order = rng.permutation(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH)
            loss = np.mean([step(Tensor(x[i]).realize(), Tensor(y[i]).realize()).item() for i in order])
    return float(loss)


def main(data: str, epochs: int = 20) -> int:
    Tensor.manual_seed(0)
    x, y = read(data)
    cut = len(x) * 2 // 3
    net = Mlp()
    loss = train(net, x[:cut], y[:cut], epochs)
    test, truth = Tensor(x[cut:]).realize(), y[cut:]

    def right(forward: Callable[[Tensor], Tensor]) -> int:
        return int((forward(test).numpy().argmax(1) == truth).sum())

    n, plain = len(truth), right(net)
    low, high = proportion_bounds(plain, n, 0.025, 0.025)
    print(f"trained on {cut} digits to a loss of {loss:.4f}; float32: {plain / n:.4f} of {n} others right")
    print(f"95 % interval [{low:.4f}, {high:.4f}]\n")
    print(f"{'bits':>4}  {'one scale per matrix':>20}  {'one scale per row':>18}  {'smaller':>8}")
    for bits in BITS:
        per_tensor, per_row = (right(quantised(net, bits, rows)) / n for rows in (False, True))
        print(f"{bits:>4}  {per_tensor:20.4f}  {per_row:18.4f}  {32 / bits:7.1f}×")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:3])) if len(sys.argv) in (2, 3) else print(__doc__) or 2)
