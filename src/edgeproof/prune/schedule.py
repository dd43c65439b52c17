"""Pruning in steps, with training between them: how much is left after each, as data for whoever trains."""

from __future__ import annotations

from typing import Literal

from ..errors import InputError, did_you_mean

Course = Literal["even", "geometric", "cubic"]
COURSES: tuple[Course, ...] = ("even", "geometric", "cubic")


def schedule(steps: int, keep: float, course: str = "geometric") -> tuple[float, ...]:
    """The share that is left after each step, relative to the whole model.

    Args:
        steps: How many.
        keep: The share that is left in the end, above 0 and at most 1.
        course: ``geometric`` takes the same share of what is left every time; ``even`` the same amount; ``cubic`` much
            at first and little in the end. Source of the last: Zhu and Gupta 2017, to prune or not to prune, eq. 1.

    Returns:
        One share a step, falling, the last of them ``keep``.

    Raises:
        InputError: prune.steps, prune.keep, prune.course.

    >>> schedule(2, 0.25)
    (0.5, 0.25)
    >>> schedule(2, 0.5, "even")
    (0.75, 0.5)
    >>> schedule(2, 0.2, "cubic")  # sparsity 0.8, of which 7/8 after half of the steps
    (0.3, 0.2)
    """
    if steps < 1:
        raise InputError("prune.steps", "steps", f"is {steps}; expected at least 1", "try 5")
    if not 0 < keep <= 1:
        raise InputError("prune.keep", "keep", f"is {keep}; expected a share above 0, at most 1", "0.5 halves the work")
    if course not in COURSES:
        raise InputError("prune.course", course, "is unknown", did_you_mean(course, COURSES))
    shares = []
    for step in range(1, steps + 1):
        part = step / steps
        if course == "geometric":
            share = keep**part
        elif course == "even":
            share = 1 - (1 - keep) * part
        else:
            share = keep + (1 - keep) * (1 - part) ** 3
        shares.append(round(share, 12))
    return tuple(shares)
