"""The main job from Python: a small network, samples, a policy, a verdict.

Run it with `python examples/from_python.py`; it takes about two minutes, says what it does and writes runs/example.
"""

import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeproof import load_model
from edgeproof.dataset import load_spec
from edgeproof.graph.inspection import inspect_model
from edgeproof.optimize import optimize
from edgeproof.policy import Policy, Rule
from edgeproof.runtimes import find_target


def write_network(path: Path) -> None:
    """Three convolutions with batch norm, global pooling and a classifier, with random weights."""
    rng = np.random.default_rng(0)
    nodes, weights, value, channels = [], [], "x", 3
    for i, width in enumerate((16, 32, 64)):
        kernel = rng.standard_normal((width, channels, 3, 3)) * (2 / (9 * channels)) ** 0.5
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{i}"))
        for name, array in {"scale": np.ones(width), "shift": np.zeros(width), "mean": np.zeros(width)}.items():
            weights.append(numpy_helper.from_array(array.astype(np.float32), f"{name}{i}"))
        weights.append(numpy_helper.from_array(np.ones(width, np.float32), f"variance{i}"))
        nodes.append(
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], strides=[2, 2], pads=[1] * 4, name=f"conv{i}")
        )
        norm = [f"c{i}", f"scale{i}", f"shift{i}", f"mean{i}", f"variance{i}"]
        nodes.append(helper.make_node("BatchNormalization", norm, [f"b{i}"], name=f"norm{i}"))
        nodes.append(helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"))
        value, channels = f"r{i}", width
    weights.append(numpy_helper.from_array(rng.standard_normal((channels, 10)).astype(np.float32), "classes"))
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"))
    nodes.append(helper.make_node("MatMul", ["flat", "classes"], ["scores"], name="classifier"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 64, 64])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Lines:
    """Progress as lines on stderr: one for every stage (the text before a colon), so that no bar is needed."""

    def __init__(self) -> None:
        self.stage = ""

    def __call__(self, what: str, share: float) -> None:
        stage = what.partition(":")[0]
        if stage != self.stage:
            self.stage = stage
            self.tell(f"[{share:4.0%}] {what}")

    def tell(self, line: str) -> None:
        """A line about what will be done."""
        print(line, file=sys.stderr, flush=True)


def main(folder: Path = Path("runs/example"), runs: int = 10, inferences: int = 200) -> dict:
    """Make the network and its samples, optimise it, say what came out."""
    folder.mkdir(parents=True, exist_ok=True)
    network, samples = folder / "network.onnx", folder / "samples.npz"
    write_network(network)
    x = np.random.default_rng(1).standard_normal((1000, 3, 64, 64)).astype(np.float32)
    np.savez(samples, x=x)  # no labels: quality is the cosine between the outputs and the original's

    inspection = inspect_model(load_model(network), network, {"x": (1, 3, 64, 64)})
    print(f"{inspection.cost.macs} multiply-accumulates, {inspection.cost.parameters} parameters")

    policy = Policy(
        "example",
        (
            Rule("quality", "<=", Decimal("0.01"), "drop", "baseline"),
            Rule("latency_p50", "<=", Decimal("1.0"), "ratio", "baseline"),
        ),
        runs=runs,
        inferences=inferences,
    )
    target = find_target("onnxruntime:cpu", {"threads": 1})
    lines = Lines()
    spec = load_spec(str(samples))
    result = optimize(network, spec, policy, target, folder / "run", progress=lines, tell=lines.tell)
    print(f"{result['state']}: {result['best']}")
    for row in result["candidates"]:
        print(f"  {row['name']:28} {row['state']:9} {row['why']}")
    return result


if __name__ == "__main__":
    main()
