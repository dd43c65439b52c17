"""Remove nodes whose results nobody reads, and weights that nobody uses."""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..graph.rewrite import Editor, subgraphs
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass


@dataclass(frozen=True, slots=True)
class DropDeadCode:
    """Remove dead code. Inputs of the graph stay even when unused: they are its interface."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (rewrite,))


def rewrite(editor: Editor) -> None:
    """One sweep from the outputs backwards; a chain of dead nodes goes at once."""
    for graph in reversed(list(editor.graphs())):
        for node in reversed(list(graph)):
            if all(not v.uses() and not v.is_graph_output() for v in node.outputs):
                editor.did("removed dead node", node)
                for inner in subgraphs(node):
                    for n in list(inner):
                        editor.remove_uses(n)
                editor.remove(node)
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]
                editor.edits += 1


IMPL: type[Pass] = DropDeadCode
