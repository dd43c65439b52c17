"""The zoo's own networks and readers, without the network: small cases whose results are worked out another way."""

from __future__ import annotations

import json
import math

import numpy as np
import onnxruntime
import pytest
from benchmarks.zoo import minilm, mnist, tfjs
from benchmarks.zoo.pth import read_state_dict
from benchmarks.zoo.wordpiece import batch, encode
from scipy.signal import correlate2d
from scipy.special import erf

from edgeproof.errors import TrustError, UnsupportedError


def run(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_a_state_dict_that_names_a_function_is_refused_and_the_function_is_not_run(tmp_path):
    trace = tmp_path / "trace"
    hostile = f"cposix\nsystem\n(S'touch {trace}'\ntR.".encode()
    with pytest.raises(TrustError, match=r"posix\.system: is not a part of a state dict"):
        read_state_dict(hostile)
    assert not trace.exists()


def test_wordpiece_splits_the_example_of_the_original_tokenizer_test():
    """Vocabulary, text and pieces are those of google-research/bert, tokenization_test.py, test_full_tokenizer."""
    names = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    pieces = {name: i for i, name in enumerate(names)}
    ids = encode("UNwant\u00e9d,running", pieces, 128)
    assert [names[i] for i in ids] == ["[CLS]", "un", "##want", "##ed", ",", "runn", "##ing", "[SEP]"]


def test_a_long_text_is_cut_before_its_last_separator():
    pieces = {"[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "a": 4}
    assert encode("a a a a a", pieces, 4) == [1, 4, 4, 2]
    assert batch([[1, 4, 2], [1, 2]], 4)["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


def bert_weights(rng, words=20, width=8, inner=12, layers=2):
    shapes = {f"embeddings.{k}_embeddings.weight": (n, width) for k, n in (("word", words), ("position", 10))}
    shapes["embeddings.token_type_embeddings.weight"] = (2, width)
    linear = {"attention.self.query": (width, width), "attention.self.key": (width, width)}
    linear |= {"attention.self.value": (width, width), "attention.output.dense": (width, width)}
    linear |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
    norms = ["embeddings.LayerNorm"]
    for i in range(layers):
        for name, shape in linear.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = shape
            shapes[f"encoder.layer.{i}.{name}.bias"] = shape[:1]
        norms += [f"encoder.layer.{i}.{n}.LayerNorm" for n in ("attention.output", "output")]
    for name in norms:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def bert_embedding(w, ids, heads, layers=2):
    """One sentence without padding, in float64, one head at a time (Devlin et al. 2018)."""
    w = {k: v.astype(np.float64) for k, v in w.items()}

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    size = x.shape[1] // heads
    for i in range(layers):
        at = f"encoder.layer.{i}."
        q, k, v = (linear(x, f"{at}attention.self.{n}") for n in ("query", "key", "value"))
        mixed = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            mixed.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
        x = norm(linear(np.concatenate(mixed, 1), f"{at}attention.output.dense") + x, f"{at}attention.output.LayerNorm")
        inner = linear(x, f"{at}intermediate.dense")
        gelu = inner / 2 * (1 + erf(inner / math.sqrt(2)))
        x = norm(linear(gelu, f"{at}output.dense") + x, f"{at}output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_sentence_embeddings_equal_a_plain_forward_pass_and_ignore_padding():
    rng = np.random.default_rng(1)
    weights = bert_weights(rng)
    model = minilm.from_weights(weights, heads=2)
    sentences = [rng.integers(20, size=n).tolist() for n in (7, 3)]
    got = run(model, batch(sentences, 9))
    want = [bert_embedding(weights, s, heads=2) for s in sentences]
    np.testing.assert_allclose(got, want, atol=2e-6)


def tfjs_graph(op="Conv2D"):
    """A 3×3 convolution of ones with stride 2 and SAME padding over a 4×4 picture."""
    shape = {"shape": {"shape": {"dim": [{"size": s} for s in "1441"]}}, "dtype": {"type": "DT_FLOAT"}}
    strides = {"strides": {"list": {"i": ["1", "2", "2", "1"]}}, "padding": {"s": "U0FNRQ=="}}
    nodes = [
        {"name": "x", "op": "Placeholder", "attr": shape},
        {"name": "w", "op": "Const"},
        {"name": "net/y", "op": op, "input": ["x", "w"], "attr": strides},
    ]
    manifest = [{"paths": ["w.bin"], "weights": [{"name": "w", "shape": [3, 3, 1, 1], "dtype": "float32"}]}]
    description = json.dumps({"modelTopology": {"node": nodes}, "weightsManifest": manifest}).encode()
    return description, {"w.bin": np.ones(9, np.float32).tobytes()}


def test_same_padding_puts_the_odd_pixel_right_and_below_as_tensorflow_does():
    model = tfjs.convert(*tfjs_graph(), "small", {"net/y": (1, 2, 2, 1)})
    got = run(model, {"x": np.ones((1, 1, 4, 4), np.float32)})
    np.testing.assert_array_equal(got[0, :, :, 0], [[9, 6], [6, 4]])  # how many ones each window covers
    assert [v.name for v in model.graph.output] == ["out_net_y"]


def test_an_operator_that_is_not_translated_is_named():
    with pytest.raises(UnsupportedError, match="net/y: operator FancyOp is not translated"):
        tfjs.convert(*tfjs_graph("FancyOp"), "small", {"net/y": (1, 2, 2, 1)})


def digit_logits(weights, images):
    """The digit network in float64, one plane at a time."""
    x = images
    for weight, bias in (weights[0:2], weights[2:4]):
        planes = [[sum(map(correlate_same, picture, kernel)) for kernel in weight] for picture in x]
        y = np.maximum(np.array(planes) + bias[:, None, None], 0)
        x = np.maximum.reduce([y[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    return x.reshape(len(x), -1) @ weights[4].T + weights[5]


def correlate_same(plane, kernel):
    return correlate2d(plane, kernel, "same")


def digit_case():
    rng = np.random.default_rng(3)
    shapes = [(12, 1, 3, 3), (12,), (22, 12, 3, 3), (22,), (10, 22 * 49), (10,)]
    weights = [rng.normal(0, 0.2, s).astype(np.float32) for s in shapes]
    return rng, weights, rng.random((3, 1, 28, 28)).astype(np.float32)


def test_the_graph_of_the_digit_network_computes_what_the_network_does():
    _, weights, images = digit_case()
    got = run(mnist.as_onnx(weights), {"images": images})
    np.testing.assert_allclose(got, digit_logits(weights, images.astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_gradients_of_the_digit_network_equal_central_differences():
    rng, weights, images = digit_case()
    classes = np.array([3, 1, 4])

    def loss(changed):
        logits = digit_logits(changed, images.astype(np.float64))
        return (np.log(np.exp(logits).sum(1)) - logits[np.arange(3), classes]).mean()

    for i, gradient in enumerate(mnist.gradients(weights, images, classes)):
        direction, step = rng.normal(size=gradient.shape), 1e-6
        up, down = ([w + s * step * direction if k == i else w for k, w in enumerate(weights)] for s in (1, -1))
        slope = (loss(up) - loss(down)) / (2 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-3, abs=1e-4)
