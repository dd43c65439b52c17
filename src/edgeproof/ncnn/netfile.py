"""Read and write ncnn's two files: layers as text (``.param``) and their weights, one after another (``.bin``).

The weight file has no index: where a weight stands follows from the parameters of all layers before it. So reading
needs to know what every layer type stores; that it ends where the file ends is the check.

Sources: ncnn, *Param and model file structure*, *Operation param weight table*, and each layer's ``load_model``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

MAGIC = "7767517"
FLOAT32, FLOAT16, INT8 = 0, 0x01306B47, 0x000D4B38
"""Flags ahead of a weight that says how it is stored."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One stored array.

    Attributes:
        values: float32, float16 or int8, flat.
        flagged: Whether a flag stands ahead of it; what has none is float32.
    """

    values: NDArray[np.generic]
    flagged: bool

    def to_bytes(self) -> bytes:
        """As it stands in the file, padded to four bytes."""
        if not self.flagged:
            return self.values.astype("<f4").tobytes()
        flag = {"f4": FLOAT32, "f2": FLOAT16, "i1": INT8}[self.values.dtype.str[1:]]
        data = self.values.tobytes()
        return flag.to_bytes(4, "little") + data + b"\0" * (-len(data) % 4)


@dataclass(frozen=True, slots=True)
class Layer:
    """One line of the text file, and its weights.

    Attributes:
        type: Layer type.
        name: Unique name.
        inputs: Blobs that it reads.
        outputs: Blobs that it writes.
        params: Number → value, as written; a list stands under -23300 minus its number, its length ahead of it.
        weights: In the file's order.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[int, str]
    weights: tuple[Weight, ...] = field(default=(), compare=False)

    def number(self, key: int, default: int = 0) -> int:
        """An integer parameter."""
        return int(self.params.get(key, default))

    def with_params(self, params: Mapping[int, str]) -> Layer:
        """The same layer with parameters on top."""
        return replace(self, params={**self.params, **params})


def read(param: str, data: bytes, subject: str = "ncnn model") -> tuple[Layer, ...]:
    """Layers with their weights.

    Args:
        param: Text of the ``.param``.
        data: The ``.bin``.
        subject: What errors call it.

    Raises:
        InputError: ncnn.param, ncnn.bin.
    """
    layers = read_param(param, subject)
    found, at = [], 0
    for layer in layers:
        weights = []
        for count, flagged in stored(layer):
            weight, at = _read_weight(data, at, count, flagged, f"{subject}, layer {layer.name}")
            weights.append(weight)
        found.append(replace(layer, weights=tuple(weights)))
    if at != len(data):
        raise _bad_bin(subject, f"has {len(data) - at} bytes more than its layers ({_types(layers)}) account for")
    return tuple(found)


