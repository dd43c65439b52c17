import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.digest import canonical_json
from edgeproof.errors import InputError
from edgeproof.measurement import LegRun, Placement
from edgeproof.receipt import Receipt, Scores
from edgeproof.strictjson import loads

RUN = LegRun("candidate", 0, (1000, 2000), 5, 7, 6, {"rapl": (1.5, 2.0)}, {"before": {"throttled": 0}, "after": {}})
RECEIPT = Receipt(
    kind="runs",
    model="sha256:m",
    files={"m.onnx": "sha256:f"},
    dataset="sha256:d",
    evaluator="sha256:e",
    environment="sha256:v",
    policy="sha256:p",
    target="onnxruntime:cpu",
    runs=(RUN,),
    scores={"top1": Scores("top1", "1", "higher", (1, 0, 1))},
    device={"module": "NVIDIA Jetson Orin Nano", "memory_gib": 8, "power_mode": "15W"},
    placement=Placement(
        (("conv", "Conv", "CPUExecutionProvider", "float32"),), (("TensorRT", "is absent"),), "profile"
    ),
    source="generic",
    original="sha256:o",
)


def changed(**fields):
    return {**json.loads(canonical_json(RECEIPT.to_json())), **fields}


def refused(value) -> str:
    with pytest.raises(InputError) as e:
        Receipt.from_json(value, "receipt-candidate-runs.json")
    assert "receipt-candidate-runs.json" in e.value.subject
    return e.value.code


def test_a_receipt_reads_back_equal_and_keeps_its_digest():
    again = Receipt.from_json(loads(canonical_json(RECEIPT.to_json()), "receipt", canonical=True))
    assert again == RECEIPT
    assert again.digest == RECEIPT.digest


@given(st.sampled_from(["model", "dataset", "evaluator", "environment", "policy", "target", "source", "original"]))
def test_every_binding_is_part_of_the_digest(name):
    assert Receipt.from_json(changed(**{name: "sha256:other"})).digest != RECEIPT.digest


def test_a_key_more_or_less_is_refused():
    assert refused(changed(value=1)) == "json.unknown_key"
    assert refused({k: v for k, v in changed().items() if k != "policy"}) == "json.missing_key"
    assert refused([]) == "json.not_object"


def test_another_schema_or_kind_is_refused():
    assert refused(changed(schema="edgeproof.receipt/2")) == "receipt.schema"
    assert refused(changed(kind="latency")) == "receipt.kind"


@pytest.mark.parametrize(
    "fields",
    [
        {"model": 1},
        {"files": {"m.onnx": 5}},
        {"device": []},
        {"runs": {}},
        {"runs": [{**RUN.to_json(), "latency_ns": ["1"]}]},
        {"runs": [{**RUN.to_json(), "latency_ns": [-1]}]},
        {"runs": [{**RUN.to_json(), "round": 0.5}]},
        {"runs": [{**RUN.to_json(), "sensors": {"rapl": [None]}}]},
        {"runs": [{**RUN.to_json(), "environment": {"before": {"throttled": "no"}}}]},
        {"runs": [{**RUN.to_json(), "environment": {"before": []}}]},
        {"runs": [{**RUN.to_json(), "environment": {"others_share": None}}]},
        {"runs": [{**RUN.to_json(), "environment": {"no_sensor": {"rapl": 1}}}]},
        {"scores": [{"metric": "top1", "unit": "1", "better": "best", "samples": []}]},
        {"placement": {"nodes": [["a"]], "fallbacks": [], "source": ""}},
    ],
)
def test_a_field_of_another_type_is_refused(fields):
    assert refused(changed(**fields)) in {"files.value", "receipt.value"}


def test_scores_of_one_metric_twice_are_refused():
    one = changed()["scores"][0]
    assert refused(changed(scores=[one, one])) == "receipt.value"
