"""Edits of JSON that keep it JSON: changed bytes rarely get past a parser, and what lies behind it needs work too."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -0.0, -1, 1, 2, 0.5, 1e308, -1e308, 5e-324, 2**31, 2**53 - 1, -(2**53) + 1, "", "\u0000",
    "\U0001f600", "../x", "sha256:" + "0" * 64, "9" * 400, [], {}, [[]], [None], {"": None}, [0] * 3000, "1e999999",
    "2026-12-01T09:30:00Z",
)  # fmt: skip


def edited(data: bytes, rng: random.Random) -> bytes | None:
    """The text with one to four values replaced, swapped, dropped, doubled or named anew; None when it is no JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    holder = [value]
    for _ in range(rng.randint(1, 4)):
        places = list(_places(holder))
        if places:
            _edit(*rng.choice(places), places, rng)
    try:
        return json.dumps(
            holder[0] if holder else None, separators=(",", ":"), sort_keys=True, ensure_ascii=False
        ).encode()
    except (ValueError, RecursionError):
        return None


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index)."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def _edit(container: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    how = rng.randrange(6)
    if how == 0:
        container[key] = copy.deepcopy(rng.choice(VALUES))
    elif how == 1:
        other, at = rng.choice(places)
        container[key] = copy.deepcopy(other[at])
    elif how == 2:
        container[key] = _near(container[key], rng)
    elif how == 3 and isinstance(container, list):
        container[key : key + 1] = [container[key]] * rng.choice((0, 2, 2, 40))
    elif how == 4 and isinstance(container, dict):
        container[rng.choice((key + "x", "", "schema", key[:-1]))] = container.pop(key)
    elif isinstance(container, dict):
        del container[key]


def _near(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice((value + 1, -value, value * 2, value / 3, value * 10**6, value + 2.0**-30))
    if isinstance(value, str):
        at = rng.randint(0, len(value))
        return value[:at] + rng.choice(("", "0", "/", "\u00e9", "A", " ", "-", "\n")) + value[at + rng.randint(0, 2) :]
    return list(value.values()) if isinstance(value, dict) else {str(i): v for i, v in enumerate(value)}
