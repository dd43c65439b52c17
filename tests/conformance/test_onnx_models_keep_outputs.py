"""Every model of ONNX's backend test suite keeps its outputs through every pass, or is declined with a reason.

Run it with ``-rP`` for the counts. Passes that quantise, prune or train change outputs by design; their tests lie
elsewhere.
"""

from collections import Counter

import numpy as np
import pytest
from onnx_suite import STORED, Case, light, light_case, nodes, stored

from edgeproof import registry
from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.errors import EdgeproofError, InputError
from edgeproof.graph.equivalence import allowed, probes, relative_error
from edgeproof.graph.rewrite import deterministic
from edgeproof.model import graph_digest
from edgeproof.protocols import Context
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
PARTS = 12
LOSSY = {"fp16": 0.02}
"""Pass → tolerance; every other pass keeps outputs to 1e-5 of their scale."""

QUANTISE = ("int8", "int8_accurate", "int8_auto", "simulate_bits", "weight_only")
PRUNE = ("prune_channels", "prune_weights")
TRAIN = ("distil",)
PASSES = tuple(n for n in registry.names("passes") if n not in (*QUANTISE, *PRUNE, *TRAIN))
LIGHT_PASSES = ("simplify", "fp16", "fix_shapes")


def context(case: Case) -> Context:
    feeds = case.feeds
    compile_ = lambda m: OnnxRuntime().compile(m, TARGET)  # noqa: E731
    return Context(compile_, None if feeds is None else lambda: iter([feeds]), 0 if feeds is None else 1, TARGET)


def settings(name: str, case: Case) -> dict[str, str]:
    if name != "fix_shapes":
        return {}
    shapes = [f"{n}={','.join(map(str, a.shape))}" for n, a in (case.feeds or {}).items() if a.size]
    return {"shapes": ";".join(shapes or ["x="])}


def outcome(name: str, case: Case, runs: object) -> str:
    """``kept``, ``unchanged``, ``declined`` or ``unrunnable`` (the original does not run under ONNX Runtime either)."""
    implementation = registry.load("passes", name)(**settings(name, case))
    try:
        change = implementation(case.model, context(case))
    except InputError:
        if name != "fix_shapes":
            raise
        return "declined"
    assert graph_digest(case.model.graph) == case.model.digest, f"{case.name}: {name} changed its input"
    if not change.modified:
        assert change.model is case.model
        assert all(node and reason for node, reason in change.declined), case.name
        return "declined" if change.declined else "unchanged"
    if name != "fix_shapes":
        assert change.model.inputs == case.model.inputs, f"{case.name} {name}"
        assert change.model.outputs == case.model.outputs, f"{case.name} {name}"
    if not isinstance(runs, list) or not deterministic(case.model.graph):
        return "unrunnable"
    try:
        session = OnnxRuntime().compile(change.model, TARGET)
    except EdgeproofError as e:
        raise AssertionError(f"{case.name} {name}: {e}") from e
    for run in runs:
        got = session.run(run.feeds)
        for output, want in run.outputs.items():
            error = relative_error(want, got[output])
            limit = allowed(want, LOSSY.get(name, 1e-5), run.noise.get(output, 0.0))
            assert error <= limit, f"{case.name} {name}: {output} differs by {error}"
    session.close()
    return "kept"


def check(cases, passes) -> Counter:
    counts: Counter = Counter()
    with np.errstate(all="ignore"):
        for case in cases:
            runs = probes(case.model, context(case))
            for name in passes:
                counts[name, outcome(name, case, runs)] += 1
    for (name, what), n in sorted(counts.items()):
        print(f"COUNT {name} {what} {n}")
    return counts


@pytest.mark.parametrize("part", range(PARTS))
def test_single_nodes_keep_their_outputs(part):
    counts = check(nodes(part, PARTS), PASSES)
    assert counts["simplify", "kept"] > 10
    assert counts["fp16", "kept"] > 10


@pytest.mark.parametrize("kind", STORED)
def test_stored_models_keep_their_outputs(kind):
    counts = check(stored(kind), PASSES)
    assert sum(n for (name, _), n in counts.items() if name == "simplify") >= 20


@pytest.mark.parametrize("name", light())
def test_real_architectures_keep_their_outputs(name):
    counts = check([light_case(name)], LIGHT_PASSES)
    assert counts["simplify", "kept"] == 1
