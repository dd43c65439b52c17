"""Prune half of the work of a ResNet-18-style network and let the whole one teach the half.

Needs PyTorch where edgeproof finds it (`edgeproof targets --install torch`) and handwritten digits:

    python -m benchmarks.zoo data digits --samples 4000 --out digits
    python examples/prune_and_distil.py digits/data.yaml work

The network is written here as ONNX with random weights, trained on labels, pruned, and taught again without them. One
file says so (`work/course.yaml`), and `edgeproof train work/course.yaml` does the same; see docs/training.md. A quarter
of the digits is only tested on.
"""

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeproof import load_model
from edgeproof.files import write_text
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.protocols import Context
from edgeproof.runtimes import compile_for, find_target
from edgeproof.training import load_training, run_training

WIDTHS = (16, 32, 64, 128)
"""Of the four stages, a quarter of ResNet-18's; two blocks each (He et al. 2016, table 1)."""
ROUNDS = 200

COURSE = """\
model: resnet.onnx
data: {data}
out: run
stages:
- train: {{epochs: {epochs}, rate: 2e-2, batch: 16}}
- prune: {{keep: 0.5, round_to: 16}}
- retrain: {{epochs: {epochs}, rate: 1e-2, batch: 16}}
"""


def resnet(classes: int = 10, seed: int = 0) -> onnx.ModelProto:
    """A ResNet of basic blocks for digits of 28 × 28, N×1×28×28 → N×classes, with He's initial weights."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def stored(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def conv(x: str, name: str, size: tuple[int, int, int], stride: int = 1) -> str:
        """Convolution and batch norm."""
        out, into, kernel = size
        w = rng.standard_normal((out, into, kernel, kernel)) * (2 / (into * kernel**2)) ** 0.5
        nodes.append(
            helper.make_node(
                "Conv",
                [x, stored(f"{name}.weight", w)],
                [f"{name}.conv"],
                name=name,
                pads=[kernel // 2] * 4,
                strides=[stride] * 2,
            )
        )
        parts = zip(("scale", "bias", "mean", "var"), (1.0, 0.0, 0.0, 1.0), strict=True)
        norm = [stored(f"{name}.{part}", np.full(out, value)) for part, value in parts]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.conv", *norm], [f"{name}.norm"]))
        return f"{name}.norm"

    def op(kind: str, inputs: list[str], output: str, **settings: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **settings))
        return output

    x = op("Relu", [conv("images", "stem", (WIDTHS[0], 1, 3), stride=2)], "stem.out")
    into = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for block in range(2):
            name, stride = f"stage{stage}.{block}", 2 if stage and not block else 1
            inner = op("Relu", [conv(x, f"{name}.a", (width, into, 3), stride)], f"{name}.inner")
            body = conv(inner, f"{name}.b", (width, width, 3))
            short = conv(x, f"{name}.short", (width, into, 1), stride) if into != width else x
            x = op("Relu", [op("Add", [body, short], f"{name}.sum")], f"{name}.out")
            into = width
    flat = op("Flatten", [op("GlobalAveragePool", [x], "pooled")], "flat")
    last = [
        stored("head.weight", rng.standard_normal((into, classes)) * into**-0.5),
        stored("head.bias", np.zeros(classes)),
    ]
    op("Gemm", [flat, *last], "logits")
    graph = helper.make_graph(
        nodes,
        "resnet",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def milliseconds(files: list[Path]) -> list[float]:
    """CPU time of one inference of each, on one thread of ONNX Runtime, in turns."""
    place = find_target("onnxruntime:cpu", {"threads": 1})
    context = Context(lambda m: compile_for(place, m))
    sessions = [compile_for(place, FixShapes("images=1,1,28,28")(load_model(f), context).model) for f in files]
    feeds = {"images": np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype(np.float32)}
    times: list[list[float]] = [[] for _ in files]
    for _ in range(ROUNDS):
        for session, kept in zip(sessions, times, strict=True):
            start = time.process_time()
            session.run(feeds)
            kept.append(1e3 * (time.process_time() - start))
    return [median(t) for t in times]


def main(data: str, out: str, epochs: str = "8") -> int:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(resnet(), str(folder / "resnet.onnx"))
    write_text(folder / "course.yaml", COURSE.format(data=Path(data).absolute(), epochs=int(epochs)))
    result = run_training(load_training(folder / "course.yaml"), tell=print)
    stages = {row["stage"]: row for row in result["stages"]}
    whole, half = stages["train"], stages["retrain"]
    before, after = milliseconds([Path(row["path"]) for row in (whole, half)])
    lost = 100 * (whole["quality"]["value"] - half["quality"]["value"])
    work = [row["macs"] for row in (whole, half)]
    print(f"multiply-accumulates {work[0]} → {work[1]}")
    print(f"CPU ms {before:.3f} → {after:.3f}, {1 - after / before:.0%} less")
    print(f"points lost: {lost:.1f} of {result['samples']['tested']} digits")
    return 0 if lost <= 2 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (3, 4) else print(__doc__) or 2)
