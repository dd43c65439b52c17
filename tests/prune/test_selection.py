"""Which units go, and how many."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.prune.account import account
from edgeproof.prune.channels import channels
from edgeproof.prune.importance import scores
from edgeproof.prune.removal import remove
from edgeproof.prune.selection import RANKS, Limits, choose
from passes.small_models import build, node
from prune.nets import HEAD, NETS, head, w


def wide() -> object:
    return build(
        [
            node("Conv", "x a", "c"),
            node("Relu", "c", "r"),
            node("Conv", "r b", "d", pads=[1] * 4),
            node("Relu", "d", "e"),
            node("Conv", "e k", "h"),
            *HEAD,
        ],
        {"x": (1, 3, 16, 16)},
        "y",
        {"a": w(32, 3, 1, 1), "b": w(64, 32, 3, 3), "k": w(48, 64, 1, 1), **head(48)},
    )


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("round_to", [1, 8])
def test_at_most_the_share_is_left_and_not_much_less(rank: str, keep: float, round_to: int) -> None:
    found = channels(wide())
    gone = choose(found, scores(found), keep, rank=rank, limits=Limits(round_to))
    left = account(found, gone, remove(found, gone)).macs
    assert left[1] <= keep * left[0]
    step = 0.02 if round_to == 1 else 0.2  # eight of 64 channels that 64 % of the work hang on
    assert left[1] > (keep - step) * left[0]


def test_what_stays_is_a_multiple() -> None:
    found = channels(wide())
    gone = choose(found, scores(found), 0.4, limits=Limits(8))
    for group in found.groups:
        assert (~gone[group.units]).sum() % 8 == 0


def test_a_layer_of_fewer_channels_than_the_multiple_stays_whole() -> None:
    found = channels(NETS["a squeeze-and-excitation gate"].model(dead=False))
    gone = choose(found, scores(found), 0.1, limits=Limits(8, least_share=0))
    assert not gone.any()


def test_every_layer_keeps_its_least() -> None:
    found = channels(wide())
    gone = choose(found, scores(found), 0.001, limits=Limits(1, least=5, least_share=0.25))
    assert [int((~gone[g.units]).sum()) for g in found.groups] == [8, 16, 12]
    gone = choose(found, scores(found), 0.001, limits=Limits(1, least=20, least_share=0))
    assert [int((~gone[g.units]).sum()) for g in found.groups] == [20, 20, 20]


def test_no_axis_becomes_empty_whatever_the_scores_say() -> None:
    found = channels(NETS["a split"].model(dead=False))
    importance = np.arange(found.units, dtype=float)  # the first half of the split is the least important
    gone = choose(found, importance, 0.01, rank="global", limits=Limits(1, least_share=0))
    for labels in found.trace.every_axis():
        assert not np.append(gone, False)[found.of(labels)].all()


def test_the_same_share_of_every_layer_goes() -> None:
    found = channels(wide())
    gone = choose(found, scores(found), 0.5, rank="layer", limits=Limits(1))
    shares = [gone[g.units].mean() for g in found.groups]
    assert max(shares) - min(shares) < 0.05


def test_the_least_important_of_a_layer_go_first() -> None:
    found = channels(wide())
    importance = scores(found)
    for rank in RANKS:
        gone = choose(found, importance, 0.5, rank=rank, limits=Limits(1))
        for group in found.groups:
            held = importance[group.units]
            lost = gone[group.units]
            if lost.any():
                assert held[lost].max() <= held[~lost].min()


def test_a_unit_without_a_score_stays() -> None:
    found = channels(wide())
    importance = scores(found)
    first = found.groups[0].units
    importance[first] = np.nan
    gone = choose(found, importance, 0.5, limits=Limits(1))
    assert gone.any()
    assert not gone[first].any()


def test_scores_per_work_spare_channels_that_cost_little() -> None:
    found = channels(wide())
    flat = np.ones(found.units)
    gone = choose(found, flat, 0.6, rank="macs", limits=Limits(1))
    saved = found.savings()
    assert saved[gone].min() >= np.median(saved[~gone])


def test_keeping_all_removes_nothing() -> None:
    found = channels(wide())
    assert not choose(found, scores(found), 1.0).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0.0}, "above 0"),
        ({"keep": 1.5}, "at most 1"),
        ({"rank": "globl"}, "did you mean 'global'"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    found = channels(wide())
    with pytest.raises(InputError, match=message):
        choose(found, scores(found), **{"keep": 0.5, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"round_to": 0}, {"least": 0}, {"least_share": 1.5}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Limits(**wrong)  # type: ignore[arg-type]
