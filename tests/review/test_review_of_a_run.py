"""A finished run of the main job, reviewed: its receipts, its data and its confirmations come along."""

from __future__ import annotations

import shutil
from decimal import Decimal

import numpy as np
import pytest

from edgeproof.backends.onnxruntime import OnnxRuntime
from edgeproof.dataset import load_spec
from edgeproof.evidence.verify import verify
from edgeproof.model import save_model
from edgeproof.optimize import optimize
from edgeproof.policy import Policy, Rule
from edgeproof.recipe import Recipe, Step
from edgeproof.review import prepare, run
from edgeproof.review.gather import Given
from small_nets import CPU, small_cnn

TIME = "2026-12-01T09:30:00Z"
# Size and quality alone: a test must not depend on how quiet the machine is.
POLICY = Policy(
    "size",
    (Rule("quality", "<=", Decimal("0.5"), "drop", "baseline"), Rule("size", "<=", Decimal(10_000_000), "bytes")),
    runs=2,
    inferences=5,
)


class One:
    """A strategy that proposes one recipe."""

    expected = 1

    def __init__(self):
        self.recipes = [Recipe("int8", (Step("simplify"), Step("int8")))]

    def ask(self):
        return self.recipes.pop() if self.recipes else None

    def tell(self, recipe, result):
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run in ``run``, of the model ``net.onnx``."""
    folder = tmp_path_factory.mktemp("reviewed")
    model = small_cnn()
    save_model(model, folder / "net.onnx")
    x = np.random.default_rng(7).standard_normal((40, *model.inputs[0].shape[1:])).astype(np.float32)
    session = OnnxRuntime().compile(model, CPU)
    labels = [int(session.run({"x": x[i : i + 1]})["y"].argmax()) for i in range(40)]
    session.close()
    np.savez(folder / "samples.npz", x=x, labels=np.array(labels, np.int64))
    spec = load_spec(str(folder / "samples.npz"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeproof.optimize.FASTER", 0.0)  # confirmed however fast this machine happens to run it
        optimize(folder / "net.onnx", spec, POLICY, CPU, folder / "run", strategy=One())
    return folder


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
