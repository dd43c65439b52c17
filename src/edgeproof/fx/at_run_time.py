"""Operators that take more than one call of torch, or numbers that only run time knows.

Written as plain functions on tensors, so that a graph can call them, an export can look into them, and gradients flow.
Indices may be negative wherever ONNX allows it.
"""

from __future__ import annotations

from typing import Any


def same_padding(size: int, reach: int, stride: int) -> int:
    """Padding of one axis such that the output has ceil(size / stride) elements."""
    return max((-(-size // stride) - 1) * stride + reach - size, 0)


def half(total: int) -> int:
    """The smaller half."""
    return total // 2


def larger_half(total: int) -> int:
    """The larger half."""
    return total - total // 2


def larger(a: int, b: int) -> Any:
    """The larger of two sizes."""
    import torch

    return torch.sym_max(a, b)


def smaller(a: int, b: int) -> Any:
    """The smaller of two sizes."""
    import torch

    return torch.sym_min(a, b)


def to_float8(x: Any, dtype: Any, saturate: bool) -> Any:
    """To a float of eight bits; what is too large saturates, or becomes what the type has for it."""
    import torch

    ends = torch.finfo(dtype)
    if "float8" in str(x.dtype):
        x = x.to(torch.float32)
    if saturate:
        return torch.where(torch.isnan(x), x, x.clamp(ends.min, ends.max)).to(dtype)
    if dtype == torch.float8_e4m3fn:  # it has no infinity; beyond the middle to the next number there is only NaN
        x = torch.where(x.abs() > ends.max + 16, torch.full_like(x, float("nan")), x)
    return x.to(dtype)


def to_bits(x: Any, bits: int, signed: bool) -> Any:
    """To an integer of fewer than eight bits, held in eight; what does not fit wraps around."""
    import torch

    if x.dtype.is_floating_point:  # what does not fit is undefined; ONNX's own tests have zero there
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        x = torch.where((x >= least) & (x <= most), x, torch.zeros_like(x))
    low = torch.remainder(x.to(torch.int64), 1 << bits)
    if signed:
        low = torch.where(low >= 1 << (bits - 1), low - (1 << bits), low)
    return low.to(torch.int8 if signed else torch.uint8)


def reshape(x: Any, shape: Any, allow_zero: bool) -> Any:
    """Reshape to a shape that is a tensor."""
    target = shape.tolist()
    if not allow_zero:
        target = [x.shape[i] if t == 0 else t for i, t in enumerate(target)]
    return x.reshape(target)


def squeeze(x: Any, axes: Any) -> Any:
    """Squeeze axes that are a tensor."""
    return x.squeeze(tuple(axes.reshape(-1).tolist()))


def unsqueeze(x: Any, axes: Any) -> Any:
    """Unsqueeze at axes that are a tensor."""
    places = axes.reshape(-1).tolist()
    rank = x.dim() + len(places)
    for axis in sorted(a % rank for a in places):
        x = x.unsqueeze(axis)
    return x


def expand(x: Any, shape: Any) -> Any:
    """Expand to a shape that is a tensor."""
    return expand_to(x, shape.tolist())


def expand_to(x: Any, target: list[int]) -> Any:
    """Broadcast both ways."""
    import torch

    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(target)))


def tile(x: Any, repeats: Any) -> Any:
    """Tile by a tensor."""
    return x.tile(tuple(repeats.tolist()))


def full(shape: Any, value: Any, dtype: Any) -> Any:
    """A constant of a shape that is a tensor."""
    import torch

    return torch.full(shape.tolist(), value, dtype=dtype)


def arange(start: Any, limit: Any, step: Any) -> Any:
    """Range of scalars that are tensors."""
    import torch

    return torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)


def eye_like(x: Any, k: int, dtype: Any) -> Any:
    """Ones on a diagonal."""
    import torch

    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return (torch.arange(x.shape[1], device=x.device)[None, :] - rows == k).to(dtype)


