"""Write numbers for people: always with their unit, intervals as [low, high], the exact value kept in the markup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .markup import Html, h, join

_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SUFFIX = {"1": "", "1/s": "/s", "": ""}

METRICS = {
    "latency_p50": "latency p50",
    "latency_p90": "latency p90",
    "latency_p95": "latency p95",
    "latency_p99": "latency p99",
    "cold_start": "cold start",
    "peak_memory": "peak memory",
    "top1": "top-1",
    "top5": "top-5",
    "map": "mAP",
    "cer": "CER",
    "sqnr": "SQNR",
    "max_abs": "largest deviation",
}


def metric_name(name: str) -> str:
    """A metric's name in words."""
    return METRICS.get(name, name.replace("_", " "))


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None


def decimals(value: float, digits: int = 3) -> int:
    """Decimals that show ``digits`` significant digits, none for large numbers, at most nine."""
    if value == 0:
        return 0
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), 9)


def plain(value: float, digits: int = 3) -> str:
    """A number with thousands separated.

    >>> plain(12345.6), plain(0.00123), plain(8.4249)
    ('12,346', '0.00123', '8.42')
    """
    return f"{value:,.{decimals(value, digits)}f}"


def scaled(value: float, unit: str) -> tuple[float, str]:
    """The factor and the unit in which a value of this size is read best."""
    if unit in ("bytes", "B"):
        return next(((1 / size, name) for size, name in _BYTES if abs(value) >= size), (1.0, "B"))
    if unit == "ms" and abs(value) >= 10_000:
        return 1e-3, "s"
    if unit == "ms" and 0 < abs(value) < 0.1:
        return 1e3, "µs"
    return 1.0, _SUFFIX.get(unit, unit)


def _places(value: float, unit: str, low: float | None, high: float | None) -> int:
    """Decimals under which the ends of an interval differ, and shares of one always show four."""
    places = 4 if unit == "1" and abs(value) <= 1 else decimals(value)
    if unit in ("bytes", "B") and value < 1000 and value == int(value):
        return 0
    if low is not None and high is not None and low < high:
        while places < 9 and f"{low:.{places}f}" == f"{high:.{places}f}":
            places += 1
    return places


def text(value: float, unit: str) -> str:
    r"""A value with its unit.

    >>> text(8.4249, "ms"), text(1_234_567, "bytes"), text(0.967, "1"), text(119.3, "1/s")
    ('8.42\xa0ms', '1.23\xa0MB', '0.9670', '119\xa0/s')
    """
    factor, name = scaled(value, unit)
    places = 0 if name == "B" else _places(value * factor, unit if factor == 1 else name, None, None)
    return f"{value * factor:,.{places}f}" + (f"\xa0{name}" if name else "")


def bounds(value: float, unit: str, low: float, high: float) -> str:
    """The ends of an interval, in the unit in which `text` shows the value.

    >>> bounds(8.4249, "ms", 8.2, 8.71), bounds(0.0330, "ms", 0.0321, 0.0335), bounds(1407.0, "1/s", 1315.3, 1504.9)
    ('[8.20, 8.71]', '[32.1, 33.5]', '[1,315, 1,505]')
    """
    factor, name = scaled(value, unit)
    places = _places(value * factor, name or unit, low * factor, high * factor)
    return f"[{low * factor:,.{places}f}, {high * factor:,.{places}f}]"


def show(
    value: float, unit: str, low: float | None = None, high: float | None = None, *, like: float | None = None
) -> Html:
    """A value with its unit and, where there is one, its 95 % interval; the exact numbers stay in the markup.

    Args:
        value: The value.
        unit: Its unit.
        low: Lower end of the interval.
        high: Upper end.
        like: A value whose size chooses the unit, so that a column keeps one unit.
    """
    factor, name = scaled(value if like is None else like, unit)
    ends = (None, None) if low is None or high is None else (low * factor, high * factor)
    places = _places(value * factor, name or unit, *ends)
    suffix = f"\xa0{name}" if name else ""
    head = h("data", {"value": repr(value)}, f"{value * factor:,.{places}f}{suffix}")
    if low is None or high is None:
        return head
    exact = [h("data", {"value": repr(v)}, f"{v * factor:,.{places}f}") for v in (low, high)]
    return join(head, " ", h("span", {"class": "interval"}, "[", exact[0], ", ", exact[1], "]"))


def measurement(value: Mapping[str, Any] | None) -> Html | None:
    """A measurement's value and interval; None when it is not there or not a number."""
    got = number(value.get("value")) if value else None
    if value is None or got is None:
        return None
    return show(got, str(value.get("unit", "")), number(value.get("low")), number(value.get("high")))


def percent(share: float, *, signed: bool = False) -> str:
    r"""A share as whole per cent, with a true minus sign.

    >>> percent(0.36), percent(-0.371, signed=True)
    ('36\xa0%', '−37\xa0%')
    """
    return f"{share * 100:{'+' if signed else ''}.0f}\xa0%".replace("-", "−")


def count(n: int, thing: str) -> str:
    """How many of a thing.

    >>> count(1, "node"), count(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{n:,} {thing}" + ("" if n == 1 else "s")


def factor(value: float, low: float | None = None, high: float | None = None) -> Html:
    """A speed-up such as 1.70× [1.66, 1.74]."""
    head = h("data", {"value": repr(value)}, f"{value:.2f}×")
    if low is None or high is None or not math.isfinite(high):
        return head
    return join(head, " ", h("span", {"class": "interval"}, f"[{low:.2f}, {high:.2f}]"))


def short(digest: object) -> Html:
    """A digest, cut for reading, whole when pointed at or copied from the title."""
    whole = str(digest)
    head, _, rest = whole.partition(":")
    cut = f"{head}:{rest[:12]}…" if len(rest) > 16 else whole
    return h("code", {"title": whole, "class": "digest"}, cut)
