"""A finished run of the main job, reviewed: its receipts, its data and its confirmations come along."""

from __future__ import annotations

import shutil

import pytest

from edgeproof.evidence.verify import verify
from edgeproof.policy import Policy
from edgeproof.review import prepare, run
from edgeproof.review.gather import Given
from small_runs import finished_run, size_policy

TIME = "2026-12-01T09:30:00Z"
POLICY = size_policy(2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run in ``run``, of the model ``net.onnx``."""
    return finished_run(tmp_path_factory.mktemp("reviewed"))


def reviewed(made, folder, policy=POLICY):
    done = prepare(
        folder / "review",
        baseline=made / "net.onnx",
        candidate=made / "run/candidates/int8/model.onnx",
        policy=policy,
        change="INT8",
        given=[Given((made / "run",))],
    )
    return done, run(folder / "review", folder / "evidence.zip", timestamp=TIME)


def test_a_finished_run_brings_its_receipts_and_is_decided_again(made, tmp_path):
    done, decided = reviewed(made, tmp_path)
    assert done.unused == ()
    kinds = {(role, r.kind) for role, r in done.receipts}
    assert kinds == {
        ("baseline", "runs"), ("baseline", "quality"), ("control", "runs"), ("candidate", "runs"),
        ("candidate", "quality"),
    }  # fmt: skip
    assert [c.reason for c in decided.sealed.verdict.checks if c.state != "pass"] == []
    assert verify(tmp_path / "evidence.zip").differences == ()


def test_a_policy_that_was_changed_after_measuring_uses_none_of_the_runs_receipts(made, tmp_path):
    laxer = Policy("size", POLICY.rules[:1], runs=2, inferences=5)
    done, decided = reviewed(made, tmp_path, laxer)
    assert {"another policy" in u.why for u in done.unused} == {True}
    assert decided.sealed.verdict.state == "hold"


def test_a_run_that_confirmed_another_model_is_set_aside(made, tmp_path):
    done = prepare(
        tmp_path / "review",
        baseline=made / "run/candidates/int8/model.onnx",
        candidate=made / "net.onnx",
        policy=POLICY,
        change="back to float",
        given=[Given((made / "run",))],
    )
    assert all("another model" in u.why or "confirmed no candidate" in u.why for u in done.unused)
    assert done.unused
    assert run(tmp_path / "review", tmp_path / "e.zip", timestamp=TIME).sealed.verdict.state == "hold"


def test_confirmations_in_the_run_count_against_the_declared_looks(made, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(made / "run", again)
    from edgeproof.workspace import Workspace

    workspace = Workspace.open(again)
    line = next(v for v in workspace.ledger() if v.get("kind") == "quality-confirm" and v.get("candidate") == "int8")
    tried = {k: v for k, v in line.items() if k not in ("n", "previous")}
    workspace.record({**tried, "candidate": "int8", "result": "sha256:another-try"})
    prepare(
        tmp_path / "review",
        baseline=made / "net.onnx",
        candidate=again / "candidates/int8/model.onnx",
        policy=POLICY,
        change="INT8",
        given=[Given((again,))],
    )
    verdict = run(tmp_path / "review", tmp_path / "e.zip", timestamp=TIME).sealed.verdict
    assert verdict.state == "hold"
    assert "2 confirmations" in verdict.why
