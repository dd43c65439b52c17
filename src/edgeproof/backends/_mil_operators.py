"""What MIL's operators compute, by coremltools' operator reference (iOS15 to iOS18), with torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._mil_arguments import Arguments, Operator, UnknownOperatorError, along, get, ints
from ._mil_compressed import COMPRESSED


def _padded(torch: Any, a: Arguments, x: Any, kernel: list[int], value: float = 0.0) -> Any:
    """An input with the padding that its pad_type asks for."""
    axes = len(kernel)
    strides = ints(get(a, "strides", [1] * axes))
    dilations = ints(get(a, "dilations", [1] * axes))
    kind = str(get(a, "pad_type", "valid"))
    pads = [0] * (2 * axes)
    if kind == "custom":
        pads = ints(get(a, "pad", pads))
    elif kind.startswith("same"):
        for i in range(axes):
            size = x.shape[2 + i]
            whole = max(0, (-(-size // strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - size)
            first = whole - whole // 2 if kind == "same_lower" else whole // 2
            pads[2 * i : 2 * i + 2] = [first, whole - first]
    turned = [p for i in reversed(range(axes)) for p in pads[2 * i : 2 * i + 2]]
    return torch.nn.functional.pad(x, turned, value=value) if any(turned) else x


def _conv(torch: Any, a: Arguments) -> Any:
    weight = a["weight"]
    kernel = list(weight.shape[2:])
    axes = len(kernel)
    function = getattr(torch.nn.functional, f"conv{axes}d")
    strides, dilations = ints(get(a, "strides", [1] * axes)), ints(get(a, "dilations", [1] * axes))
    x = _padded(torch, a, a["x"], kernel)
    return function(x, weight, a.get("bias"), strides, 0, dilations, int(get(a, "groups", 1)))


def _conv_transpose(torch: Any, a: Arguments) -> Any:
    weight = a["weight"]
    axes = weight.dim() - 2
    function = getattr(torch.nn.functional, f"conv_transpose{axes}d")
    strides, dilations = ints(get(a, "strides", [1] * axes)), ints(get(a, "dilations", [1] * axes))
    whole = function(a["x"], weight, a.get("bias"), strides, 0, 0, int(get(a, "groups", 1)), dilations)
    pads = ints(get(a, "pad", [0] * (2 * axes))) if str(get(a, "pad_type", "valid")) == "custom" else [0] * (2 * axes)
    wanted = ints(a["output_shape"])[2:] if a.get("output_shape") is not None else None
    for i in range(axes):
        begin = pads[2 * i]
        size = wanted[i] if wanted else whole.shape[2 + i] - begin - pads[2 * i + 1]
        lack = begin + size - whole.shape[2 + i]
        if lack > 0:
            whole = torch.nn.functional.pad(whole, [0, 0] * (axes - 1 - i) + [0, lack])
        whole = whole.narrow(2 + i, begin, size)
    return whole


def _pool(kind: str) -> Operator:
    def pool(torch: Any, a: Arguments) -> Any:
        kernel = ints(a["kernel_sizes"])
        axes = len(kernel)
        strides = ints(get(a, "strides", [1] * axes))
        ceil = bool(get(a, "ceil_mode", False))
        functional = torch.nn.functional
        if kind == "max":
            x = _padded(torch, a, a["x"], kernel, float("-inf"))
            return getattr(functional, f"max_pool{axes}d")(x, kernel, strides, 0, 1, ceil)
        average = getattr(functional, f"avg_pool{axes}d")
        x = _padded(torch, a, a["x"], kernel)
        made = average(x, kernel, strides, 0, ceil)
        if bool(get(a, "exclude_padding_from_average", False)):
            made = made / average(_padded(torch, a, torch.ones_like(a["x"]), kernel), kernel, strides, 0, ceil)
        return made

    return pool


def _slice(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    rank = x.dim()
    begin, end = ints(a["begin"]), ints(a["end"])
    stride = ints(get(a, "stride", [1] * rank))
    open_begin, open_end, squeeze = (
        [bool(v) for v in np.asarray(get(a, name, [False] * rank)).reshape(-1)]
        for name in ("begin_mask", "end_mask", "squeeze_mask")
    )
    index: list[Any] = []
    for i in range(rank):
        if squeeze[i]:
            index.append(begin[i])
        else:
            index.append(slice(None if open_begin[i] else begin[i], None if open_end[i] else end[i], stride[i]))
    return torch.from_numpy(np.ascontiguousarray(x.numpy()[tuple(index)]))


def _reshape(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    return x.reshape([x.shape[i] if s == 0 else s for i, s in enumerate(ints(a["shape"]))])


def _pad(torch: Any, a: Arguments) -> Any:
    pads = ints(a["pad"])
    turned = [p for i in reversed(range(len(pads) // 2)) for p in pads[2 * i : 2 * i + 2]]
    mode = str(get(a, "mode", "constant"))
    if mode == "constant":
        return torch.nn.functional.pad(a["x"], turned, value=float(get(a, "constant_val", 0.0)))
    return torch.nn.functional.pad(a["x"], turned, mode=mode)


def _matmul(torch: Any, a: Arguments) -> Any:
    x, y = a["x"], a["y"]
    x = x.transpose(-1, -2) if bool(get(a, "transpose_x", False)) else x
    y = y.transpose(-1, -2) if bool(get(a, "transpose_y", False)) else y
    return torch.matmul(x, y)


def _reduce(name: str) -> Operator:
    def reduce(torch: Any, a: Arguments) -> Any:
        x = a["x"]
        axes = ints(a["axes"]) if a.get("axes") is not None else list(range(x.dim()))
        keep = bool(get(a, "keep_dims", False))
        if name == "l2_norm":
            return torch.sqrt((x * x).sum(axes, keep))
        if name == "sum_square":
            return (x * x).sum(axes, keep)
        function = {"max": torch.amax, "min": torch.amin, "mean": torch.mean, "sum": torch.sum}[name]
        return function(x, axes, keep)

    return reduce


def _layer_norm(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    axes = [i % x.dim() for i in (ints(a["axes"]) if a.get("axes") is not None else [])] or list(range(x.dim()))
    shape = [x.shape[i] for i in sorted(axes)]
    epsilon = float(get(a, "epsilon", 1e-5))
    return torch.nn.functional.layer_norm(x, shape, a.get("gamma"), a.get("beta"), epsilon)


def _batch_norm(torch: Any, a: Arguments) -> Any:
    epsilon = float(get(a, "epsilon", 1e-5))
    return torch.nn.functional.batch_norm(a["x"], a["mean"], a["variance"], a.get("gamma"), a.get("beta"), eps=epsilon)


def _grid(torch: Any, size: int, wanted: int, mode: str) -> Any:
    """Where output pixels lie among the input's, by the five conventions of resize_bilinear."""
    i = torch.arange(wanted, dtype=torch.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if wanted == 1:
            return i + (0 if mode.startswith("STRICT") else (size - 1) / 2)
        at = i * (size - 1) / (wanted - 1)
    elif mode == "UNALIGN_CORNERS":
        at = (i + 0.5) * size / wanted - 0.5
    elif mode == "OFFSET_CORNERS":
        delta = max(1, size - 1) / wanted
        at = 0.5 * delta + i * delta
    else:
        at = i * (size - size / wanted) / (wanted - 1) if wanted > 1 else i * 0
    return at.clamp(0, size - 1)


def _bilinear(torch: Any, x: Any, height: int, width: int, mode: str) -> Any:
    for axis, wanted in ((x.dim() - 2, height), (x.dim() - 1, width)):
        size = x.shape[axis]
        at = _grid(torch, size, wanted, mode)
        low = at.floor().to(torch.int64)
        high = (low + 1).clamp(max=size - 1)
        share = (
            along(torch, (at - low).to(torch.float32), x.dim(), axis) if wanted > 1 else (at - low).to(torch.float32)
        )
        x = torch.index_select(x, axis, low) * (1 - share) + torch.index_select(x, axis, high) * share
    return x


def _resize_bilinear(torch: Any, a: Arguments) -> Any:
    height, width = int(a["target_size_height"]), int(a["target_size_width"])
    return _bilinear(torch, a["x"], height, width, str(get(a, "sampling_mode", "DEFAULT")))


def _upsample_bilinear(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    scales = [float(get(a, f"scale_factor_{n}", 1)) for n in ("height", "width")]
    sizes = [int(np.floor(s * f)) for s, f in zip(x.shape[-2:], scales, strict=True)]
    corners = bool(get(a, "align_corners", True))
    if not corners and bool(get(a, "half_pixel_centers", True)):
        return _bilinear(torch, x, sizes[0], sizes[1], "UNALIGN_CORNERS")
    return _bilinear(torch, x, sizes[0], sizes[1], "STRICT_ALIGN_CORNERS" if corners else "DEFAULT")


def _nearest(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    if a.get("target_size_height") is not None:
        sizes = [int(a["target_size_height"]), int(a["target_size_width"])]
    else:
        sizes = [
            int(np.floor(s * float(get(a, f"scale_factor_{n}", 1))))
            for s, n in zip(x.shape[-2:], ("height", "width"), strict=True)
        ]
    for axis, wanted in ((x.dim() - 2, sizes[0]), (x.dim() - 1, sizes[1])):
        at = torch.div(torch.arange(wanted) * x.shape[axis], wanted, rounding_mode="floor")
        x = torch.index_select(x, axis, at)
    return x


def _gather(torch: Any, a: Arguments) -> Any:
    x, indices = a["x"], torch.as_tensor(a["indices"])
    axis, batch = int(get(a, "axis", 0)) % x.dim(), int(get(a, "batch_dims", 0))
    if batch:
        raise UnknownOperatorError("gather with batch_dims")
    indices = torch.where(indices < 0, indices + x.shape[axis], indices).to(torch.int64)
    made = torch.index_select(x, axis, indices.reshape(-1))
    return made.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_along(torch: Any, a: Arguments) -> Any:
    x, indices = a["x"], a["indices"]
    axis = int(get(a, "axis", 0)) % x.dim()
    return torch.gather(x, axis, torch.where(indices < 0, indices + x.shape[axis], indices))


def _gather_nd(torch: Any, a: Arguments) -> Any:
    if int(get(a, "batch_dims", 0)):
        raise UnknownOperatorError("gather_nd with batch_dims")
    return a["x"][tuple(a["indices"].unbind(-1))]


def _split(torch: Any, a: Arguments) -> Any:
    x, axis = a["x"], int(a["axis"])
    sizes = ints(a["split_sizes"]) if a.get("split_sizes") is not None else x.shape[axis] // int(a["num_splits"])
    return torch.split(x, sizes, axis)


def _topk(torch: Any, a: Arguments) -> Any:
    x, axis = a["x"], int(get(a, "axis", -1))
    least = bool(get(a, "ascending", False))
    order = torch.sort(x, dim=axis, descending=not least, stable=True)
    count = int(get(a, "k", 1))
    values, indices = order.values.narrow(axis, 0, count), order.indices.narrow(axis, 0, count)
    return (values, indices) if bool(get(a, "return_indices", True)) else values


def _cast(torch: Any, a: Arguments) -> Any:
    wanted, x = str(a["dtype"]), torch.as_tensor(a["x"])
    if wanted in ("fp16", "fp32"):
        return x.to(torch.float32)
    return x != 0 if wanted == "bool" else x.to(torch.int64)


def _unary(name: str) -> Operator:
    return lambda torch, a: getattr(torch, name)(a["x"])


def _binary(name: str) -> Operator:
    return lambda torch, a: getattr(torch, name)(torch.as_tensor(a["x"]), torch.as_tensor(a["y"]))


def _divide(torch: Any, a: Arguments) -> Any:
    x, y = torch.as_tensor(a["x"]), torch.as_tensor(a["y"])
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="floor")


def _gelu(torch: Any, a: Arguments) -> Any:
    mode = str(get(a, "mode", "EXACT"))
    if mode == "SIGMOID_APPROXIMATION":
        return a["x"] * torch.sigmoid(1.702 * a["x"])
    return torch.nn.functional.gelu(a["x"], approximate="none" if mode == "EXACT" else "tanh")


def _rsqrt(torch: Any, a: Arguments) -> Any:
    return torch.rsqrt(a["x"] + float(get(a, "epsilon", 1e-12)))


def _squeeze(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    axes = (
        [i % x.dim() for i in ints(a["axes"])]
        if a.get("axes") is not None
        else [i for i, s in enumerate(x.shape) if s == 1]
    )
    return x.reshape([s for i, s in enumerate(x.shape) if i not in axes])


def _expand_dims(torch: Any, a: Arguments) -> Any:
    x = a["x"]
    axes = ints(a["axes"])
    rank = x.dim() + len(axes)
    shape = list(x.shape)
    for i in sorted(i % rank for i in axes):
        shape.insert(i, 1)
    return x.reshape(shape)


OPERATORS: Mapping[str, Operator] = {
    **{
        n: _unary(n)
        for n in ("relu", "sigmoid", "tanh", "exp", "abs", "sqrt", "erf", "floor", "ceil", "sin", "cos", "sign")
    },
    **{n: _unary(n) for n in ("logical_not", "round", "square")},
    **{n: _binary(n) for n in ("add", "sub", "mul", "maximum", "minimum", "pow", "equal", "less", "greater")},
    **{
        n: _binary(n) for n in ("logical_and", "logical_or", "not_equal", "greater_equal", "less_equal", "floor_divide")
    },
    **{f"reduce_{n}": _reduce(n) for n in ("mean", "sum", "max", "min", "l2_norm", "sum_square")},
    "floor_div": _binary("floor_divide"),
    "mod": _binary("remainder"),
    "real_div": _divide,
    "rsqrt": _rsqrt,
    "inverse": lambda t, a: 1 / (a["x"] + float(get(a, "epsilon", 1e-4))),
    "log": lambda t, a: t.log(a["x"] + float(get(a, "epsilon", 1e-45))),
    "relu6": lambda t, a: t.clamp(a["x"], 0, 6),
    "clip": lambda t, a: t.clamp(a["x"], float(a["alpha"]), float(a["beta"])),
    "silu": lambda t, a: a["x"] * t.sigmoid(a["x"]),
    "gelu": _gelu,
    "leaky_relu": lambda t, a: t.where(a["x"] >= 0, a["x"], float(get(a, "alpha", 0.01)) * a["x"]),
    "prelu": lambda t, a: t.where(a["x"] >= 0, a["x"], along(t, a["alpha"], a["x"].dim(), 1) * a["x"]),
    "elu": lambda t, a: t.where(a["x"] >= 0, a["x"], float(get(a, "alpha", 1.0)) * t.expm1(a["x"])),
    "softplus": lambda t, a: t.log1p(t.exp(-a["x"].abs())) + a["x"].clamp(min=0),
    "sigmoid_hard": lambda t, a: (float(get(a, "alpha", 0.2)) * a["x"] + float(get(a, "beta", 0.5))).clamp(0, 1),
    "linear_activation": lambda t, a: float(a["alpha"]) * a["x"] + float(a["beta"]),
    "softmax": lambda t, a: t.softmax(a["x"], int(get(a, "axis", -1))),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": lambda t, a: t.nn.functional.linear(a["x"], a["weight"], a.get("bias")),
    "matmul": _matmul,
    "max_pool": _pool("max"),
    "avg_pool": _pool("average"),
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "instance_norm": lambda t, a: t.nn.functional.instance_norm(
        a["x"], weight=a.get("gamma"), bias=a.get("beta"), eps=float(get(a, "epsilon", 1e-5))
    ),
    "reshape": _reshape,
    "transpose": lambda t, a: a["x"].permute(ints(a["perm"])),
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "concat": lambda t, a: t.cat([t.as_tensor(v) for v in a["values"]], int(a["axis"])),
    "stack": lambda t, a: t.stack([t.as_tensor(v) for v in a["values"]], int(a["axis"])),
    "split": _split,
    "slice_by_index": _slice,
    "slice_by_size": lambda t, a: a["x"][
        tuple(slice(b, None if s == -1 else b + s) for b, s in zip(ints(a["begin"]), ints(a["size"]), strict=True))
    ],
    "tile": lambda t, a: a["x"].repeat(ints(a["reps"])),
    "pad": _pad,
    "identity": lambda t, a: a["x"],
    "cast": _cast,
    "select": lambda t, a: t.where(t.as_tensor(a["cond"]).to(t.bool), t.as_tensor(a["a"]), t.as_tensor(a["b"])),
    "gather": _gather,
    "gather_along_axis": _gather_along,
    "gather_nd": _gather_nd,
    "topk": _topk,
    "reduce_argmax": lambda t, a: t.argmax(a["x"], int(get(a, "axis", -1)), bool(get(a, "keep_dims", False))),
    "cumsum": lambda t, a: t.cumsum(a["x"], int(get(a, "axis", 0))),
    "fill": lambda t, a: t.full(
        ints(a["shape"]), a["value"].item() if isinstance(a["value"], t.Tensor) else a["value"]
    ),
    "pixel_shuffle": lambda t, a: t.nn.functional.pixel_shuffle(a["x"], int(a["upscale_factor"])),
    "upsample_nearest_neighbor": _nearest,
    "resize_nearest_neighbor": _nearest,
    "upsample_bilinear": _upsample_bilinear,
    "resize_bilinear": _resize_bilinear,
    **COMPRESSED,
}
"""MIL operator → what it computes."""
