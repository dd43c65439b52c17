"""Layers that trtexec tells of, in the forms of its versions: their times, precision and place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeproof.errors import InputError
from edgeproof.importers import import_records, read_records
from edgeproof.measurement import LayerTime

FIXTURES = Path(__file__).parent / "fixtures"
MODEL = "sha256:" + "1" * 64
REFORMAT = "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1"


def layers(*names: str) -> tuple[LayerTime, ...]:
    return import_records([FIXTURES / n for n in names], model=MODEL, files={}).layers


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as e:
        import_records([path], model=MODEL, files={})
    return e.value


def test_a_profile_of_8_0_is_read_with_names_that_have_spaces() -> None:
    assert layers("trtexec_8_0_profile.log") == (
        LayerTime(REFORMAT, "", "", "", (10_000,)),
        LayerTime("Conv_0 + Relu_1", "", "", "", (150_000,)),
        LayerTime("Gemm_7", "", "", "", (40_000,)),
    )


def test_a_verbose_log_of_8_5_gives_kinds_and_precisions_to_its_profile() -> None:
    assert layers("trtexec_8_5_profile.log") == (
        LayerTime(REFORMAT, "Reformat", "GPU", "int8", (10_000,), "0x00000000000003e8"),
        LayerTime("Conv_0 + Relu_1", "CaskConvolution", "GPU", "int8", (150_000,), "0x12d9d0d7b1a5a3f2"),
        LayerTime("Gemm_7", "CudnnConvolution", "GPU", "float16", (40_000,), "0x0000000000000001"),
    )


def test_layer_information_of_10_gives_kinds_kernels_and_precisions_to_its_profile() -> None:
    conv = "conv0_weight + conv0_weight_QuantizeLinear + conv0_fwd"
    kernel = "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32"
    assert layers("trtexec_10_layers.log") == (
        LayerTime("x_QuantizeLinear", "Reformat", "GPU", "int8", (28_300,)),
        LayerTime(conv, "CaskConvolution", "GPU", "int8", (200_000,), kernel),
        LayerTime("fc", "CaskGemmMatrixMultiply", "GPU", "float16", (21_700,), "sm80_xmma_gemm_f16f16_f16f16"),
    )


def test_a_log_keeps_its_latency_beside_its_layers_and_says_that_profiling_slows_it() -> None:
    found = import_records([FIXTURES / "trtexec_10_layers.log"], model=MODEL, files={})
    assert {c.metric: c.value for c in found.claims}["latency_p50"] == 0.28
    assert any("--separateProfileRun" in n for n in found.notes)
    assert any(n.startswith("0.250 ms in 3 layers; the slowest: conv0_weight") for n in found.notes)
    assert "3 layers: 2 int8, 1 float16" in found.notes
    assert found.receipt.placement is not None
    assert found.receipt.placement.fallbacks == ()


def test_exported_files_about_one_engine_are_joined() -> None:
    foreign = "{ForeignNode[a/Conv.../b/Conv]}"
    expected = (
        LayerTime("x_QuantizeLinear", "Reformat", "GPU", "int8", (28_285,)),
        LayerTime(foreign, "DLA", "DLA", "int8", (200_000,)),
        LayerTime("fc", "CaskGemmMatrixMultiply", "GPU", "float16", (21_715,), "sm80_xmma_gemm_f16f16_f16f16"),
    )
    assert layers("trtexec_profile.json", "trtexec_layers.json") == expected
    assert layers("trtexec_layers.json", "trtexec_profile.json") == expected
    assert layers("trtexec_10.log", "trtexec_layers.json", "trtexec_profile.json") == expected


def test_what_left_the_dla_stands_in_the_receipt() -> None:
    found = import_records([FIXTURES / "trtexec_layers.json"], model=MODEL, files={})
    placement = found.receipt.placement
    assert placement is not None
    assert [n[2] for n in placement.nodes] == ["GPU", "DLA", "GPU"]
    assert [f[0] for f in placement.fallbacks] == ["fc"]  # changing the layout is no fallback
    assert "on the DLA: 1 of 3 layers; beside them on the GPU: 1" in found.notes


def test_the_lists_of_a_dla_build_tell_where_layers_run() -> None:
    found = import_records([FIXTURES / "trtexec_8_dla.log"], model=MODEL, files={})
    assert [(x.name, x.op, x.device) for x in found.layers] == [
        ("{ForeignNode[Conv_0]}", "DLA", "DLA"),
        ("{ForeignNode[Relu_10...Conv_11]}", "DLA", "DLA"),
        ("Reshape_2 + (Unnamed Layer* 7) [Shuffle]", "SHUFFLE", "GPU"),
        ("InstanceNormalization_5", "PLUGIN_V2", "GPU"),
    ]


def test_a_receipt_with_layers_comes_back_from_json() -> None:
    receipt = import_records([FIXTURES / "trtexec_layers.json"], model=MODEL, files={}).receipt
    assert type(receipt).from_json(json.loads(json.dumps(receipt.to_json())), "r") == receipt


def test_a_table_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    text = (FIXTURES / "trtexec_10_layers.log").read_text(encoding="utf-8")
    (tmp_path / "changed.log").write_text(text.replace("      400.00 ", "      200.00 "), encoding="utf-8")
    assert refused(tmp_path / "changed.log").code == "import.mismatch"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"timeMs" : 400', '"timeMs" : 800', "import.mismatch"),
        ('"timeMs" : 400', '"timeMs" : -1', "import.value"),
        ('"timeMs" : 400', '"timeMs" : "4"', "import.value"),
        ('"count" : 2000', '"count" : 0', "import.value"),
        ('"count" : 2000', '"count" : true', "import.value"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, code: str) -> None:
    text = (FIXTURES / "trtexec_profile.json").read_text(encoding="utf-8")
    (tmp_path / "p.json").write_text(text.replace(old, new), encoding="utf-8")
    assert refused(tmp_path / "p.json").code == code


def test_an_engine_without_layer_information_gives_names_only(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text('{"Layers": ["conv1 + relu1", "fc"], "Bindings": ["x", "y"]}', encoding="utf-8")
    found = import_records([tmp_path / "l.json"], model=MODEL, files={})
    assert [x.name for x in found.layers] == ["conv1 + relu1", "fc"]
    assert found.receipt.placement is None


def test_other_json_is_not_taken_for_trtexec_s(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('[{"name": "x", "count": 3}, {"name": "y"}]', encoding="utf-8")
    assert refused(tmp_path / "other.json").code == "import.unknown"
    assert read_records([FIXTURES / "trtexec_profile.json"])[0] == "trtexec"
