"""Resizing, padding, and sampling at points."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import resize
from .call import Call, Handler
from .values import Size, Value


def resize_(n: Call) -> Value:
    """Resize and Upsample: by torch's own interpolation where it is the same, else as ONNX defines it."""
    scales, sizes = _wanted(n)
    rank = n.rank()
    axes = [a % rank for a in (n.attr("axes") or range(rank))]
    old = n.node.op_type == "Upsample" or n.opset < 11
    spec = resize.Resize(
        mode=n.attr("mode", "nearest"),
        place="asymmetric" if old else n.attr("coordinate_transformation_mode", "half_pixel"),
        nearest="floor" if old else n.attr("nearest_mode", "round_prefer_floor"),
        cubic=n.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(n.attr("exclude_outside", 0)),
        antialias=bool(n.attr("antialias", 0)),
        policy=n.attr("keep_aspect_ratio_policy", "stretch"),
        outside=n.attr("extrapolation_value", 0.0),
    )
    cut = spec.place == "tf_crop_and_resize" and n.has(1)
    if (scales is None and sizes is None) or (cut and n.constant(1) is None):
        return _at_run_time(n, axes, spec)
    shape = n.shape(0)
    roi = n.known(1).tolist() if cut else None
    plain = _plain(n, spec, axes, shape, scales, sizes)
    return (
        plain
        if plain is not None
        else n.call(resize.resized, n[0], scales, sizes, axes, roi, dataclasses.astuple(spec))
    )


def _at_run_time(n: Call, axes: list[int], spec: resize.Resize) -> Value:
    """Resize by numbers that only run time knows."""
    at = 1 if n.node.op_type == "Upsample" or n.opset < 11 else 2
    scales = n[at] if n.has(at) and n.shape(at) != (0,) else None
    sizes = n[3] if n.has(3) and scales is None else None
    roi = n[1] if spec.place == "tf_crop_and_resize" and n.has(1) else None
    return n.call(resize.resized_at_run_time, n[0], scales, sizes, axes, roi, dataclasses.astuple(spec))


def _wanted(n: Call) -> tuple[list[float] | None, list[int | Size] | None]:
    """(scales, sizes), of which one is None."""
    if n.node.op_type == "Upsample" and n.opset < 9:
        return n.attr("scales"), None
    at = 1 if n.node.op_type == "Upsample" or n.opset < 11 else 2
    if n.has(at) and n.shape(at) != (0,):
        scales = n.constant(at)
        return (None if scales is None else scales.tolist()), None
    return None, (n.sizes(3) if n.has(3) else None)


def _plain(n: Call, spec: Any, axes: list[int], shape: Any, scales: Any, sizes: Any) -> Value | None:
    """One call of torch's interpolate, where it is the same as ONNX's; None where it is not."""
    if shape is None or len(shape) not in (3, 4, 5) or spec.antialias or spec.policy != "stretch":
        return None
    factors = dict(zip(axes, scales or [None] * len(axes), strict=True))
    target = dict(zip(axes, sizes or [None] * len(axes), strict=True))
    spatial = range(2, len(shape))
    for axis in (0, 1):
        if factors.get(axis, 1) not in (1, None) or (target.get(axis) is not None and target[axis] != shape[axis]):
            return None
    if any(factors.get(a) is None and target.get(a) is None for a in spatial):
        return None
    whole = [resize.whole_factor(factors.get(a), target.get(a), shape[a]) for a in spatial]
    mode = resize.torch_mode(spec, len(shape) - 2, whole)
    if mode is None:
        return None
    settings = (
        {"mode": mode} if mode.startswith("nearest") else {"mode": mode, "align_corners": spec.place == "align_corners"}
    )
    if scales is not None and None not in whole:
        return n.call(n.functional.interpolate, n[0], scale_factor=[float(w) for w in whole if w], **settings)
    if scales is None:
        return n.call(n.functional.interpolate, n[0], size=[target[a] for a in spatial], **settings)
    return None


def pad(n: Call) -> Value:
    """Pad."""
    mode = n.attr("mode", "constant")
    if n.opset < 11:
        pads: Any = n.attr("pads")
        value: Any = n.attr("value", 0.0)
    else:
        pads = n.sizes(1)
        value = n.number(2) if n.has(2) else 0
    axes = n.integers(3) if n.has(3) else None
    if pads is None or (n.has(3) and axes is None):
        return n.call(resize.padded_at_run_time, n[0], n[1], value, n[3] if n.has(3) else None, mode)
    rank = n.rank()
    axes = list(range(rank)) if axes is None else [a % rank for a in axes]
    half = len(pads) // 2
    begin, end = dict(zip(axes, pads[:half], strict=True)), dict(zip(axes, pads[half:], strict=True))
    if mode == "constant" and n.dtype() != n.torch.bool and isinstance(value, int | float):
        flat = [p for a in reversed(range(rank)) for p in (begin.get(a, 0), end.get(a, 0))]
        return n[0] if all(p == 0 for p in flat) else n.call(n.functional.pad, n[0], flat, "constant", value)
    spatial = _reflects(n, mode, rank, begin, end)
    if spatial is not None:
        return n.call(n.functional.pad, n[0], spatial, "reflect" if mode == "reflect" else "replicate")
    return n.call(
        resize.padded, n[0], [begin.get(a, 0) for a in range(rank)], [end.get(a, 0) for a in range(rank)], value, mode
    )


def _reflects(n: Call, mode: str, rank: int, begin: dict[int, Any], end: dict[int, Any]) -> list[int | Size] | None:
    """Padding of the spatial axes alone, which torch's own reflection wants; None when it cannot do it."""
    numbers = [*begin.values(), *end.values()]
    if (
        mode not in ("reflect", "edge")
        or rank not in (3, 4, 5)
        or not all(isinstance(p, int) and p >= 0 for p in numbers)
    ):
        return None
    shape = n.shape(0) or ()
    if any(begin.get(a, 0) or end.get(a, 0) for a in (0, 1)) or not n.floating():
        return None
    fits = all(max(begin.get(a, 0), end.get(a, 0)) < (shape[a] or 0) for a in range(2, rank))
    if mode == "reflect" and not fits:
        return None
    return [p for a in reversed(range(2, rank)) for p in (begin.get(a, 0), end.get(a, 0))]


def grid_sample(n: Call) -> Value:
    """GridSample."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(n.attr("mode", "bilinear"), n.attr("mode", "bilinear"))
    if n.rank() == 5 and mode == "bicubic":
        raise n.refused("samples a volume by cubic interpolation", "use linear interpolation")
    edge = n.attr("padding_mode", "zeros")
    return n.call(n.functional.grid_sample, n[0], n[1], mode, edge, bool(n.attr("align_corners", 0)))


def affine_grid(n: Call) -> Value:
    """AffineGrid."""
    size = n.sizes(1)
    if size is None:
        return n.call(resize.affine_grid, n[0], n[1], bool(n.attr("align_corners", 0)))
    return n.call(n.functional.affine_grid, n[0], size, bool(n.attr("align_corners", 0)))


OPERATORS: dict[str, Handler] = {
    "Resize": resize_,
    "Upsample": resize_,
    "Pad": pad,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
}
