"""Keep one of several equal things: nodes that compute the same from the same inputs, weights with the same bytes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.rewrite import Editor
from ..graph.rules import run_rules
from ..model import Model, tensor_digest
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code

if TYPE_CHECKING:
    import onnx_ir as ir

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


@dataclass(frozen=True, slots=True)
class MergeDuplicates:
    """Merge duplicates."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """Weights first, so that nodes that read equal weights become equal."""
    for graph in editor.graphs():
        _weights(editor, graph)
        seen: dict[Hashable, ir.Node] = {}
        for node in list(graph):
            key = _key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is node or any(v.is_graph_output() for v in node.outputs):
                continue
            for old, new in zip(node.outputs, first.outputs, strict=True):
                editor.replace(old, new)
            editor.did("merged with an equal node", node)
            editor.remove(node)


def _weights(editor: Editor, graph: ir.Graph) -> None:
    first: dict[Hashable, ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output():
            continue
        kept = first.setdefault((tensor_digest(tensor), int(tensor.dtype)), value)
        if kept is not value:
            editor.replace(value, kept)
            del graph.initializers[name]
            editor.edits += 1
            editor.done["merged equal weights"].append(name)


def _key(node: ir.Node) -> Hashable | None:
    """What a node computes; None for a node that must stay: random, or with a subgraph."""
    import onnx_ir as ir

    if node.op_type in _RANDOM:
        return None
    attributes: list[Hashable] = []
    for name, attr in sorted(node.attributes.items()):
        if attr.is_ref() or attr.type in (
            ir.AttributeType.GRAPH,
            ir.AttributeType.GRAPHS,
            ir.AttributeType.TENSORS,
            ir.AttributeType.SPARSE_TENSOR,
            ir.AttributeType.TYPE_PROTO,
        ):
            return None
        value = attr.value
        if attr.type == ir.AttributeType.TENSOR:
            value = tensor_digest(value)
        elif isinstance(value, list | tuple):
            value = tuple(value)
        attributes.append((name, attr.type.name, repr(value)))
    outputs = tuple(bool(v.name) for v in node.outputs)
    inputs = tuple(None if v is None else id(v) for v in node.inputs)
    return (node.op_identifier(), inputs, outputs, tuple(attributes))


IMPL: type[Pass] = MergeDuplicates
