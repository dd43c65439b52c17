"""Put the branch that always runs in the place of an If whose condition is constant.

The other branch never runs, so it goes with everything that only it reads. Names of the branch become new ones, because
other branches may use the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.rewrite import Editor, array, label
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class FoldBranches:
    """Fold branches."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (rewrite,))


def rewrite(editor: Editor) -> None:
    """Inline one branch of every If that is decided."""
    import onnx_ir as ir

    for node in editor.nodes("If"):
        condition = array(node.inputs[0])
        if condition is None or condition.size != 1:
            continue
        branch = node.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        if branch.is_ref():
            continue
        results = branch.as_graph().outputs
        if not all(isinstance(v.type or r.type, ir.TensorType) for v, r in zip(node.outputs, results, strict=True)):
            editor.decline(node, "its condition is constant, but an output is no tensor")
            continue
        name = label(node)
        _inline(editor, node, branch.as_graph())
        editor.did("inlined the branch that always runs", name)


def _inline(editor: Editor, node: ir.Node, branch: ir.Graph) -> None:
    """Move a branch in front of its If, and remove the If."""
    home = node.graph
    assert home is not None
    results = list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        if value.const_value is not None:
            new = editor.constant(home, value.name or "weight", value.const_value)
            value.replace_all_uses_with(new)
            results = [new if v is value else v for v in results]
    taken = {n.name for n in home}
    for inner in list(branch):
        while inner.name and inner.name in taken:  # ONNX Runtime refuses two nodes of one name
            inner.name = editor.fresh(f"{inner.name}_inlined")
        taken.add(inner.name)
        branch.remove(inner)
        home.insert_before(node, inner)
        for value in inner.outputs:
            if value.name:
                value.name = editor.fresh(value.name)
    for old, result in zip(node.outputs, results, strict=True):
        # A copy, because a result may be a weight, an input, or the result of two outputs.
        editor.replace(old, editor.insert(node, "Identity", [result], old))
    editor.remove(node)


IMPL: type[Pass] = FoldBranches
