"""Import an ONNX model as a torch.fx graph.

Nodes are imported in order, each by the function that claims its operator. What no output of the model depends on is
not imported. Shapes are those that `edgeproof.graph.shapes` infers and those that torch's own dry run finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnsupportedError, did_you_mean
from ..graph.opset import opset_of, raised
from ..graph.rewrite import graphs, label, subgraphs
from ..graph.shapes import infer
from ..model import Model, TensorSpec
from . import (
    activations,
    arithmetic,
    control_flow,
    convolution,
    detection,
    indexing,
    linear,
    norms,
    pooling,
    quantisation,
    recurrent,
    reduction,
    resampling,
    sequences,
    shapes,
    signals,
)
from .builder import Builder
from .call import Call, Handler, Options
from .dtypes import by_name, to_torch
from .expand import expanded
from .values import Constant, Shape, Tensor, Value

if TYPE_CHECKING:
    import onnx_ir as ir

FAMILIES = (
    arithmetic, activations, convolution, pooling, norms, linear, reduction, shapes, indexing, resampling, quantisation,
    recurrent, control_flow, sequences, signals, detection,
)  # fmt: skip
"""Files that claim operators."""
QUANTISED = ("exact", "decomposed")
OLDEST = 7
"""Opset from which on operators broadcast as they do now; an older model is raised to it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A model as torch has it.

    Attributes:
        module: torch.fx.GraphModule; takes the inputs in the ONNX order, returns a tuple of the outputs in theirs. Each
            node's ``meta["onnx_node"]`` names the ONNX node that it came from.
        inputs: Inputs, with the names, dtypes and shapes of the ONNX file.
        outputs: Names of the outputs.
        parameters: Name of a parameter in the module → name of the tensor in the ONNX file.
        buffers: The same for tensors that are not trained but may change, as running statistics do.
        placeholders: ONNX name of each input → name of its argument.
    """

    module: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    placeholders: Mapping[str, str]


def claimed() -> Mapping[str, Handler]:
    """Every operator of the default domain that can be imported, and the function that does it."""
    found: dict[str, Handler] = {}
    for family in FAMILIES:
        found.update(family.OPERATORS)
    return found


def import_model(
    model: Model,
    *,
    fixed: bool = False,
    train: bool = False,
    quantised: str = "exact",
    scalars: bool = False,
    operators: Mapping[str, Handler] | None = None,
) -> Imported:
    """Import a model.

    Args:
        model: The model; not changed.
        fixed: Refuse inputs with open dimensions.
        train: Batch norms become layers that keep learning their statistics; dropouts drop.
        quantised: How QuantizeLinear and DequantizeLinear come out: ``exact``, as ONNX defines them; ``decomposed``, as
            the calls of ``torch.ops.quantized_decomposed`` that partitioners look for. Training brings its own
            `operators` for them.
        scalars: Stored one-element operands of arithmetic are parameters too. Otherwise they are numbers, such as the 3
            and the 6 of a hard swish.
        operators: Functions that replace or add to those of `claimed`.

    Raises:
        UnsupportedError: fx.operator, fx.rank, fx.not_constant, fx.dtype, fx.opset.
        InputError: fx.open_shape, fx.quantised.
    """
    if quantised not in QUANTISED:
        raise InputError(
            "fx.quantised", str(quantised), "is no way to import Q/DQ nodes", did_you_mean(str(quantised), QUANTISED)
        )
    if fixed:
        _require_fixed(model)
    import torch.fx  # its own import loads what torch alone does not

    graph = _prepared(model)
    facts = infer(model if graph is model.graph else Model.of(graph, model.name))
    handlers = {**claimed(), **(operators or {})}
    importer = _Importer(Builder(torch), model, graph, Options(train, quantised, scalars), handlers, facts)
    return importer.run()


def _require_fixed(model: Model) -> None:
    for spec in model.inputs:
        if spec.dynamic:
            raise InputError(
                "fx.open_shape",
                spec.name,
                f"has open dimensions, {spec}; expected numbers",
                f"edgeproof apply fix_shapes --set shapes={spec.name}=1,…",
            )


def _prepared(model: Model) -> ir.Model:
    """The graph at an opset that is claimed, with its functions inlined."""
    graph = model.graph
    opset = opset_of(graph, OLDEST)
    if graph.functions or opset < OLDEST:
        graph = graph.clone()
    if opset < OLDEST:
        newer = raised(graph, OLDEST)
        if isinstance(newer, str):
            raise UnsupportedError(
                "fx.opset", model.name, f"is of opset {opset}; {newer}", f"export it with opset {OLDEST} or later"
            )
        graph = newer
    if graph.functions:
        import onnx_ir.passes.common as common

        common.InlinePass()(graph)
    return expanded(graph)


@dataclass(frozen=True, slots=True)
class _Importer:
    build: Builder
    model: Model
    graph: ir.Model
    options: Options
    handlers: Mapping[str, Handler]
    facts: Mapping[str, tuple[str, Any]]
    stored: set[str] = field(default_factory=set)

    def run(self) -> Imported:
        """Import the whole model."""
        self.stored.update(_stored_names(self.model.graph))
        main, placeholders = self.graph.graph, {}
        known: dict[str, Value] = {}
        for value in main.inputs:
            name = value.name or ""
            if name not in main.initializers:
                made = self.build.placeholder(name, *self._fact(name))
                known[name] = made
                placeholders[name] = made.node.target
        outputs = self._walk(main, known)
        names = tuple(v.name or "" for v in main.outputs)
        self.build.graph.output(tuple(self.build.node(v) for v in outputs))
        return self._finished(names, placeholders)

    def _finished(self, names: tuple[str, ...], placeholders: dict[str, str]) -> Imported:
        torch, build = self.build.torch, self.build
        for node in reversed(build.graph.nodes):
            if not node.users and node.op not in ("placeholder", "output"):
                build.graph.erase_node(node)
        root = torch.nn.Module()
        for name, held in build.attributes.items():
            if isinstance(held, torch.nn.Module):
                root.add_module(name, held)
            elif isinstance(held, torch.nn.Parameter):
                root.register_parameter(name, held)
            else:
                root.register_buffer(name, held)
        module = torch.fx.GraphModule(root, build.graph)
        module.train(self.options.train)
        parameters = {n for n, _ in module.named_parameters()}
        present = parameters | {n for n, _ in module.named_buffers()}
        sources = {n: onnx for n, onnx in build.sources.items() if n in present}
        return Imported(
            module,
            self.model.inputs,
            names,
            {n: onnx for n, onnx in sources.items() if n in parameters},
            {n: onnx for n, onnx in sources.items() if n not in parameters},
            placeholders,
        )

    def _walk(self, graph: ir.Graph, known: dict[str, Value]) -> tuple[Value, ...]:
        """Import the nodes of a graph that its outputs need; returns their values."""
        for name, value in graph.initializers.items():
            if value.const_value is not None and name not in known:
                known[name] = self._constant(name, value)
        needed = _needed(graph)
        for node in graph:
            if node in needed:
                self._import(node, known)
        return tuple(known[v.name or ""] for v in graph.outputs)

    def _constant(self, name: str, value: ir.Value) -> Constant:
        assert value.const_value is not None
        tensor = to_torch(self.build.torch, value.const_value, name)
        return Constant(tensor, name if tensor.dtype.is_floating_point and name in self.stored else "", name)

    def _import(self, node: ir.Node, known: dict[str, Value]) -> None:
        handler = self.handlers.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        self.build.onnx_node = label(node)
        if handler is None:
            raise self._unclaimed(node)
        inputs = tuple(None if v is None else known.get(v.name or "") for v in node.inputs)
        call = Call(
            node,
            self.build,
            opset_of(self.graph, OLDEST),
            inputs,
            self.options,
            self.stored.__contains__,
            known,
            self._subgraph,
        )
        made = handler(call)
        values = list(made) if isinstance(made, Sequence) else [made]
        for output, value in zip(node.outputs, values, strict=False):
            if output.name and value is not None:
                known[output.name] = self._with_facts(output.name, value)

    def _subgraph(self, graph: ir.Graph, inputs: Sequence[Value], outside: dict[str, Value]) -> tuple[Value, ...]:
        inner = {**outside, **{v.name or "": x for v, x in zip(graph.inputs, inputs, strict=True)}}
        return self._walk(graph, inner)

    def _with_facts(self, name: str, value: Value) -> Value:
        """A tensor with what inference says where torch's dry run said nothing."""
        if not isinstance(value, Tensor) or (value.shape is not None and None not in value.shape and value.dtype):
            return value
        shape, dtype = self._fact(name)
        return Tensor(value.node, value.shape if value.shape is not None else shape, value.dtype or dtype)

    def _fact(self, name: str) -> tuple[Shape | None, Any]:
        dtype, shape = self.facts.get(name, ("", None))
        sizes = None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
        return sizes, by_name(self.build.torch, dtype)

    def _unclaimed(self, node: ir.Node) -> UnsupportedError:
        domain = f"{node.domain}." if node.domain else ""
        return UnsupportedError(
            "fx.operator",
            f"node {label(node)!r}",
            f"is a {domain}{node.op_type}, which cannot be imported into torch",
            "replace it by operators of the default domain, or import up to it; docs/importer.md lists what can",
        )


def _stored_names(graph: ir.Model) -> Iterator[str]:
    """Names of the tensors that are stored in the main graph and its subgraphs, where training can write them back."""
    for g in graphs(graph.graph):
        yield from g.initializers
        yield from (n.outputs[0].name or "" for n in g if n.op_type == "Constant")


def _needed(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that the outputs of a graph depend on."""
    needed: set[ir.Node] = set()
    todo = [v.producer() for v in graph.outputs]
    while todo:
        node = todo.pop()
        if node is None or node in needed or node.graph is not graph:
            continue
        needed.add(node)
        todo.extend(v.producer() for v in node.inputs if v is not None)
        for inner in subgraphs(node):
            todo.extend(_read_outside(inner))
    return needed


def _read_outside(graph: ir.Graph) -> Iterator[ir.Node | None]:
    """Producers of everything that a subgraph reads; those inside it are passed over by the caller."""
    for node in graph:
        for value in node.inputs:
            if value is not None:
                yield value.producer()
        for inner in subgraphs(node):
            yield from _read_outside(inner)
    for value in graph.outputs:
        yield value.producer()
