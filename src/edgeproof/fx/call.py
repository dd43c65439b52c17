"""One ONNX node as its importer sees it: inputs, attributes, and the graph to write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from ..graph.rewrite import label
from ..model import attribute
from .builder import Builder, Function
from .values import Constant, Shape, Size, Sizes, Value

if TYPE_CHECKING:
    import onnx_ir as ir

LONGEST_SHAPE = 64
"""An integer vector up to here may be a shape; a longer one is data."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to import.

    Attributes:
        train: Batch norm keeps learning its statistics, dropout drops.
        quantised: ``exact`` or ``decomposed``.
        scalars: One-element operands of arithmetic are parameters too.
    """

    train: bool = False
    quantised: str = "exact"
    scalars: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One node.

    Attributes:
        node: The ONNX node.
        build: Where torch calls go.
        opset: Version of the default operator set.
        inputs: Values of its inputs; None for one that is left out.
        options: How to import.
        trainable: Whether a name is that of a tensor stored in the file, where training can write it back.
        outside: Values of the graph around it, for the branches of control flow.
        import_graph: Imports a subgraph: (graph, values of its inputs, values around it) → values of its outputs.
    """

    node: ir.Node
    build: Builder
    opset: int
    inputs: tuple[Value | None, ...]
    options: Options
    trainable: Callable[[str], bool]
    outside: dict[str, Value]
    import_graph: Callable[[ir.Graph, Sequence[Value], dict[str, Value]], tuple[Value, ...]]

    @property
    def torch(self) -> Any:
        """The torch package."""
        return self.build.torch

    @property
    def functional(self) -> Any:
        """Module torch.nn.functional."""
        return self.build.torch.nn.functional

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, lists as lists."""
        value = attribute(self.node, name, default)
        return list(value) if isinstance(value, tuple) else value

    def has(self, i: int) -> bool:
        """Whether input ``i`` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def __getitem__(self, i: int) -> Value:
        """Input ``i``, which has to be given."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise self.refused(f"lacks input {i}", "run onnx.checker on the model")
        return value

    def call(self, function: Function, *args: Any, **kwargs: Any) -> Value:
        """See `Builder.call`."""
        return self.build.call(function, *args, **kwargs)

    def calls(self, function: Function, count: int, *args: Any, **kwargs: Any) -> tuple[Value, ...]:
        """See `Builder.calls`."""
        return self.build.calls(function, count, *args, **kwargs)

    def shape(self, i: int) -> Shape | None:
        """What is known of the shape of input ``i``."""
        return self.build.shape(self[i])

    def rank(self, i: int = 0) -> int:
        """Rank of input ``i``.

        Raises:
            UnsupportedError: fx.rank.
        """
        shape = self.shape(i)
        if shape is None:
            raise self.refused(
                f"the rank of its input {i} is not known, which its import needs",
                "give the inputs shapes: edgeproof apply fix_shapes --set shapes=…",
                "fx.rank",
            )
        return len(shape)

    def dtype(self, i: int = 0) -> Any:
        """Torch dtype of input ``i``; None when unknown."""
        return self.build.dtype(self[i])

    def floating(self, i: int = 0) -> bool:
        """Whether input ``i`` holds floats; what is not known is taken for floats."""
        dtype = self.dtype(i)
        return dtype is None or bool(dtype.is_floating_point)

    def axis(self, name: str = "axis", default: int = 0) -> int:
        """An axis of input 0, counted from the front where the rank is known."""
        axis = int(self.attr(name, default))
        shape = self.shape(0)
        return axis + len(shape) if axis < 0 and shape is not None else axis

    def size(self, i: int, axis: int) -> int | Size:
        """One dimension of input ``i``."""
        return self.build.size(self[i], axis)

    def constant(self, i: int) -> Any:
        """Input ``i`` as a torch tensor when it is known at import, else None."""
        value = self.inputs[i] if i < len(self.inputs) else None
        return value.tensor if isinstance(value, Constant) else None

    def scalar(self, i: int, default: Any = None) -> Any:
        """Input ``i`` as a Python number.

        Raises:
            UnsupportedError: fx.not_constant.
        """
        return self.known(i).reshape(-1)[0].item() if self.has(i) else default

    def number(self, i: int) -> Any:
        """Input ``i`` as a Python number when it is known at import, else as a value."""
        return self[i] if self.constant(i) is None else self.scalar(i)

    def known(self, i: int) -> Any:
        """Input ``i`` as a torch tensor.

        Raises:
            UnsupportedError: fx.not_constant.
        """
        tensor = self.constant(i)
        if tensor is None:
            raise self.refused(
                f"its input {i} is computed at run time, expected a constant",
                "fix the shapes and simplify the model first, so that what is constant is seen to be",
                "fx.not_constant",
            )
        return tensor

    def integers(self, i: int) -> list[int] | None:
        """Input ``i`` as ints when all are known at import, else None."""
        tensor = self.constant(i)
        return None if tensor is None else [int(v) for v in tensor.reshape(-1).tolist()]

    def sizes(self, i: int) -> list[int | Size] | None:
        """Input ``i`` as a list of sizes, when its elements can be followed; else None."""
        sizes = as_sizes(self[i])
        return None if sizes is None else list(sizes.items)

    def listed(self, i: int, name: str, since: int) -> list[int] | None:
        """What was attribute ``name`` up to opset ``since`` - 1, and is input ``i`` from then on; None when left out.

        Raises:
            UnsupportedError: fx.not_constant.
        """
        if self.opset < since:
            value = self.attr(name)
            return None if value is None else [int(v) for v in value]
        return [int(v) for v in self.known(i).reshape(-1).tolist()] if self.has(i) else None

    def wants(self, i: int) -> bool:
        """Whether anything reads output ``i``."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i].name)

    def refused(self, problem: str, hint: str, code: str = "fx.operator") -> UnsupportedError:
        """The error that says why this node cannot be imported."""
        return UnsupportedError(code, f"node {label(self.node)!r} ({self.node.op_type})", problem, hint)


One = Callable[[Call], Value]
"""Imports a node with one output."""
Handler = Callable[[Call], Value | Sequence[Value | None]]
"""Imports one node; returns its output, or several; None for one that is not made."""


def as_sizes(value: Value) -> Sizes | None:
    """A value as integers that can be followed one by one; None when it is none."""
    if isinstance(value, Sizes):
        return value
    if not isinstance(value, Constant):
        return None
    t = value.tensor
    if t.dim() > 1 or t.numel() > LONGEST_SHAPE or t.dtype.is_floating_point or t.dtype.is_complex:
        return None
    return Sizes(tuple(int(v) for v in t.reshape(-1).tolist()), scalar=t.dim() == 0)


def from_sizes(build: Builder, items: Sequence[int | Size], *, scalar: bool = False) -> Value:
    """The value of a list of sizes: a constant when all are known."""
    if all(isinstance(i, int) for i in items):
        tensor = build.torch.tensor(list(items), dtype=build.torch.int64)
        return Constant(tensor[0] if scalar else tensor)
    return Sizes(tuple(items), scalar)
