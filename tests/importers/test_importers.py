"""Records of other tools become receipts that claim no more than the record has samples for."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import edgeproof
from edgeproof import registry
from edgeproof.digest import digest_bytes
from edgeproof.errors import InputError
from edgeproof.gate import decide
from edgeproof.importers import import_records, read_records
from edgeproof.measurement import Measurement
from edgeproof.policy import policy_from
from edgeproof.receipt import Receipt

FIXTURES = Path(__file__).parent / "fixtures"
MODEL = "sha256:aaaa"


def receipt_of(*names: str | Path, **more) -> Receipt:
    return import_records([FIXTURES / n for n in names], model=MODEL, files={"m": "sha256:f"}, **more).receipt


def claims_of(*names: str, **more) -> dict[str, float]:
    found = import_records([FIXTURES / n for n in names], model=MODEL, files={}, **more)
    return {c.name: c.value for c in found.claims}


def refused(code: str, *paths: Path, **more) -> str:
    with pytest.raises(InputError) as e:
        import_records(list(paths), model=MODEL, files={}, **more)
    assert e.value.code == code
    return str(e.value)


def written(path: Path, value) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("name", ["mlflow_rest.json", "mlflow_to_dictionary.json"])
def test_both_shapes_of_an_mlflow_run_say_the_same(name):
    kind, (reading,), _ = read_records([FIXTURES / name])
    assert kind == "mlflow"
    assert {c.name: c.value for c in reading.claims} == {"latency_p95": 7.25, "top1": 0.8125}
    assert (reading.label, reading.model, reading.target) == ("int8", MODEL, "onnxruntime:cpu")


def test_a_run_that_names_another_model_is_refused(tmp_path):
    text = (FIXTURES / "mlflow_rest.json").read_text().replace("sha256:aaaa", "sha256:bbbb")
    assert "sha256:bbbb" in refused("import.other_model", written(tmp_path / "run.json", text))


def test_an_mlflow_metric_that_is_no_number_is_refused(tmp_path):
    value = json.loads((FIXTURES / "mlflow_to_dictionary.json").read_text())
    value["data"]["metrics"]["top1"] = True
    refused("import.value", written(tmp_path / "run.json", value))
    refused("import.value", written(tmp_path / "run.json", {"info": {"run_id": "1"}, "data": {"metrics": 3}}))


def test_olive_names_the_input_model_baseline_and_the_last_one_made_candidate():
    assert claims_of("olive_footprint.json", role="baseline") == {
        "accuracy-accuracy_score": 0.875,
        "latency-avg": 36.25,
    }
    assert claims_of("olive_footprint.json", role="candidate")["latency-p95"] == 14.5
    assert claims_of("olive_footprint.json", label="a1b2")["latency-avg"] == 36.25


def test_an_average_of_olive_stands_for_no_metric_of_ours():
    receipt = receipt_of("olive_footprint.json", role="baseline")
    assert set(receipt.scores) == {"top1"}
    assert set(receipt_of("olive_footprint.json", role="candidate").scores) == {"top1", "latency_p95"}


def test_olives_ranking_and_its_plain_metrics_are_read_too(tmp_path):
    entry = {"latency-avg": {"value": 36.2313, "priority": 2, "higher_is_better": False}}
    ranks = written(tmp_path / "ranks.json", [{"rank": 1, "model_config": {}, "metrics": entry}])
    plain = written(tmp_path / "metrics.json", entry)
    for path in (ranks, plain):
        assert [c.value for c in read_records([path])[1][0].claims] == [36.2313]


@pytest.mark.parametrize(("name", "p50", "p99", "throughput"), [
    ("trtexec_8.log", 4.99947, 5.42029, 199.921), ("trtexec_10.log", 7.125, 12.75, 130.298),
])  # fmt: skip
def test_a_log_of_trtexec_is_read_in_the_form_of_its_version(name, p50, p99, throughput):
    _, (reading,), _ = read_records([FIXTURES / name])
    ours = {c.metric: c.value for c in reading.claims if c.metric}
    assert (ours["latency_p50"], ours["latency_p99"], ours["throughput"]) == (p50, p99, throughput)
    assert "Orin" in reading.device["module"]


def trace(path: Path, latencies: np.ndarray, start: float = 0.0) -> Path:
    """What --exportTimes writes for queries one after the other, six digits each."""
    entries, now = [], start
    for latency in latencies:
        h2d, d2h = 0.01, 0.02
        compute = float(latency) - h2d - d2h
        keys = {
            "startEnqMs": now, "endEnqMs": now + 0.1, "startH2dMs": now, "endH2dMs": now + h2d,
            "startComputeMs": now + h2d, "endComputeMs": now + h2d + compute, "startD2hMs": now + h2d + compute,
            "endD2hMs": now + float(latency), "h2dMs": h2d, "computeMs": compute, "d2hMs": d2h,
            "latencyMs": float(latency),
        }  # fmt: skip
        entries.append({k: float(f"{v:.6g}") for k, v in keys.items()})
        now += float(latency)
    return written(path, entries)


def percentile(samples: np.ndarray, percent: float) -> float:
    """As trtexec's findPercentile: the entry that leaves (1 − p) of them above it."""
    ordered = np.sort(samples)
    return float(ordered[max(len(ordered) - 1 - int((1 - percent / 100) * len(ordered)), 0)])


