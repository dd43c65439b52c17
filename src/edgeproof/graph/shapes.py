"""The shape of every value of a model.

ONNX's own inference comes first, on a clone without large weights. Where it leaves holes although everything needed is
known (a Reshape whose target was computed from a Shape), `edgeproof.graph.holes` goes on. Nothing here raises because a
model is odd: what cannot be inferred stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError, did_you_mean
from ..model import EXTERNAL_FROM_BYTES, Model, graphs, replace_tensors, spec
from .dims import UNNAMED, dims
from .holes import fill
from .inference import inferred
from .symbolic import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

Shape = tuple[Dim, ...]
"""One entry per dimension; ``?`` for one that is neither known nor named."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A private clone of a model whose values carry inferred types and shapes.

    Attributes:
        graph: The clone: functions are inlined, large weights have their dtype and shape but no data, initializers are
            no inputs, and unnamed dimensions of the inputs are called ``input[axis]``.
        proto: The same before inference.
        problem: What ONNX's inference said, or empty.
    """

    graph: ir.Model
    proto: Any
    problem: str = ""


def infer(model: Model, shapes: Mapping[str, Shape] | None = None) -> Mapping[str, tuple[str, Shape | None]]:
    """Dtype and shape of every value by name; those of subgraphs too, where their names are not taken.

    Args:
        model: The model; not changed.
        shapes: Shape per input name that overrides what the model declares. A number given for a symbolic dimension
            holds wherever that symbol stands.

    Returns:
        name → (dtype as in `TensorSpec`, shape). A dimension is an int, a symbol, or ``?``. The shape is None when the
        rank is unknown or the value is no tensor.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    found: dict[str, tuple[str, Shape | None]] = {}
    for graph in graphs(shaped(model, shapes).graph):
        values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        for value in values:
            if value.name:
                s = spec(value)
                found.setdefault(value.name, (s.dtype, s.shape))
    return found


def closed(model: Model, shapes: Mapping[str, Shape]) -> Model:
    """The model with inputs of these shapes, and every shape that follows from them in place of what the file says.

    Args:
        model: The model; not changed.
        shapes: Shape per input name.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    import onnx_ir as ir

    known, clone = infer(model, shapes), model.graph.clone()
    for graph in graphs(clone):
        for value in [*graph.inputs, *(v for n in graph for v in n.outputs)]:
            shape = known.get(value.name or "", ("", None))[1]
            if shape is not None and value.type is not None:  # onnx_ir writes no shape without a type, and says so
                value.shape = ir.Shape([None if d == UNNAMED else d for d in shape])
            elif not value.is_graph_output():
                value.shape = None
    return Model.of(clone, model.name)


def shaped(model: Model, shapes: Mapping[str, Shape] | None = None) -> Shaped:
    """A clone of the model with every type and shape that can be known; `infer` says more."""
    import onnx_ir as ir

    clone, problem = _inlined(_without_weights(model.graph))
    for value in list(clone.graph.inputs):
        if value.name in clone.graph.initializers:
            clone.graph.inputs.remove(value)
    _bind(clone, model, shapes or {})
    proto = ir.to_proto(clone)
    try:
        clone = ir.from_proto(inferred(proto))
    except Exception as e:  # a C++ error of any kind; what the model declares is still there
        problem = problem or " ".join(str(e).split())[:300]
    fill(clone)
    return Shaped(clone, proto, problem)


def check_shapes(model: Model, shapes: Mapping[str, Shape]) -> None:
    """Refuse shapes that do not fit the model's inputs.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    declared = {s.name: s for s in model.inputs}
    bound: dict[str, Dim] = {}
    for name, given in shapes.items():
        if name not in declared:
            raise InputError("shape.input", name, "is not an input of the model", did_you_mean(name, declared))
        want = declared[name]
        if want.shape is None:
            continue
        if len(want.shape) != len(given):
            raise InputError(
                "shape.rank",
                name,
                f"has {len(want.shape)} dimensions, {want}; got {len(given)}: {','.join(map(str, given))}",
                f"give {len(want.shape)} numbers: --shape {name}={','.join(str(d) for d in want.shape)}",
            )
        for axis, (has, got) in enumerate(zip(want.shape, given, strict=True)):
            clash = has if isinstance(has, int) else bound.setdefault(has, got) if has != UNNAMED else got
            if clash != got:
                why = "the model fixes it" if isinstance(has, int) else f"{has!r} was given so before"
                raise InputError(
                    "shape.dimension",
                    name,
                    f"dimension {axis} is {clash} ({why}); got {got}",
                    f"the model declares {want}",
                )


def _without_weights(graph: ir.Model) -> ir.Model:
    import onnx_ir as ir

    def stub(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        small = tensor.dtype == ir.DataType.STRING or tensor.nbytes < 4 * EXTERNAL_FROM_BYTES
        if small and not isinstance(tensor, ir.ExternalTensor):
            return tensor
        if small:
            return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
        shape = ir.Shape(tensor.shape.numpy())
        return ir.ExternalTensor("left-out", 0, 0, tensor.dtype, shape=shape, name=tensor.name or "")

    clone = graph.clone()
    replace_tensors(clone, stub)
    return clone


def _inlined(graph: ir.Model) -> tuple[ir.Model, str]:
    """The model without functions of its own, or as it is with the reason."""
    if not graph.functions:
        return graph, ""
    import onnx_ir.passes.common as common

    spare = graph.clone()
    try:
        common.InlinePass()(graph)
    except Exception as e:  # recursion, or a call that does not fit its function
        return spare, f"functions cannot be inlined: {e}"
    return graph, ""


def _bind(graph: ir.Model, model: Model, shapes: Mapping[str, Shape]) -> None:
    """Put the given shapes on the inputs, and names on dimensions that have none."""
    import onnx_ir as ir

    check_shapes(model, shapes)
    symbols: dict[str, Dim] = {}
    for s in model.inputs:
        pairs = zip(s.shape or (), shapes.get(s.name, ()), strict=False)
        symbols.update({has: got for has, got in pairs if isinstance(has, str) and has != UNNAMED})
    for value in graph.graph.inputs:
        given = shapes.get(value.name or "")
        if given is not None:
            value.shape = ir.Shape(given)
            continue
        declared = dims(value)
        if declared is not None:
            value.shape = ir.Shape(
                [f"{value.name}[{i}]" if d is None else symbols.get(str(d), d) for i, d in enumerate(declared)]
            )
    if not shapes:
        return
    # What the file says about other values held for its own input shapes.
    for g in graphs(graph):
        for node in g:
            for value in node.outputs:
                value.shape = None
