"""Decide which nodes run in integers and which tensors get Q/DQ, from the target's scheme and nothing else.

The rules, in order:

1. A *layer* (an operator of ``scheme.ops`` with a constant weight) is quantised unless a setting or its weight forbids
   it; its input is quantised.
2. Its output is quantised, past an activation that the runtime absorbs or computes in the layer's kernel, when the
   fused kernel needs that (``scheme.fused_output``) or an integer node reads it.
3. A *follower* (Add, Mul, Concat, pooling …) is quantised when an input is in integers already and an integer node
   reads its output: both changes of precision are saved.
4. A *sharer* (MaxPool, Reshape …) likewise; its output takes the parameters of its input.
5. Multiplication and division by a positive constant after an integer node cost nothing: they become another scale,
   unless the scheme's kernels compute them (``excite``).
6. A sum that a layer's kernel computes (``scheme.residual``) reads that layer's output in float.
7. Both products of an attention, which have no weight, read integers where the runtime fuses them (``attention``).
8. Everything else stays in float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..model import attribute
from ..target import QuantScheme
from .expand import expand
from .layers import Layer, Scope, constant, kept, label, layer
from .patterns import attention, excites

if TYPE_CHECKING:
    import onnx_ir as ir

Role = Literal["layer", "attention", "follow", "share", "rescale"]
RESCALE = ("Mul", "Div")


@dataclass(slots=True)
class Plan:
    """What is to be done to one graph (the very graph that was given).

    Attributes:
        layers: Layer nodes and their weights.
        roles: Every node that will run in integers.
        shares: Tensor → (tensor whose parameters it takes, factor on the scale).
        tensors: Names of all tensors that get Q/DQ, in graph order.
        integer: Those of them that an integer node produces.
        signed: Tensors whose kernel takes no zero point.
        fixed: Tensor → (scale, zero point) that its operator always gives it.
        together: Groups of tensors that share one range.
        declined: (node, reason) for operators of the scheme that stay in float.
    """

    layers: dict[ir.Node, Layer] = field(default_factory=dict)
    roles: dict[ir.Node, Role] = field(default_factory=dict)
    shares: dict[str, tuple[str, float]] = field(default_factory=dict)
    tensors: dict[str, ir.Value] = field(default_factory=dict)
    integer: set[str] = field(default_factory=set)
    signed: set[str] = field(default_factory=set)
    fixed: dict[str, tuple[float, int]] = field(default_factory=dict)
    together: list[tuple[str, ...]] = field(default_factory=list)
    declined: list[tuple[str, str]] = field(default_factory=list)

    def source(self, name: str) -> tuple[str, float]:
        """The tensor whose range a tensor takes, and the factor on its scale."""
        factor = 1.0
        while name in self.shares:
            name, step = self.shares[name]
            factor *= step
        return name, factor

    @property
    def observe(self) -> tuple[str, ...]:
        """Tensors whose values must be seen."""
        return tuple(dict.fromkeys(self.source(name)[0] for name in self.tensors))


def plan(graph: ir.Graph, scheme: QuantScheme, scope: Scope) -> Plan:
    """Decide the placement for a main graph.

    Args:
        graph: The graph. Hard activations that run in integers are spelled out in it; else it is not changed.
        scheme: What the target wants.
        scope: What the user allows.
    """
    first = _plan(graph, scheme, scope, frozenset())
    hard = [node for node in first.roles if node.op_type in scheme.expand]
    return _plan(graph, scheme, scope, expand(graph, hard)) if hard else first


def _plan(graph: ir.Graph, scheme: QuantScheme, scope: Scope, spelled: frozenset[ir.Node]) -> Plan:
    result = Plan()
    nodes = list(graph)
    for node in nodes:
        if node.op_type in scheme.ops and node.domain in ("", "ai.onnx"):
            made = layer(node, scheme, scope)
            if isinstance(made, Layer):
                result.layers[node] = made
            else:
                result.declined.append((label(node), made))
    if not scope.first_last:
        for node in _ends(nodes, result.layers):
            del result.layers[node]
            result.declined.append((label(node), "first or last layer, kept in float by the setting first_last=false"))
    result.declined += _nested(graph, scheme)
    result.roles = dict.fromkeys(result.layers, "layer")
    result.roles.update(dict.fromkeys(attention(nodes, scheme, scope), "attention"))
    _spread(nodes, result, scheme, scope, spelled)
    _tensors(nodes, result, scheme)
    return result


def after(node: ir.Node, scheme: QuantScheme) -> ir.Value:
    """A node's output, past what is absorbed into its quantisation or computed in its kernel."""
    chain = vanishing(node, scheme)
    return chain[-1].outputs[0] if chain else node.outputs[0]