def summary(path: Path, samples: np.ndarray) -> Path:
    text = (FIXTURES / "trtexec_10.log").read_text().splitlines()
    stated = ", ".join(f"percentile({p}%) = {percentile(samples, p):.6g} ms" for p in (90, 95, 99))
    line = f"[08/21/2026-04:08:09] [I] Latency: min = {samples.min():.6g} ms, max = {samples.max():.6g} ms, "
    line += f"mean = {samples.mean():.6g} ms, median = {np.median(samples):.6g} ms, {stated}"
    return written(path, "\n".join(line if "] Latency: " in row else row for row in text))


@pytest.fixture
def latencies() -> np.ndarray:
    return np.random.default_rng(3).gamma(20, 0.25, 600).round(4)


def test_a_trace_of_trtexec_is_raw_samples_without_the_warm_up(tmp_path, latencies):
    receipt = receipt_of(trace(tmp_path / "times.json", latencies))
    started = np.concatenate([[0], np.cumsum(latencies)[:-1]]) + 0.01
    kept = latencies[started >= 200]
    assert [len(r.latency_ns) for r in receipt.runs] == [len(kept)]
    np.testing.assert_allclose(np.array(receipt.runs[0].latency_ns) / 1e6, kept, rtol=1e-5)
    assert receipt.scores == {}


def test_several_traces_are_several_processes_of_one_receipt(tmp_path, latencies):
    paths = [trace(tmp_path / f"{i}.json", latencies + i) for i in range(3)]
    receipt = receipt_of(*paths)
    assert [(r.leg, r.round) for r in receipt.runs] == [("candidate", 0), ("candidate", 1), ("candidate", 2)]


def test_a_trace_beside_its_log_is_borne_out_and_names_the_machine(tmp_path, latencies):
    path = trace(tmp_path / "times.json", latencies, start=200.0)
    log = summary(tmp_path / "run.log", latencies)
    receipt = receipt_of(path, log)
    assert receipt.device["module"] == "NVIDIA Orin"
    assert len(receipt.runs) == 1
    alone = receipt_of(path)
    assert receipt.environment != alone.environment


def test_a_summary_that_its_own_samples_do_not_bear_out_is_refused(tmp_path, latencies):
    path = trace(tmp_path / "times.json", latencies, start=200.0)
    log = summary(tmp_path / "run.log", latencies * 0.9)
    assert "raw samples" in refused("import.mismatch", path, log)


def test_a_trace_whose_latency_is_not_the_sum_of_its_parts_is_refused(tmp_path, latencies):
    path = trace(tmp_path / "times.json", latencies, start=200.0)
    value = json.loads(path.read_text())
    value[7]["latencyMs"] /= 2
    refused("import.mismatch", written(path, value))


@pytest.mark.parametrize("name", ["openvino_report.json", "openvino_report.csv"])
def test_a_report_of_benchmark_app_is_read_as_json_and_as_csv(name):
    _, (reading,), _ = read_records([FIXTURES / name])
    ours = {c.name: (c.value, c.unit) for c in reading.claims}
    assert ours["latency (ms)"] == (0.01, "ms")
    assert ours["throughput"][1] == "1/s"
    assert (reading.label, reading.target) == ("tiny.xml", "openvino:cpu")


def test_a_log_of_benchmark_app_keeps_its_microseconds():
    _, (reading,), _ = read_records([FIXTURES / "openvino.log"])
    stated = {c.name: c.value for c in reading.claims}
    line = next(x for x in (FIXTURES / "openvino.log").read_text().splitlines() if "Median:" in x)
    assert stated["latency median"] == pytest.approx(float(line.split()[-2]) / 1000)
    assert reading.settings["INFERENCE_NUM_THREADS"] == "1"
    assert reading.target == "openvino:cpu"


def test_aggregates_without_samples_make_the_gate_hold_and_say_why():
    receipt = receipt_of("trtexec_10.log")
    scores = receipt.scores["latency_p95"]
    metric = registry.load("metrics", "latency_p95")
    m = Measurement("latency_p95", 0.0, scores.unit, scores.better, None, None, scores.samples, MODEL)
    rules = {"rules": [{"metric": "latency_p95", "op": "<=", "limit": "80"}]}
    verdict = decide(
        policy_from(rules, "p", {"latency_p95": metric.unit}), {}, {"latency_p95": m}, quality_metric="top1"
    )
    assert verdict.state == "hold"
    assert "no samples" in verdict.why


