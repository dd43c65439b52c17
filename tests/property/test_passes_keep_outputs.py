"""Whatever small graph is drawn: its outputs stay what they were, and its interface too."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "passes"))
from small_models import CONTEXT, build, node, run

from edgeproof.graph.equivalence import relative_error
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.passes.fp16 import Fp16
from edgeproof.passes.simplify import Simplify

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)


@dataclass
class Drawn:
    """A graph under construction: its nodes, weights, and the value that the next step reads."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto]
    weights: dict[str, np.ndarray]
    last: str
    shape: tuple[int, ...]
    values: list[tuple[str, tuple[int, ...]]]

    def weight(self, *shape: int, positive: bool = False) -> str:
        name = f"w{len(self.weights)}"
        value = self.rng.standard_normal(shape)
        self.weights[name] = np.asarray(np.abs(value) + 0.5 if positive else value, np.float32)
        return name

    def ints(self, *numbers: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(numbers, np.int64)
        return name

    def add(self, op: str, *inputs: str, shape: tuple[int, ...] | None = None, **attributes: object) -> None:
        out = f"v{len(self.nodes)}"
        self.nodes.append(node(op, " ".join([self.last, *inputs]), out, **attributes))
        self.last, self.shape = out, self.shape if shape is None else shape
        self.values.append((out, self.shape))


def step(g: Drawn, kind: str, number: int) -> None:
    """Append one operator that fits the current shape."""
    rank, s = len(g.shape), g.shape
    if kind == "conv" and rank == 4:
        group = 2 if number % 2 and s[1] % 2 == 0 else 1
        out, pad = 2 * (1 + number % 2), number % 2
        w = g.weight(out, s[1] // group, 1 + 2 * pad, 1 + 2 * pad)
        bias = [g.weight(out)] if number % 3 else []
        g.add("Conv", w, *bias, shape=(s[0], out, *s[2:]), pads=[pad] * 4, group=group)
    elif kind == "convtranspose" and rank == 4 and s[2] * s[3] < 100:
        out = 2
        g.add("ConvTranspose", g.weight(s[1], out, 2, 2), shape=(s[0], out, s[2] * 2, s[3] * 2), strides=[2, 2])
    elif kind == "norm" and rank >= 2:
        c = s[1]
        g.add("BatchNormalization", g.weight(c), g.weight(c), g.weight(c), g.weight(c, positive=True))
    elif kind == "affine":
        op = ("Add", "Sub", "Mul", "Div")[number % 4]
        channel = rank >= 2 and number % 3 == 0
        shape = (s[1], *(1,) * (rank - 2)) if channel else ()
        g.add(op, g.weight(*shape, positive=op == "Div"))
    elif kind == "first":
        c = g.weight(1, positive=True)
        out = f"v{len(g.nodes)}"
        g.nodes.append(node(("Add", "Sub", "Mul")[number % 3], f"{c} {g.last}", out))
        g.last = out
        g.values.append((out, s))
    elif kind == "transpose":
        perm = list(np.random.default_rng(number).permutation(rank))
        g.add("Transpose", shape=tuple(s[p] for p in perm), perm=[int(p) for p in perm])
    elif kind == "reshape":
        new = (s[0], int(np.prod(s[1:]))) if number % 2 else (s[0], int(np.prod(s[1:])), 1, 1)
        g.add("Reshape", g.ints(*new), shape=new)
    elif kind == "flatten" and rank > 2:
        g.add("Flatten", shape=(s[0], int(np.prod(s[1:]))))
    elif kind == "squeeze" and rank == 4 and s[3] == 1:
        g.add("Squeeze", g.ints(3), shape=s[:3])
    elif kind == "gemm" and rank == 2:
        out = 1 + number % 4
        g.add("Gemm", g.weight(s[1], out), g.weight(out), shape=(s[0], out), alpha=0.5, beta=2.0)
    elif kind == "matmul":
        g.add("MatMul", g.weight(s[-1], 3), shape=(*s[:-1], 3))
    elif kind == "pad" and rank == 4:
        g.add("Pad", g.ints(0, 0, 1, 0, 0, 0, 0, 1), shape=(s[0], s[1], s[2] + 1, s[3] + 1))
    elif kind == "reuse":
        name, other = g.values[number % len(g.values)]
        if other == s:
            g.add("Add", name)
    elif kind == "activation":
        g.add(("Relu", "Identity", "Dropout", "Tanh")[number % 4])


KINDS = [
    "conv",
    "convtranspose",
    "norm",
    "affine",
    "first",
    "transpose",
    "reshape",
    "flatten",
    "squeeze",
    "gemm",
    "matmul",
    "pad",
    "reuse",
    "activation",
]


@st.composite
def graphs(draw, open_batch=False):
    """A chain of up to twelve steps with reuse of earlier values, and one or two outputs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([(2, 2, 4, 3), (1, 4, 3, 3), (2, 3, 1, 1), (3, 6)]))
    g = Drawn(rng, [], {}, "x", shape, [("x", shape)])
    g.add("Identity")
    for _ in range(draw(st.integers(1, 12))):
        step(g, draw(st.sampled_from(KINDS)), draw(st.integers(0, 11)))
    outputs = [g.last]
    extra = g.values[draw(st.integers(0, len(g.values) - 1))][0]
    if extra not in ("x", g.last) and draw(st.booleans()):
        outputs.append(extra)
    model = build(g.nodes, {"x": ("n", *shape[1:]) if open_batch else shape}, " ".join(outputs), g.weights)
    return model, {"x": rng.standard_normal(shape).astype(np.float32)}


def assert_same(model, change, feeds, tolerance):
    assert [s.name for s in change.model.outputs] == [s.name for s in model.outputs]
    assert [s.dtype for s in change.model.outputs] == [s.dtype for s in model.outputs]
    for want, got in zip(run(model, feeds), run(change.model, feeds), strict=True):
        assert relative_error(want, got) <= tolerance


@SETTINGS
@given(graphs())
def test_simplify_keeps_outputs(drawn):
    model, feeds = drawn
    change = Simplify(verify=False)(model, CONTEXT)
    assert_same(model, change, feeds, 1e-4)
    assert len(change.model.graph.graph) <= len(model.graph.graph)
    assert (change.model.inputs, change.model.outputs) == (model.inputs, model.outputs)


@SETTINGS
@given(graphs())
def test_simplify_is_finished_when_it_returns(drawn):
    model, _ = drawn
    once = Simplify(verify=False)(model, CONTEXT).model
    again = Simplify(verify=False)(once, CONTEXT).model
    assert len(again.graph.graph) == len(once.graph.graph)


@SETTINGS
@given(graphs())
def test_float16_stays_within_its_tolerance(drawn):
    model, feeds = drawn
    change = Fp16(samples=1)(model, type(CONTEXT)(CONTEXT.compile, lambda: iter([feeds]), 1))
    assert change.modified or change.declined
    if change.modified:
        assert_same(model, change, feeds, 0.021)


@SETTINGS
@given(graphs(open_batch=True))
def test_fixing_an_open_batch_keeps_outputs(drawn):
    model, feeds = drawn
    shape = feeds["x"].shape
    change = FixShapes("x=" + ",".join(map(str, shape)))(model, CONTEXT)
    assert change.modified
    assert change.model.inputs[0].shape == shape
    assert not any(s.dynamic for s in change.model.outputs)
    assert_same(model, change, feeds, 0.0)
