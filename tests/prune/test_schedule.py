"""Shares after each step."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.prune.schedule import COURSES, schedule


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_shares_fall_and_end_at_the_target(course: str, steps: int) -> None:
    shares = schedule(steps, 0.3, course)
    assert len(shares) == steps
    assert shares[-1] == pytest.approx(0.3)
    assert all(a > b for a, b in zip((1.0, *shares), shares, strict=False))


def test_a_geometric_course_takes_the_same_share_of_what_is_left() -> None:
    shares = np.asarray((1.0, *schedule(4, 0.4)))
    np.testing.assert_allclose(shares[1:] / shares[:-1], 0.4 ** (1 / 4))


def test_an_even_course_takes_the_same_amount() -> None:
    np.testing.assert_allclose(np.diff((1.0, *schedule(4, 0.4, "even"))), -0.15)


def test_the_cubic_course_is_that_of_its_paper() -> None:
    """Zhu and Gupta, eq. 1: s_t = s_f + (s_i - s_f)(1 - t / n)³ with s_i = 0."""
    final = 1 - 0.4
    want = [1 - (final + (0 - final) * (1 - t / 5) ** 3) for t in range(1, 6)]
    np.testing.assert_allclose(schedule(5, 0.4, "cubic"), want)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        schedule(0, 0.5)
    with pytest.raises(InputError, match="above 0"):
        schedule(2, 0.0)
    with pytest.raises(InputError, match="did you mean 'even'"):
        schedule(2, 0.5, "evn")
