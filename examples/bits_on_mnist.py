"""How many bits do handwritten digits need? Accuracy against compression from 16 bits down to 4, and below.

Fetch the network (13,308 parameters) and test digits, then run it; it takes about a minute:

    python -m benchmarks.zoo fetch mnist_cnn --to mnist
    python -m benchmarks.zoo data mnist --samples 2000 --out mnist/digits
    python examples/bits_on_mnist.py mnist/mnist_cnn.onnx mnist/digits/data.yaml mnist/bits.svg

Weights and activations are snapped to grids of so many bits (pass `simulate_bits`); for 8 and 16 bits the same is also
done with real QuantizeLinear and DequantizeLinear nodes (pass `int8`). Ranges come from the first 200 digits, accuracy
from the others.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeproof import load_model
from edgeproof.bounds import proportion_bounds
from edgeproof.dataset import Feeds, load_spec
from edgeproof.evaluate import open_dataset
from edgeproof.files import write_text
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.passes.simulate_bits import SimulateBits
from edgeproof.protocols import Context
from edgeproof.quant.numerics import sqnr_db
from edgeproof.report.axes import Axis, grid, line, mark, path, text
from edgeproof.report.markup import Html, h, join
from edgeproof.runtimes import find_target
from edgeproof.target import Target
from edgeproof.trial import compile_for

BITS = (16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2)
VARIANTS = {
    "weights and activations": {},
    "weights only": {"activation_bits": 0},
    "one scale per tensor": {"per_channel": False},
}
METHOD = "mse"
CALIBRATION = 200

STYLE = """
svg { color-scheme: light dark; background: #fbfbf9; font: 12px system-ui, "DejaVu Sans", sans-serif; }
text { fill: #1c2126; } .tick, .axis { fill: #56606a; } .title { font-size: 15px; font-weight: 650; }
.grid { stroke: #e7e9ea; } .thread { fill: none; stroke-width: 1.5; } .mark { stroke: none; }
.float { stroke: #56606a; stroke-dasharray: 5 4; }
.s0 { stroke: #0b62a8; fill: #0b62a8; } .s1 { stroke: #00796b; fill: #00796b; } .s2 { stroke: #b4500b; fill: #b4500b; }
path.thread { fill: none; }
@media (prefers-color-scheme: dark) {
svg { background: #14171a; } text { fill: #e6e8ea; } .tick, .axis { fill: #a5aeb6; } .grid { stroke: #2b3136; }
.s0 { stroke: #6db3f2; fill: #6db3f2; } .s1 { stroke: #55c4b2; fill: #55c4b2; } .s2 { stroke: #f0a05a; fill: #f0a05a; }
}
"""


@dataclass(frozen=True)
class Point:
    """One model on the curve: bits, how it was made, right answers of n, SQNR of its scores, bytes of its weights."""

    bits: int
    made: str
    right: int
    n: int
    db: float
    bytes: float

    @property
    def accuracy(self) -> float:
        return self.right / self.n


def weight_bytes(model: Model, bits: int, per_channel: bool = True) -> float:
    """Bytes of all weights at so many bits, with float32 scales and biases; 32 bits need no scales."""
    total = 0.0
    for value in model.graph.graph.initializers.values():
        shape = value.const_value.shape.numpy()
        if len(shape) > 1 and bits < 32:
            total += np.prod(shape) * bits / 8 + 4 * (shape[0] if per_channel else 1)
        else:
            total += np.prod(shape) * 4
    return total


def outputs(model: Model, target: Target, feeds: Sequence[Feeds]) -> np.ndarray:
    """Scores, [n, classes]."""
    session = compile_for(target, model)
    try:
        return np.concatenate([next(iter(session.run(f).values())) for f in feeds])
    finally:
        session.close()


def curve(model: Model, target: Target, feeds: Sequence[Feeds], labels: Sequence[int]) -> tuple[Point, list[Point]]:
    """The float model's point, and those of all others.

    The first `CALIBRATION` samples (half, if there are fewer than twice as many) give ranges, the others accuracy.
    """
    cut = min(CALIBRATION, len(feeds) // 2)
    truth, test = np.asarray(labels[cut:]), feeds[cut:]
    context = Context(lambda m: compile_for(target, m), lambda: iter(feeds[:cut]), cut, target)
    reference = outputs(model, target, test)

    def point(bits: int, made: str, changed: Model, per_channel: bool = True) -> Point:
        scores = outputs(changed, target, test)
        right = int((scores.argmax(1) == truth).sum())
        size = weight_bytes(model, bits, per_channel)
        return Point(bits, made, right, len(truth), sqnr_db(reference, scores), size)

    points = []
    for made, settings in VARIANTS.items():
        for bits in BITS:
            change = SimulateBits(**{"bits": bits, "activation_bits": bits, "method": METHOD, **settings})
            points.append(point(bits, made, change(model, context).model, settings.get("per_channel", True)))
    points.append(point(8, "Q/DQ, uint8 × int8", Int8(method=METHOD)(model, context).model))
    # No CPU kernel has 16-bit activations, but the scheme can ask for them: weights stay at 8 bits.
    wide = replace(target, scheme=replace(target.scheme, activation="uint16"))
    points.append(point(8, "Q/DQ, uint16 × int8", Int8(method=METHOD)(model, replace(context, target=wide)).model))
    return point(32, "float32", model), points


def table(plain: Point, points: Sequence[Point]) -> str:
    """All points as text."""
    rows = [f"{'bits':>4}  {'made':24} {'accuracy':>8}  {'95 % interval':15} {'SQNR':>8}  {'weights':>8}"]
    for p in (plain, *points):
        low, high = proportion_bounds(p.right, p.n, 0.025, 0.025)
        db = "exact" if p.db == float("inf") else f"{p.db:.1f} dB"
        rows.append(
            f"{p.bits:>4}  {p.made:24} {p.accuracy:8.4f}  [{low:.4f}, {high:.4f}] {db:>8}  "
            f"{plain.bytes / p.bytes:7.2f}×"
        )
    return "\n".join(rows)


def picture(plain: Point, points: Sequence[Point]) -> str:
    """Accuracy against compression, as an SVG that stands on its own."""
    shown = [p for p in points if p.bits >= 4 and not p.made.startswith("Q/DQ")]
    worst = min([p.accuracy for p in shown] + [plain.accuracy])
    x = Axis(1.5, max(plain.bytes / p.bytes for p in shown) + 0.5, 70, 840)
    y = Axis(max(0.0, worst - 0.02), min(1.0, plain.accuracy + 0.02), 350, 70)
    parts = [
        text(20, 26, "How many bits do handwritten digits need?", "start", "title"),
        text(
            20,
            46,
            f"accuracy on {plain.n} digits against compression of the weights; numbers are bits",
            "start",
            "tick",
        ),
        grid(x, y, 70, 350, "times smaller than float32", 8),
        line(x.start, y.at(plain.accuracy), x.end, y.at(plain.accuracy), "float"),
    ]
    for i, made in enumerate(VARIANTS):
        mine = [(plain.bytes / p.bytes, p) for p in shown if p.made == made]
        parts.append(path([(x.at(c), y.at(p.accuracy)) for c, p in mine], f"thread s{i}"))
        for c, p in mine:
            parts.append(mark(x.at(c), y.at(p.accuracy), i, f"s{i}", f"{p.bits} bits, {made}: {p.accuracy:.4f}"))
            if i == 0:
                parts.append(text(x.at(c), y.at(p.accuracy) - 10, str(p.bits), "middle", "tick"))
        parts += [mark(90, 250 + 20 * i, i, f"s{i}", made), text(104, 254 + 20 * i, made)]
    frame = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": "0 0 860 400",
        "role": "img",
        "aria-label": f"float32 {plain.accuracy:.4f}; at 8 bits and at 4 bits see the table",
    }
    return str(h("svg", frame, Html(f"<style>{STYLE}</style>"), join(*parts))) + "\n"


def main(network: str, data: str, out: str = "") -> int:
    model, target = load_model(network), find_target("onnxruntime:cpu", {"threads": 1})
    dataset = open_dataset(load_spec(data), model)
    examples = [dataset[i] for i in range(len(dataset))]
    plain, points = curve(model, target, [e.feeds for e in examples], [int(e.truth) for e in examples])
    print(f"{plain.n} test digits, ranges ({METHOD}) from {min(CALIBRATION, len(examples) // 2)} others")
    print(table(plain, points))
    if out:
        write_text(Path(out), picture(plain, points))
        print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (3, 4) else print(__doc__) or 2)
