"""ONNX's own models: every real architecture loses half of its work, and no single node of any kind is too odd."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from conformance.onnx_suite import STORED, light, light_case, nodes, stored
from edgeproof.graph.inference import inferred
from edgeproof.passes.prune_channels import PruneChannels
from edgeproof.prune.account import account
from edgeproof.prune.channels import channels
from edgeproof.prune.importance import scores
from edgeproof.prune.removal import remove
from edgeproof.prune.selection import choose
from passes.small_models import CONTEXT

PARTS = 32


@pytest.mark.parametrize("name", light())
def test_a_real_architecture_loses_half_of_its_work(name: str) -> None:
    model = light_case(name).model
    found = channels(model)
    gone = choose(found, scores(found, "l2"), 0.5, rank="layer")
    small = remove(found, gone)
    proto = onnx.load_model_from_string(small.to_bytes())
    onnx.checker.check_model(proto)
    inferred(proto, strict=True)
    assert (small.inputs, small.outputs) == (model.inputs, model.outputs)
    counted = account(found, gone, small)
    assert 0.45 < counted.macs[1] / counted.macs[0] <= 0.5
    assert counted.parameters[1] < counted.parameters[0]
    assert found.macs(gone) == pytest.approx(counted.macs[1])


@pytest.mark.parametrize("part", range(0, PARTS, 4))
def test_no_single_node_is_too_odd_to_be_followed_or_held(part: int) -> None:
    for case in nodes(part, PARTS):
        if not case.model.inputs:
            continue
        found = channels(case.model)
        whole = remove(found, np.zeros(found.units, bool))
        assert whole.inputs == case.model.inputs, case.name
        assert whole.outputs == case.model.outputs, case.name


@pytest.mark.parametrize("kind", STORED)
def test_no_result_on_a_stored_model_has_to_be_thrown_away(kind: str) -> None:
    for case in stored(kind):
        change = PruneChannels(0.5, round_to=1)(case.model, CONTEXT)
        assert not [why for name, why in change.declined if name == "result"], case.name
