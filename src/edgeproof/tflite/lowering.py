"""What the lowering of an operator may ask and do: read values as they are wanted, emit operators, give the result.

A value of the graph is held by any number of tensors: in several orders of axes, as codes and as real numbers. Reading
a value in a form that is not held yet emits the TRANSPOSE or DEQUANTIZE that makes it, once.

A graph may read codes back by another scale than they were written with: a product with a constant that costs nothing.
A LiteRT tensor has one scale. Such a value is held by a tensor whose own scale is off by a *factor*, and whoever reads
it makes up for that: a layer in the scale of its weight, a product or a mean in the scale of its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.rewrite import label
from ..model import attribute
from . import layout
from .held import Held, Step, activation_quant, name_of, off, refuse, stored_codes, turned
from .layout import Perm, Shape
from .write import File, Operator, Quant, Tensor

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..graph.quantised import Coded

HALF_FROM = 256
"""Numbers of the smallest constant that is stored as float16: biases and scalars are not worth the operator."""


@dataclass(slots=True)
class Lowering:
    """A graph on its way into a file.

    Attributes:
        shapes: Of every value, by name.
        dtypes: Of every value, by name; float16 is computed as float32.
        coded: What is held as codes, by the name of the value that is read back.
        numbers: Finds the constant behind a value.
        half: Store float constants as float16.
        dynamic: Integer weights under float activations stay integers, and the activations are quantised as they come.
        opset: Of the graph.
        file: What is written.
        held: Value → tensors that hold it.
        step: What is being lowered.
        names: Taken by tensors.
        stored: What was stored → its tensor, so that equal constants are stored once.
        unpacked: Tensor → its real numbers.
    """

    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    coded: dict[str, Coded]
    numbers: Callable[[ir.Value], NDArray[Any] | None]
    half: bool
    dynamic: bool
    opset: int
    file: File = field(default_factory=File)
    held: dict[str, list[Held]] = field(default_factory=dict)
    step: Step | None = None
    names: set[str] = field(default_factory=set)
    stored: dict[tuple[Any, ...], int] = field(default_factory=dict)
    unpacked: dict[int, int] = field(default_factory=dict)

    # What the graph says.

    def shape(self, value: ir.Value | None) -> Shape:
        """Shape of a value."""
        return self.shapes[name_of(value)]

    def rank(self, value: ir.Value | None) -> int:
        """Number of its axes."""
        return len(self.shape(value))

    def dtype(self, value: ir.Value | None) -> str:
        """Its dtype in the file."""
        return self.dtypes[name_of(value)]

    def number(self, value: ir.Value | None) -> NDArray[Any] | None:
        """The constant that a value is, weights read back from codes included; None for what is computed."""
        if value is None:
            return None
        code = self.coded.get(name_of(value))
        if code is not None:
            return code.real()
        return self.numbers(value)

    def wanted(self, node: ir.Node, index: int, what: str) -> NDArray[Any]:
        """An input that must be a constant.

        Raises:
            UnsupportedError: tflite.computed.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        found = self.number(value)
        if found is None:
            raise refuse(node, f"computes its {what} as it runs; LiteRT wants a constant", "run pass simplify first")
        return found

    def ints(self, node: ir.Node, name: str, index: int) -> tuple[int, ...] | None:
        """Integers that older opsets keep in an attribute and newer ones in an input; None when there are none."""
        given = attribute(node, name, None)
        if given is not None:
            return tuple(int(n) for n in given)
        if index >= len(node.inputs) or node.inputs[index] is None:
            return None
        if self.shapes.get(name_of(node.inputs[index])) == (0,):
            return ()
        return tuple(int(n) for n in self.wanted(node, index, name).reshape(-1))

    @property
    def at(self) -> Step:
        """The step that is being lowered."""
        assert self.step is not None
        return self.step

    # Tensors and operators.

    def tensor(self, shape: Shape, dtype: str, quant: Quant | None = None, name: str = "") -> int:
        """A new tensor."""
        fresh = self.fresh(name or f"{label(self.at.node) if self.step else 'value'}/{len(self.file.tensors)}")
        self.file.tensors.append(Tensor(fresh, dtype, tuple(shape), quant))
        return len(self.file.tensors) - 1

    def fresh(self, name: str) -> str:
        """A name that no tensor has."""
        made, n = name, 2
        while made in self.names:
            made, n = f"{name}.{n}", n + 1
        self.names.add(made)
        return made

    def emit(
        self,
        code: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: Mapping[str, Any] | None = None,
        *,
        dtype: str | None = None,
        quant: Quant | None = None,
    ) -> int:
        """Add an operator with one output.

        Args:
            code: Builtin name.
            inputs: Tensors.
            shape: Of the output, as stored.
            options: Fields of the operator's options that are not the schema's defaults.
            dtype: Of the output; by default that of the first input.
            quant: Of the output's codes.

        Returns:
            The output.
        """
        out = self.tensor(tuple(shape), dtype or self.file.tensors[inputs[0]].dtype, quant)
        self.add(code, inputs, [out], options)
        return out

    def add(
        self, code: str, inputs: Sequence[int], outputs: Sequence[int], options: Mapping[str, Any] | None = None
    ) -> None:
        """Add an operator with outputs of its own."""
        node = label(self.at.node) if self.step else ""
        self.file.operators.append(Operator(code, tuple(inputs), tuple(outputs), options or {}, node))

    def store(self, array: NDArray[Any], quant: Quant | None = None, name: str = "constant") -> int:
        """A constant tensor; equal ones are stored once."""
        array = np.ascontiguousarray(array) if array.ndim else array
        if array.dtype == np.float16:
            return self.unpack(self._stored(array, None, name))
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        if self.half and array.dtype == np.float32 and array.size >= HALF_FROM:
            with np.errstate(over="ignore"):
                small = array.astype(np.float16)
            if np.isfinite(small).all():
                return self.unpack(self._stored(small, None, name))
        return self._stored(array, quant, name)

    def _stored(self, array: NDArray[Any], quant: Quant | None, name: str) -> int:
        key = (array.dtype.str, array.shape, quant, hashlib.sha256(array.tobytes()).digest())
        if key not in self.stored:
            self.stored[key] = self.tensor(array.shape, array.dtype.name, quant, name)
            self.file.tensors[self.stored[key]].data = array
        return self.stored[key]

    def unpack(self, tensor: int) -> int:
        """Real numbers of a stored tensor (float16, or codes), by one DEQUANTIZE."""
        if tensor not in self.unpacked:
            shape = self.file.tensors[tensor].shape
            self.unpacked[tensor] = self.emit("DEQUANTIZE", [tensor], shape, dtype="float32")
        return self.unpacked[tensor]

    def integers(self, numbers: Sequence[int] | NDArray[Any]) -> int:
        """A constant list of int32: axes, sizes, pads."""
        return self.store(np.asarray(numbers, np.int32))

    def scalar(self, number: Any, dtype: str = "float32") -> int:
        """A constant without axes."""
        return self.store(np.asarray(number, dtype))

    # Values.

    def orders(self, value: ir.Value | None) -> list[Perm]:
        """The orders in which a value is held, the oldest first."""
        return [h.perm for h in self.held.get(name_of(value), ())]

    def forms(self, value: ir.Value | None) -> list[Held]:
        """How a value is held in the precision of the step, the oldest last."""
        return [h for h in self.held[name_of(value)] if (h.quant is not None) == self.at.integer]

    def order(self, value: ir.Value | None) -> Perm:
        """The order to read a value in when any will do: channels last where it is held so."""
        found = self.orders(value)
        preferred = layout.channels_last(self.rank(value)) if self.rank(value) > 2 else None
        return preferred if preferred in found else found[0] if found else layout.identity(self.rank(value))

    def read(self, value: ir.Value | None, perm: Perm | None = None) -> int:
        """The tensor of a value, in the precision of the step.

        Args:
            value: An input of the step's node.
            perm: Its order; as in ONNX by default.
        """
        step = self.step
        held = self.form(value, perm, codes=step is not None and step.integer)
        return held.tensor if step is not None and step.scaled else self.plain(held)

    def factor(self, tensor: int, value: ir.Value | None) -> float:
        """By what the scale of a tensor is off from what its codes mean as a value."""
        return self._off(Held(tensor, (), self.quant_of(value)))

    def _off(self, held: Held) -> float:
        own = self.file.tensors[held.tensor].quant
        if own is None or held.quant is None or len(own.scale) > 1:
            return 1.0
        factor = held.quant.scale[0] / own.scale[0]
        return 1.0 if abs(factor - 1) < 1e-6 else factor

    def plain(self, held: Held) -> int:
        """The tensor of a value with no factor left: the same codes, by a product that keeps them."""
        factor, t = self._off(held), self.file.tensors[held.tensor]
        if factor == 1.0 or held.quant is None:
            return held.tensor
        key = (held.tensor, held.quant)
        if key not in self.stored:
            by = self.store(np.asarray(127, np.int8), Quant((factor / 127,), (0,)))
            self.stored[key] = self.emit("MUL", [held.tensor, by], t.shape, quant=held.quant)
        return self.stored[key]

    def form(self, value: ir.Value | None, perm: Perm | None = None, *, codes: bool) -> Held:
        """As `read`, with the precision given, and what the codes mean."""
        name = name_of(value)
        want = layout.identity(self.rank(value)) if perm is None else perm
        code = self.coded.get(name)
        codes = codes and code is not None
        if name not in self.held:
            self._constant(value, want, codes)
        forms = self.held[name]
        found = next((h for h in forms if h.perm == want and (h.quant is not None) == codes), None)
        if found is None:
            alike = [h for h in forms if (h.quant is not None) == codes]
            if alike:
                free = (h for h in alike if not layout.moves(*self._way(h, want)))
                found = self._moved(next(free, alike[0]), want)
            elif self.number(value) is not None:
                self._constant(value, want, codes)
                found = self.held[name][-1]
            else:
                found = self._converted(self.form(value, perm, codes=not codes), codes)
            if found not in self.held[name]:
                self.held[name].append(found)
        return found

    def _way(self, held: Held, want: Perm) -> tuple[Perm, Shape]:
        return layout.change(held.perm, want), self.file.tensors[held.tensor].shape

    def _moved(self, held: Held, want: Perm) -> Held:
        return Held(self.reorder(held.tensor, layout.change(held.perm, want)), want, held.quant)

    def reorder(self, tensor: int, order: Perm) -> int:
        """A tensor with its stored axes in another order: a RESHAPE where that moves nothing."""
        t = self.file.tensors[tensor]
        if order == layout.identity(len(order)):
            return tensor
        shape = layout.stored(t.shape, order)
        if t.data is not None:
            return self.store(np.ascontiguousarray(t.data.transpose(order)), t.quant, t.name)
        if not layout.moves(order, t.shape):
            return self.reshape(tensor, shape)
        return self.emit("TRANSPOSE", [tensor, self.integers(order)], shape, quant=t.quant)

    def reshape(self, tensor: int, shape: Shape) -> int:
        """A tensor with another shape."""
        t = self.file.tensors[tensor]
        return tensor if t.shape == tuple(shape) else self.copied(tensor, shape)

    def copied(self, tensor: int, shape: Shape | None = None) -> int:
        """The same numbers in a tensor of its own, of another shape if one is given."""
        t = self.file.tensors[tensor]
        new = t.shape if shape is None else shape
        return self.emit("RESHAPE", [tensor, self.integers(new)], new, {"newShape": list(new)}, quant=t.quant)

    def _converted(self, held: Held, codes: bool) -> Held:
        assert not codes, "codes are written by QuantizeLinear only"
        t = self.file.tensors[held.tensor]
        return Held(self.emit("DEQUANTIZE", [self.plain(held)], t.shape, dtype="float32"), held.perm)

    def _constant(self, value: ir.Value | None, perm: Perm, codes: bool) -> None:
        name, code = name_of(value), self.coded.get(name_of(value))
        if codes and code is not None and code.codes is not None:
            array, quant = stored_codes(code)
            made = Held(self.store(array.transpose(perm), turned(quant, perm), name), perm, quant)
        elif code is not None and code.codes is not None and code.dtype in ("int8", "uint8") and not code.block:
            array, quant = stored_codes(code)  # weights alone are codes: they stay so in the file
            made = Held(self.unpack(self.store(array.transpose(perm), turned(quant, perm), name)), perm)
        else:
            number = self.number(value)
            assert number is not None, name
            array = number if number.dtype == np.float16 else number.astype(self.dtype(value))
            made = Held(self.store(array.transpose(perm), None, name), perm)
        self.held.setdefault(name, []).append(made)

    def quant_of(self, value: ir.Value | None) -> Quant | None:
        """What the codes of an input mean, where it is held as codes."""
        code = self.coded.get(name_of(value))
        return None if code is None else activation_quant(code)

    def give(self, tensor: int, perm: Perm | None = None, output: int = 0, factor: float = 1.0) -> None:
        """Say which tensor holds the result of the step.

        Codes that mean something else than is wanted are turned into those that are.

        Args:
            tensor: The tensor.
            perm: How it holds it; as in ONNX by default.
            output: Which output of the node, for one with several.
            factor: By what the tensor's scale is off.
        """
        step, t = self.at, self.file.tensors[tensor]
        result = step.results[output]
        if perm is None:
            perm = layout.identity(len(t.shape))
        if not step.integer:
            self.hold(result.value, Held(tensor, perm))
            self.rename(tensor, name_of(result.value))
            return
        own = off(result.quant, factor)
        if step.bounds is not None:
            tensor = self._cut(tensor, (step.bounds[0] / factor, step.bounds[1] / factor))
        if result.codes is not None and t.quant != own:
            tensor = self.emit("QUANTIZE", [tensor], t.shape, dtype="int8", quant=own)
        goal = result.codes or result.value
        self.hold(goal, Held(tensor, perm, result.quant))
        self.rename(tensor, name_of(goal))

    def _cut(self, tensor: int, bounds: tuple[float, float]) -> int:
        t = self.file.tensors[tensor]
        assert t.quant is not None
        for code, bound in (("MAXIMUM", bounds[0]), ("MINIMUM", bounds[1])):
            if np.isfinite(bound):
                at = np.clip(np.rint(bound / t.quant.scale[0]) + t.quant.zero[0], -128, 127).astype(np.int8)
                tensor = self.emit(code, [tensor, self.store(at, t.quant)], t.shape, quant=t.quant)
        return tensor

    def hold(self, value: ir.Value | None, held: Held) -> None:
        """Note that a tensor holds a value."""
        self.held.setdefault(name_of(value), []).insert(0, held)

    def rename(self, tensor: int, name: str) -> None:
        """Call a tensor as the value is called, where no other is."""
        t = self.file.tensors[tensor]
        if t.data is None and name and name not in self.names and tensor not in self.file.inputs:
            self.names.discard(t.name)
            self.names.add(name)
            t.name = name
