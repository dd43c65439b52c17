"""Boxes and regions: suppression, pooling of regions, deformed convolutions, columns back to pictures."""

from __future__ import annotations

import itertools
import math
from typing import Any

from .call import Call, Handler
from .values import Value


def non_max_suppression(n: Call) -> Value:
    """NonMaxSuppression: as many rows as there are boxes left, so an export cannot follow it."""
    given: list[Any] = [n[i] if n.has(i) else None for i in (2, 3, 4)]
    return n.call(suppressed, n[0], n[1], *given, bool(n.attr("center_point_box", 0)))


def suppressed(boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, centred: bool) -> Any:
    """NonMaxSuppression-11: rows of (sample, class, box)."""
    import torch

    limit = 0 if most is None else int(most.reshape(-1)[0])
    apart = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    kept: list[tuple[int, int, int]] = []
    for sample, kind in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        corners = _corners(boxes[sample], centred)
        one = scores[sample, kind]
        order = torch.sort(one, descending=True, stable=True).indices.tolist()
        chosen: list[int] = []
        for i in order:
            if len(chosen) >= limit or (least is not None and float(one[i]) <= float(least.reshape(-1)[0])):
                break
            if all(float(_overlap(corners[i], corners[j])) <= apart for j in chosen):
                chosen.append(i)
        kept.extend((sample, kind, i) for i in chosen)
    return torch.tensor(kept, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Any, centred: bool) -> Any:
    import torch

    if centred:
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        return torch.cat([centre - half, centre + half], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def _overlap(a: Any, b: Any) -> Any:
    import torch

    size = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    common = size[0] * size[1]
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / both if float(both) > 0 else both * 0


def roi_align(n: Call) -> Value:
    """RoiAlign; coordinates are those of pixel corners from opset 16 on unless told otherwise."""
    place = n.attr("coordinate_transformation_mode", "half_pixel" if n.opset >= 16 else "output_half_pixel")
    size = (n.attr("output_height", 1), n.attr("output_width", 1))
    how = (
        size,
        n.attr("sampling_ratio", 0),
        n.attr("spatial_scale", 1.0),
        place == "half_pixel",
        n.attr("mode", "avg"),
    )
    return n.call(aligned_regions, n[0], n[1], n[2], how)


def aligned_regions(x: Any, rois: Any, which: Any, how: tuple[Any, ...]) -> Any:
    """RoiAlign-16: mean or maximum of bilinear samples on a grid in every cell of each region."""
    import torch

    (height, width), ratio, scale, corner, mode = how
    made = []
    shift = 0.5 if corner else 0.0
    for roi, sample in zip(rois, which.tolist(), strict=True):
        left, top, right, bottom = (float(v) * scale - shift for v in roi)
        wide, high = right - left, bottom - top
        if not corner:
            wide, high = max(wide, 1.0), max(high, 1.0)
        rows = ratio or math.ceil(high / height)
        columns = ratio or math.ceil(wide / width)
        y = top + (torch.arange(height * rows) + 0.5) * (high / height / rows)
        z = left + (torch.arange(width * columns) + 0.5) * (wide / width / columns)
        parts = _bilinear(x[sample], y, z, mode == "max").unflatten(-1, (width, columns)).unflatten(-3, (height, rows))
        made.append(parts.mean((-3, -1)) if mode == "avg" else parts.amax((-3, -1)))
    return torch.stack(made) if made else x.new_zeros(0, x.shape[1], height, width)


def _bilinear(x: Any, y: Any, z: Any, largest: bool) -> Any:
    """Samples [C, len(y), len(z)] of a picture [C, H, W]; zero beyond one pixel outside; weighted maxima for max."""
    import torch

    def axis(at: Any, size: int) -> tuple[Any, Any, Any, Any]:
        inside = (at >= -1) & (at <= size)
        at = at.clamp(min=0)
        low = at.floor().to(torch.int64).clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        part = torch.where(low >= size - 1, torch.zeros_like(at), at - low)
        return low, high, part, inside

    top, bottom, down, rows = axis(y, x.shape[-2])
    left, right, across, columns = axis(z, x.shape[-1])
    terms = []
    for r, wr in ((top, 1 - down), (bottom, down)):
        for c, wc in ((left, 1 - across), (right, across)):
            terms.append(x[:, r][:, :, c] * wr[:, None] * wc[None, :])
    all_ = torch.stack(terms)
    made = all_.amax(0) if largest else all_.sum(0)
    return made * (rows[:, None] & columns[None, :]).to(made.dtype)


def max_roi_pool(n: Call) -> Value:
    """MaxRoiPool."""
    return n.call(pooled_regions, n[0], n[1], tuple(n.attr("pooled_shape")), n.attr("spatial_scale", 1.0))


def pooled_regions(x: Any, rois: Any, size: tuple[int, int], scale: float) -> Any:
    """MaxRoiPool-22: maxima of the cells of each region (sample, x1, y1, x2, y2); an empty cell is zero."""
    import torch

    made = []
    for roi in rois:
        sample = int(roi[0])
        left, top, right, bottom = (math.floor(float(v) * scale + 0.5) for v in roi[1:])
        high, wide = max(bottom - top + 1, 1) / size[0], max(right - left + 1, 1) / size[1]
        cells = []
        for i, j in itertools.product(range(size[0]), range(size[1])):
            y = [min(max(v + top, 0), x.shape[2]) for v in (math.floor(i * high), math.ceil((i + 1) * high))]
            z = [min(max(v + left, 0), x.shape[3]) for v in (math.floor(j * wide), math.ceil((j + 1) * wide))]
            cell = x[sample, :, y[0] : y[1], z[0] : z[1]]
            cells.append(cell.amax((1, 2)) if cell.numel() else x.new_zeros(x.shape[1]))
        made.append(torch.stack(cells, 1).reshape(-1, *size))
    return torch.stack(made)


def deform_conv(n: Call) -> Value:
    """DeformConv in two dimensions."""
    shape = n.shape(1)
    if shape is None or None in shape or len(shape) != 4:
        raise n.refused(f"has a kernel of shape {shape}, expected two known spatial sizes", "fix the shapes")
    kernel = [int(s or 0) for s in shape[2:]]
    how = (
        kernel, n.attr("strides", [1, 1]), n.attr("pads", [0, 0, 0, 0])[:2], n.attr("dilations", [1, 1]),
        n.attr("group", 1), n.attr("offset_group", 1),
    )  # fmt: skip
    bias, mask = (n[i] if n.has(i) else None for i in (3, 4))
    return n.call(deformed, n[0], n[1], n[2], bias, mask, how)


def deformed(x: Any, weight: Any, offset: Any, bias: Any, mask: Any, how: tuple[Any, ...]) -> Any:
    """DeformConv-22: every tap of the kernel is sampled where its offset puts it, then weighed."""
    import torch

    kernel, stride, pads, dilation, group, sets = how
    n, c, h, w = x.shape
    out_h, out_w = offset.shape[-2:]
    shifts = offset.reshape(n, sets, kernel[0] * kernel[1], 2, out_h, out_w)
    columns = []
    for tap, (i, j) in enumerate(itertools.product(range(kernel[0]), range(kernel[1]))):
        y = torch.arange(out_h)[:, None] * stride[0] - pads[0] + i * dilation[0] + shifts[:, :, tap, 0]
        z = torch.arange(out_w)[None, :] * stride[1] - pads[1] + j * dilation[1] + shifts[:, :, tap, 1]
        grid = torch.stack([2 * z / max(w - 1, 1) - 1, 2 * y / max(h - 1, 1) - 1], -1).flatten(0, 1)
        sampled = torch.nn.functional.grid_sample(
            x.reshape(n * sets, c // sets, h, w), grid.to(x.dtype), align_corners=True
        )
        if mask is not None:
            sampled = sampled * mask.reshape(n * sets, 1, -1, out_h, out_w)[:, :, tap]
        columns.append(sampled.reshape(n, c, out_h, out_w))
    taps = torch.stack(columns, 2).reshape(n, group, c // group * len(columns), out_h * out_w)
    weights = weight.reshape(group, weight.shape[0] // group, -1)
    made = torch.einsum("gok,ngkp->ngop", weights, taps).reshape(n, weight.shape[0], out_h, out_w)
    return made if bias is None else made + bias[:, None, None]


def col2im(n: Call) -> Value:
    """Col2Im in any number of dimensions."""
    picture, block = (n.sizes(i) or n[i] for i in (1, 2))
    return n.call(pictured, n[0], picture, block, n.attr("strides"), n.attr("pads"), n.attr("dilations"))


def pictured(x: Any, picture: Any, block: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    """Col2Im-18: blocks are added up where they came from."""
    import torch

    sizes = picture.tolist() if isinstance(picture, torch.Tensor) else list(picture)
    kernel = block.tolist() if isinstance(block, torch.Tensor) else list(block)
    axes = len(sizes)
    stride, dilation, pad = strides or [1] * axes, dilations or [1] * axes, pads or [0] * (2 * axes)
    whole = [s + pad[i] + pad[axes + i] for i, s in enumerate(sizes)]
    at = torch.zeros([1] * (2 * axes), dtype=torch.int64)
    for i in range(axes):
        count = (whole[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        taps = torch.arange(kernel[i])[:, None] * dilation[i] + torch.arange(count)[None, :] * stride[i]
        shape = [1] * (2 * axes)
        shape[i], shape[axes + i] = taps.shape
        at = at * whole[i] + taps.reshape(shape)
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    columns = x.reshape(n, channels, -1)
    made = torch.zeros(n, channels, math.prod(whole), dtype=x.dtype)
    made = made.scatter_add(2, at.reshape(1, 1, -1).expand_as(columns), columns).reshape(n, channels, *whole)
    for i in range(axes):
        made = made.narrow(2 + i, pad[i], sizes[i])
    return made


OPERATORS: dict[str, Handler] = {
    "NonMaxSuppression": non_max_suppression,
    "RoiAlign": roi_align,
    "MaxRoiPool": max_roi_pool,
    "DeformConv": deform_conv,
    "Col2Im": col2im,
}
