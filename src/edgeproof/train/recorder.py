"""Watch a tinygrad network run: which of its layers and functions were called, on what, from which line.

Nothing of tinygrad is replaced. Python tells a profile function of every call, and those that are known by their code
are written down; what a known function calls is its own affair. So `Tensor.relu` is seen wherever a network keeps it,
and a function that is not known is seen as the known ones that it is made of.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, final


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A tensor as the record knows it.

    Attributes:
        kind: ``input``, ``stored`` (a tensor of the network's state), ``made`` by a recorded call, ``constant``, or
            ``unknown``: it depends on an input in a way that was not seen.
        tensor: The tensor.
        name: Of inputs and stored ones; what made an unknown one.
        call: Index of the call that made it.
        place: Which of its results.
        depends: Whether it depends on an input.
        site: The line that made an unknown one.
    """

    kind: str
    tensor: Any
    name: str = ""
    call: int = -1
    place: int = 0
    depends: bool = False
    site: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call that was seen.

    Attributes:
        op: The function's name; of a layer, its class's.
        args: Arguments by name, tensors as items.
        results: What it gave.
        layer: Path of the layer in whose code it stands, as in the state's names.
        site: File and line outside tinygrad.
    """

    op: str
    args: Mapping[str, Any]
    results: tuple[Any, ...]
    layer: str
    site: str


@dataclass(slots=True)
class Trace:
    """All calls of one run.

    Attributes:
        calls: In order.
        outputs: The network's.
        names: Name per call, unique and the same in every run.
    """

    calls: list[Call] = field(default_factory=list)
    outputs: tuple[Item, ...] = ()
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Known:
    """A function that is recorded as one call.

    Attributes:
        op: Name in the record.
        code: By which it is recognised.
        wants: Whether a call with these arguments is recorded whole; else it is seen as what it is made of.
    """

    op: str
    code: CodeType
    wants: Callable[[Mapping[str, Any]], bool] = lambda _args: True


def code_of(function: Any) -> CodeType:
    """The code of a function, wrappers of tinygrad's own taken off."""
    code: CodeType = inspect.unwrap(function).__code__
    return code


def record(
    network: Callable[..., Any],
    owner: Any,
    inputs: Mapping[str, Any],
    state: Mapping[str, Any],
    known: Sequence[Known],
) -> Trace:
    """Run a network and write its calls down.

    Args:
        network: Called with the inputs in order.
        owner: The object whose attributes are its layers.
        inputs: Name → realised tensor.
        state: Name → realised tensor.
        known: What is recorded.
    """
    watch = _Watch(inputs, state, owner, known)
    before = sys.getprofile()
    sys.setprofile(watch.seen)
    try:
        result = network(*inputs.values())
    finally:
        sys.setprofile(before)
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, list | tuple) else (result,)
    watch.trace.outputs = tuple(watch.item(t) for t in parts)
    watch.trace.names = _names(watch.trace.calls)
    return watch.trace


