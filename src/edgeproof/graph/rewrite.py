"""Edit an ONNX graph safely: the few moves that every pass is made of.

Rules kept here: a graph's interface (names, types, order) is never touched; a new name never hides an old one, in any
subgraph; a value that leaves a graph as its output is only replaced by one that may take over its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir
    from numpy.typing import NDArray


class Editor:
    """A model that is being changed, and what was done to it.

    Args:
        model: The clone to change in place.

    Attributes:
        model: The model.
        done: Rule → names of the nodes that it rewrote.
        declined: (node, reason) for what a rule looked at and left alone; the last reason per node and rule wins.
        edits: Grows with every change.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.done: dict[str, list[str]] = defaultdict(list)
        self._declined: dict[str, tuple[ir.Node, str]] = {}
        self.edits = 0
        self._names = {v.name for g in graphs(model.graph) for v in _values(g) if v.name}

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return self.model.opset_imports.get("", self.model.opset_imports.get("ai.onnx", 1))

    @property
    def declined(self) -> tuple[tuple[str, str], ...]:
        """(node, reason), for nodes that are still there."""
        return tuple((name, why) for name, (node, why) in self._declined.items() if node.graph is not None)

    def graphs(self) -> Iterator[ir.Graph]:
        """The main graph and its subgraphs; functions are left out."""
        yield from graphs(self.model.graph)

    def nodes(self, *ops: str) -> Iterator[ir.Node]:
        """Nodes of the default domain with one of these operators, in order; safe while nodes are removed."""
        for graph in list(self.graphs()):
            for node in list(graph):
                if node.graph is not None and node.domain in ("", "ai.onnx") and (not ops or node.op_type in ops):
                    yield node

    def did(self, rule: str, node: ir.Node | str) -> None:
        """Note that a rule rewrote a node, or the nodes of that name."""
        name = node if isinstance(node, str) else label(node)
        self.edits += 1
        self.done[rule].append(name)
        self._declined.pop(name, None)

    def decline(self, node: ir.Node, reason: str) -> None:
        """Note why a node was left alone."""
        self._declined[label(node)] = node, reason

    def applied(self) -> tuple[str, ...]:
        """One line per rule: how often, and on which nodes (the first three)."""
        lines = []
        for rule, names in self.done.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"{rule}: {len(names)} ({shown})")
        return tuple(lines)

    def fresh(self, hint: str) -> str:
        """A name that is used nowhere."""
        name, n = hint, 1
        while name in self._names:
            name, n = f"{hint}_{n}", n + 1
        self._names.add(name)
        return name

    def constant(self, graph: ir.Graph, hint: str, value: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
        """A new initializer of ``graph``."""
        import numpy as np
        import onnx_ir as ir

        name = self.fresh(hint)
        tensor: Any = ir.tensor(value, name=name) if isinstance(value, np.ndarray) else value
        new = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        graph.register_initializer(new)
        return new

    def insert(
        self, before: ir.Node, op: str, inputs: Sequence[ir.Value | None], like: ir.Value, **attributes: Any
    ) -> ir.Value:
        """Add a node before another; its output has the type and shape of ``like``.

        Returns:
            The output of the new node.
        """
        import onnx_ir as ir

        name = self.fresh(f"{like.name}_{op.lower()}")
        out = ir.Value(name=name, type=like.type, shape=like.shape.copy() if like.shape is not None else None)
        new = ir.node(op, inputs=inputs, attributes=attributes or None, outputs=[out], name=name)
        assert before.graph is not None
        before.graph.insert_before(before, new)
        return out

    def replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Make every user of ``old`` use ``new``.

        Returns:
            False, with nothing changed, when ``old`` is a graph output whose name ``new`` cannot take over.
        """
        if old is new:
            return False
        if old.is_graph_output():
            producer, home = new.producer(), old.graph
            if (
                producer is None
                or home is None
                or producer.graph is not home
                or new.is_graph_output()
                or not any(v is old for v in home.outputs)
            ):
                return False
            name = old.name
            old.name = self.fresh(f"{name}_replaced")
            new.name, new.type = name, old.type
            new.shape = old.shape.copy() if old.shape is not None else None
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            return True
        if new.shape is None and old.shape is not None:
            new.shape = old.shape.copy()
        if new.type is None:
            new.type = old.type
        old.replace_all_uses_with(new)
        return True

    def drop(self, value: ir.Value) -> None:
        """Drop a constant that nobody reads any more; one that is still read stays."""
        producer, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        if producer is not None and producer.op_type == "Constant":
            self.remove(producer)
        elif producer is None and graph is not None and value.name and value.name in graph.initializers:
            del graph.initializers[value.name]

    def remove(self, node: ir.Node) -> None:
        """Take a node without users out of its graph, with everything that its subgraphs use."""
        for inner in subgraphs(node):
            for n in list(inner):
                self.remove_uses(n)
        assert node.graph is not None
        node.graph.remove(node, safe=True)

    def remove_uses(self, node: ir.Node) -> None:
        """Let go of a node's inputs, in its subgraphs too."""
        for inner in subgraphs(node):
            for n in list(inner):
                self.remove_uses(n)
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)

    def bypass(self, rule: str, node: ir.Node, source: ir.Value) -> bool:
        """Let ``source`` take the place of a one-output node, and remove the node.

        Returns:
            Whether it was possible; a node between an input and an output of the graph must stay.
        """
        name = label(node)
        if not self.replace(node.outputs[0], source):
            return False
        self.remove(node)
        self.did(rule, name)
        return True


