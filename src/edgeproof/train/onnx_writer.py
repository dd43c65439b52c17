"""Write recorded calls as ONNX nodes. Two records of the same network, of batches that differ by one, tell what moves.

A size that is the same in both is a number in the graph; one that is not follows the input at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from .recorder import Call, Item, Trace, items

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 17
BATCH = "batch"

Pair = tuple[int, int]
"""A size in both records."""
Emitter = Callable[["Site"], Any]


@final
class Writer:
    """The graph that grows.

    Args:
        first: The record at the example's batch.
        second: The same at one more, or the first again for a fixed batch.
        emitters: Function name → what writes it.
        state: The network's tensors by name.
        moving: Inputs whose first axis is the batch, and its sizes in both records.
    """

    def __init__(
        self,
        first: Trace,
        second: Trace,
        emitters: Mapping[str, Emitter],
        state: Mapping[str, Any],
        moving: Mapping[str, Pair],
    ) -> None:
        self._moving_inputs = moving
        self._paths = {id(t): n for n, t in state.items()}
        self.first, self.second = first, second
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.inputs: dict[str, ir.Value] = {}
        self.outputs: set[str] = set()
        self._emitters = emitters
        self._made: dict[tuple[int, int], ir.Value] = {}
        self._numbers: dict[str, ir.Value] = {}
        self._taken: set[str] = set(first.names)

    def run(self) -> list[ir.Value]:
        """Write all that the outputs need, in the order of the calls, and give the outputs."""
        for index in self._needed():
            site = Site(self, index)
            emitter = self._emitters[site.call.op]
            made = emitter(site)
            for place, value in enumerate(made if isinstance(made, tuple) else (made,)):
                tensor = site.call.results[place]
                self._made[index, place] = self._named(site, value, tensor, place)
        pairs = zip(self.first.outputs, self.second.outputs, strict=True)
        return [self.value(a, b) for a, b in pairs]

    def value(self, one: Item, other: Item, site: Site | None = None) -> ir.Value:
        """The ONNX value of a tensor."""
        where = site.where if site is not None else "the output"
        if one.kind == "unknown":
            made_by = f"Tensor.{one.name}" if one.name else "a function"
            raise UnsupportedError(
                "export.function",
                f"{where}",
                f"uses what {made_by} gives ({one.site or 'unknown line'}), and that is not exported",
                "write it in other functions; docs/training.md lists those that are exported",
            )
        if one.kind == "input":
            return self.inputs[one.name]
        if one.kind == "stored":
            return self.stored(one.name, one.tensor.numpy())
        if one.kind == "made" and one.depends:
            return self._made[one.call, one.place]
        return self._folded(one, other, site)

    def stored(self, name: str, array: NDArray[Any]) -> ir.Value:
        """A tensor in the file under a name of its own."""
        import onnx_ir as ir

        if name not in self.initializers:
            tensor = ir.tensor(np.array(array, order="C"), name=name)  # ascontiguousarray makes lists of numbers
            value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
            value.const_value = tensor
            self.initializers[name] = value
            self._taken.add(name)
        return self.initializers[name]

    def weight(self, tensor: Any) -> ir.Value:
        """A tensor of the network's state."""
        name = self._paths.get(id(tensor)) or self.free("constant")
        return self.stored(name, tensor.numpy())

    def number(self, values: Any, dtype: Any) -> ir.Value:
        """A constant of few numbers; equal ones are kept once."""
        array = np.asarray(values, dtype)
        key = f"{array.dtype}{array.shape}{array.tobytes().hex()}"
        if key not in self._numbers:
            self._numbers[key] = self.stored(self.free("constant"), array)
        return self._numbers[key]

    def node(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """A node; its value, or as many as asked for."""
        import onnx_ir as ir

        kept = {n: a for n, a in attributes.items() if a is not None}
        made = ir.node(op, list(inputs), attributes=kept, num_outputs=outputs)
        self.nodes.append(made)
        return made.outputs[0] if outputs == 1 else tuple(made.outputs)

    def free(self, name: str) -> str:
        """A name that is not taken."""
        found, n = name, 1
        while found in self._taken:
            n += 1
            found = f"{name}.{n}"
        self._taken.add(found)
        return found

    def sizes(self, pairs: Sequence[Pair], site: Site) -> ir.Value:
        """A shape; what moves is read from the input at run time."""
        if all(a == b for a, b in pairs):
            return self.number([a for a, _ in pairs], np.int64)
        parts = []
        for a, b in pairs:
            if a == b:
                parts.append(self.number([a], np.int64))
                continue
            name, axis, (n, m) = self._moving(site)
            whole = self.node("Shape", self.inputs[name], start=axis, end=axis + 1)
            times = b - a
            if times * n != a or times * m != b:
                said = f"has a size of {a} where the batch is {n} and {b} where it is {m}"
                raise site.refused(said, "keep the batch an axis")
            parts.append(whole if times == 1 else self.node("Mul", whole, self.number([times], np.int64)))
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

    def _moving(self, site: Site) -> tuple[str, int, Pair]:
        """An input and its axis that moves."""
        for name, pair in self._moving_inputs.items():
            return name, 0, pair
        raise site.refused("follows a batch that no input has", "export it with a fixed batch")

    def _needed(self) -> list[int]:
        """Calls that the outputs depend on and that depend on an input, in order."""
        found: set[int] = set()
        ahead = list(self.first.outputs)
        while ahead:
            item = ahead.pop()
            if item.kind != "made" or not item.depends or item.call in found:
                continue
            found.add(item.call)
            ahead += items(self.first.calls[item.call].args)
        return sorted(found)

    def _folded(self, one: Item, other: Item, site: Site | None) -> ir.Value:
        """A tensor that no input reaches, computed now."""
        a, b = one.tensor.numpy(), other.tensor.numpy()
        where = site or Site(self, -1)
        if a.shape != b.shape:
            return self._spread(a, b, where)
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            raise where.refused("uses numbers that are others in every run", "draw random numbers in training only")
        base = self._origin(one)
        if a.size <= 1:
            return self.number(a, a.dtype)
        return self.stored(self.free(base), a)

    def _spread(self, a: NDArray[Any], b: NDArray[Any], site: Site) -> ir.Value:
        """A constant that is repeated along the batch."""
        cut = tuple(slice(0, 1) if m != n else slice(None) for m, n in zip(a.shape, b.shape, strict=True))
        if not np.array_equal(np.broadcast_to(a[cut], a.shape), a) or not np.array_equal(a[cut], b[cut]):
            raise site.refused("uses a constant that changes along the batch", "let it not depend on the batch")
        one = self.stored(self.free("constant"), a[cut])
        made: ir.Value = self.node("Expand", one, self.sizes(list(zip(a.shape, b.shape, strict=True)), site))
        return made

    def _origin(self, item: Item) -> str:
        """What a computed constant is called after: the stored tensor that it comes from."""
        if item.kind != "made":
            return "constant"
        call = self.first.calls[item.call]
        names = [i.name for i in items(call.args) if i.kind == "stored"]
        if len(names) != 1:
            return f"{self.first.names[item.call]}.folded"
        return f"{names[0]}.{'T' if call.op == 'permute' and item.tensor.ndim == 2 else call.op}"

    def _named(self, site: Site, value: ir.Value, tensor: Any, place: int) -> ir.Value:
        import onnx_ir as ir

        if value.producer() is None or value.name:
            value = self.node("Identity", value)
        name = site.name if place == 0 else self.free(f"{site.name}.{place}")
        value.name = name
        maker = value.producer()
        assert maker is not None
        if place == 0:
            maker.name = name
        maker.metadata_props["source"] = site.call.site
        value.type = ir.TensorType(ir.DataType.from_numpy(numpy_dtype(tensor)))
        return value


@final
class Site:
    """One call that is being written.

    Args:
        writer: The graph.
        index: Of the call.
    """

    def __init__(self, writer: Writer, index: int) -> None:
        self.writer, self.index = writer, index

    @property
    def call(self) -> Call:
        """In the first record."""
        return self.writer.first.calls[self.index]

    @property
    def name(self) -> str:
        """Of the call."""
        return self.writer.first.names[self.index]

    @property
    def where(self) -> str:
        """The call, for people."""
        return "the output" if self.index < 0 else f"{self.name} ({self.call.site})"

    def refused(self, problem: str, hint: str) -> UnsupportedError:
        """An error that names the call and its line."""
        return UnsupportedError("export.function", self.where, problem, hint)

    def has(self, name: str) -> bool:
        """Whether an argument is given."""
        return self.call.args.get(name) is not None

    def tensor(self, name: str = "self") -> Any:
        """A tensor argument, in the first record."""
        return self.call.args[name].tensor

    def is_tensor(self, name: str) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(self.call.args.get(name), Item)

    def value(self, name: str = "self") -> ir.Value:
        """The ONNX value of a tensor argument."""
        one, other = self.call.args[name], self._other.args[name]
        return self.writer.value(one, other, self)

    def values(self, name: str) -> list[ir.Value]:
        """Those of an argument that is many tensors."""
        pairs = zip(self.call.args[name], self._other.args[name], strict=True)
        return [self.writer.value(a, b, self) for a, b in pairs]

    def number(self, name: str) -> Any:
        """An argument that is no tensor; it must not follow the batch."""
        one, other = self.call.args.get(name), self._other.args.get(name)
        if one != other:
            raise self.refused(
                f"is called with {name}={one} and with {other} for one sample more", "use -1 for the batch"
            )
        return one

    def both(self, name: str) -> tuple[Any, Any]:
        """An argument in both records."""
        return self.call.args.get(name), self._other.args.get(name)

    def shape(self, name: str = "") -> list[Pair]:
        """Of an argument, or of the result."""
        one = self.call.args[name].tensor if name else self.call.results[0]
        other = self._other.args[name].tensor if name else self._other.results[0]
        return list(zip(map(int, one.shape), map(int, other.shape), strict=True))

    def cast(self, value: ir.Value, have: Any, want: Any) -> ir.Value:
        """A value in another type, where it is another."""
        import onnx_ir as ir

        a, b = numpy_dtype(have), numpy_dtype(want)
        return value if a == b else self.node("Cast", value, to=int(ir.DataType.from_numpy(b)))

    def node(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """See `Writer.node`."""
        return self.writer.node(op, *inputs, outputs=outputs, **attributes)

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A constant of int64."""
        return self.writer.number(list(values), np.int64)

    def reshaped(self, value: ir.Value, pairs: Sequence[Pair]) -> ir.Value:
        """A reshape; one size that moves is left to ONNX."""
        moving = [i for i, (a, b) in enumerate(pairs) if a != b]
        if len(moving) == 1:
            shape = self.ints([-1 if i == moving[0] else a for i, (a, _) in enumerate(pairs)])
        else:
            shape = self.writer.sizes(pairs, self)
        made: ir.Value = self.node("Reshape", value, shape)
        return made

    @property
    def result(self) -> Any:
        """The first result."""
        return self.call.results[0]

    @property
    def _other(self) -> Call:
        return self.writer.second.calls[self.index]


def numpy_dtype(tensor: Any) -> np.dtype[Any]:
    """NumPy's dtype of a tensor, or of a dtype of tinygrad; numbers without a type of their own are 32 bits wide."""
    from tinygrad import Tensor, dtypes
    from tinygrad.dtype import _to_np_dtype

    dtype = tensor.dtype if isinstance(tensor, Tensor) else tensor
    if dtype == dtypes.weakint:
        return np.dtype(np.int32)
    if dtype == dtypes.weakfloat:
        return np.dtype(np.float32)
    found: Any = _to_np_dtype(dtype)
    if found is None:
        raise UnsupportedError("export.dtype", str(dtype), "has no counterpart in NumPy", "export it in float32")
    made: np.dtype[Any] = np.dtype(found)
    return made
