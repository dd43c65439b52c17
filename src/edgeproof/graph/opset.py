"""Raise a graph to a later version of the operator set, where an operator that is wanted exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

IR_VERSIONS = ((25, 13), (24, 12), (23, 11), (21, 10), (19, 9), (15, 8))
"""(opset, IR version that came with it): a checker refuses an opset that is newer than the file's format."""


def opset_of(graph: ir.Model, default: int = 1) -> int:
    """Version of the default operator set, by either of its names; ``default`` where a graph says none."""
    return int(graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", default)))


def raised(graph: ir.Model, opset: int) -> ir.Model | str:
    """The graph at an opset, converted by ONNX itself; or why that could not be done, as the end of a sentence.

    Args:
        graph: A graph that the caller owns; it is returned as it is when its opset is not older.
        opset: Version of the default operator set.
    """
    import onnx_ir as ir

    if opset_of(graph, opset) >= opset:
        return graph
    import onnx

    # Up to IR 3 the converter takes weights for undefined that are not listed as inputs too.
    graph.ir_version = max(graph.ir_version, 8)
    try:
        converted: ir.Model = ir.from_proto(onnx.version_converter.convert_version(ir.to_proto(graph), opset))
    except Exception as e:  # the converter raises RuntimeError, ValueError and its own classes
        return f"it could not be raised to {opset} ({' '.join(str(e).split())[:200]})"
    converted.ir_version = max(converted.ir_version, next((v for o, v in IR_VERSIONS if o <= opset), 8))
    return converted
