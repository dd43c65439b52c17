"""Read JSON that someone else wrote, with one meaning only and at a bounded price.

What two readers could read differently is refused: a key twice, NaN and infinities, numbers too large for a double,
integers that a double cannot hold, half of a surrogate pair, bytes that are no UTF-8, anything after the value. What
would cost more than it carries is refused too: too many bytes, too deep, too many containers.
Source: RFC 8259; RFC 7493 (I-JSON) sections 2.1 to 2.3; RFC 8785 for the canonical form.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

from .digest import canonical_json
from .errors import InputError, did_you_mean

LIMIT_BYTES = 16 * 2**20
DEPTH = 64
CONTAINERS = 1_000_000
"""Most objects and lists in one text; each takes some 100 bytes when read, so this bounds memory."""
_EXACT = 2**53
_LONGEST = len("-999999999999999934464")
"""Of a double that RFC 8785 writes as an integer: the largest below 1e21, with a sign."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(
    data: bytes, subject: str, *, limit_bytes: int = LIMIT_BYTES, depth: int = DEPTH, canonical: bool = False
) -> Any:
    """Read one JSON value.

    Args:
        data: The text, UTF-8.
        subject: What is being read, for errors.
        limit_bytes: Longest text allowed.
        depth: Deepest nesting allowed; a number alone has depth 0.
        canonical: Also demand that the text is the RFC 8785 form of its value.

    Raises:
        InputError: json.too_large, json.not_utf8, json.syntax, json.trailing, json.duplicate_key, json.not_finite,
            json.integer, json.surrogate, json.too_many, json.too_deep, json.not_canonical.
    """
    if len(data) > limit_bytes:
        raise _refused("too_large", subject, f"has {len(data)} bytes; at most {limit_bytes} are read")
    if data.count(b"[") + data.count(b"{") > CONTAINERS:
        raise _refused("too_many", subject, f"has more than {CONTAINERS} objects and lists")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise _refused("not_utf8", subject, f"is not UTF-8 (byte {e.start})") from e
    value = _parsed(text, subject, depth)
    if _deepest(data) > depth:
        raise _too_deep(subject, depth)
    if _SURROGATE.search(data):
        _check_surrogates(value, subject)
    if canonical:
        _check_canonical(value, data, subject)
    return value


def canonical(value: Any, subject: str = "value") -> bytes:
    """A JSON value as RFC 8785 bytes that `loads` reads back.

    Raises:
        InputError: json.not_canonical, when the value has no such form: NaN, infinities, integers of 2^53 or more,
            half a surrogate pair, a value that is not JSON.
    """
    try:
        return canonical_json(value)
    except (ValueError, TypeError) as e:
        raise _refused("not_canonical", subject, f"has no RFC 8785 form: {e}") from e


def keys(value: Any, required: Iterable[str], optional: Iterable[str] = (), subject: str = "value") -> dict[str, Any]:
    """Hold a value against a closed set of keys.

    Returns:
        The value itself.

    Raises:
        InputError: json.not_object, json.missing_key, json.unknown_key.
    """
    if not isinstance(value, dict):
        raise _refused("not_object", subject, f"is {type(value).__name__}; expected an object")
    needed, known = set(required), set(required) | set(optional)
    missing, unknown = sorted(needed - value.keys()), sorted(value.keys() - known)
    if missing:
        raise _refused("missing_key", subject, f"lacks {', '.join(map(repr, missing))}")
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise InputError("json.unknown_key", subject, f"has the unknown key {_short(unknown[0])}", hint)
    return value


def _parsed(text: str, subject: str, depth: int) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            twice = Counter(k for k, _ in items).most_common(1)[0][0]
            raise _refused("duplicate_key", subject, f"has the key {_short(twice)} twice in one object")
        return found

    def integer(digits: str) -> int | float:
        # The length first: turning a long text into an integer takes time that grows with its square.
        value = float(digits) if len(digits) <= _LONGEST else 0.0
        if abs(value) > _EXACT and canonical(value) == digits.encode():
            return value  # RFC 8785 writes a double below 1e21 without a point
        if len(digits) > 17 or abs(int(digits)) >= _EXACT:
            raise _refused("integer", subject, f"has the integer {_short(digits)}; a double holds less than 2^53")
        return int(digits)

    def number(digits: str) -> float:
        found = float(digits)
        if not math.isfinite(found):
            raise _refused("not_finite", subject, f"has the number {_short(digits)}, too large for a double")
        return found

    def constant(name: str) -> NoReturn:
        raise _refused("not_finite", subject, f"has {name}, which is not JSON")

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_int=integer, parse_float=number, parse_constant=constant)
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as e:
        if e.msg == "Extra data":
            raise _refused("trailing", subject, f"goes on after its value (line {e.lineno}, column {e.colno})") from e
        raise _refused("syntax", subject, f"is not JSON: {e}") from e
    except RecursionError as e:
        raise _too_deep(subject, depth) from e


def _deepest(data: bytes) -> int:
    """Deepest nesting of a text that is known to be JSON."""
    now = most = 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            now += 1
            most = max(most, now)
        elif first in b"]}":
            now -= 1
    return most


def _check_surrogates(value: Any, subject: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise _refused("surrogate", subject, "has half of a surrogate pair in a text") from e


def _check_canonical(value: Any, data: bytes, subject: str) -> None:
    if canonical(value, subject) != data:
        raise _refused("not_canonical", subject, "is not written in its RFC 8785 form")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _too_deep(subject: str, depth: int) -> InputError:
    return _refused("too_deep", subject, f"is nested more than {depth} deep")


def _refused(rule: str, subject: str, problem: str) -> InputError:
    return InputError(f"json.{rule}", subject, problem, "get the file anew from where it was made")