def test_what_a_record_does_not_state_is_equal_to_nothing(tmp_path, latencies):
    a = receipt_of(trace(tmp_path / "a.json", latencies))
    b = receipt_of(trace(tmp_path / "b.json", latencies + 1))
    assert a.environment != b.environment
    assert a.dataset != b.dataset
    assert a.evaluator != b.evaluator


def test_a_receipt_carries_the_digest_of_the_record_that_it_came_from():
    record = (FIXTURES / "trtexec_8.log").read_bytes()
    found = import_records([FIXTURES / "trtexec_8.log"], model=MODEL, files={})
    assert found.receipt.original == digest_bytes(record)
    assert found.records == {"trtexec_8.log": record}
    assert found.receipt.source == "trtexec"
    assert Receipt.from_json(json.loads(json.dumps(found.receipt.to_json()))) == found.receipt


GENERIC = {
    "schema": "edgeproof.measured/1",
    "label": "door camera",
    "role": "candidate",
    "target": "tensorrt:gpu",
    "dataset": "sha256:d",
    "evaluator": "sha256:e",
    "environment": {"board": "Orin NX", "nvpmodel": "MAXN"},
    "device": {"module": "Orin NX", "power_mode": "MAXN", "runtime": {"tensorrt": "10.3"}},
    "runs": [{"latency_ns": [5_000_000, 5_100_000], "sensors": {"ina3221": [4.5]}}, {"latency_ns": [5_050_000]}],
    "scores": [{"metric": "top1", "unit": "1", "better": "higher", "samples": [1, 0, 1]}],
}


def test_the_documented_json_brings_its_own_samples_and_digests(tmp_path):
    receipt = receipt_of(written(tmp_path / "m.json", GENERIC))
    assert (receipt.dataset, receipt.evaluator) == ("sha256:d", "sha256:e")
    assert [r.latency_ns for r in receipt.runs] == [(5_000_000, 5_100_000), (5_050_000,)]
    assert receipt.scores["top1"].samples == (1, 0, 1)
    again = receipt_of(written(tmp_path / "n.json", {**GENERIC, "label": "another"}))
    assert again.environment == receipt.environment  # the same facts, in another record


def test_the_schema_of_the_documented_json_takes_the_example_and_refuses_what_the_reader_refuses(tmp_path):
    schema = json.loads((Path(edgeproof.__file__).parent / "importers/measured.schema.json").read_text())
    jsonschema.validate(GENERIC, schema)
    wrong = [
        {**GENERIC, "latency": 5},
        {**GENERIC, "runs": [{"latency_ns": [0]}]},
        {**GENERIC, "runs": [{"latency_ns": []}]},
        {**GENERIC, "kind": "guess"},
        {**GENERIC, "device": {"gpu": "x"}},
        {k: v for k, v in GENERIC.items() if k != "label"},
    ]
    for value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, schema)
        with pytest.raises(InputError):
            receipt_of(written(tmp_path / "m.json", value))


def test_a_key_twice_and_a_number_that_json_does_not_have_are_refused(tmp_path):
    text = json.dumps(GENERIC)
    refused("json.duplicate_key", written(tmp_path / "a.json", text.replace('"role":', '"label": "x", "role":')))
    refused("json.not_finite", written(tmp_path / "b.json", text.replace("4.5", "NaN")))


def test_records_of_several_formats_or_of_none_are_refused(tmp_path):
    refused("import.mixed", FIXTURES / "trtexec_8.log", FIXTURES / "openvino.log")
    refused("import.unknown", written(tmp_path / "x.txt", "hello"))
    refused("import.label", FIXTURES / "olive_footprint.json", label="zzzz")
    refused("import.label", FIXTURES / "olive_footprint.json", role="control")


def test_processes_that_were_not_measured_alike_do_not_share_a_receipt(tmp_path):
    a = written(tmp_path / "a.json", GENERIC)
    b = written(tmp_path / "b.json", {**GENERIC, "environment": {"board": "Nano"}})
    refused("import.mixed", a, b)


@pytest.mark.parametrize("name", sorted(p.name for p in FIXTURES.iterdir() if p.suffix in (".json", ".log", ".csv")))
def test_a_record_cut_short_anywhere_ends_in_an_error_or_in_less(name, tmp_path):
    data = (FIXTURES / name).read_bytes()
    path = tmp_path / name
    for length in range(0, len(data), max(len(data) // 60, 1)):
        path.write_bytes(data[:length])
        try:
            readings = read_records([path])[1]
        except InputError:
            continue
        assert all(r.claims or r.layers for r in readings)
