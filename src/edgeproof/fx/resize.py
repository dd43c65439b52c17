"""Interpolation and padding as ONNX defines them, for what torch's own functions do differently.

Each axis is resampled on its own by a matrix of weights, which is exact for every mode that ONNX has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Resize:
    """The attributes of Resize-19.

    Attributes:
        mode: ``nearest``, ``linear`` or ``cubic``.
        place: Where output samples lie (coordinate_transformation_mode).
        nearest: How a place between two samples is rounded.
        cubic: Coefficient of the cubic.
        exclude_outside: Whether samples outside do not count.
        antialias: Whether shrinking widens the filter.
        policy: ``stretch``, ``not_larger`` or ``not_smaller``.
        outside: Value of what lies outside of a cropped region.
    """

    mode: str
    place: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    policy: str
    outside: float


def whole_factor(scale: float | None, size: Any, now: int | None) -> int | None:
    """The factor of an axis when it is a whole number, whatever its size."""
    if scale is not None:
        return int(scale) if scale == int(scale) and scale >= 1 else None
    return size // now if isinstance(size, int) and now and size % now == 0 else None


def torch_mode(spec: Resize, axes: int, whole: list[int | None]) -> str | None:
    """The mode of torch.nn.functional.interpolate that gives the same; None when none does."""
    growing = None not in whole
    if spec.mode == "nearest":
        if spec.place == "asymmetric" and spec.nearest == "floor":
            return "nearest" if growing else None
        # Half-way places do not occur when a size is multiplied, except by even numbers' quarter places.
        if spec.place == "half_pixel" and growing and spec.nearest in ("round_prefer_floor", "round_prefer_ceil"):
            return "nearest"
        return None
    if spec.place not in ("half_pixel", "align_corners", "pytorch_half_pixel") or spec.exclude_outside:
        return None
    if spec.mode == "linear":
        return {1: "linear", 2: "bilinear", 3: "trilinear"}.get(axes)
    return "bicubic" if spec.mode == "cubic" and axes == 2 and spec.cubic == -0.75 else None


def resized(
    x: Any,
    scales: list[float] | None,
    sizes: list[int] | None,
    axes: list[int],
    roi: list[float] | None,
    how: tuple[Any, ...],
) -> Any:
    """Resize tensor ``x`` along ``axes``; ``how`` are the fields of a `Resize`, as plain values a graph can print."""
    spec = Resize(*how)
    now = [int(x.shape[a]) for a in axes]
    if sizes is not None:
        scales = [s / n for s, n in zip(sizes, now, strict=True)]
        if spec.policy != "stretch":
            one = min(scales) if spec.policy == "not_larger" else max(scales)
            scales = [one] * len(axes)
            sizes = [math.floor(one * n + 0.5) for n in now]
    assert scales is not None
    made, dtype = x, x.dtype
    for i, axis in enumerate(axes):
        wanted = sizes[i] if sizes is not None else math.floor(now[i] * scales[i])
        crop = (roi[i], roi[i + len(axes)]) if roi else (0.0, 1.0)
        if wanted == now[i] and scales[i] == 1 and crop == (0.0, 1.0):
            continue
        made = _along(made, axis, now[i], wanted, scales[i], crop, spec)
    if spec.mode != "nearest" and not dtype.is_floating_point:
        made = made.round()
    return made.to(dtype)


def resized_at_run_time(x: Any, scales: Any, sizes: Any, axes: list[int], roi: Any, how: tuple[Any, ...]) -> Any:
    """Resize by numbers that are tensors."""
    factors, wanted, crop = (None if t is None else t.tolist() for t in (scales, sizes, roi))
    return resized(x, factors, wanted, axes, crop, how)


def _along(x: Any, axis: int, now: int, wanted: int, scale: float, crop: tuple[float, float], spec: Resize) -> Any:
    import torch

    places = _places(torch, now, wanted, scale, crop, spec.place)
    outside = (places < 0) | (places > now - 1) if spec.place == "tf_crop_and_resize" else None
    if spec.mode == "nearest":
        made = x.index_select(axis, _rounded(torch, places, spec.nearest).clamp(0, now - 1).to(torch.int64))
    else:
        weights = _weights(torch, places, now, scale, spec)
        kind = x.dtype if x.dtype.is_floating_point else torch.float32
        made = torch.tensordot(x.to(kind), weights.to(kind), dims=([axis], [1])).movedim(-1, axis)
    if outside is not None:
        shape = [1] * x.dim()
        shape[axis] = wanted
        made = torch.where(outside.reshape(shape), torch.tensor(spec.outside, dtype=made.dtype), made)
    return made


def _places(torch: Any, now: int, wanted: int, scale: float, crop: tuple[float, float], place: str) -> Any:
    """Where output samples lie, in samples of the input, float64 [wanted]."""
    at = torch.arange(wanted, dtype=torch.float64)
    length = scale * now
    if place == "align_corners":
        return at * (now - 1) / (length - 1) if length != 1 else at * 0
    if place == "asymmetric":
        return at / scale
    if place == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if length > 1 else at * 0
    if place == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if place == "half_pixel_symmetric":
        centre = now / 2 * (1 - wanted / length)
        return centre + (at + 0.5) / scale - 0.5
    if place == "tf_crop_and_resize":
        begin, end = crop
        if wanted > 1:
            return begin * (now - 1) + at * (end - begin) * (now - 1) / (length - 1)
        return at * 0 + 0.5 * (begin + end) * (now - 1)
    return (at + 0.5) / scale - 0.5


def _rounded(torch: Any, places: Any, how: str) -> Any:
    if how == "floor":
        return torch.floor(places)
    if how == "ceil":
        return torch.ceil(places)
    return torch.ceil(places - 0.5) if how == "round_prefer_floor" else torch.floor(places + 0.5)


def _weights(torch: Any, places: Any, now: int, scale: float, spec: Resize) -> Any:
    """How much each input sample counts in each output sample, float64 [wanted, now]."""
    narrow = min(scale, 1.0) if spec.antialias else 1.0
    reach = (2.0 if spec.mode == "cubic" else 1.0) / narrow
    pad = math.ceil(reach) + 1
    taps = torch.arange(-pad, now + pad, dtype=torch.float64)
    distance = (places[:, None] - taps[None, :]).abs() * narrow
    if spec.mode == "cubic":
        a, d = spec.cubic, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weights = torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
    else:
        weights = (1 - distance).clamp(min=0)
    inside = (taps >= 0) & (taps < now)
    if spec.exclude_outside:
        weights = weights * inside
    if spec.exclude_outside or spec.antialias:
        weights = weights / weights.sum(1, keepdim=True)
    index = taps.clamp(0, now - 1).to(torch.int64).expand_as(weights)
    return torch.zeros(len(places), now, dtype=torch.float64).scatter_add(1, index, weights)


def padded_at_run_time(x: Any, pads: Any, value: Any, axes: Any, mode: str) -> Any:
    """Pad by numbers that are tensors."""
    given = pads.tolist()
    half = len(given) // 2
    along = [a % x.dim() for a in (range(x.dim()) if axes is None else axes.tolist())]
    begin, end = [0] * x.dim(), [0] * x.dim()
    for i, axis in enumerate(along):
        begin[axis], end[axis] = given[i], given[half + i]
    return padded(x, begin, end, value, mode)


def padded(x: Any, begin: list[int], end: list[int], value: Any, mode: str) -> Any:
    """Pad every axis of ``x``; negative numbers cut."""
    import torch

    for axis in range(x.dim()):
        first, last, size = int(begin[axis]), int(end[axis]), int(x.shape[axis])
        if not first and not last:
            continue
        at = torch.arange(-first, size + last)
        if mode == "constant":
            kept = x.index_select(axis, at.clamp(0, size - 1))
            shape = [1] * x.dim()
            shape[axis] = len(at)
            inside = ((at >= 0) & (at < size)).reshape(shape)
            x = torch.where(inside, kept, torch.as_tensor(value, dtype=x.dtype).reshape(()))
        else:
            x = x.index_select(axis, _folded(torch, at, size, mode))
    return x


def _folded(torch: Any, at: Any, size: int, mode: str) -> Any:
    """Places outside of an axis, brought back inside."""
    if mode == "edge":
        return at.clamp(0, size - 1)
    if mode == "wrap":
        return torch.remainder(at, size)
    period = max(2 * (size - 1), 1)
    folded = torch.remainder(at, period)
    return torch.where(folded >= size, period - folded, folded)


def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
    """AffineGrid of a size that is a tensor."""
    import torch

    return torch.nn.functional.affine_grid(theta, size.tolist(), align_corners)
