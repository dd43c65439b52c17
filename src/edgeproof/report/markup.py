"""Build HTML and SVG so that text from files can never become markup.

A plain ``str`` is text and is escaped; only `Html`, which this module's functions return, is markup. Control and
bidirectional-override characters, which can hide what a name really says, are shown as the replacement character.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final


@final
class Html(str):
    """Markup; every other string is text."""

    __slots__ = ()


Node = Html | str | None
Attribute = str | int | float | None

_VOID = frozenset({"meta", "br", "hr", "col"})
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def escape(text: str) -> str:
    """Text for element content and quoted attributes.

    >>> escape('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    clean = _HIDDEN.sub("\ufffd", text).encode("utf-8", "replace").decode()
    return html.escape(clean, quote=True)


def h(tag: str, attributes: Mapping[str, Attribute] | None = None, *children: Node) -> Html:
    """One element. Attributes that are None are left out, numbers are written with at most two decimals.

    >>> h("p", {"class": "x", "id": None}, "1 < 2")
    '<p class="x">1 &lt; 2</p>'
    """
    head = tag + "".join(f' {k}="{_value(v)}"' for k, v in (attributes or {}).items() if v is not None)
    if tag in _VOID:
        return Html(f"<{head}>")
    return Html(f"<{head}>{join(*children)}</{tag}>")


def join(*children: Node) -> Html:
    """Nodes one after the other."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children if c is not None))


def _value(value: str | int | float) -> str:
    if isinstance(value, float):
        text = f"{value:.2f}" if math.isfinite(value) else "0"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return escape(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Heading.
        kind: ``number`` aligns to the right and keeps a value on one line; ``index`` is as narrow as it can be.
    """

    title: str
    kind: Literal["text", "number", "index"] = "text"


def table(columns: Sequence[Column], rows: Sequence[Sequence[Node]], label: str, *, cards: bool = False) -> Html:
    """A table whose first column heads its rows.

    Args:
        columns: Headings.
        rows: Cells, one per column.
        label: What the table shows, for people who cannot see it.
        cards: On a phone, show each row as a card; otherwise a wide table scrolls inside its own frame.
    """
    roles = cards  # a table laid out as blocks loses its meaning to screen readers unless roles say it again
    head = [
        h("th", {"scope": "col", "class": c.kind, "role": "columnheader" if roles else None}, c.title) for c in columns
    ]
    body = []
    for row in rows:
        cells = []
        for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
            attributes: dict[str, Attribute] = {"class": column.kind + (" empty" if cell == "–" else "")}
            if i == 0:
                attributes["scope"] = "row"
            if roles:
                attributes["role"] = "rowheader" if i == 0 else "cell"
                attributes["data-label"] = column.title
            content = h("div", {}, cell) if cards else cell
            cells.append(h("th" if i == 0 else "td", attributes, content))
        body.append(h("tr", {"role": "row" if roles else None}, *cells))
    group = {"role": "rowgroup" if roles else None}
    inner = h(
        "table",
        {"class": "cards" if cards else None, "role": "table" if roles else None, "aria-label": label},
        h("thead", group, h("tr", {"role": "row" if roles else None}, *head)),
        h("tbody", group, *body),
    )
    return h("div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": label}, inner)


def details(summary: Node, *children: Node, opened: bool = False) -> Html:
    """A part that can be folded away."""
    return h("details", {"open": "" if opened else None}, h("summary", {}, summary), *children)


def sentence(*children: Node) -> Html:
    """What stands in the place of something that is not there."""
    return h("p", {"class": "absent"}, *children)


def code(text: str) -> Html:
    """A name, a path or a value as it stands in a file."""
    return h("code", {}, text)


def tree(value: object, depth: int = 0) -> Html:
    """Any JSON value as nested lists of keys and values."""
    if isinstance(value, Mapping) and value and depth < 8:
        pairs = [(h("dt", {}, str(k)), h("dd", {}, tree(v, depth + 1))) for k, v in value.items()]
        return h("dl", {"class": "tree"}, *(node for pair in pairs for node in pair))
    if isinstance(value, Sequence) and not isinstance(value, str) and value and depth < 8:
        if any(isinstance(v, Mapping | list | tuple) for v in value):
            return h("ol", {"class": "tree"}, *(h("li", {}, tree(v, depth + 1)) for v in value))
        return join(", ".join(scalar(v) for v in value))
    return join(scalar(value))


def scalar(value: object) -> str:
    """A JSON value on one line."""
    if value is None or value in ("", [], {}):
        return "not known" if value is None else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
