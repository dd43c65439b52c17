"""Part the samples that make ranges from the few that only judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ..dataset import Feeds
from ..protocols import Context


def apart(context: Context, samples: int, held: int) -> tuple[Context, list[Feeds]]:
    """Keep the last samples back.

    Args:
        context: With feeds.
        samples: Use the first so many samples; 0 means all.
        held: How many of them are kept back, a quarter of all at most.

    Returns:
        A context with the other samples, in which calibration is shared among passes, and the samples kept back.
    """
    given = context.feeds
    assert given is not None
    total = min(samples or context.samples, context.samples)
    count = total - min(held, total // 4)

    def feeds() -> Iterator[Feeds]:
        return islice(given(), count)

    return replace(context, feeds=feeds, samples=count, calibration={}), list(islice(given(), count, total))