def read_param(text: str, subject: str = "ncnn model") -> tuple[Layer, ...]:
    """Layers without weights.

    Raises:
        InputError: ncnn.param.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0] != [MAGIC]:
        raise InputError("ncnn.param", subject, f"does not begin with {MAGIC}", "give a .param in ncnn's text form")
    try:
        return tuple(_layer(words) for words in lines[2:])
    except (ValueError, IndexError) as e:
        raise InputError("ncnn.param", subject, f"has a line that is no layer: {e}", "convert the model again") from e


def write_param(layers: Sequence[Layer]) -> str:
    """The text of the ``.param``."""
    blobs = {name for layer in layers for name in layer.outputs}
    lines = [MAGIC, f"{len(layers)} {len(blobs)}"]
    for layer in layers:
        words = [layer.type, layer.name, str(len(layer.inputs)), str(len(layer.outputs))]
        words += [*layer.inputs, *layer.outputs, *(f"{k}={v}" for k, v in sorted(layer.params.items()))]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def write_bin(layers: Sequence[Layer], *, half: bool = False) -> bytes:
    """The weights.

    Args:
        layers: The layers.
        half: Store float32 weights as float16 where the format allows it.
    """
    return b"".join(_halved(w, half).to_bytes() for layer in layers for w in layer.weights)


def stored(layer: Layer) -> Iterator[tuple[int, bool]]:
    """(how many numbers, whether a flag stands ahead) of each weight that a layer stores, in order."""
    rule = _STORED.get(layer.type)
    return iter(()) if rule is None else rule(layer.number)


_Number = Callable[..., int]
_Rule = Callable[[_Number], Iterator[tuple[int, bool]]]


def _convolution(dynamic: int) -> _Rule:
    """``dynamic``: the parameter that says that weights come as an input."""

    def rule(p: _Number) -> Iterator[tuple[int, bool]]:
        if p(dynamic):
            return
        yield p(6), True
        if p(5):
            yield p(0), False
        yield from _scales(p(8), p(7) if p(7) else p(0))

    return rule


def _scales(term: int, channels: int) -> Iterator[tuple[int, bool]]:
    if term:
        yield (1 if term in (2, 102) else channels), False
        yield 1, False
    if term > 100:
        yield 1, False


def _inner_product(p: _Number) -> Iterator[tuple[int, bool]]:
    yield p(2), True
    if p(1):
        yield p(0), False
    yield from _scales(p(8), p(0))


def _gemm(p: _Number) -> Iterator[tuple[int, bool]]:
    rows, columns, inner = p(7), p(8), p(9)
    if p(4):
        yield rows * inner, True
    if p(5):
        yield inner * columns, True
    if p(6) and p(10) != -1:
        yield (1, rows, rows, rows * columns, columns)[p(10)], True


def _embed(p: _Number) -> Iterator[tuple[int, bool]]:
    yield p(3), True
    if p(2):
        yield p(0), False


def _attention(p: _Number) -> Iterator[tuple[int, bool]]:
    embedded, size = p(0), p(2)
    query = size // embedded
    for width in (query, p(3, embedded), p(4, embedded)):
        yield embedded * width, True
        yield embedded, False
    yield size, True
    yield query, False


def _recurrent(gates: int, biases: int) -> _Rule:
    def rule(p: _Number) -> Iterator[tuple[int, bool]]:
        ways, out = 2 if p(2) == 2 else 1, p(0)
        hidden = p(3, out)
        yield p(1), True
        yield hidden * biases * ways, True
        yield out * hidden * gates * ways, True
        if hidden != out:
            yield hidden * out * ways, True

    return rule


def _memory(p: _Number) -> Iterator[tuple[int, bool]]:
    yield prod(n for n in (p(0), p(1), p(11), p(2)) if n), p(21, 1) == 0


def _plain(*keys: int, times: int = 1, when: int | None = None) -> _Rule:
    """Arrays of the sizes in ``keys``, without flags, if parameter ``when`` (1 unless given) is not 0."""

    def rule(p: _Number) -> Iterator[tuple[int, bool]]:
        if when is None or p(when, 1):
            yield from [(p(k), False) for k in keys if p(k) > 0] * times

    return rule


def _scale(p: _Number) -> Iterator[tuple[int, bool]]:
    if p(0) > 0:
        yield p(0), False
        if p(1):
            yield p(0), False


_STORED: Mapping[str, _Rule] = {
    **dict.fromkeys(
        ("Convolution", "Convolution1D", "Convolution3D", "ConvolutionDepthWise", "ConvolutionDepthWise1D",
         "ConvolutionDepthWise3D"),
        _convolution(19),
    ),
    **dict.fromkeys(
        ("Deconvolution", "Deconvolution1D", "Deconvolution3D", "DeconvolutionDepthWise", "DeconvolutionDepthWise1D",
         "DeconvolutionDepthWise3D", "DeformableConv2D"),
        _convolution(28),
    ),
    "InnerProduct": _inner_product,
    "Gemm": _gemm,
    "Embed": _embed,
    "MultiHeadAttention": _attention,
    "LSTM": _recurrent(4, 4),
    "GRU": _recurrent(3, 4),
    "RNN": _recurrent(1, 1),
    "BatchNorm": _plain(0, times=4),
    "Bias": _plain(0),
    "GroupNorm": _plain(1, times=2, when=3),
    "InstanceNorm": _plain(0, times=2, when=2),
    "LayerNorm": _plain(0, times=2, when=2),
    "RMSNorm": _plain(0, when=2),
    "MemoryData": _memory,
    "Normalize": _plain(3),
    "PReLU": _plain(0),
    "Padding": _plain(6),
    "Scale": _scale,
}  # fmt: skip


def _layer(words: list[str]) -> Layer:
    kind, name, reads, writes = words[0], words[1], int(words[2]), int(words[3])
    blobs = words[4 : 4 + reads + writes]
    if len(blobs) < reads + writes:
        raise ValueError(" ".join(words))
    params = {}
    for word in words[4 + reads + writes :]:
        key, _, value = word.partition("=")
        params[int(key)] = value
    return Layer(kind, name, tuple(blobs[:reads]), tuple(blobs[reads:]), params)


def _read_weight(data: bytes, at: int, count: int, flagged: bool, subject: str) -> tuple[Weight, int]:
    flag = FLOAT32
    if flagged:
        flag, at = int.from_bytes(data[at : at + 4], "little"), at + 4
    dtype = {FLOAT32: "<f4", FLOAT16: "<f2", INT8: "i1"}.get(flag)
    if dtype is None:
        raise _bad_bin(subject, f"has a weight with the flag {flag:#010x}; known are float32, float16 and int8")
    size = count * np.dtype(dtype).itemsize
    end = at + size + -size % 4
    if count < 0 or end > len(data):
        raise _bad_bin(subject, f"wants {size} bytes at {at}; the file has {len(data)}")
    return Weight(np.frombuffer(data, dtype, count, at), flagged), end


def _halved(weight: Weight, half: bool) -> Weight:
    if half and weight.flagged and weight.values.dtype == np.float32:
        return Weight(weight.values.astype(np.float16), flagged=True)
    return weight


def _types(layers: Sequence[Layer]) -> str:
    return ", ".join(sorted({layer.type for layer in layers}))


def _bad_bin(subject: str, problem: str) -> InputError:
    return InputError("ncnn.bin", subject, problem, "convert the model again; .param and .bin must belong together")
