"""Small networks, one for each way in which channels hang together, with weights that can be made dead by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeproof.model import Model
from passes.small_models import build, node

C = 8


@dataclass(frozen=True)
class Net:
    """A network, and what is dead in it.

    Attributes:
        nodes: Its operators.
        weights: Arrays by name.
        dead: Weight → (axis, indices) that are set to zero: whole producers, with their biases.
        shapes: Weight → its shape once the dead are gone, worked out by hand.
        shape: Of the input x.
        opset: Operator set.
    """

    nodes: list[Any]
    weights: dict[str, np.ndarray]
    dead: Mapping[str, tuple[int, list[int]]]
    shapes: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...] = (2, 3, 8, 8)
    opset: int = 17

    def model(self, *, dead: bool = True) -> Model:
        """The network, its dead weights zero or alive."""
        weights = {name: np.array(w) for name, w in self.weights.items()}
        for name, (axis, indices) in self.dead.items() if dead else ():
            np.moveaxis(weights[name], axis, 0)[indices] = 0
        return build(self.nodes, {"x": self.shape}, "y", weights, opset=self.opset)

    def feeds(self) -> dict[str, Any]:
        """An input."""
        return {"x": np.random.default_rng(3).standard_normal(self.shape).astype(np.float32)}


def w(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights of a layer, none of them near zero."""
    rng = np.random.default_rng([seed, *shape])
    return np.asarray(np.sign(rng.standard_normal(shape)) * rng.uniform(0.2, 1.0, shape), np.float32)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def norm(prefix: str, channels: int) -> dict[str, np.ndarray]:
    """A batch norm that keeps zero zero only where its own offset is dead."""
    return {
        f"{prefix}_s": w(channels, seed=1),
        f"{prefix}_b": w(channels, seed=2),
        f"{prefix}_m": w(channels, seed=3),
        f"{prefix}_v": np.abs(w(channels, seed=4)),
    }


HEAD = [
    node("GlobalAveragePool", "h", "g"),
    node("Flatten", "g", "f"),
    node("Gemm", "f fc fb", "y", transB=1),
]
"""From features h to four scores."""


def head(channels: int) -> dict[str, np.ndarray]:
    return {"fc": w(4, channels), "fb": w(4)}


