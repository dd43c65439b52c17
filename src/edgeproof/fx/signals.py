"""Fourier transforms, windows and mel weights."""

from __future__ import annotations

import math
from typing import Any

from .call import Call, Handler
from .dtypes import torch_dtype
from .values import Value


def dft(n: Call) -> Value:
    """DFT; its axis is an attribute up to opset 19, an input since."""
    axis: Any = n.attr("axis", 1)
    if n.opset >= 20:
        axis = n.number(2) if n.has(2) else -2
    length = n.number(1) if n.has(1) else None
    return n.call(transformed, n[0], length, axis, bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0)))


def transformed(x: Any, length: Any, axis: Any, inverse: bool, onesided: bool) -> Any:
    """DFT-20 of [..., 1] or [..., 2], real and imaginary parts last."""
    import torch

    along = int(axis) % x.dim()
    size = None if length is None else int(length)
    whole = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    if inverse and onesided:
        return torch.fft.irfft(whole, size, along).unsqueeze(-1).to(x.dtype)
    made = torch.fft.ifft(whole, size, along) if inverse else torch.fft.fft(whole, size, along)
    if onesided:
        made = made.narrow(along, 0, made.shape[along] // 2 + 1)
    return torch.view_as_real(made).to(x.dtype)


def stft(n: Call) -> Value:
    """STFT."""
    window = n[2] if n.has(2) else None
    length = n.number(3) if n.has(3) else None
    return n.call(short_time, n[0], n.number(1), window, length, bool(n.attr("onesided", 1)))


def short_time(x: Any, step: Any, window: Any, length: Any, onesided: bool) -> Any:
    """STFT-17 of a signal [batch, samples, 1 or 2]: frames that do not reach over the end."""
    import torch

    size = int(length) if length is not None else window.shape[0]
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    frames = signal.unfold(1, size, int(step))
    if window is not None:
        frames = frames * window
    made = torch.fft.fft(frames, dim=-1)
    if onesided:
        made = made.narrow(-1, 0, size // 2 + 1)
    return torch.view_as_real(made)


def window(name: str, **settings: float) -> Handler:
    """One of the windows, periodic or symmetric."""

    def handler(n: Call) -> Value:
        dtype = torch_dtype(n.torch, n.attr("output_datatype", 1), n.build.onnx_node)
        return n.call(windowed, name, n.number(0), bool(n.attr("periodic", 1)), settings, dtype)

    return handler


def windowed(name: str, size: Any, periodic: bool, settings: dict[str, float], dtype: Any) -> Any:
    """A window of torch, worked out in float64."""
    import torch

    return getattr(torch, name)(int(size), periodic=periodic, **settings, dtype=torch.float64).to(dtype)


def mel_weights(n: Call) -> Value:
    """MelWeightMatrix."""
    dtype = torch_dtype(n.torch, n.attr("output_datatype", 1), n.build.onnx_node)
    return n.call(mel_matrix, *(n[i] for i in range(5)), dtype)


def mel_matrix(bins: Any, length: Any, rate: Any, lowest: Any, highest: Any, dtype: Any) -> Any:
    """MelWeightMatrix-17: triangles between points that lie evenly in mel, snapped to bins of the spectrum."""
    import torch

    count, size, hertz = int(bins), int(length), int(rate)
    low, high = (2595 * math.log10(1 + float(f) / 700) for f in (lowest, highest))
    mels = torch.arange(count + 2, dtype=torch.float64) * ((high - low) / (count + 2)) + low
    places = torch.floor((size + 1) * (700 * (10 ** (mels / 2595) - 1)) / hertz).to(torch.int64).tolist()
    made = torch.zeros(size // 2 + 1, count, dtype=torch.float64)
    for i in range(count):
        first, middle, last = places[i : i + 3]
        if middle == first:
            made[middle, i] = 1
        for j in range(first, middle + 1 if middle > first else first):
            made[j, i] = (j - first) / (middle - first)
        for j in range(middle, last):
            made[j, i] = (last - j) / (last - middle)
    return made.to(dtype)


OPERATORS: dict[str, Handler] = {
    "DFT": dft,
    "STFT": stft,
    "HannWindow": window("hann_window"),
    "HammingWindow": window("hamming_window", alpha=25 / 46, beta=21 / 46),
    "BlackmanWindow": window("blackman_window"),
    "MelWeightMatrix": mel_weights,
}
