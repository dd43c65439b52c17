"""Networks put together at random: whatever is removed, the rest is valid and computes what masking computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from edgeproof.graph.cost import cost
from edgeproof.graph.inference import inferred
from edgeproof.model import Model
from edgeproof.prune.channels import channels
from edgeproof.prune.removal import masked, remove
from passes.small_models import build, node, run


@dataclass
class Maker:
    """Grows a network of pictures, block by block."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    count: int = 0

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return name

    def add(self, op: str, inputs: str, **attributes: Any) -> str:
        self.count += 1
        self.nodes.append(node(op, inputs, f"v{self.count}", **attributes))
        return f"v{self.count}"

    def conv(self, x: str, c: int, out: int, group: int = 1, kernel: int = 3) -> str:
        w = self.weight(out, c // group, kernel, kernel)
        bias = f" {self.weight(out)}" if self.rng.random() < 0.5 else ""
        return self.add("Conv", f"{x} {w}{bias}", group=group, pads=[kernel // 2] * 4)

    def block(self, x: str, c: int) -> tuple[str, int]:
        kind = self.rng.choice(
            ["conv", "residual", "bottleneck", "inverted", "grouped", "concat", "gate", "shuffle", "dense", "split"]
        )
        out = int(self.rng.choice([4, 8, 12]))
        if kind == "conv":
            return self.add("Relu", self.conv(x, c, out)), out
        if kind == "residual":
            y = self.conv(self.add("Relu", self.conv(x, c, out)), out, c)
            return self.add("Relu", self.add("Add", f"{y} {x}")), c
        if kind == "bottleneck":
            y = self.add("LeakyRelu", self.conv(x, c, out, kernel=1), alpha=0.1)
            return self.add("Add", f"{self.conv(y, out, 8)} {self.conv(x, c, 8, kernel=1)}"), 8
        if kind == "inverted":
            y = self.add("Relu", self.conv(x, c, 2 * c, kernel=1))
            y = self.add("HardSwish", self.conv(y, 2 * c, 2 * c, group=2 * c))
            return self.add("Add", f"{self.conv(y, 2 * c, c, kernel=1)} {x}"), c
        if kind == "grouped":
            groups = 2 if self.rng.random() < 0.5 else c // 2
            return self.add("Relu", self.conv(x, c, groups * 2, group=groups)), groups * 2
        if kind == "concat":
            y = self.add("Concat", f"{self.conv(x, c, out)} {x} {self.conv(x, c, 4)}", axis=1)
            return y, out + c + 4
        if kind == "gate":
            g = self.conv(self.add("GlobalAveragePool", x), c, 4, kernel=1)
            g = self.add("Sigmoid", self.conv(self.add("Relu", g), 4, c, kernel=1))
            return self.add("Mul", f"{x} {g}"), c
        if kind == "shuffle":
            self.weights[f"s{self.count}"] = np.asarray([1, 2, c // 2, 6, 6], np.int64)
            y = self.add("Reshape", f"{x} s{self.count}")
            y = self.add("Transpose", y, perm=[0, 2, 1, 3, 4])
            self.weights[f"s{self.count}"] = np.asarray([1, c, 6, 6], np.int64)
            return self.add("Reshape", f"{y} s{self.count}"), c
        if kind == "dense":
            y = self.conv(self.add("Relu", x), c, 4)
            return self.add("Concat", f"{x} {y}", axis=1), c + 4
        self.count += 1
        first, second = f"p{self.count}", f"q{self.count}"
        self.nodes.append(node("Split", x, f"{first} {second}", axis=1))
        y = self.conv(second, c // 2, c // 2)
        return self.add("Concat", f"{first} {y}", axis=1), c


def network(seed: int) -> Model:
    make = Maker(np.random.default_rng(seed))
    x, c = make.add("Relu", make.conv("x", 3, 8)), 8
    for _ in range(int(make.rng.integers(3, 7))):
        x, c = make.block(x, c)
    if make.rng.random() < 0.5:
        x, c = make.add("Flatten", x), c * 36
    else:
        x = make.add("Flatten", make.add("GlobalAveragePool", x))
    make.nodes.append(node("Gemm", f"{x} {make.weight(5, c)}", "y", transB=1))
    return build(make.nodes, {"x": (1, 3, 6, 6)}, "y", make.weights)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_network_without_random_units_computes_what_the_masked_one_computes(seed: int) -> None:
    model = network(seed)
    found = channels(model)
    assert found.units
    rng = np.random.default_rng(seed)
    gone = rng.random(found.units) < 0.4
    for labels in found.trace.every_axis():
        units = found.of(labels)
        if units.min() >= 0 and gone[units].all():
            gone[units] = False
    small = remove(found, gone)
    proto = onnx.load_model_from_string(small.to_bytes())
    onnx.checker.check_model(proto)
    inferred(proto, strict=True)
    assert small.outputs == model.outputs
    feeds = {"x": np.random.default_rng(7).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    (want,), (got,) = run(masked(found, gone), feeds), run(small, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    left = cost(small, found.shapes).macs
    assert left is not None
    assert found.macs(gone) == pytest.approx(left.value)
