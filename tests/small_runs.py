"""The main job on a small network, for tests: whole runs in seconds, whatever else the machine is doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from edgeproof.backends.onnxruntime import OnnxRuntime
from edgeproof.dataset import load_spec
from edgeproof.model import save_model
from edgeproof.optimize import optimize
from edgeproof.policy import Policy, Rule
from edgeproof.recipe import Recipe, Step
from small_nets import CPU, small_cnn

SIMPLE = Recipe("float", (Step("simplify"),))
INT8 = Recipe("int8", (Step("simplify"), Step("int8")))


def size_policy(runs: int) -> Policy:
    """Size and quality alone: a test must not depend on how quiet the machine is."""
    rules = (
        Rule("quality", "<=", Decimal("0.5"), "drop", "baseline"),
        Rule("size", "<=", Decimal(10_000_000), "bytes"),
    )
    return Policy("size", rules, runs=runs, inferences=5)


@dataclass
class Fixed:
    """A strategy that proposes what it is given."""

    recipes: list[Recipe]
    told: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def expected(self) -> int:
        return len(self.recipes)

    def ask(self):
        return self.recipes.pop(0) if self.recipes else None

    def tell(self, recipe, result):
        self.told.append((recipe.name, result["ok"]))


def write_job(folder: Path) -> Path:
    """``net.onnx`` and ``samples.npz``: 60 samples that the network classifies rightly."""
    model = small_cnn()
    save_model(model, folder / "net.onnx")
    x = np.random.default_rng(7).standard_normal((60, *model.inputs[0].shape[1:])).astype(np.float32)
    session = OnnxRuntime().compile(model, CPU)
    labels = [int(session.run({"x": x[i : i + 1]})["y"].argmax()) for i in range(60)]
    session.close()
    np.savez(folder / "samples.npz", x=x, labels=np.array(labels, np.int64))
    return folder


def run_job(job: Path, out: Path, recipes: list[Recipe], policy: Policy):
    """Optimise the job's network with given recipes."""
    spec = load_spec(str(job / "samples.npz"))
    return optimize(job / "net.onnx", spec, policy, CPU, out, strategy=Fixed(list(recipes)))


def finished_run(folder: Path) -> Path:
    """A job with a finished run in ``run``, INT8 among its confirmed candidates."""
    write_job(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeproof.optimize.FASTER", 0.0)  # confirmed however fast this machine happens to run it
        run_job(folder, folder / "run", [INT8], size_policy(2))
    return folder
