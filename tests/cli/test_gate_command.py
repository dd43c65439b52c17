import json
from pathlib import Path

import numpy as np
import pytest

from edgeproof.benchfile import BenchFile, KeptLeg
from edgeproof.cli import main
from edgeproof.cli.gate import overall
from edgeproof.files import write_json
from edgeproof.job import CONTROL, Plan
from edgeproof.measurement import LegRun

RELATIVE = "{metric: latency_p95, op: '<=', limit: 1.03, unit: ratio, relative_to: baseline}"


def kept(path: Path, **ratios: float) -> str:
    """A kept bench of ten processes with 1 % noise between them; each candidate takes ``ratio`` times as long."""
    rng = np.random.default_rng(11)
    names = {"base": 1.0, CONTROL: 1.0, **ratios}
    runs = [
        LegRun(
            name,
            i,
            tuple((1e7 * ratio * rng.lognormal(0, 0.01) * rng.lognormal(0, 0.02, 200)).astype(int).tolist()),
            environment={"no_sensor": {"rapl": "no energy counter", "thermal": "no zone"}},
        )
        for i in range(10)
        for name, ratio in names.items()
    ]
    legs = tuple(KeptLeg(n, "m.onnx", f"sha256:{n}", 1000, "onnxruntime:cpu") for n in names)
    write_json(path, BenchFile(legs, 200, Plan(), "sha256:d", {"digest": "sha256:m"}, tuple(runs)).to_json())
    return str(path)


def policy(path: Path, *rules: str) -> str:
    path.write_text(f"rules: [{', '.join(rules)}]")
    return str(path)


@pytest.mark.parametrize(
    ("ratios", "code", "state"),
    [
        ({"same": 1.0}, 0, "accept"),
        ({"slow": 1.1}, 1, "reject"),
        ({"near": 1.03}, 5, "hold"),
        ({"same": 1.0, "slow": 1.1}, 1, "reject"),
        ({"same": 1.0, "near": 1.03}, 5, "hold"),
    ],
)
def test_the_exit_code_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ratios: dict[str, float], code: int, state: str
) -> None:
    result = kept(tmp_path / "bench.json", **ratios)
    assert main(["gate", result, "--policy", policy(tmp_path / "p.yaml", RELATIVE), "--json"]) == code
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == state
    assert [v["name"] for v in shown["verdicts"]] == list(ratios)


def test_the_table_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = kept(tmp_path / "bench.json", slow=1.5)
    main(["gate", result, "--policy", policy(tmp_path / "p.yaml", RELATIVE)])
    text = capsys.readouterr().out
    assert "slow: reject" in text
    assert "latency_p95 / baseline is 1.49" in text
    assert ", limit 1.03" in text


def test_a_bench_of_one_model_is_decided_on_alone(tmp_path: Path) -> None:
    result = kept(tmp_path / "bench.json")
    limit = "{metric: latency_p95, op: '<=', limit: 80}"
    assert main(["gate", result, "--policy", policy(tmp_path / "p.yaml", limit)]) == 0


def test_power_and_temperature_hold_on_a_machine_without_sensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = kept(tmp_path / "bench.json", fast=0.5)
    assert main(["gate", result, "--policy", "default-power", "--json"]) == 5
    checks = {c["metric"]: c for c in json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]}
    assert checks["latency_p95"]["state"] == checks["throughput"]["state"] == "pass"
    assert checks["power"]["state"] == checks["temperature"]["state"] == checks["quality"]["state"] == "missing"
    assert checks["power"]["got"] is None
    assert checks["power"]["reason"].endswith("(rapl: no energy counter)")
    assert checks["temperature"]["reason"].endswith("(thermal: no zone)")


def test_a_policy_with_a_typo_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = kept(tmp_path / "bench.json", same=1.0)
    rule = "{metric: latncy_p95, op: '<=', limit: 80}"
    assert main(["gate", result, "--policy", policy(tmp_path / "p.yaml", rule)]) == 2
    assert "did you mean 'latency_p95'?" in capsys.readouterr().err


def test_a_file_that_is_no_bench_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["gate", str(tmp_path / "x.json")]) == 2
    assert "is no kept bench" in capsys.readouterr().err


def test_of_several_candidates_all_must_be_accepted() -> None:
    assert overall(["accept", "accept"]) == "accept"
    assert overall(["accept", "hold"]) == "hold"
    assert overall(["hold", "reject", "accept"]) == "reject"
    assert overall([]) == "hold"


@pytest.mark.parametrize(
    ("field", "value"), [("round", {}), ("latency_ns", "x"), ("environment", {"before": None}), ("cold_start_ns", [1])]
)
def test_a_damaged_run_is_bad_input(
    field: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(kept(tmp_path / "bench.json", fast=0.5))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["runs"][0][field] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    assert main(["gate", str(path)]) == 2
    assert field in capsys.readouterr().err


@pytest.mark.parametrize(("ratio", "code"), [(0.5, 0), (1.0, 0), (1.03, 5), (1.1, 1)])
def test_a_bench_can_be_decided_on_by_the_built_in_policy_of_speed(tmp_path: Path, ratio: float, code: int) -> None:
    assert main(["gate", kept(tmp_path / "bench.json", other=ratio), "--policy", "speed"]) == code


def test_a_rule_that_no_bench_can_meet_names_the_policy_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = kept(tmp_path / "bench.json", fast=0.5)
    assert main(["gate", result, "--json"]) == 5
    checks = {c["metric"]: c for c in json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]}
    assert "a bench never measures it" in checks["quality"]["reason"]
    assert "--policy speed" in checks["quality"]["reason"]
    rule = policy(tmp_path / "p.yaml", "{metric: top1, op: '>=', limit: 0.9}")
    assert main(["gate", result, "--policy", rule]) == 5
    assert "a bench never measures it" in " ".join(capsys.readouterr().out.split())


def test_a_folder_stands_for_what_lies_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "bench.json", fast=0.5)
    assert main(["gate", str(tmp_path), "--policy", "speed"]) == 0
    (tmp_path / "result.json").write_text("{}")  # a run's result comes first
    assert main(["gate", str(tmp_path), "--policy", "speed"]) == 2
    assert str(tmp_path / "result.json") in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["gate", str(tmp_path / "empty")]) == 2
    assert "holds neither result.json" in capsys.readouterr().err
