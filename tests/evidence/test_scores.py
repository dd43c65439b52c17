"""Scores of every kind are decided on again, at a price that their evidence cannot raise."""

import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from edgeproof.errors import TrustError
from edgeproof.evidence.verify import verify
from edgeproof.policy import Policy, Rule
from evidence_files import EXAMPLES, POLICY, golden_signer, number, values, write

SIGNER = golden_signer()


def cosines(role: str) -> tuple[Any, ...]:
    return tuple({"y": 0.999 + number(f"{role} {i}", 1000) / 1e6} for i in range(EXAMPLES))


def energies(role: str) -> tuple[Any, ...]:
    """Signal far above what counts of boxes or characters reach, and an output that broke."""
    broken = {0: [0.0, 1e300]} if role == "candidate" else {}  # a third of the resamples lacks it
    return tuple({"y": broken.get(i, [1e9 + number(f"{role} {i}", 1000), 1e3])} for i in range(EXAMPLES))


@pytest.mark.parametrize(("metric", "scores", "state"), [("cosine", cosines, "accept"), ("sqnr", energies, "hold")])
def test_scores_against_the_original_are_sealed_and_decided_again(
    tmp_path: Path, metric: str, scores: Callable[[str], tuple[Any, ...]], state: str
) -> None:
    quality = Rule("quality", "<=", Decimal("0.05" if metric == "cosine" else "3"), "drop", "baseline")
    policy = replace(POLICY, rules=(quality, *POLICY.rules[1:]))
    path = tmp_path / "e.zip"
    write(values(policy, metric, scores), path, [SIGNER])
    found = verify(path, keys=[SIGNER.public_key])
    assert (found.differences, found.trusted, found.state) == ((), True, state)


def eight_rules() -> Policy:
    """As many rules on quality as evidence may have."""
    rules = (Rule("quality", "<=", Decimal(i) / 100, "drop", "baseline") for i in range(1, 9))
    return replace(POLICY, rules=(*rules, *POLICY.rules[1:]))


def crowded(role: str) -> tuple[Any, ...]:
    """18 pictures of 1,000 detections that match at all ten thresholds: with eight rules, 3.2 million numbers."""
    last = 999 if role == "candidate" else 1000
    return tuple([[[1, 1, 1023, 0]] * (last if i else 1000), [[1, 1000]]] for i in range(18))


def test_scores_that_would_take_minutes_to_decide_on_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(TrustError) as e:
        write(values(eight_rules(), "map", crowded), tmp_path / "e.zip", [SIGNER])
    assert e.value.code == "evidence.work"


def test_memory_does_not_follow_the_number_of_boxes_that_scores_only_claim(tmp_path: Path) -> None:
    def claimed(role: str) -> tuple[Any, ...]:
        hit = 1023 if role == "baseline" else 1022
        return tuple([[[1, 1, hit, 0]], [[1, 10_000_000]]] for _ in range(EXAMPLES))

    write(values(POLICY, "map", claimed), tmp_path / "e.zip", [SIGNER])
    assert verify(tmp_path / "e.zip", keys=[SIGNER.public_key]).differences == ()


def test_an_evaluator_of_a_kind_that_none_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrustError) as e:
        write(values(POLICY, "evaluator", lambda role: (0.5,) * EXAMPLES), tmp_path / "e.zip", [SIGNER])
    assert e.value.code == "evidence.evaluator_kind"