def vanishing(node: ir.Node, scheme: QuantScheme) -> list[ir.Node]:
    """The nodes behind a node that vanish into it: an activation it absorbs, or all that its kernel computes in float.

    Args:
        node: A layer or a follower.
        scheme: What the target wants.
    """
    chain: list[ir.Node] = []
    value = node.outputs[0]
    while step := _step(value, scheme):
        chain += step
        value = step[-1].outputs[0]
        if step[0].op_type in scheme.absorb:
            break
    return chain


def _step(value: ir.Value, scheme: QuantScheme) -> tuple[ir.Node, ...]:
    """An operator on one value, or a gate and its product with it, if the kernel that makes the value computes it."""
    uses = list(value.uses())
    if value.is_graph_output() or not 1 <= len(uses) <= 2:
        return ()
    first = uses[0].node
    if len(uses) == 1:
        absorbed = first.op_type in scheme.absorb and _starts_at_zero(first)
        other = first.inputs[1 - uses[0].idx] if first.op_type in scheme.fuse_constants else None
        scaled = other is not None and constant(other) is not None and _per_channel(other, value)
        alone = uses[0].idx == 0 and (absorbed or first.op_type in scheme.fuse)
        return (first,) if scaled or alone else ()
    gate, product = sorted((u.node for u in uses), key=lambda n: n.op_type == "Mul")
    if gate.op_type not in scheme.gates or product.op_type != "Mul" or gate.outputs[0].is_graph_output():
        return ()
    own = [u.node for u in gate.outputs[0].uses()] == [product]
    return (gate, product) if own and value in product.inputs else ()


def _per_channel(operand: ir.Value, value: ir.Value) -> bool:
    """Whether a constant operand is one number, or one per channel or feature."""
    array = constant(operand)
    if array is None or array.dtype != np.float32:
        return False
    large = [n for n in array.shape if n != 1]
    return not large or (len(large) == 1 and value.shape is not None and array.ndim <= len(value.shape))


def _ends(nodes: Sequence[ir.Node], layers: dict[ir.Node, Layer]) -> list[ir.Node]:
    """Layers that no layer precedes, and layers that no layer follows."""

    def reached(order: Sequence[ir.Node], near: Callable[[ir.Node], Sequence[ir.Node]]) -> set[ir.Node]:
        below: set[ir.Node] = set()
        for node in order:
            if any(n in below or n in layers for n in near(node)):
                below.add(node)
        return below

    behind = reached(nodes, lambda n: [p for v in n.inputs if v is not None and (p := v.producer()) is not None])
    ahead = reached(list(reversed(nodes)), lambda n: [u.node for v in n.outputs for u in v.uses()])
    return [n for n in layers if n not in behind or n not in ahead]


def _nested(graph: ir.Graph, scheme: QuantScheme) -> list[tuple[str, str]]:
    """Operators of the scheme inside loops and branches, which stay in float."""
    inside = (n for n in graph.all_nodes() if n.graph is not graph and n.op_type in scheme.ops)
    return [(label(n), "inside the body of a control-flow operator") for n in inside]


