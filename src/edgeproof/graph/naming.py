"""Give every node a name, so that what a runtime reports can be found again."""

from __future__ import annotations

from ..model import Model


def named(model: Model) -> Model:
    """The same model, nodes without a name called as their first output; tensors are shared.

    Args:
        model: Left as it is.
    """
    made = Model(model.name, model.digest, model.inputs, model.outputs, model.graph.clone())
    taken = {node.name for node in made.graph.graph}
    for node in made.graph.graph:
        first = node.outputs[0].name if node.outputs else ""
        if not node.name and first and first not in taken:
            node.name = first
            taken.add(first)
    return made