NETS: dict[str, Net] = {
    "a chain": Net(
        [node("Conv", "x a ab", "c", pads=[1] * 4), node("Relu", "c", "r"), node("Conv", "r b", "h"), *HEAD],
        {"a": w(C, 3, 3, 3), "ab": w(C), "b": w(6, C, 1, 1), **head(6)},
        {"a": (0, [1, 4, 5]), "ab": (0, [1, 4, 5])},
        {"a": (5, 3, 3, 3), "ab": (5,), "b": (6, 5, 1, 1), "fc": (4, 6)},
    ),
    "a residual addition": Net(
        [
            node("Conv", "x a", "c"),
            node("Relu", "c", "r"),
            node("Conv", "r b", "d", pads=[1] * 4),
            node("Add", "d r", "s"),
            node("Relu", "s", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "b": w(C, C, 3, 3), **head(C)},
        {"a": (0, [0, 7]), "b": (0, [0, 7])},
        {"a": (6, 3, 1, 1), "b": (6, 6, 3, 3), "fc": (4, 6)},
    ),
    "a concatenation": Net(
        [
            node("Conv", "x a", "c"),
            node("Conv", "x b", "d"),
            node("Concat", "c d x", "k", axis=1),
            node("Conv", "k e", "h"),
            *HEAD,
        ],
        {"a": w(4, 3, 1, 1), "b": w(6, 3, 1, 1, seed=1), "e": w(5, 13, 1, 1), **head(5)},
        {"a": (0, [2]), "b": (0, [0, 5])},
        {"a": (3, 3, 1, 1), "b": (4, 3, 1, 1), "e": (5, 10, 1, 1)},
    ),
    "a depthwise convolution": Net(
        [
            node("Conv", "x a", "c"),
            node("Clip", "c lo hi", "r"),
            node("Conv", "r dw", "d", group=C, pads=[1] * 4),
            node("Conv", "d b", "h"),
            *HEAD,
        ],
        {
            "a": w(C, 3, 1, 1),
            "lo": np.float32(0),
            "hi": np.float32(6),
            "dw": w(C, 1, 3, 3),
            "b": w(5, C, 1, 1),
            **head(5),
        },
        {"a": (0, [3, 6]), "dw": (0, [3, 6])},
        {"a": (6, 3, 1, 1), "dw": (6, 1, 3, 3), "b": (5, 6, 1, 1)},
    ),
    "a depthwise convolution that multiplies channels": Net(
        [node("Conv", "x a", "c"), node("Conv", "c dw", "d", group=4), node("Conv", "d b", "h"), *HEAD],
        {"a": w(4, 3, 1, 1), "dw": w(8, 1, 1, 1), "b": w(5, 8, 1, 1), **head(5)},
        {"a": (0, [1]), "dw": (0, [2, 3])},
        {"a": (3, 3, 1, 1), "dw": (6, 1, 1, 1), "b": (5, 6, 1, 1)},
    ),
    "many small groups, of which whole ones go": Net(
        [node("Conv", "x a", "c"), node("Conv", "c gw", "d", group=4), node("Conv", "d b", "h"), *HEAD],
        {"a": w(8, 3, 1, 1), "gw": w(12, 2, 1, 1), "b": w(5, 12, 1, 1), **head(5)},
        {"a": (0, [2, 3]), "gw": (0, [3, 4, 5])},
        {"a": (6, 3, 1, 1), "gw": (9, 2, 1, 1), "b": (5, 9, 1, 1)},
    ),
    "two large groups, of which the same places go": Net(
        [node("Conv", "x a", "c"), node("Conv", "c gw", "d", group=2), node("Conv", "d b", "h"), *HEAD],
        {"a": w(8, 3, 1, 1), "gw": w(6, 4, 1, 1), "b": w(5, 6, 1, 1), **head(5)},
        {"a": (0, [1, 5]), "gw": (0, [2, 5])},
        {"a": (6, 3, 1, 1), "gw": (4, 3, 1, 1), "b": (5, 4, 1, 1)},
    ),
    "a transposed convolution": Net(
        [
            node("Conv", "x a", "c"),
            node("ConvTranspose", "c t tb", "d", strides=[2, 2]),
            node("Relu", "d", "r"),
            node("Conv", "r b", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "t": w(C, 6, 2, 2), "tb": w(6), "b": w(5, 6, 1, 1), **head(5)},
        {"a": (0, [0]), "t": (1, [2, 3]), "tb": (0, [2, 3])},
        {"a": (7, 3, 1, 1), "t": (7, 4, 2, 2), "tb": (4,), "b": (5, 4, 1, 1)},
    ),
    "a depthwise transposed convolution": Net(
        [
            node("Conv", "x a", "c"),
            node("ConvTranspose", "c t", "d", strides=[2, 2], group=4),
            node("Conv", "d b", "h"),
            *HEAD,
        ],
        {"a": w(4, 3, 1, 1), "t": w(4, 2, 2, 2), "b": w(5, 8, 1, 1), **head(5)},
        {"a": (0, [2])},
        {"a": (3, 3, 1, 1), "t": (3, 2, 2, 2), "b": (5, 6, 1, 1)},
    ),
    "a squeeze-and-excitation gate": Net(
        [
            node("Conv", "x a", "c"),
            node("Relu", "c", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Conv", "p sq", "q"),
            node("Relu", "q", "q2"),
            node("Conv", "q2 ex", "e"),
            node("Sigmoid", "e", "gate"),
            node("Mul", "r gate", "m"),
            node("Conv", "m b", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "sq": w(4, C, 1, 1), "ex": w(C, 4, 1, 1), "b": w(5, C, 1, 1), **head(5)},
        {"a": (0, [4, 5]), "ex": (0, [4, 5]), "sq": (0, [1])},
        {"a": (6, 3, 1, 1), "sq": (3, 6, 1, 1), "ex": (6, 3, 1, 1), "b": (5, 6, 1, 1)},
    ),
    "a batch norm and a PRelu": Net(
        [
            node("Conv", "x a", "c"),
            node("BatchNormalization", "c n_s n_b n_m n_v", "n"),
            node("PRelu", "n slope", "r"),
            node("Conv", "r b", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), **norm("n", C), "slope": w(C, 1, 1), "b": w(5, C, 1, 1), **head(5)},
        {"a": (0, [2, 6]), "n_b": (0, [2, 6]), "n_m": (0, [2, 6])},
        {"a": (6, 3, 1, 1), "n_s": (6,), "n_v": (6,), "slope": (6, 1, 1), "b": (5, 6, 1, 1)},
    ),
    "pooling, resizing and padding": Net(
        [
            node("Conv", "x a", "c"),
            node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", "p _ scales", "u"),
            node("Pad", "u pads", "v"),
            node("AveragePool", "v", "q", kernel_shape=[2, 2]),
            node("Conv", "q b", "h"),
            *HEAD,
        ],
        {
            "a": w(C, 3, 1, 1),
            "scales": np.float32([1, 1, 2, 2]),
            "pads": ints(0, 0, 1, 1, 0, 0, 1, 1),
            "b": w(5, C, 1, 1),
            **head(5),
        },
        {"a": (0, [0, 1, 2])},
        {"a": (5, 3, 1, 1), "b": (5, 5, 1, 1)},
    ),
    "a resize to sizes that name the channels": Net(
        [node("Conv", "x a", "c"), node("Resize", "c _ _ sizes", "u"), node("Conv", "u b", "h"), *HEAD],
        {"a": w(C, 3, 1, 1), "sizes": ints(2, C, 16, 16), "b": w(5, C, 1, 1), **head(5)},
        {"a": (0, [7])},
        {"a": (7, 3, 1, 1), "b": (5, 7, 1, 1)},
    ),
    "a shortcut padded with channels of zeros": Net(
        [
            node("Conv", "x a", "c"),
            node("Pad", "c pads", "p"),
            node("Conv", "c b", "d"),
            node("Add", "p d", "h"),
            *HEAD,
        ],
        {"a": w(4, 3, 1, 1), "pads": ints(0, 2, 0, 0, 0, 2, 0, 0), "b": w(8, 4, 1, 1), **head(8)},
        {"a": (0, [0]), "b": (0, [2, 7])},
        {"a": (3, 3, 1, 1), "b": (6, 3, 1, 1), "fc": (4, 6)},
    ),
    "a split": Net(
        [
            node("Conv", "x a", "c"),
            node("Split", "c", "s1 s2", axis=1),
            node("Conv", "s1 b", "d"),
            node("Conv", "s2 e", "k"),
            node("Add", "d k", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "b": w(5, 4, 1, 1), "e": w(5, 4, 1, 1, seed=1), **head(5)},
        {"a": (0, [0, 6, 7])},
        {"a": (5, 3, 1, 1), "b": (5, 3, 1, 1), "e": (5, 2, 1, 1)},
    ),
    "slices of channels": Net(
        [
            node("Conv", "x a", "c"),
            node("Slice", "c zero four axis", "s1"),
            node("Slice", "c four far axis", "s2"),
            node("Conv", "s1 b", "d"),
            node("Conv", "s2 e", "k"),
            node("Add", "d k", "h"),
            *HEAD,
        ],
        {
            "a": w(C, 3, 1, 1),
            "zero": ints(0),
            "four": ints(-4),
            "far": ints(2**40),
            "axis": ints(1),
            "b": w(5, 4, 1, 1),
            "e": w(5, 4, 1, 1, seed=1),
            **head(5),
        },
        {"a": (0, [1, 2, 4])},
        {"a": (5, 3, 1, 1), "b": (5, 2, 1, 1), "e": (5, 3, 1, 1)},
    ),
    "channels picked by index": Net(
        [node("Conv", "x a", "c"), node("Gather", "c order", "s", axis=1), node("Conv", "s b", "h"), *HEAD],
        {"a": w(6, 3, 1, 1), "order": ints(5, 0, 2, 4, 3, 1), "b": w(5, 6, 1, 1), **head(5)},
        {"a": (0, [0, 3])},
        {"a": (4, 3, 1, 1), "b": (5, 4, 1, 1)},
    ),
    "a channel shuffle": Net(
        [
            node("Conv", "x a", "c"),
            node("Reshape", "c five", "r"),
            node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4]),
            node("Reshape", "t four", "s"),
            node("Conv", "s b", "h"),
            *HEAD,
        ],
        {
            "a": w(C, 3, 1, 1),
            "five": ints(2, 2, 4, 8, 8),
            "four": ints(2, C, 8, 8),
            "b": w(5, C, 1, 1),
            **head(5),
        },
        {"a": (0, [1, 5])},
        {"a": (6, 3, 1, 1), "b": (5, 6, 1, 1)},
    ),
    "flattened pictures": Net(
        [
            node("Conv", "x a", "c"),
            node("Relu", "c", "r"),
            node("Flatten", "r", "f"),
            node("Gemm", "f l1 lb", "m", transB=1),
            node("Relu", "m", "n"),
            node("MatMul", "n l2", "o"),
            node("Add", "o l3", "y"),
        ],
        {"a": w(4, 3, 1, 1), "l1": w(6, 4 * 64), "lb": w(6), "l2": w(6, 3), "l3": w(3)},
        {"a": (0, [2]), "l1": (0, [0, 5]), "lb": (0, [0, 5])},
        {"a": (3, 3, 1, 1), "l1": (4, 3 * 64), "lb": (4,), "l2": (4, 3)},
    ),
    "a reshape that copies the batch": Net(
        [
            node("Conv", "x a", "c"),
            node("Reshape", "c target", "f"),
            node("Gemm", "f l1", "y", transB=1),
        ],
        {"a": w(4, 3, 1, 1), "target": ints(0, 4 * 64), "l1": w(6, 4 * 64)},
        {"a": (0, [0, 1])},
        {"a": (2, 3, 1, 1), "l1": (6, 2 * 64)},
    ),
    "a reshape whose target is computed": Net(
        [
            node("Conv", "x a", "c"),
            node("Shape", "c", "sh"),
            node("Gather", "sh at", "n0"),
            node("Concat", "n0 eight rest", "target", axis=0),
            node("Reshape", "c target", "f"),
            node("ReduceSum", "f last", "g", keepdims=0),
            node("Gemm", "g l1", "y", transB=1),
        ],
        {
            "a": w(C, 3, 1, 1),
            "at": ints(0),
            "eight": ints(C),
            "rest": ints(-1),
            "last": ints(2),
            "l1": w(6, C),
        },
        {"a": (0, [3])},
        {"a": (7, 3, 1, 1), "l1": (6, 7)},
    ),
    "pixels made of channels": Net(
        [node("Conv", "x a", "c"), node("DepthToSpace", "c", "s", blocksize=2), node("Conv", "s b", "h"), *HEAD],
        {"a": w(C, 3, 1, 1), "b": w(5, 2, 1, 1), **head(5)},
        {"a": (0, [0, 2, 4, 6])},
        {"a": (4, 3, 1, 1), "b": (5, 1, 1, 1)},
    ),
    "pixels made of channels, the other order": Net(
        [
            node("Conv", "x a", "c"),
            node("DepthToSpace", "c", "s", blocksize=2, mode="CRD"),
            node("SpaceToDepth", "s", "t", blocksize=2),
            node("Conv", "t b", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "b": w(5, C, 1, 1), **head(5)},
        {"a": (0, [4, 5, 6, 7])},
        {"a": (4, 3, 1, 1), "b": (5, 4, 1, 1)},
    ),
    "group normalisation spelled out": Net(
        [
            node("Conv", "x a", "c"),
            node("Reshape", "c groups", "r"),
            node("InstanceNormalization", "r one none", "n"),
            node("Reshape", "n back", "k"),
            node("Conv", "k b", "h"),
            *HEAD,
        ],
        {
            "a": w(C, 3, 1, 1),
            "groups": ints(0, 4, -1),
            "one": np.ones(4, np.float32),
            "none": np.zeros(4, np.float32),
            "back": ints(2, C, 8, 8),
            "b": w(5, C, 1, 1),
            **head(5),
        },
        {"a": (0, [2, 3])},
        {"a": (6, 3, 1, 1), "one": (3,), "b": (5, 6, 1, 1)},
    ),
    "attention heads": Net(
        [
            *[node("MatMul", f"x {n}w", f"{n}1") for n in "qkv"],
            *[node("Reshape", f"{n}1 heads", f"{n}2") for n in "qkv"],
            node("Transpose", "q2", "q3", perm=[0, 2, 1, 3]),
            node("Transpose", "k2", "k3", perm=[0, 2, 3, 1]),
            node("Transpose", "v2", "v3", perm=[0, 2, 1, 3]),
            node("MatMul", "q3 k3", "s"),
            node("Mul", "s half", "s2"),
            node("Softmax", "s2", "p", axis=-1),
            node("MatMul", "p v3", "o"),
            node("Transpose", "o", "o2", perm=[0, 2, 1, 3]),
            node("Reshape", "o2 whole", "o3"),
            node("MatMul", "o3 ow", "y"),
        ],
        {
            **{f"{n}w": w(6, 12, seed=i) for i, n in enumerate("qkv")},
            "heads": ints(0, 0, 4, 3),
            "half": np.float32(0.5),
            "whole": ints(0, 0, 12),
            "ow": w(12, 6),
        },
        {"qw": (1, [3, 4, 5]), "kw": (1, [3, 4, 5]), "vw": (1, [3, 4, 5])},
        {"qw": (6, 9), "kw": (6, 9), "vw": (6, 9), "ow": (9, 6)},
        shape=(2, 5, 6),
    ),
    "attention heads from one product": Net(
        [
            node("MatMul", "x qkv", "a1"),
            node("Add", "a1 qkvb", "a2"),
            node("Reshape", "a2 five", "a3"),
            node("Transpose", "a3", "a4", perm=[2, 0, 3, 1, 4]),
            node("Split", "a4 ones", "q k v", axis=0),
            *[node("Squeeze", f"{n} zero", f"{n}1") for n in "qkv"],
            node("Transpose", "k1", "k2", perm=[0, 1, 3, 2]),
            node("MatMul", "q1 k2", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p v1", "o"),
            node("Transpose", "o", "o2", perm=[0, 2, 1, 3]),
            node("Reshape", "o2 whole", "o3"),
            node("MatMul", "o3 ow", "y"),
        ],
        {
            "qkv": w(6, 24),
            "qkvb": w(24),
            "five": ints(2, 5, 3, 2, 4),
            "ones": ints(1, 1, 1),
            "zero": ints(0),
            "whole": ints(2, 5, 8),
            "ow": w(8, 6),
        },
        {
            "qkv": (1, [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]),
            "qkvb": (0, [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]),
        },
        {"qkv": (6, 12), "qkvb": (12,), "ow": (4, 6)},
        shape=(2, 5, 6),
    ),
    "an einsum": Net(
        [node("MatMul", "x a", "c"), node("Einsum", "c e", "d", equation="bsi,io->bso"), node("MatMul", "d b", "y")],
        {"a": w(6, 8), "e": w(8, 5), "b": w(5, 3)},
        {"a": (1, [1, 2])},
        {"a": (6, 6), "e": (6, 5), "b": (5, 3)},
        shape=(2, 4, 6),
    ),
    "what a recurrence reads": Net(
        [
            node("MatMul", "x a", "c"),
            node("GRU", "c gw gr", "s _", hidden_size=4),
            node("Squeeze", "s one", "u"),
            node("MatMul", "u b", "y"),
        ],
        {"a": w(6, 8), "gw": w(1, 12, 8), "gr": w(1, 12, 4), "one": ints(1), "b": w(4, 3)},
        {"a": (1, [5])},
        {"a": (6, 7), "gw": (1, 12, 7)},
        shape=(3, 2, 6),
    ),
    "a table that is looked up": Net(
        [
            node("Cast", "x", "ids", to=7),
            node("Gather", "table ids", "e"),
            node("Add", "e places", "f"),
            node("MatMul", "f b", "y"),
        ],
        {"table": w(9, 6), "places": w(1, 4, 6), "b": w(6, 3)},
        {"table": (1, [0, 3]), "places": (2, [0, 3])},
        {"table": (9, 4), "places": (1, 4, 4), "b": (4, 3)},
        shape=(2, 4),
    ),
    "one layer used twice": Net(
        [
            node("Conv", "x a", "c"),
            node("Conv", "c b", "d"),
            node("Relu", "d", "e"),
            node("Conv", "e b", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "b": w(C, C, 1, 1), **head(C)},
        {"a": (0, [1]), "b": (0, [1])},
        {"a": (7, 3, 1, 1), "b": (7, 7, 1, 1), "fc": (4, 7)},
    ),
    "one vector shared by unlike layers": Net(
        [
            node("Conv", "x a z", "c"),
            node("Relu", "c", "r"),
            node("Conv", "r b z", "d"),
            node("Relu", "d", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "b": w(C, C, 1, 1), "z": np.zeros(C, np.float32), **head(C)},
        {"a": (0, [0, 1]), "b": (0, [7])},
        {"a": (6, 3, 1, 1), "b": (7, 6, 1, 1), "fc": (4, 7)},
    ),
    "operators of an old set": Net(
        [
            node("Conv", "x a", "c"),
            node("Pad", "c", "p", pads=[0, 0, 1, 1, 0, 0, 1, 1]),
            node("Split", "p", "s1 s2", axis=1, split=[3, 5]),
            node("Slice", "s2", "s3", axes=[1], starts=[1], ends=[9]),
            node("Concat", "s1 s3", "k", axis=1),
            node("Upsample", "k scales", "u"),
            node("Conv", "u b", "h"),
            node("ReduceMean", "h", "g", axes=[2, 3]),
            node("Squeeze", "g", "f", axes=[2, 3]),
            node("Gemm", "f fc fb", "y", transB=1),
        ],
        {"a": w(C, 3, 1, 1), "scales": np.float32([1, 1, 2, 2]), "b": w(5, 7, 1, 1), **head(5)},
        {"a": (0, [0, 4, 6])},
        {"a": (5, 3, 1, 1), "b": (5, 4, 1, 1)},
        opset=9,
    ),
    "a constant in front of a product": Net(
        [
            node("MatMul", "m x", "c"),
            node("Relu", "c", "r"),
            node("MatMul", "n r", "y"),
        ],
        {"m": w(8, 5), "n": w(4, 8)},
        {"m": (0, [2, 3])},
        {"m": (6, 5), "n": (4, 6)},
        shape=(2, 5, 6),
    ),
    "a shape taken from another tensor": Net(
        [
            node("Conv", "x a", "c"),
            node("Conv", "x e", "d"),
            node("Flatten", "c", "cf"),
            node("Shape", "d", "sh"),
            node("Reshape", "cf sh", "k"),
            node("Add", "k d", "h"),
            *HEAD,
        ],
        {"a": w(C, 3, 1, 1), "e": w(C, 3, 1, 1, seed=1), **head(C)},
        {"a": (0, [6]), "e": (0, [6])},
        {"a": (7, 3, 1, 1), "e": (7, 3, 1, 1), "fc": (4, 7)},
    ),
}
