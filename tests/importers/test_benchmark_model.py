"""What LiteRT's benchmark_model says of a phone: means, the delegate's part, and operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproof.errors import InputError
from edgeproof.importers import Imported, import_records
from edgeproof.measurement import LayerTime

FIXTURES = Path(__file__).parent / "fixtures"


def imported(name: str) -> Imported:
    return import_records([FIXTURES / name], model="sha256:" + "1" * 64, files={})


def test_a_log_gives_the_timed_runs_and_not_the_warm_up() -> None:
    found = imported("benchmark_model.log")
    assert found.receipt.source == "benchmark_model"
    assert found.receipt.target == "litert:cpu"
    told = {c.name: (c.value, c.unit) for c in found.claims}
    assert told["Init"] == (5685, "us")
    assert told["Inference (avg)"] == (14575.2, "us")
    assert told["inference min"] == (14.1, "ms")
    assert told["inferences"] == (200, "")
    assert told["memory footprint"] == (8.25, "MB")


def test_percentiles_that_it_states_are_claims_without_samples() -> None:
    found = imported("benchmark_model.log")
    assert {c.metric: c.value for c in found.claims if c.metric} == {"latency_p50": 14.55, "latency_p95": 15.1}
    assert found.receipt.scores["latency_p95"].samples == ()


def test_operators_are_read_in_the_form_with_spaces() -> None:
    assert imported("benchmark_model.log").layers == (
        LayerTime("tfl.quantize:0", "QUANTIZE", "", "", (203_000,)),
        LayerTime(
            "Delegate/Convolution (NHWC, QC8) IGEMM:0", "Convolution (NHWC, QC8) IGEMM", "", "", (407_000,)
        ),
        LayerTime(
            "Delegate/Convolution (NHWC, QC8) DWConv:1", "Convolution (NHWC, QC8) DWConv", "", "", (51_000,)
        ),
    )  # fmt: skip


def test_operators_are_read_in_the_form_with_tabs_and_the_delegate_s_part_is_told() -> None:
    found = imported("benchmark_model_nnapi.log")
    assert found.receipt.target == "litert:nnapi"
    assert [(x.op, x.time_ns[0]) for x in found.layers] == [
        ("TfLiteNnapiDelegate", 11_422_000),
        ("AVERAGE_POOL_2D", 80_000),
    ]
    assert any("partially executed by the delegate w/ 3 delegate kernels" in n for n in found.notes)


def test_a_log_without_an_average_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("Inference timings in us: Init: 1\n", encoding="utf-8")
    with pytest.raises(InputError) as e:
        import_records([tmp_path / "x.log"], model="sha256:" + "1" * 64, files={})
    assert e.value.code == "import.value"