def depth_to_space(x: Any, block: int) -> Any:
    """DepthToSpace in the order depth, column, row."""
    n, c, h, w = x.shape
    parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(x: Any, block: int) -> Any:
    """SpaceToDepth."""
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def split(x: Any, sizes: Any, axis: int) -> Any:
    """Split by sizes that are a tensor."""
    return x.split(sizes.tolist(), axis)


def split_evenly(x: Any, count: int, axis: int) -> Any:
    """Split an axis of open size into ``count`` parts, the last of which may be smaller."""
    each = (x.shape[axis] + count - 1) // count
    return x.split([each] * (count - 1) + [x.shape[axis] - each * (count - 1)], axis)


def slices(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """Slice by numbers that are tensors."""
    begin = starts.tolist()
    along = range(len(begin)) if axes is None else axes.tolist()
    stride = [1] * len(begin) if steps is None else steps.tolist()
    for start, end, axis, step in zip(begin, ends.tolist(), along, stride, strict=True):
        x = sliced(x, start, end, axis, step)
    return x


def sliced(x: Any, start: int, end: int, axis: int, step: int) -> Any:
    """Slice one axis, backwards too."""
    import torch

    size = x.shape[axis]
    places = range(size)[slice(start, end, step)]
    if step < 0:  # unlike Python, ONNX brings a start before the first element back to it
        first, last = (p + size if p < 0 else p for p in (start, end))
        places = range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step)
    return x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))


def _from_front(index: Any, size: Any) -> Any:
    """Indices with the negative ones counted from the front."""
    import torch

    return torch.where(index < 0, index + size, index)


def gather(x: Any, index: Any, axis: int) -> Any:
    """Gather along an axis by a tensor of any rank."""
    import torch

    axis %= x.dim()
    index = index.to(torch.int64)
    index = _from_front(index, x.shape[axis])
    picked = x.index_select(axis, index.reshape(-1))
    return picked.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def rows(table: Any, index: Any) -> Any:
    """Rows of a matrix."""
    import torch

    return torch.nn.functional.embedding(_from_front(index, table.shape[0]), table)


def gather_elements(x: Any, index: Any, axis: int) -> Any:
    """GatherElements."""
    import torch

    index = index.to(torch.int64)
    return torch.gather(x, axis, _from_front(index, x.shape[axis]))


def gather_nd(x: Any, index: Any, batch: int) -> Any:
    """GatherND."""
    import torch

    index = index.to(torch.int64)
    places = [_from_front(index[..., i], x.shape[batch + i]) for i in range(index.shape[-1])]
    lead = []
    for i in range(batch):
        shape = [1] * (index.dim() - 1)
        shape[i] = -1
        lead.append(torch.arange(x.shape[i], device=x.device).reshape(shape))
    return x[(*lead, *places)]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(x: Any, index: Any, updates: Any, axis: int, how: str) -> Any:
    """ScatterElements."""
    import torch

    index = index.to(torch.int64)
    index = _from_front(index, x.shape[axis])
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCE[how], include_self=True)


def scatter_nd(x: Any, index: Any, updates: Any, how: str) -> Any:
    """ScatterND, in the flattened tensor."""
    import torch

    depth = index.shape[-1]
    index = index.to(torch.int64)
    flat = torch.zeros(index.shape[:-1], dtype=torch.int64, device=x.device)
    for i in range(depth):
        flat = flat * x.shape[i] + _from_front(index[..., i], x.shape[i])
    count = 1
    for size in x.shape[:depth]:
        count = count * size
    rest = x.shape[depth:]
    table = x.reshape(count, -1)
    at = flat.reshape(-1, 1).expand(-1, table.shape[1])
    new = updates.reshape(at.shape)
    if how == "none":
        return table.scatter(0, at, new).reshape(x.shape[:depth] + rest)
    return table.scatter_reduce(0, at, new, _REDUCE[how], include_self=True).reshape(x.shape[:depth] + rest)