Rule = Callable[[Editor], None]
"""Looks at a whole model and changes what it can."""


def label(node: ir.Node) -> str:
    """How a node is called in reports: its name, else its operator and first output."""
    return node.name or f"{node.op_type}({next((v.name for v in node.outputs if v.name), '')})"


def answers(node: ir.Node, pattern: str) -> bool:
    """Whether a node's name, its operator or the name of one of its outputs matches a pattern with ``*`` and ``?``."""
    names = (label(node), node.op_type, *(v.name or "" for v in node.outputs))
    return any(fnmatchcase(name, pattern) for name in names)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Graphs held by a node's attributes."""
    import onnx_ir as ir

    for attr in node.attributes.values():
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.GRAPH:
            yield attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS:
            yield from attr.as_graphs()


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and everything nested in it, outer first."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from graphs(inner)


def array(value: ir.Value | None) -> NDArray[Any] | None:
    """The constant behind a value; None for an absent input or a value that changes."""
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Like `array`, without reading the data."""
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is None:
        return value.const_value if value.is_initializer() else None
    if producer.op_type == "Constant" and producer.domain in ("", "ai.onnx"):
        return constant_attribute(producer)
    return None


def constant_attribute(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node; None for a sparse tensor or a reference to a function's attribute."""
    import numpy as np
    import onnx_ir as ir

    if len(node.attributes) != 1:
        return None
    attr = next(iter(node.attributes.values()))
    if attr.is_ref():
        return None
    if attr.name == "value":
        return attr.as_tensor()
    if attr.name in ("value_int", "value_ints"):
        return ir.tensor(np.asarray(attr.value, np.int64))
    if attr.name in ("value_float", "value_floats"):
        return ir.tensor(np.asarray(attr.value, np.float32))
    return None


def integers(value: ir.Value | None) -> list[int] | None:
    """A constant of integers as a flat list; None when it is none."""
    a = array(value)
    return None if a is None or a.dtype.kind not in "iu" else [int(x) for x in a.reshape(-1)]


def sole_user(value: ir.Value) -> ir.Node | None:
    """The only node that reads a value, when it reads it once and the value is no graph output."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def deterministic(model: ir.Model) -> bool:
    """Whether two runs on the same input give the same output."""
    random = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
    for g in graphs(model.graph):
        for node in g:
            if node.op_type in random:
                return False
            if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
                training = array(node.inputs[2])
                if training is None or bool(training.any()):
                    return False
    return True


def cast_like(value: NDArray[np.float64], model: NDArray[Any]) -> NDArray[Any] | None:
    """Round to the dtype of ``model``; None when a finite value becomes infinite or anything is not finite."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        out = value.astype(model.dtype)
        return out if bool(np.isfinite(out.astype(np.float64)).all()) else None


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
