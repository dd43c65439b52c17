"""Make a torch.fx graph call by call, computing at once what depends on constants only.

A parameter or a buffer appears in the graph where it is first used, so what nobody uses is not in the module either.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

from .values import Constant, Items, Shape, Size, Sizes, Tensor, Value

Function = Callable[..., Any] | str
"""What is called: a function, or a method of the first argument by name."""


class Builder:
    """A graph that grows.

    Attributes:
        torch: The torch package.
        graph: The torch.fx graph.
        attributes: Parameters, buffers and modules of the module to be, by attribute name.
        sources: Attribute name → name of the tensor in the ONNX file.
        onnx_node: Name of the ONNX node that is being imported; every torch node carries it in ``meta``.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.onnx_node = ""
        self._named: dict[str, Any] = {}
        self._taken: set[str] = {*dir(torch.nn.Module()), *dir(torch.fx.GraphModule)}
        self._kept: list[Any] = []

    def placeholder(self, name: str, shape: Shape | None, dtype: Any) -> Tensor:
        """An input of the module."""
        node = self.graph.placeholder(self.free(name))
        node.meta["onnx_value"] = name
        return Tensor(node, shape, dtype)

    def free(self, name: str) -> str:
        """A Python name that is not taken yet, as near to an ONNX name as can be."""
        plain = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "value"
        plain = f"v{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) or plain == "self" else plain
        free, n = plain, 1
        while free in self._taken:
            n += 1
            free = f"{plain}_{n}"
        self._taken.add(free)
        return free

    def call(self, function: Function, *args: Any, **kwargs: Any) -> Value:
        """Call a function on values, numbers and lists of them; computed now when all is known and nothing trains."""
        if not self._run_time((args, kwargs)):
            with self.torch.no_grad():
                return Constant(_run(function, self._known(args), self._known(kwargs)))
        return self.emit(function, *args, **kwargs)

    def emit(self, function: Function, *args: Any, **kwargs: Any) -> Tensor:
        """As `call`, but a node even when it could be computed now."""
        node = self._node(function, args, kwargs)
        found = self._dry_run(function, args, kwargs)
        if isinstance(found, self.torch.Tensor):
            return Tensor(node, tuple(found.shape), found.dtype)
        return Tensor(node)

    def calls(self, function: Function, count: int, *args: Any, **kwargs: Any) -> tuple[Value, ...]:
        """Call a function that returns ``count`` tensors."""
        import operator

        if not self._run_time((args, kwargs)):
            with self.torch.no_grad():
                return tuple(Constant(t) for t in _run(function, self._known(args), self._known(kwargs)))
        node = self._node(function, args, kwargs)
        found = self._dry_run(function, args, kwargs)
        known = tuple(found) if isinstance(found, tuple | list) and len(found) == count else (None,) * count
        made = []
        for i, one in enumerate(known):
            item = self._noted(self.graph.call_function(operator.getitem, (node, i)))
            made.append(Tensor(item) if one is None else Tensor(item, tuple(one.shape), one.dtype))
        return tuple(made)

    def module(self, module: Any, name: str, *args: Any) -> Tensor:
        """Call a module of torch, kept under a name of its own."""
        attribute = self.free(name)
        self.attributes[attribute] = module
        return Tensor(self._noted(self.graph.call_module(attribute, self._nodes(args))))

    def number(self, function: Callable[..., Any], *args: int | Size) -> int | Size:
        """Whole-number arithmetic on sizes."""
        if all(isinstance(a, int) for a in args):
            return int(function(*args))
        return Size(self._noted(self.graph.call_function(function, self._nodes(args))))

    def size(self, value: Value, axis: int) -> int | Size:
        """One dimension of a value."""
        shape = self.shape(value)
        if shape is not None and shape[axis] is not None:
            return int(shape[axis] or 0)
        return Size(self._noted(self.graph.call_method("size", (self.node(value), axis))))

    def shape(self, value: Value) -> Shape | None:
        """What is known of a value's shape."""
        match value:
            case Constant(tensor):
                return tuple(tensor.shape)
            case Sizes(items, scalar):
                return () if scalar else (len(items),)
            case Tensor(_, shape):
                return shape
        return None

    def dtype(self, value: Value) -> Any:
        """A value's torch dtype, or None."""
        match value:
            case Constant(tensor):
                return tensor.dtype
            case Sizes():
                return self.torch.int64
            case Tensor(_, _, dtype):
                return dtype
        return None

    def node(self, value: Value) -> Any:
        """The torch.fx node of a value; puts constants into the graph."""
        match value:
            case Tensor(node):
                return node
            case Constant(tensor, name, label):
                return self._stored(tensor, name, label)
            case Sizes(items, scalar):
                made = [
                    self._noted(
                        self.graph.call_function(
                            self.torch.scalar_tensor, (self._nodes(i),), {"dtype": self.torch.int64}
                        )
                    )
                    for i in items
                ]
                return made[0] if scalar else self._noted(self.graph.call_function(self.torch.stack, (made,)))
        return [self.node(v) for v in value.items]

    def buffer(self, tensor: Any, name: str) -> Tensor:
        """A tensor that moves with the module and is not trained, e.g. running statistics, from an ONNX name."""
        attribute = self.free(name)
        self.attributes[attribute] = tensor
        self.sources[attribute] = name
        return Tensor(self._noted(self.graph.get_attr(attribute)), tuple(tensor.shape), tensor.dtype)

    def _stored(self, tensor: Any, name: str, label: str) -> Any:
        key = name or f"constant {id(tensor)}"
        if key not in self._named:
            attribute = self.free(name or label or "constant")
            if name:
                self.attributes[attribute] = self.torch.nn.Parameter(tensor.clone())
                self.sources[attribute] = name
            else:
                self.attributes[attribute] = tensor
                self._kept.append(tensor)  # so that its id stays its own
            self._named[key] = attribute
        return self._noted(self.graph.get_attr(self._named[key]))

    def _node(self, function: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        make = self.graph.call_method if isinstance(function, str) else self.graph.call_function
        return self._noted(make(function, self._nodes(tuple(args)), self._nodes(kwargs)))

    def _noted(self, node: Any) -> Any:
        node.meta["onnx_node"] = self.onnx_node
        return node

    def _run_time(self, arg: Any) -> bool:
        """Whether anything in an argument is known at run time only, or may be trained."""
        if isinstance(arg, Constant):
            return bool(arg.name)
        if isinstance(arg, Tensor | Size | Sizes):
            return True
        if isinstance(arg, Items):
            return self._run_time(arg.items)
        if isinstance(arg, list | tuple):
            return any(self._run_time(a) for a in arg)
        return isinstance(arg, dict) and any(self._run_time(a) for a in arg.values())

    def _known(self, arg: Any) -> Any:
        return _mapped(arg, lambda v: v.tensor)

    def _nodes(self, arg: Any) -> Any:
        return _mapped(arg, lambda v: v.node if isinstance(v, Size) else self.node(v))

    def _dry_run(self, function: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result without data, for its shape and dtype; None when it depends on what only run time knows."""
        torch = self.torch

        def empty(value: Any) -> Any:
            if isinstance(value, Constant):
                return value.tensor.to("meta") if value.tensor.dim() else value.tensor
            if isinstance(value, Sizes):
                return torch.empty(self.shape(value), dtype=torch.int64, device="meta")
            if isinstance(value, Tensor) and value.shape is not None and None not in value.shape and value.dtype:
                return torch.empty(value.shape, dtype=value.dtype, device="meta")
            raise LookupError

        try:
            with torch.no_grad():
                return _run(function, _mapped(tuple(args), empty), _mapped(kwargs, empty))
        except Exception:  # whatever torch raises here, the real call will say better
            return None


def _mapped(arg: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(arg, Tensor | Constant | Size | Sizes):
        return change(arg)
    if isinstance(arg, Items):
        return [_mapped(a, change) for a in arg.items]
    if isinstance(arg, tuple):
        return tuple(_mapped(a, change) for a in arg)
    if isinstance(arg, list):
        return [_mapped(a, change) for a in arg]
    if isinstance(arg, dict):
        return {k: _mapped(v, change) for k, v in arg.items()}
    return arg


def _run(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(function, str):
        return getattr(args[0], function)(*args[1:], **kwargs)
    return function(*args, **kwargs)
