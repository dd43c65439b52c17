"""Which units go: the least important ones, until a share of the multiply-accumulates is left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from .channels import FIXED, Channels, Group
from .importance import Scores

Rank = Literal["global", "macs", "layer"]
RANKS: tuple[Rank, ...] = ("global", "macs", "layer")
TIE = 1e-7
"""Keeps groups of the same size from losing units all at the same threshold."""

Gone = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limits:
    """What every layer keeps.

    Attributes:
        round_to: Channels that stay are a multiple of this, where the size of a layer allows it.
        least: A layer keeps at least so many units.
        least_share: And at least this share of them.
    """

    round_to: int = 8
    least: int = 1
    least_share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            InputError: prune.round_to, prune.least, prune.least_share.
        """
        if self.round_to < 1:
            raise InputError("prune.round_to", "round_to", f"is {self.round_to}; expected at least 1", "1, 8 or 16")
        if self.least < 1:
            raise InputError("prune.least", "least", f"is {self.least}; expected at least 1", "a layer needs a channel")
        if not 0 <= self.least_share <= 1:
            raise InputError("prune.least_share", "least_share", f"is {self.least_share}; expected 0 to 1", "try 0.1")


def choose(
    channels: Channels,
    importance: Scores,
    keep: float,
    *,
    rank: str = "global",
    limits: Limits = Limits(),
) -> Gone:
    """The least important units, as few as bring the multiply-accumulates down to a share.

    Args:
        channels: What can be removed.
        importance: From `edgeproof.prune.importance.scores`; a unit of NaN stays.
        keep: Share of the multiply-accumulates that may be left, above 0 and at most 1.
        rank: ``global`` compares scores over all groups; ``macs`` scores per multiply-accumulate saved; ``layer`` takes
            the same share from every group.
        limits: What every layer keeps.

    Returns:
        bool [units]: which units go. When the limits do not let as many go, all that they do.

    Raises:
        InputError: prune.keep, prune.rank.
    """
    if not 0 < keep <= 1:
        raise InputError("prune.keep", "keep", f"is {keep}; expected a share above 0, at most 1", "0.5 halves the work")
    if rank not in RANKS:
        raise InputError("prune.rank", rank, "is unknown", did_you_mean(rank, RANKS))
    values = _values(channels, importance, rank)
    ranked = [_Ranked(g, values, limits) for g in channels.groups]
    covers = list(_covers(channels))
    target = keep * channels.macs()

    def without(stays: list[int]) -> Gone:
        gone = np.zeros(channels.units, bool)
        for group, n in zip(ranked, stays, strict=True):
            gone[group.order[n:]] = True
        return _uncovered(gone, covers, importance)

    thresholds = [*np.unique(values[np.isfinite(values)]).tolist(), math.inf]
    low, high = -1, len(thresholds) - 1  # at the last, everything goes that may
    while high - low > 1:
        middle = (low + high) // 2
        fits = channels.macs(without([g.at(thresholds[middle]) for g in ranked])) <= target
        low, high = (low, middle) if fits else (middle, high)
    stays = [g.at(thresholds[high]) for g in ranked]
    for i in sorted(range(len(ranked)), key=lambda i: -ranked[i].next_value(stays[i])):
        more = [*stays[:i], ranked[i].more(stays[i]), *stays[i + 1 :]]
        if channels.macs(without(more)) <= target:  # many units leave at one threshold: give back what fits
            stays = more
    return without(stays)


def _values(channels: Channels, importance: Scores, rank: str) -> Scores:
    """What the threshold is compared with; NaN stays."""
    if rank == "layer":
        values = np.full(channels.units, np.nan)
        for place, group in enumerate(channels.groups):
            held = importance[group.units]
            order = np.argsort(np.argsort(held, kind="stable"), kind="stable")
            values[group.units] = np.where(np.isnan(held), np.nan, (order + 1) / len(held) + TIE * place)
        return values
    saved = channels.savings() / max(channels.macs(), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(saved > 0, importance / saved if rank == "macs" else importance, np.nan)


class _Ranked:
    """A group with its units in order, most important first, and how many of them may stay."""

    def __init__(self, group: Group, values: Scores, limits: Limits) -> None:
        held = np.where(np.isnan(values[group.units]), np.inf, values[group.units])
        self.order = group.units[np.lexsort((group.units, -held))]
        self._values = np.sort(held)[::-1]
        self._counts = np.asarray(list(_allowed(group, limits)), np.int64)

    def at(self, threshold: float) -> int:
        """How many stay when those below a threshold should go."""
        wanted = int(np.count_nonzero(self._values >= threshold))
        return int(self._counts[np.searchsorted(self._counts, wanted)])

    def more(self, stays: int) -> int:
        """The next larger number that may stay."""
        return int(self._counts[min(int(np.searchsorted(self._counts, stays, "right")), len(self._counts) - 1)])

    def next_value(self, stays: int) -> float:
        """What the most important unit that goes is worth."""
        return float(self._values[stays]) if stays < len(self._values) else -math.inf


def _allowed(group: Group, limits: Limits) -> Iterator[int]:
    """Numbers of units that may stay, ascending; the last is all."""
    n = len(group.units)
    least = max(limits.least, math.ceil(limits.least_share * n), 1)
    shares = [(int((p.units == FIXED).sum()), _each(p.units)) for p in group.made]
    for k in range(min(least, n), n):
        if all(each is None or (fixed + k * each) % limits.round_to == 0 for fixed, each in shares):
            yield k
    yield n


def _each(units: NDArray[np.int64]) -> int | None:
    """How many indices each unit has along an axis; None when they differ."""
    counts = np.unique(np.unique(units[units != FIXED], return_counts=True)[1])
    return int(counts[0]) if len(counts) == 1 else None


def _covers(channels: Channels) -> Iterator[NDArray[np.int64]]:
    """The units of every axis that would be empty without all of them."""
    known: set[bytes] = set()
    for labels in channels.trace.every_axis():
        units = np.unique(channels.of(labels))
        if len(units) and units[0] != FIXED and units.tobytes() not in known:
            known.add(units.tobytes())
            yield units


def _uncovered(gone: Gone, covers: list[NDArray[np.int64]], importance: Scores) -> Gone:
    """Put the most important unit back where an axis would be empty."""
    for units in covers:
        if gone[units].all():
            gone[units[int(np.nanargmax(np.nan_to_num(importance[units])))]] = False
    return gone
