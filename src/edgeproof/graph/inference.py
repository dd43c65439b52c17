"""ONNX's own shape inference, kept from computing a huge constant Range one value at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

MOST_VALUES = 1 << 20
"""Values of a constant Range that data propagation may write out; 10^7 of them take seconds, 10^12 for ever."""


def inferred(proto: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """The model with the shapes and dtypes that ONNX can derive.

    Args:
        proto: The model.
        strict: Raise on the first inconsistency instead of leaving a hole.

    Raises:
        Exception: of ONNX, for a model that it finds inconsistent.
    """
    import onnx

    return onnx.shape_inference.infer_shapes(
        proto, check_type=strict, strict_mode=strict, data_prop=not _has_huge_range(proto)
    )


def _has_huge_range(proto: onnx.ModelProto) -> bool:
    graphs = list(_graphs(proto.graph))
    ranges = [node for graph in graphs for node in graph.node if node.op_type == "Range" and not node.domain]
    if not ranges:
        return False
    numbers: dict[str, float] = {}
    for graph in graphs:
        numbers |= _numbers(graph)
    for node in ranges:
        if len(node.input) == 3 and all(name in numbers for name in node.input):
            start, limit, step = (numbers[name] for name in node.input)
            if step and (limit - start) / step > MOST_VALUES:
                return True
    return False


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)


def _numbers(graph: Any) -> dict[str, float]:
    """Constants of one element, by name."""
    import math

    from onnx import numpy_helper

    tensors = {t.name: t for t in graph.initializer}
    found: dict[str, float] = {}
    for node in graph.node:
        if node.op_type != "Constant" or not node.output:
            continue
        for attribute in node.attribute:
            if attribute.name == "value":
                tensors[node.output[0]] = attribute.t
            elif attribute.name in ("value_int", "value_float"):
                found[node.output[0]] = float(attribute.i if attribute.name == "value_int" else attribute.f)
    for name, tensor in tensors.items():
        if math.prod(tensor.dims) == 1 and tensor.data_location != tensor.EXTERNAL:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind in "iuf":
                found[name] = float(array.item())
    return found