def tensor_scatter(cache: Any, update: Any, where: Any, axis: int, mode: str) -> Any:
    """TensorScatter-24: writes ``update`` from index ``where`` of ``axis`` on, per sample."""
    import torch

    axis %= cache.dim()
    steps = torch.arange(update.shape[axis], device=cache.device)
    start = torch.zeros(cache.shape[0], dtype=torch.int64) if where is None else where
    at = start[:, None] + steps[None, :]
    if mode == "circular":
        at = at % cache.shape[axis]
    shape = [1] * cache.dim()
    shape[0], shape[axis] = at.shape
    return cache.scatter(axis, at.reshape(shape).expand(update.shape), update)


def _number(value: Any) -> Any:
    """The one number of a tensor; a number as it is."""
    import torch

    return int(value.reshape(-1)[0]) if isinstance(value, torch.Tensor) else value


def one_hot(index: Any, depth: Any, values: Any, axis: int) -> Any:
    """OneHot; an index out of range is off everywhere."""
    import torch

    count = _number(depth)
    index = index.to(torch.int64)
    index = _from_front(index, count)
    axis = axis % (index.dim() + 1)
    shape = [1] * (index.dim() + 1)
    shape[axis] = count
    hit = index.unsqueeze(axis) == torch.arange(count, device=index.device).reshape(shape)
    return torch.where(hit, values[1], values[0])


def top_k(x: Any, count: Any, axis: int, largest: bool) -> Any:
    """TopK by a stable sort, so that the first of equals comes first."""
    import torch

    k = _number(count)
    values, index = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), index.narrow(axis, 0, k)


def non_zero(x: Any) -> Any:
    """NonZero: one row per axis."""
    import torch

    if x.dim() == 0:
        return torch.zeros((0, int(x != 0)), dtype=torch.int64)
    return torch.nonzero(x).t()


def compress(x: Any, condition: Any, axis: int | None) -> Any:
    """Compress."""
    import torch

    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, torch.nonzero(condition).reshape(-1))


def unique(x: Any, axis: int | None, sort: bool) -> Any:
    """Unique values, where they stood first, which each was, and how often."""
    import torch

    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
    inverse = inverse.reshape(-1)
    kind = 0 if axis is None else axis
    first = torch.full((len(counts),), len(inverse)).scatter_reduce(0, inverse, torch.arange(len(inverse)), "amin")
    if not sort:
        order = torch.argsort(first)
        values, first, counts = values.index_select(kind, order), first[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    return values, first, inverse, counts


def trilu(x: Any, k: Any, upper: bool) -> Any:
    """Trilu by a tensor."""
    import torch

    return (torch.triu if upper else torch.tril)(x, _number(k))


def cumulative(name: str, x: Any, axis: Any, exclusive: bool, reverse: bool) -> Any:
    """CumSum or CumProd, the other way round, or without the element itself."""
    import torch

    along = _number(axis)
    if reverse:
        x = x.flip(along)
    if exclusive:
        neutral = torch.full_like(x.narrow(along, 0, 1), 0 if name == "cumsum" else 1)
        x = torch.cat([neutral, x.narrow(along, 0, x.shape[along] - 1)], along)
    made = getattr(torch, name)(x, along, dtype=x.dtype)
    return made.flip(along) if reverse else made


def reverse_sequence(x: Any, lengths: Any, time: int, batch: int) -> Any:
    """ReverseSequence: the first ``lengths`` steps of each sample."""
    import torch

    steps = torch.arange(x.shape[time], device=x.device)
    at = torch.where(steps[:, None] < lengths[None, :], lengths[None, :] - 1 - steps[:, None], steps[:, None])
    if time > batch:
        at = at.t()
    shape = [*at.shape, *[1] * (x.dim() - 2)]
    return torch.gather(x, time, at.reshape(shape).expand_as(x))