@final
class _Watch:
    """The profile function and what it has seen."""

    def __init__(self, inputs: Mapping[str, Any], state: Mapping[str, Any], owner: Any, known: Sequence[Known]) -> None:
        import tinygrad
        from tinygrad import Tensor

        self.trace = Trace()
        self._tensor = Tensor
        self._home = str(Path(tinygrad.__file__).parent)
        self._known = {k.code: k for k in known}
        self._assign, self._setitem = code_of(Tensor.assign), code_of(Tensor.__setitem__)
        self._layers = dict(_layers(owner))
        self._sources = [t.uop for t in inputs.values()]
        self._items: dict[int, Item] = {}
        for name, tensor in state.items():
            self._items[id(tensor)] = Item("stored", tensor, name)
        for name, tensor in inputs.items():
            self._items[id(tensor)] = Item("input", tensor, name, depends=True)
        self._kept: list[Any] = []
        self._made_by: dict[int, tuple[str, str]] = {}
        self._inside: FrameType | None = None
        self._pending: tuple[Known, Mapping[str, Any]] | None = None

    def seen(self, frame: FrameType, event: str, result: Any) -> None:
        """Told by Python of every call and return."""
        if self._inside is not None:
            if event == "return" and frame is self._inside:
                self._inside = None
                self._finish(frame, result)
            return
        if event == "call":
            found = self._known.get(frame.f_code)
            if found is not None:
                self._begin(frame, found)
        elif event == "return" and result is not None and frame.f_code.co_filename.startswith(self._home):
            self._plain(frame, result)

    def item(self, tensor: Any) -> Item:
        """What is known of a tensor."""
        found = self._items.get(id(tensor))
        if found is None:
            self._kept.append(tensor)
            name, site = self._made_by.get(id(tensor), ("", ""))
            depends = self._depends(tensor)
            found = Item("unknown" if depends else "constant", tensor, name, depends=depends, site=site)
            self._items[id(tensor)] = found
        return found

    def _begin(self, frame: FrameType, known: Known) -> None:
        args = dict(frame.f_locals)
        tensors = [v for v in args.values() if isinstance(v, self._tensor)]
        if tensors and known.wants(args):
            # The arguments as they are now: an assignment may give a tensor another value later.
            self._inside, self._pending = frame, (known, {n: self._symbolic(v) for n, v in args.items()})

    def _finish(self, frame: FrameType, result: Any) -> None:
        assert self._pending is not None
        known, args = self._pending
        results = tuple(result) if isinstance(result, list | tuple) else (result,)
        if any(not isinstance(r, self._tensor) for r in results):
            return
        if any(id(r) in self._items for r in results):  # what came in went out, as of a reshape to the same shape
            return
        depends = any(i.depends for i in items(args))
        index = len(self.trace.calls)
        layer = self._layers.get(id(frame.f_locals.get("self"))) or self._layer(frame)
        self.trace.calls.append(Call(known.op, args, results, layer, self._site(frame)[1]))
        for place, tensor in enumerate(results):
            self._kept.append(tensor)
            self._items[id(tensor)] = Item("made", tensor, call=index, place=place, depends=depends)

    def _plain(self, frame: FrameType, result: Any) -> None:
        """A function of tinygrad that is not known gave something."""
        if frame.f_code is self._assign:
            into, value = frame.f_locals.get("self"), frame.f_locals.get("x")
            if isinstance(into, self._tensor) and isinstance(value, self._tensor):
                self._kept.append(into)
                self._items[id(into)] = self.item(value)
            return
        if isinstance(result, self._tensor) and id(result) not in self._items and id(result) not in self._made_by:
            self._kept.append(result)
            self._made_by[id(result)] = self._site(frame)

    def _symbolic(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            return self.item(value)
        if isinstance(value, list | tuple):
            return tuple(self._symbolic(v) for v in value)
        return value

    def _depends(self, tensor: Any) -> bool:
        above = tensor.uop.toposort()
        return any(source in above for source in self._sources)

    def _site(self, frame: FrameType) -> tuple[str, str]:
        """The function of tinygrad that was called from outside, and the line that called it."""
        name = frame.f_code.co_name
        at: FrameType | None = frame
        while at is not None and at.f_code.co_filename.startswith(self._home):
            own = at.f_code.co_name
            name, at = own if not own.startswith("_") or own.startswith("__") else name, at.f_back
        return name, "" if at is None else f"{Path(at.f_code.co_filename).name}, line {at.f_lineno}"

    def _layer(self, frame: FrameType) -> str:
        at: FrameType | None = frame
        while at is not None:
            found = self._layers.get(id(at.f_locals.get("self")))
            if found is not None:
                return found
            at = at.f_back
        return ""


def items(value: Any) -> list[Item]:
    """All tensors among arguments."""
    if isinstance(value, Item):
        return [value]
    if isinstance(value, Mapping):
        return [i for v in value.values() for i in items(v)]
    if isinstance(value, tuple):
        return [i for v in value for i in items(v)]
    return []


def _layers(owner: Any, path: str = "", seen: frozenset[int] = frozenset()) -> list[tuple[int, str]]:
    """(id of an object, its path) as tinygrad names the tensors of its state."""
    if id(owner) in seen:
        return []
    seen = seen | {id(owner)}
    held = getattr(owner, "__dict__", None)
    if isinstance(owner, list | tuple):
        inner = {str(i): v for i, v in enumerate(owner)}
    elif isinstance(owner, dict):
        inner = {str(k): v for k, v in owner.items()}
    elif held is not None and not isinstance(owner, type) and type(owner).__name__ != "Tensor":
        inner = dict(held)
    else:
        return []
    own = [(id(owner), path)] if callable(owner) and not inspect.isroutine(owner) else []
    return own + [x for n, v in inner.items() for x in _layers(v, f"{path}.{n}" if path else n, seen)]


def _names(calls: Sequence[Call]) -> list[str]:
    """A name per call: its layer and its function, numbered where that is not enough."""
    counts: dict[str, int] = {}
    found = []
    for call in calls:
        plain = f"{call.layer}.{call.op}" if call.layer else call.op
        counts[plain] = counts.get(plain, 0) + 1
        found.append(plain if counts[plain] == 1 else f"{plain}.{counts[plain]}")
    return found
