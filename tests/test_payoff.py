"""When INT8 does not pay, one line says so: in the result, on the terminal and in the report."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from edgeproof.cli._outcome import finish
from edgeproof.cli.show import Show
from edgeproof.measurement import LegRun
from edgeproof.payoff import Tried, costliest, int8_payoff
from edgeproof.recipe import Recipe, Step
from edgeproof.target import Target
from edgeproof.trial import Candidate
from report.run_builder import RunBuilder

CPU = Target("onnxruntime:cpu", "onnxruntime", "cpu")
LAYERS = {
    "quantised": [
        {"name": "conv1", "op": "Conv", "before_ms": 0.048, "after_ms": 0.142},
        {"name": "conv2", "op": "Conv", "before_ms": 0.2, "after_ms": 0.1},
        {"name": "pool", "op": "MaxPool", "before_ms": None, "after_ms": None},
    ]
}


class Kept:
    """A run's folder in memory: what the search measured, in ms per process."""

    def __init__(self, **times: tuple[tuple[float, float], ...]) -> None:
        self.files = {"candidates/int8/layers.json": LAYERS}
        for name, rounds in times.items():
            runs = [
                LegRun(leg, n, (round(ms * 1e6),)).to_json()
                for n, pair in enumerate(rounds)
                for leg, ms in zip(("original", name), pair, strict=True)
            ]
            self.files[f"candidates/{name}/bench-search.json"] = runs

    def read(self, name):
        return self.files.get(name)

    def once(self, name, _make):
        return self.files[name]


def tried(name, speedup, drop=0.0, state="screened", why=""):
    steps = (Step("simplify"), *((Step("int8"),) if "int8" in name else ()))
    candidate = Candidate(Recipe(name, steps), None, "sha256:0", CPU)
    return Tried(candidate, state, why, {"speedup": speedup, "drop": drop})


def payoff(kept, *candidates, limit=0.01):
    return int8_payoff(SimpleNamespace(workspace=kept, target=CPU), candidates, limit, None)


def test_slower_integers_are_named_with_ratio_interval_and_costly_layers():
    kept = Kept(int8=((1.0, 1.6), (1.0, 1.8)), float=((1.0, 0.8), (1.0, 0.8)))
    found = payoff(kept, tried("int8", 0.59), tried("float", 1.25))
    # By hand: logs differ by ln(sqrt(1.6 · 1.8) / 0.8); s = ln(1.8/1.6)/√2 on one degree of freedom, pooled over two;
    # t(0.975, 2) = 4.3027.
    ratio = math.sqrt(1.6 * 1.8) / 0.8
    step = 4.3027 * math.sqrt(math.log(1.8 / 1.6) ** 2 / 2 / 2 * (1 / 2 + 1 / 2))
    np.testing.assert_allclose(found["ratio"], [ratio, ratio / math.exp(step), ratio * math.exp(step)], rtol=1e-4)
    assert found["why"].startswith("INT8 does not pay on onnxruntime:cpu: int8, the fastest, takes 2.12 [")
    assert found["why"].endswith("] times as long as float; the float model stays")
    assert found["layers"] == [{"name": "conv1", "op": "Conv", "float_ms": 0.048, "int8_ms": 0.142}]
    assert costliest(found) == "costs most in INT8: conv1 0.142 ms (0.048 in float)"


def test_without_a_faster_float_graph_the_original_is_the_measure():
    found = payoff(Kept(int8=((1.0, 1.7), (2.0, 3.4))), tried("int8", 0.59), tried("float", 1.2, drop=0.5))
    assert found["against"] == "original"
    np.testing.assert_allclose(found["ratio"], [1.7, 1.7, 1.7])


def test_integers_that_are_faster_but_lose_quality_say_what_they_lose():
    found = payoff(Kept(int8=((1.0, 0.5), (1.0, 0.5))), tried("int8", 2.0, drop=0.03))
    assert found["why"] == (
        "INT8 does not pay on onnxruntime:cpu: int8 takes 0.50 [0.50, 0.50] times as long as the original, "
        "but loses 0.0300 of quality in the search, limit 0.01; the float model stays"
    )
    assert found["layers"] == []


@pytest.mark.parametrize("state", ["accept", "hold"])
def test_integers_that_are_accepted_or_undecided_say_nothing(state):
    assert payoff(Kept(), tried("int8", 2.0, state=state), tried("int8-other", 0.5)) is None


def test_a_candidate_that_repeats_another_is_passed_over():
    kept = Kept(int8=((1.0, 1.7), (1.0, 1.7)))
    assert payoff(kept, tried("int8", 0.59), tried("int8-again", 0.59))["candidate"] == "int8"


def test_a_run_without_integers_says_nothing():
    assert payoff(Kept(), tried("float", 1.2)) is None


def test_terminal_json_and_report_carry_the_line(tmp_path, capsys):
    found = payoff(Kept(int8=((1.0, 1.7), (1.0, 1.7))), tried("int8", 0.59))
    run = RunBuilder(tmp_path / "run").write()
    result = json.loads((run / "result.json").read_text()) | {"int8": found, "takes": "", "warnings": [], "best": None}
    for candidate in result["candidates"]:
        candidate.setdefault("speedup", None)
    (run / "result.json").write_text(json.dumps(result))
    finish(result, run, Show())
    shown = " ".join(capsys.readouterr().out.split())
    assert found["why"] in shown
    assert "costs most in INT8: conv1 0.142 ms (0.048 in float)" in shown
    page = (run / "report.html").read_text(encoding="utf-8")
    assert found["why"] in page
    assert "conv1" in page
    finish(result, run, Show(json=True))
    assert json.loads(capsys.readouterr().out)["int8"] == found
