"""Sequences: lists of values that are known one by one, or lists that only run time knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .call import Call, Handler
from .values import Constant, Items, Value


def construct(n: Call) -> Value:
    """SequenceConstruct."""
    return Items(tuple(n[i] for i in range(len(n.inputs))))


def empty(n: Call) -> Value:
    """SequenceEmpty."""
    return Items(())


def at(n: Call) -> Value:
    """SequenceAt."""
    place, items = n.integers(1), n[0]
    if isinstance(items, Items) and place is not None:
        return items.items[place[0]]
    return n.call(item, items, n[1] if place is None else place[0])


def length(n: Call) -> Value:
    """SequenceLength."""
    items = n[0]
    if isinstance(items, Items):
        return Constant(n.torch.tensor(len(items.items), dtype=n.torch.int64))
    return n.call(count, items)


def insert(n: Call) -> Value:
    """SequenceInsert, at the end when no place is given."""
    items = n[0]
    place = n.integers(2) if n.has(2) else None
    if isinstance(items, Items) and (place is not None or not n.has(2)):
        held = list(items.items)
        held.insert(len(held) if place is None else place[0] % (len(held) + 1) if place[0] >= 0 else place[0], n[1])
        return Items(tuple(held))
    return n.call(inserted, items, n[1], n[2] if n.has(2) else None)


def erase(n: Call) -> Value:
    """SequenceErase, of the last when no place is given."""
    items = n[0]
    place = n.integers(1) if n.has(1) else [-1]
    if isinstance(items, Items) and place is not None:
        held = list(items.items)
        del held[place[0]]
        return Items(tuple(held))
    return n.call(erased, items, n[1] if n.has(1) else None)


def concat(n: Call) -> Value:
    """ConcatFromSequence."""
    axis, items = n.attr("axis"), n[0]
    join = n.torch.stack if n.attr("new_axis", 0) else n.torch.cat
    return n.call(join, list(items.items) if isinstance(items, Items) else items, axis)


def split(n: Call) -> Value:
    """SplitToSequence into parts of a size, of sizes, or of one."""
    axis, whole = n.axis("axis", 0), n.size(0, n.axis("axis", 0))
    sizes = n.constant(1)
    if not isinstance(whole, int) or (n.has(1) and sizes is None):
        return n.call(parts, n[0], n[1] if n.has(1) else None, axis, bool(n.attr("keepdims", 1)))
    if not n.has(1):
        each = [n.call(n.torch.narrow, n[0], axis, i, 1) for i in range(whole)]
        return Items(tuple(each if n.attr("keepdims", 1) else (n.call(n.torch.squeeze, e, axis) for e in each)))
    if sizes.dim() == 0:
        size = int(sizes)
        lengths = [min(size, whole - start) for start in range(0, whole, size)]
    else:
        lengths = [int(s) for s in sizes.tolist()]
    return Items(n.calls(n.torch.split, len(lengths), n[0], lengths, axis))


def mapped(n: Call) -> Sequence[Value]:
    """SequenceMap over sequences whose length is known: the body once for each place."""
    items, body = n[0], n.attr("body")
    if not isinstance(items, Items):
        raise n.refused("maps a sequence whose length only run time knows", "build the sequence in the graph")
    rows = []
    for i in range(len(items.items)):
        given = [v.items[i] if isinstance(v, Items) else v for v in n.inputs if v is not None]
        rows.append(n.import_graph(body, given, n.outside))
    return [Items(tuple(row[k] for row in rows)) for k in range(len(n.node.outputs))]


def item(items: list[Any], place: Any) -> Any:
    """One of a list."""
    return items[int(place)]


def count(items: list[Any]) -> Any:
    """How many."""
    import torch

    return torch.tensor(len(items), dtype=torch.int64)


def inserted(items: list[Any], value: Any, place: Any) -> list[Any]:
    """A list with one more."""
    at_ = len(items) if place is None else int(place)
    return [*items[:at_], value, *items[at_:]]


def erased(items: list[Any], place: Any) -> list[Any]:
    """A list with one less."""
    held = list(items)
    del held[-1 if place is None else int(place)]
    return held


def parts(x: Any, sizes: Any, axis: int, keep: bool) -> list[Any]:
    """Parts of a tensor."""
    if sizes is None:
        return list(x.split(1, axis)) if keep else list(x.unbind(axis))
    return list(x.split(int(sizes) if sizes.dim() == 0 else sizes.tolist(), axis))


OPERATORS: dict[str, Handler] = {
    "SequenceConstruct": construct,
    "SequenceEmpty": empty,
    "SequenceAt": at,
    "SequenceLength": length,
    "SequenceInsert": insert,
    "SequenceErase": erase,
    "ConcatFromSequence": concat,
    "SplitToSequence": split,
    "SequenceMap": mapped,
}