def _spread(
    nodes: Sequence[ir.Node], result: Plan, scheme: QuantScheme, scope: Scope, spelled: frozenset[ir.Node]
) -> None:
    """Find followers, sharers and rescalers: assume all that could be, then drop until every rule holds."""
    roles = result.roles
    could: dict[ir.Node, Role] = {}
    makers = (n for n in nodes if n in roles or n.op_type in scheme.follow)
    vanished = {a for n in makers for a in vanishing(n, scheme)}
    for node in nodes:
        role = None if node in roles or node in vanished else _role(node, scheme, Scope() if node in spelled else scope)
        if role is not None and _available(node, role, roles, could, result, scheme):
            could[node] = role
    changed = True
    while changed:
        changed = False
        for node in reversed(list(could)):
            role = could[node]
            outputs = [after(node, scheme)] if role == "follow" else list(node.outputs)
            readers = [use.node for v in outputs for use in v.uses() if _reads_integers(use, roles, could)]
            wanted = any(_suits(node, reader) for reader in readers)
            if not (wanted and _available(node, role, roles, could, result, scheme)):
                del could[node]
                changed = True
    roles.update(could)


def _role(node: ir.Node, scheme: QuantScheme, scope: Scope) -> Role | None:
    if node.domain not in ("", "ai.onnx") or not node.inputs or node.inputs[0] is None:
        return None
    # A gate's codes under two scales are summed up wrongly by ONNX Runtime (1.32), where such graphs are tried out.
    if (
        node.op_type in RESCALE
        and not scheme.excite
        and rescale_factor(node) is not None
        and not kept(node, Scope(keep=scope.keep))
    ):
        return "rescale"
    if node.op_type in (*scheme.follow, *scheme.expand) and not kept(node, scope) and _quantisable_constants(node):
        return "follow"
    if scheme.excite and not kept(node, scope) and excites(node):
        return "follow"
    if node.op_type in scheme.share and not kept(node, Scope(keep=scope.keep)) and _moves_only(node):
        return "share"
    return None


def rescale_factor(node: ir.Node) -> float | None:
    """The positive constant by which a Mul or Div scales its other, larger operand; None for anything else."""
    if len(node.inputs) != 2:
        return None
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        value = constant(node.inputs[index])
        if value is not None and value.size == 1 and value.dtype == np.float32 and value.ndim <= 1:
            number = float(value.reshape(-1)[0])
            if 1e-6 < number < 1e6 and constant(node.inputs[1 - index]) is None:
                return number if node.op_type == "Mul" else 1.0 / number
    return None


def data_inputs(node: ir.Node, role: Role) -> list[ir.Value]:
    """The non-constant inputs that a node reads in integers."""
    chosen = node.inputs[:1] if role in ("layer", "share") else node.inputs
    return [v for v in chosen if v is not None and constant(v) is None]


def _available(
    node: ir.Node,
    role: Role,
    roles: dict[ir.Node, Role],
    could: dict[ir.Node, Role],
    result: Plan,
    scheme: QuantScheme,
) -> bool:
    """Whether an input is in integers: an integer node makes it, or another layer reads it so anyway."""
    for value in data_inputs(node, role):
        maker = _maker(value, scheme)
        made = maker is not None and (maker in roles or maker in could)
        shared = role != "rescale" and any(u.node in result.layers and u.idx == 0 for u in value.uses())
        if made or shared:
            return True
    return False


def _maker(value: ir.Value, scheme: QuantScheme) -> ir.Node | None:
    """The node whose quantised output a value would be, looking through an activation that vanishes into it."""
    node = value.producer()
    while node is not None and node.op_type in (*scheme.absorb, *scheme.fuse, *scheme.fuse_constants, "Mul"):
        before = next((v.producer() for v in node.inputs if v is not None and _ends_step(v, node, scheme)), None)
        if before is None:
            break
        node = before
    return node


def _ends_step(value: ir.Value, node: ir.Node, scheme: QuantScheme) -> bool:
    return node in _step(value, scheme)[-1:]


def _reads_integers(use: Any, roles: dict[ir.Node, Role], could: dict[ir.Node, Role]) -> bool:
    role = roles.get(use.node) or could.get(use.node)
    return role is not None and (role not in ("layer", "share") or use.idx == 0)


