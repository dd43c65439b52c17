"""Make weights constant: Constant nodes become initializers, and initializers are no inputs that may be overridden.

Models of IR version 3 list every weight as an input; nobody feeds them, but no folding is sound while somebody could.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..graph.rewrite import Editor, constant_attribute
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass

FIRST_IR_WITHOUT_WEIGHT_INPUTS = 4


@dataclass(frozen=True, slots=True)
class FreezeWeights:
    """Freeze weights. The inputs that a user must feed stay as they are."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (rewrite,), rounds=1)


def rewrite(editor: Editor) -> None:
    """Lift constants in every graph; unlist weights of the main graph."""
    _unlist(editor)
    for node in editor.nodes("Constant"):
        tensor = constant_attribute(node)
        old = node.outputs[0]
        if tensor is None or old.is_graph_output():
            continue
        assert node.graph is not None
        if not old.uses():
            continue
        editor.replace(old, editor.constant(node.graph, f"{old.name}", tensor))
        editor.did("constant node became a weight", node)
        editor.remove(node)
    if editor.edits:
        editor.model.ir_version = max(editor.model.ir_version, FIRST_IR_WITHOUT_WEIGHT_INPUTS)


def _unlist(editor: Editor) -> None:
    graph = editor.model.graph
    kept = [v for v in graph.inputs if not v.is_initializer() or v.const_value is None]
    n = len(graph.inputs) - len(kept)
    if n:
        graph.inputs.clear()
        graph.inputs.extend(kept)
        editor.edits += n
        editor.done["weights no longer listed as inputs"] += [v.name or "" for v in graph.initializers.values()][:n]


IMPL: type[Pass] = FreezeWeights
