import doctest
from itertools import product as every
from math import ceil

import edgeproof.graph.symbolic as symbolic
from edgeproof.graph.symbolic import Amount, ceil_div, largest, product, total


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(symbolic).failed == 0


def test_arithmetic_is_that_of_polynomials() -> None:
    n, h = Amount.of("n"), Amount.of("h")
    square = (n + h) * (n + h)
    assert square == product([2, "n", "h"]) + n * n + h * h
    assert square.at({"n": 3, "h": 4}).value == 49
    assert str(square) == "h^2 + 2*h*n + n^2"


def test_numbers_stay_numbers() -> None:
    assert product([2, 3, 4]).value == 24
    assert product([2, 0, "n"]).value == 0
    assert total([]).value == 0
    assert product([]).value == 1
    assert Amount.of("n").value is None


def test_factors_inside_a_symbol_are_taken_out() -> None:
    assert product(["2*h", "3*h"]) == product([6, "h", "h"])


def test_covering_never_claims_what_does_not_hold() -> None:
    # Every small polynomial in one symbol, tried on a range of values.
    amounts = [Amount.of(c) + product([b, "n"]) for b, c in every(range(4), range(4))]
    for a, b in every(amounts, amounts):
        holds = all((a.at({"n": n}).value or 0) >= (b.at({"n": n}).value or 0) for n in range(1, 50))
        assert a.covers(b) == holds or not a.covers(b)
        if b.value is not None and a.value is not None:
            assert a.covers(b) == holds


def test_the_largest_is_open_when_it_depends_on_the_symbols() -> None:
    n, h = product([5, "n"]), product([5, "h"])
    assert largest([n, h]) is None
    assert largest([product([4, "n"]), n]) == n
    assert largest([product([5]), n]) == n
    assert largest([]) is None


def test_nested_ceilings_merge_as_numbers_do() -> None:
    for size in range(1, 100):
        assert ceil(ceil(size / 2) / 3) == ceil(size / 6)
    assert ceil_div(ceil_div("w", 2), 3) == "ceil(w/6)"
    assert ceil_div("w", 1) == "w"
