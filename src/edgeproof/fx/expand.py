"""Put in the place of an operator what ONNX itself defines it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from ..graph.opset import opset_of
from ..graph.rewrite import graphs, label
from ..graph.shapes import infer
from ..model import Model

if TYPE_CHECKING:
    import onnx_ir as ir

EXPANDED = frozenset(
    """
    Attention CausalConvWithState CenterCropPad LinearAttention NegativeLogLikelihoodLoss RotaryEmbedding
    SoftmaxCrossEntropyLoss SwiGLU
    """.split()  # noqa: SIM905
)
"""Operators that are imported as what they are defined by."""
_DOMAIN = "edgeproof.expanded"


def expanded(graph: ir.Model) -> ir.Model:
    """The graph without the operators of `EXPANDED`; the very graph when it has none.

    Args:
        graph: A graph; not changed.

    Raises:
        UnsupportedError: fx.operator, when ONNX has no definition for these inputs.
    """
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    while any(_wanted(n) for g in graphs(graph.graph) for n in g):
        facts = infer(Model.of(graph, ""))
        graph = graph.clone()
        opset = opset_of(graph)
        for node in [n for g in graphs(graph.graph) for n in g if _wanted(n)]:
            function = ir.from_proto(_definition(node, opset, facts, f"{node.op_type}_{len(graph.functions)}"))
            node.domain, node.op_type = function.domain, function.name
            graph.functions[function.identifier()] = function
        graph.opset_imports[_DOMAIN] = 1
        common.InlinePass()(graph)
    return graph


def _wanted(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in EXPANDED


def _definition(node: ir.Node, opset: int, facts: Mapping[str, tuple[str, Any]], name: str) -> Any:
    """The function that ONNX gives for a node with inputs of these types."""
    import onnx
    import onnx_ir as ir

    schema = onnx.defs.get_schema(node.op_type, opset, "")
    plain = schema.has_function
    versions = schema.function_opset_versions if plain else schema.context_dependent_function_opset_versions
    fitting = [v for v in versions if v <= opset]
    if not fitting:
        raise UnsupportedError(
            "fx.operator",
            f"node {label(node)!r} ({node.op_type})",
            f"has no definition at opset {opset}",
            "raise its opset",
        )
    if plain:
        text = schema.get_function_with_opset_version(max(fitting))
    else:
        types = [_type("" if v is None else v.name or "", v, facts) for v in node.inputs]
        text = schema.get_context_dependent_function_with_opset_version(
            max(fitting), ir.to_proto(node).SerializeToString(), types
        )
    function = onnx.FunctionProto.FromString(text)
    function.domain, function.name = _DOMAIN, name
    del function.output[len(node.outputs) :]
    made = {name for n in function.node for name in n.output} | set(function.input)
    for unmade in (o for o in function.output if o not in made):  # an output that this node does not ask for
        function.node.append(onnx.helper.make_node("Constant", [], [unmade], value_float=0.0))
    for imported in function.opset_import:
        imported.version = opset if imported.domain == "" else imported.version
    return function


def _type(name: str, value: ir.Value | None, facts: Mapping[str, tuple[str, Any]]) -> bytes:
    """A serialised TypeProto; empty for an input that is left out."""
    import numpy as np
    import onnx
    import onnx_ir as ir

    if value is None:
        return b""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return bytes(ir.serde.serialize_value(value).type.SerializeToString())
    dtype, shape = facts.get(name, ("", None))
    element = int(value.dtype) if value.dtype is not None else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
    text: bytes = onnx.helper.make_tensor_type_proto(element, dims).SerializeToString()
    return text