def _summed(node: ir.Node, result: Plan, scheme: QuantScheme) -> ir.Value | None:
    """The operand of a sum whose layer computes the sum too: a layer makes it, and nothing else reads it.

    Of two such operands it is the one that is computed last.
    """
    if result.roles.get(node) != "follow" or node.op_type not in scheme.residual:
        return None
    operands = data_inputs(node, "follow")
    order = {maker: i for i, maker in enumerate(result.layers)}
    made = [
        (order[maker], v)
        for v in operands
        if (maker := v.producer()) in order and len(v.uses()) == 1 and not v.is_graph_output()
    ]
    return max(made, key=lambda found: found[0])[1] if made and len(operands) > 1 else None


def _tensors(nodes: Sequence[ir.Node], result: Plan, scheme: QuantScheme) -> None:
    """Collect the tensors that get Q/DQ, in graph order."""
    floats = {value.name for node in nodes if (value := _summed(node, result, scheme)) is not None}
    for node in nodes:
        role = result.roles.get(node)
        if role is None:
            continue
        inputs = [v for v in data_inputs(node, role) if v.name not in floats]
        for value in inputs:
            result.tensors.setdefault(value.name or "", value)
        if role == "follow" and scheme.excite and excites(node):  # who else reads them gets the same codes
            result.integer.update(v.name or "" for v in inputs)
        if role in ("share", "rescale"):
            factor = 1.0 if role == "share" else rescale_factor(node) or 1.0
            for value in node.outputs:
                result.shares[value.name or ""] = (inputs[0].name or "", factor)
                result.tensors.setdefault(value.name or "", value)
                result.integer.add(value.name or "")
            continue
        output = after(node, scheme)
        if output.name in floats:
            continue
        wanted = any(_reads_integers(use, result.roles, {}) for use in output.uses())
        if role == "follow" or node.op_type in scheme.fused_output or wanted:
            result.tensors.setdefault(output.name or "", output)
            result.integer.add(output.name or "")
    _constraints(result, scheme)


def _constraints(result: Plan, scheme: QuantScheme) -> None:
    """What the kernels demand of the parameters of their inputs and outputs."""

    def sources(values: Sequence[ir.Value]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.source(v.name or "")[0] for v in values))

    for node, role in result.roles.items():
        inputs = data_inputs(node, role)
        if role == "layer" and node.op_type in scheme.no_zero_point:
            result.signed.update(sources(inputs))
        if role == "follow" and node.op_type in scheme.fixed_output:
            result.fixed[after(node, scheme).name or ""] = scheme.fixed_output[node.op_type]
        if role == "follow" and node.op_type in scheme.one_scale:
            result.together.append(sources((*inputs, after(node, scheme))))


def _quantisable_constants(node: ir.Node) -> bool:
    """Whether a follower's constant operands are finite float32 numbers.

    Larger ones (a factor per channel) would need a scale per channel, which no kernel of a follower has.
    """
    arrays = [a for v in node.inputs if v is not None and (a := constant(v)) is not None]
    return all(a.dtype == np.float32 and a.size == 1 and np.isfinite(a).all() for a in arrays)


def _suits(node: ir.Node, reader: ir.Node) -> bool:
    """Whether an integer reader is a reason for a node to run in integers.

    ONNX Runtime's 8-bit MaxPool takes 11 times as long as its float one, unless a convolution or what lies between
    convolutions reads it: then it runs channels-last, at the speed of float (measured with 1.32, 1×64×24×160).
    """
    return node.op_type != "MaxPool" or reader.op_type in ("Conv", "MaxPool", "Concat", "Add", "Mul")


def _moves_only(node: ir.Node) -> bool:
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", "nearest") == "nearest")
    if node.op_type == "MaxPool":
        return len(node.outputs) == 1
    return True


def _starts_at_zero(node: ir.Node) -> bool:
    """Whether an activation is Relu or a Clip from 0, so that a zero point at the lowest code does its work."""
    if node.op_type == "Relu":
        return True
    if node.op_type != "Clip":
        return False
    low = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return low is not None and low.size == 1 and float(low.reshape(-1)[0]) == 0.0
