"""A CNN trained in tinygrad, to ONNX, to float16, to INT8: every rung is checked, and the one that fails is named.

    pip install tinygrad            # on a processor it compiles with clang
    python -m benchmarks.zoo data mnist --samples 2000 --out mnist/digits
    DEV=CPU python examples/tinygrad_to_int8.py mnist/digits/data.yaml mnist/rungs

No PyTorch is involved. The network must give the same numbers as its ONNX file (0.01 %), float16 may lose 0.1 % of the
accuracy and INT8 1 %. The last table is of the same ladder with a broken rung: one whose scales are half of what they
should be.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context as Settings
from tinygrad.nn.optim import AdamW
from tinygrad.nn.state import get_parameters

from edgeproof import load_model
from edgeproof.dataset import load_spec
from edgeproof.evaluate import complete, open_dataset
from edgeproof.ladder import climb, in_tinygrad, rungs, table
from edgeproof.model import Model, save_model
from edgeproof.protocols import Context
from edgeproof.runtimes import compile_for, find_target
from edgeproof.stages import first_failure
from edgeproof.train.export_tinygrad import export

BATCH = 50
RATE = 5e-3
CALIBRATION = 100


class Cnn:
    """Three convolutions with batch norms, a pool and a linear layer."""

    def __init__(self) -> None:
        self.c1, self.n1 = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm(8)
        self.c2, self.n2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm(16)
        self.c3, self.n3 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm(32)
        self.head = nn.Linear(288, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.n1(self.c1(x)).relu()
        x = self.n2(self.c2(x)).relu()
        x = self.n3(self.c3(x)).relu()
        return self.head(x.max_pool2d().flatten(1))


def train(net: Cnn, x: np.ndarray, y: np.ndarray, epochs: int) -> float:
    """Train with cross entropy; the last loss."""
    optimizer = AdamW(get_parameters(net), lr=RATE, weight_decay=1e-2)

    @TinyJit
    def step(pictures: Tensor, digits: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(pictures).sparse_categorical_crossentropy(digits).backward()
        norms = [t for n in (net.n1, net.n2, net.n3) for t in (n.running_mean, n.running_var)]
        Tensor.realize(loss, *norms, *optimizer.schedule_step())
        return loss

    rng, loss = np.random.default_rng(0), 0.0
    with Settings(TRAINING=1):
        for epoch in range(epochs):
            order = rng.permutation(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH)
            optimizer.lr.assign(Tensor([RATE * (1 - epoch / epochs)], device=optimizer.lr.device)).realize()
            loss = np.mean([step(Tensor(x[i]).realize(), Tensor(y[i]).realize()).item() for i in order])
    return float(loss)


def halved(model: Model) -> Model:
    """What a broken quantiser leaves: activations' scales of half their size, so that large values are cut off."""
    import onnx_ir as ir

    graph = model.graph.clone()
    for node in graph.graph:
        scale = node.inputs[1] if node.op_type == "QuantizeLinear" else None
        if scale is not None and scale.const_value is not None and not (scale.name or "").endswith(".broken"):
            scale.const_value = ir.tensor(scale.const_value.numpy() * np.float32(0.5), name=scale.name)
    return Model.of(graph, model.name)


def main(data: str, out: str, epochs: int = 25) -> int:
    Tensor.manual_seed(0)
    spec, net = load_spec(data), Cnn()
    blank = export(net, {"picture": np.zeros((1, 1, 28, 28), np.float32)}, outputs=("digit",))
    dataset, spec = open_dataset(spec, blank), complete(spec, blank, open_dataset(spec, blank))
    order = [int(i) for i in np.random.default_rng(0).permutation(len(dataset))]
    cut = len(order) // 2
    learned, tested = order[:cut], order[cut:]
    examples = [dataset[i] for i in learned]
    x = np.concatenate([e.feeds["picture"] for e in examples])
    y = np.array([int(e.truth) for e in examples], np.int32)
    print(f"trained on {cut} digits to a loss of {train(net, x, y, epochs):.4f}")

    model = export(net, {"picture": x[:2]}, outputs=("digit",), name="digits")
    print("exported:", " ".join(n.op_type for n in model.graph.graph))
    target = find_target("onnxruntime:cpu", {"threads": 1})
    samples = [{"picture": x[i : i + 1]} for i in range(CALIBRATION)]
    context = Context(lambda m: compile_for(target, m), lambda: iter(samples), CALIBRATION, target)
    steps = rungs(context)
    network = in_tinygrad(net, ("digit",))
    found, made = climb(network, model, steps, target, dataset, tested, spec)
    print(f"\nchecked on {len(tested)} other digits\n{table(found)}")
    for name, rung in made.items():
        path = save_model(rung, Path(out, f"{name}.onnx"))
        print(f"{path.name}: {path.stat().st_size} bytes")
    assert load_model(Path(out, "int8.onnx")).digest == made["int8"].digest

    int8 = steps[-1]
    broken = (*steps[:-1], replace(int8, make=lambda m: halved(halved(halved(int8.make(m))))))
    found, _ = climb(network, model, broken, target, dataset, tested, spec)
    failed = first_failure(found)
    print(f"\nwith a broken rung\n{table(found)}")
    print(f"first to fail: {failed.name if failed else 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], *map(int, sys.argv[3:4])) if len(sys.argv) in (3, 4) else print(__doc__) or 2)
