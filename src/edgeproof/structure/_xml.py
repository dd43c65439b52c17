"""Read XML that others made: no document type, no entities, no processing of anything but elements and attributes.

Source: Python's documentation on XML vulnerabilities; expat with its declarations refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.parsers import expat

from ..errors import InputError

LIMIT_BYTES = 1 << 28
DEPTH = 64
ELEMENTS = 4_000_000


@dataclass(frozen=True, slots=True)
class Element:
    """One element."""

    tag: str
    attributes: Mapping[str, str]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text in it."""
        return "".join(self.texts)

    def all(self, tag: str) -> Iterator[Element]:
        """Children of a tag."""
        return (c for c in self.children if c.tag == tag)

    def one(self, tag: str) -> Element:
        """The first child of a tag; an empty one when there is none."""
        return next(self.all(tag), Element(tag, {}))

    def get(self, name: str, default: str = "") -> str:
        """An attribute."""
        return self.attributes.get(name, default)


def parse(data: bytes, subject: str) -> Element:
    """Read a document.

    Raises:
        InputError: structure.xml_too_large, structure.xml_doctype, structure.xml_too_deep, structure.xml_syntax.
    """
    if len(data) > LIMIT_BYTES:
        raise _refused("too_large", subject, f"has {len(data):,} bytes; at most {LIMIT_BYTES:,} are read")
    parser = expat.ParserCreate()
    top = Element("", {})
    stack, count = [top], 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) > DEPTH or count > ELEMENTS:
            raise _refused("too_deep", subject, f"has more than {DEPTH} levels or {ELEMENTS:,} elements")
        element = Element(tag, attributes)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def characters(text: str) -> None:
        if not text.isspace():
            stack[-1].texts.append(text)

    def declared(*_: Any) -> NoReturn:
        raise _refused("doctype", subject, "declares a document type or an entity, which no model needs")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = declared
    parser.EntityDeclHandler = declared
    parser.UnparsedEntityDeclHandler = declared
    parser.ExternalEntityRefHandler = declared
    try:
        parser.Parse(data, True)
    except expat.ExpatError as e:
        raise _refused("syntax", subject, f"is not XML: {e}") from e
    return top.children[0]


def _refused(rule: str, subject: str, problem: str) -> InputError:
    return InputError(f"structure.xml_{rule}", subject, problem, "get the file anew from where it was made")
