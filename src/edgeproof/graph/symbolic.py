"""Whole numbers with open dimensions in them: polynomials with integer coefficients, e.g. ``1228800*N + 64``.

Every symbol stands for a dimension or a trip count, so it is at least 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Dim = int | str
Monomial = tuple[str, ...]
"""Symbols of one product, sorted; empty for the constant term."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A polynomial in open dimensions. `terms` holds no zero coefficient."""

    terms: Mapping[Monomial, int]

    @staticmethod
    def of(dim: Dim) -> Amount:
        """A number or one symbol."""
        return product([dim])

    @property
    def value(self) -> int | None:
        """The number, or None while a symbol is in it."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __add__(self, other: Amount) -> Amount:
        """Sum."""
        terms = Counter(self.terms)
        for monomial, n in other.terms.items():
            terms[monomial] += n
        return Amount({m: n for m, n in terms.items() if n})

    def __mul__(self, other: Amount) -> Amount:
        """Product."""
        terms: Counter[Monomial] = Counter()
        for a, n in self.terms.items():
            for b, k in other.terms.items():
                terms[tuple(sorted(a + b))] += n * k
        return Amount({m: n for m, n in terms.items() if n})

    def covers(self, other: Amount) -> bool:
        """Whether this is at least ``other`` whatever the symbols are.

        Sufficient, not necessary: every term of ``other`` is matched by terms here whose product holds at least the
        same symbols.
        """
        spare: Counter[Monomial] = Counter()
        short: list[tuple[Monomial, int]] = []
        for m in {*self.terms, *other.terms}:
            n = self.terms.get(m, 0) - other.terms.get(m, 0)
            if n > 0:
                spare[m] = n
            elif n < 0:
                short.append((m, -n))
        for m, n in sorted(short, key=lambda mn: -len(mn[0])):
            left = n
            for s in sorted(spare, key=len):
                if not Counter(m) - Counter(s):
                    used = min(left, spare[s])
                    spare[s] -= used
                    left -= used
            if left:
                return False
        return True

    def at(self, symbols: Mapping[str, int]) -> Amount:
        """With numbers in the place of some symbols."""
        total = Amount.of(0)
        for m, n in self.terms.items():
            total += product([n, *(symbols.get(s, s) for s in m)])
        return total

    def to_json(self) -> int | str:
        """The number, or the expression as text."""
        return str(self) if self.value is None else self.value

    def __str__(self) -> str:
        """E.g. ``1228800*N + 64``, highest powers first."""
        if not self.terms:
            return "0"
        parts = []
        for m, n in sorted(self.terms.items(), key=lambda mn: (-len(mn[0]), mn[0])):
            factors = [s if k == 1 else f"{s}^{k}" for s, k in Counter(m).items()]
            parts.append("*".join(([str(n)] if n != 1 or not m else []) + factors))
        return " + ".join(parts).replace("+ -", "- ")


def product(dims: Iterable[Dim]) -> Amount:
    """Product of dimensions; 1 for none. A symbol may carry a factor: ``2*h``.

    >>> str(product([2, "N", 3, "2*N"]))
    '12*N^2'
    """
    number = 1
    symbols: list[str] = []
    for d in dims:
        if isinstance(d, str):
            for factor in _factors(d):
                number *= int(factor) if factor.isdigit() else 1
                symbols += [] if factor.isdigit() else [factor]
        else:
            number *= d
    return Amount({tuple(sorted(symbols)): number} if number else {})


def _factors(symbol: str) -> list[str]:
    """Factors of a dimension's name, powers written out; a name that is a sum stays whole, in parentheses.

    >>> _factors("2*h*floor(w/2)^2"), _factors("s0 + 1")
    (['2', 'h', 'floor(w/2)', 'floor(w/2)'], ['(s0 + 1)'])
    """
    parts = [""]
    depth = 0
    for c in symbol:
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c in "+-/ ":
            return [f"({symbol})"]
        if depth == 0 and c == "*":
            parts.append("")
        else:
            parts[-1] += c
    factors: list[str] = []
    for part in parts:
        name, hat, power = part.rpartition("^")
        factors += [name] * int(power) if hat and power.isdigit() else [part]
    return factors if all(factors) else [f"({symbol})"]


def total(amounts: Iterable[Amount]) -> Amount:
    """Sum of amounts."""
    terms: Counter[Monomial] = Counter()
    for a in amounts:
        for m, n in a.terms.items():
            terms[m] += n
    return Amount({m: n for m, n in terms.items() if n})


def largest(amounts: Iterable[Amount]) -> Amount | None:
    """The amount that covers all others, or None when that depends on the symbols (or there is none)."""
    best: Amount | None = None
    kept: list[Amount] = []
    for a in amounts:
        kept.append(a)
        if best is None or a.covers(best):
            best = a
    return best if best is not None and all(best.covers(a) for a in kept) else None


def ceil_div(dim: Dim, divisor: int) -> Dim:
    """``ceil(dim / divisor)``, nested ones merged.

    >>> ceil_div("h", 2), ceil_div("ceil(h/2)", 2), ceil_div("h+1", 2), ceil_div(7, 2)
    ('ceil(h/2)', 'ceil(h/4)', 'ceil((h+1)/2)', 4)
    """
    if isinstance(dim, int):
        return -(-dim // divisor)
    if divisor == 1:
        return dim
    dim = str(product([dim]))  # a sum gets its parentheses
    inner = dim.removeprefix("ceil(").removesuffix(")")
    name, slash, number = inner.rpartition("/")
    if dim.startswith("ceil(") and slash and number.isdigit() and "(" not in name:
        return f"ceil({name}/{int(number) * divisor})"
    return f"ceil({dim}/{divisor})"
