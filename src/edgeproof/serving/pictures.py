"""Preprocessing as an ONNX model: 8-bit pictures in, what a model takes out, by the same `Preprocess` as everywhere.

The steps and their order are those of `preprocess.apply`. Resizing averages over source pixels as Pillow does; Pillow
rounds to whole grey levels between its two passes (and cuts there what bicubic overshoots), so that values differ by a
level of 255 or two. With ``nearest``, a centre that falls exactly between two pixels may go to either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import preprocess
from ..dataset import Preprocess
from ..errors import UnsupportedError
from ..model import Model, TensorSpec

if TYPE_CHECKING:
    import onnx

OPSET = 18
"""First opset whose Resize averages over source pixels (``antialias``) and takes ``axes``."""
INPUT = "picture"
_MODES = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}


@dataclass(slots=True)
class _Graph:
    """Nodes and constants as they come."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], *, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; its output's name, or their names."""
        from onnx import helper

        names = [f"{op.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: str) -> str:
        """Append a constant; its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name


def picture_model(spec: Preprocess, model_input: TensorSpec) -> Model:
    """A model from ``picture`` (uint8 [batch, height, width, 3], RGB) to a model's input.

    Args:
        spec: The steps.
        model_input: The input that it feeds: its name, and its batch dimension, open or fixed.

    Raises:
        InputError: preprocess.value.
        UnsupportedError: serving.preprocess, for interpolation ``area``, which ONNX does not have.
    """
    import onnx_ir as ir

    preprocess.check(spec)
    if spec.size is not None and spec.resize != "none" and spec.interpolation not in _MODES:
        problem = f"is {spec.interpolation!r}, which no ONNX operator computes"
        hint = "measure with bilinear, or resize on the client and declare resize: none"
        raise UnsupportedError("serving.preprocess", "preprocess.interpolation", problem, hint)
    return Model.of(ir.from_proto(_proto(spec, model_input)), "pictures")


def _proto(spec: Preprocess, model_input: TensorSpec) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    graph = _Graph()
    x = graph.add("Cast", [INPUT], to=TensorProto.FLOAT)
    x = graph.add("Transpose", [x], perm=[0, 3, 1, 2])
    if spec.colour == "gray":
        x = _grey(graph, x)
    sized = spec.size is not None and spec.resize != "none"
    if sized:
        x = _resized(graph, x, spec)
    if spec.colour == "bgr":
        x = graph.add("Gather", [x, graph.constant([2, 1, 0], "int64")], axis=1)
    x = graph.add("Mul", [x, graph.constant(spec.scale, "float32")])
    for op, values in (("Sub", spec.mean), ("Div", spec.std)):
        x = graph.add(op, [x, graph.constant(np.reshape(values, (1, -1, 1, 1)), "float32")])
    x = _cast(graph, x, spec.dtype)
    if spec.layout == "nhwc":
        x = graph.add("Transpose", [x], perm=[0, 2, 3, 1])
    graph.nodes.append(helper.make_node("Identity", [x], [model_input.name]))
    batch = (model_input.shape or ("batch",))[0]
    height, width = spec.size if sized and spec.size is not None else ("height", "width")
    channels = 1 if spec.colour == "gray" else 3
    dims = (batch, channels, height, width) if spec.layout == "nchw" else (batch, height, width, channels)
    made: onnx.ModelProto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "pictures",
            [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [batch, "height", "width", 3])],
            [helper.make_tensor_value_info(model_input.name, _onnx_type(spec.dtype), dims)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="edgeproof",
    )
    return made


def _grey(graph: _Graph, x: str) -> str:
    """Luma in whole levels. Source: Pillow, Convert.c, L24: ITU-R 601-2 in 16-bit fixed point, rounded half up."""
    weights = graph.constant(np.reshape([19595.0, 38470.0, 7471.0], (1, 3, 1, 1)), "float32")
    axes = graph.constant([1], "int64")
    total = graph.add("ReduceSum", [graph.add("Mul", [x, weights]), axes], keepdims=1)
    half = graph.add("Add", [total, graph.constant(32768.0, "float32")])
    return str(graph.add("Floor", [graph.add("Div", [half, graph.constant(65536.0, "float32")])]))


def _resized(graph: _Graph, x: str, spec: Preprocess) -> str:
    assert spec.size is not None
    target_h, target_w = spec.size
    if spec.resize == "stretch":
        return _scaled(graph, x, graph.constant([target_h, target_w], "int64"), spec)
    shape = graph.add("Shape", [x], start=2, end=4)
    sizes = graph.add("Cast", [shape], to=_onnx_type("float64"))
    target = graph.constant([target_h, target_w], "float64")
    new = graph.add("Cast", [_new_size(graph, sizes, target, spec)], to=_onnx_type("int64"))
    x = _scaled(graph, x, new, spec)
    room = graph.add("Sub", [graph.constant([target_h, target_w], "int64"), new])
    if spec.resize == "crop":
        # Integer division in ONNX cuts towards zero: the surplus is not negative, as Python's // wants.
        surplus = graph.add("Neg", [room])
        start = graph.add("Div", [surplus, graph.constant(2, "int64")])
        end = graph.add("Add", [start, graph.constant([target_h, target_w], "int64")])
        return str(graph.add("Slice", [x, start, end, graph.constant([2, 3], "int64")]))
    if spec.resize == "letterbox":
        before = graph.add("Div", [room, graph.constant(2, "int64")])
    else:
        before = graph.constant([0, 0], "int64")
    pads = graph.add("Concat", [before, graph.add("Sub", [room, before])], axis=0)
    fill, axes = graph.constant(spec.pad_value, "float32"), graph.constant([2, 3], "int64")
    return str(graph.add("Pad", [x, pads, fill, axes]))


def _new_size(graph: _Graph, sizes: str, target: str, spec: Preprocess) -> str:
    """What `preprocess` resizes to before it pads or crops, as float64 [height, width]."""
    if spec.resize == "pad_right":
        height, width = graph.add("Split", [sizes], outputs=2, axis=0, num_outputs=2)
        target_h, target_w = graph.add("Split", [target], outputs=2, axis=0, num_outputs=2)
        wide = graph.add("Ceil", [graph.add("Div", [graph.add("Mul", [width, target_h]), height])])
        wide = graph.add("Max", [graph.constant(1.0, "float64"), graph.add("Min", [target_w, wide])])
        return str(graph.add("Concat", [target_h, wide], axis=0))
    ratios = graph.add("Div", [target, sizes])
    if spec.resize == "letterbox":
        ratio = graph.add("ReduceMin", [ratios], keepdims=1)
        rounded = graph.add("Round", [graph.add("Mul", [sizes, ratio])])
        return str(graph.add("Max", [graph.constant(1.0, "float64"), graph.add("Min", [target, rounded])]))
    ratio = graph.add("ReduceMax", [ratios], keepdims=1)
    ratio = graph.add("Div", [ratio, graph.constant(spec.crop_fraction, "float64")])
    return str(graph.add("Max", [target, graph.add("Round", [graph.add("Mul", [sizes, ratio])])]))


def _scaled(graph: _Graph, x: str, sizes: str, spec: Preprocess) -> str:
    """Resize the last two axes, to whole levels."""
    attributes: dict[str, Any] = {"mode": _MODES[spec.interpolation], "axes": [2, 3]}
    if spec.interpolation == "nearest":
        # Pillow takes the pixel that holds the centre: floor((x + 0.5) * step) is half_pixel rounded half up.
        attributes |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    else:
        # Weights of pixels beyond the edge are shared out among the others, as Pillow does.
        attributes |= {"antialias": 1, "cubic_coeff_a": -0.5, "exclude_outside": 1}
    x = graph.add("Resize", [x, "", "", sizes], **attributes)
    # Half up, as Pillow rounds.
    whole = graph.add("Floor", [graph.add("Add", [x, graph.constant(0.5, "float32")])])
    return str(graph.add("Clip", [whole, graph.constant(0.0, "float32"), graph.constant(255.0, "float32")]))


def _cast(graph: _Graph, x: str, dtype: str) -> str:
    if dtype == "float32":
        return x
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        wide = graph.add("Cast", [graph.add("Round", [x])], to=_onnx_type("float64"))
        low, high = (graph.constant(float(v), "float64") for v in (limits.min, limits.max))
        x = graph.add("Clip", [wide, low, high])
    return str(graph.add("Cast", [x], to=_onnx_type(dtype)))


def _onnx_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
