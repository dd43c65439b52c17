"""Protocol buffers in text form: nested mappings in, the lines that a C++ or Python parser reads out.

Source: Protocol Buffers, *Text Format Language Specification*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Scalar = bool | int | float | str
Value = Scalar | Mapping[str, "Value"] | Sequence["Value"]
"""A sequence is a repeated field; an empty one writes nothing."""


class Word(str):
    """An enumerator: written without quotes."""

    __slots__ = ()


def pbtxt(message: Mapping[str, Value]) -> str:
    """The text of a message, fields in the order given.

    >>> print(pbtxt({"name": "a", "kind": Word("KIND_CPU"), "dims": [3, -1], "step": [{"on": True}]}), end="")
    name: "a"
    kind: KIND_CPU
    dims: 3
    dims: -1
    step {
      on: true
    }
    """
    return "".join(f"{line}\n" for line in _lines(message, ""))


def _lines(message: Mapping[str, Value], indent: str) -> Iterator[str]:
    for name, value in message.items():
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            if isinstance(item, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(item)}"


def _scalar(value: Value) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    return repr(value)


def _escaped(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    return c if c.isprintable() else "".join(f"\\{b:03o}" for b in c.encode())
