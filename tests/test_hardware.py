"""The catalogue of devices: complete, sourced, and refusing what cannot work with a reason."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof import registry
from edgeproof.cli import main
from edgeproof.cli._hardware import page
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.hardware import (
    GIB,
    Demand,
    catalogue,
    check,
    check_model,
    demand_of,
    find,
    jetpacks,
    knows,
    names,
    plan,
    refusals,
)
from edgeproof.machine import detect, installed, installed_jetpack
from edgeproof.model import Model
from edgeproof.quant.schemes import SCHEMES, TENSORRT
from edgeproof.target import Target

PAGE = Path(__file__).parents[1] / "docs/hardware.md"
JETSONS = [n for n in names() if catalogue()[n].kind == "jetson"]
PRECISIONS = {"fp32", "fp16", "bf16", "fp8", "fp4", "int8", "int4", "int8-dot", "2:4"}


@pytest.mark.parametrize("name", names())
def test_every_row_has_sources_and_speaks_of_known_precisions(name: str) -> None:
    row = find(name)
    assert row.sources
    assert all(row.sources)
    assert {*row.has, *row.lacks} <= PRECISIONS
    assert not {*row.has} & {*row.lacks}


@pytest.mark.parametrize("name", names())
def test_every_part_of_every_device_is_a_target_with_the_scheme_of_its_runtime(name: str) -> None:
    for part, (backend, device, scheme) in find(name).parts.items():
        target = plan(f"{name}:{part}")
        assert (target.backend, target.device) == (backend, device)
        assert target.scheme is (SCHEMES[scheme].scheme if scheme else None)
        assert target.hardware is find(name)
        assert backend.isidentifier()
        asdict(target)  # a target is plain data


@pytest.mark.parametrize("name", JETSONS)
def test_every_jetson_says_what_a_plan_needs(name: str) -> None:
    row = find(name)
    assert row.memory_bytes
    assert row.shared_memory
    assert row.compute_capability
    assert row.dla is not None
    assert row.jetpacks
    assert row.bandwidth
    assert row.power


def test_no_name_means_two_devices() -> None:
    every = [n for row in catalogue().values() for n in (row.name, *row.aliases)]
    assert len(every) == len(set(every))


def test_accelerators_per_module_are_those_of_nvidias_table() -> None:
    # NVIDIA, Jetson Modules, row "DL Accelerator".
    count = {"orin-nano-4gb": 0, "orin-nano-8gb": 0, "orin-nx-8gb": 1, "orin-nx-16gb": 2, "agx-orin-64gb": 2}
    assert {n: find(n).dla for n in count} == count
    assert find("xavier-nx").dla == 2
    assert find("jetson-nano").dla == 0


@pytest.mark.parametrize(("name", "capability"), [("jetson-nano", "5.3"), ("jetson-tx2", "6.2"), ("xavier-nx", "7.2")])
def test_compute_capabilities_are_those_of_nvidias_list(name: str, capability: str) -> None:
    assert find(name).compute_capability == capability


def test_a_device_is_a_target_with_its_limits() -> None:
    target = plan("orin-nx")
    assert (target.name, target.backend, target.device) == ("orin-nx-16gb:gpu", "tensorrt", "gpu")
    assert target.scheme == TENSORRT
    assert target.memory_bytes == 16 * GIB
    assert plan("orin-nx:dla1").device == "dla1"
    assert plan("orin-nx-8gb").memory_bytes == 8 * GIB


def test_a_dla_of_orin_nano_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="has no DLA; Xavier, Orin NX and AGX Orin have") as e:
        plan("orin-nano:dla0")
    assert e.value.code == "hardware.refused"
    assert e.value.exit_code == 3


def test_a_second_dla_of_orin_nx_8gb_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has no dla1, only dla0"):
        plan("orin-nx-8gb:dla1")


def test_a_part_that_no_device_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnsupportedError, match="name one of: gpu, dla0, dla1, cpu"):
        plan("orin-nx:npu")


def test_a_mistyped_device_is_guessed() -> None:
    with pytest.raises(InputError, match="did you mean 'orin-nano"):
        find("orin-nanoo")
    assert not knows("onnxruntime:cpu")
    assert knows("orin-nx:dla0")


@pytest.mark.parametrize(
    ("name", "demand", "reason"),
    [
        ("orin-nx", Demand(precisions=("fp8",)), "does not compute FP8: needs compute capability 8.9"),
        ("agx-xavier", Demand(precisions=("bf16",)), "does not compute BF16: needs compute capability 8.0"),
        ("sm75", Demand(precisions=("bf16",)), "does not compute BF16"),
        ("jetson-nano", Demand(precisions=("int8",)), "does not compute INT8"),
        ("xavier-nx", Demand(precisions=("2:4",)), "does not compute 2:4 sparse weights"),
        ("orin-nx", Demand(compute_capability="8.6"), "the engine is for compute capability 8.6"),
        ("orin-nano-4gb", Demand(memory_bytes=5 * GIB), "needs 5.0 GiB, and Jetson Orin Nano 4GB has 4 GiB"),
        ("agx-xavier", Demand(tensorrt="10.3.0"), "comes with no JetPack for Jetson AGX Xavier"),
        ("thor", Demand(device="dla0"), "has no DLA"),
        ("raspberry-pi-5", Demand(device="dla0"), "has no DLA: only Jetson modules have"),
        ("orin-nx", Demand(device="dla0", precisions=("bf16",)), "a DLA computes FP16 and INT8, not BF16"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(name: str, demand: Demand, reason: str) -> None:
    found = refusals(find(name), demand)
    assert len(found) == 1
    assert reason in found[0]
    with pytest.raises(UnsupportedError, match=r"hardware\.refused"):
        check(find(name), demand)


@pytest.mark.parametrize(
    ("name", "demand"),
    [
        ("orin-nx", Demand("dla1", ("int8", "fp16"), "8.7", 8 * GIB, "10.3.0.30")),
        ("thor", Demand("gpu", ("fp8", "fp4", "bf16"), "11.0")),
        ("sm89", Demand(precisions=("fp8", "int8"))),
        ("raspberry-pi-4", Demand(memory_bytes=64 * GIB)),  # its memory varies: unknown refuses nothing
        ("generic-x86-64", Demand(precisions=("bf16",))),  # unknown too
        ("raspberry-pi-4", Demand(precisions=("fp16",))),  # slower there, but it runs
        ("jetson-nano", Demand("cpu", ("int8", "bf16"))),  # what its GPU lacks does not matter to its processor
        ("agx-xavier", Demand(tensorrt="8.5.2")),
    ],
)
def test_what_no_source_speaks_against_is_not_refused(name: str, demand: Demand) -> None:
    assert refusals(find(name), demand) == ()
    check(find(name), demand)


def test_a_bad_target_is_told_every_reason_at_once() -> None:
    demand = Demand("dla0", ("fp8",), "8.6", 9 * GIB, "10.9")
    assert len(refusals(find("orin-nano"), demand)) == 5


def _machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("compatible", "model", "name"),
    [
        # Device trees of Jetson Linux 36 (tegra234-p3768-0000+p3767-xxxx), 32 and of Raspberry Pi OS.
        ("nvidia,p3768-0000+p3767-0001\0nvidia,p3767-0001\0nvidia,tegra234\0", "NVIDIA Jetson Orin NX", "orin-nx-8gb"),
        ("nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0", "NVIDIA Jetson Orin Nano Developer Kit", "orin-nano-8gb"),
        ("nvidia,p3768-0000+p3767-0004\0nvidia,tegra234\0", "NVIDIA Jetson Orin Nano", "orin-nano-4gb"),
        ("nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0", "NVIDIA Jetson AGX Orin Developer Kit", "agx-orin-64gb"),
        ("nvidia,p3737-0000+p3701-0004\0nvidia,tegra234\0", "NVIDIA Jetson AGX Orin", "agx-orin-32gb"),
        ("nvidia,jetson-nano\0nvidia,tegra210\0", "NVIDIA Jetson Nano Developer Kit", "jetson-nano"),
        ("nvidia,p2972-0000\0nvidia,tegra194\0", "Jetson-AGX", "agx-xavier"),
        ("raspberrypi,5-model-b\0brcm,bcm2712\0", "Raspberry Pi 5 Model B Rev 1.0", "raspberry-pi-5"),
        ("raspberrypi,4-model-b\0brcm,bcm2711\0", "Raspberry Pi 4 Model B Rev 1.5", "raspberry-pi-4"),
        ("vendor,board\0", "Some board", "generic-aarch64"),
    ],
)
def test_a_board_is_known_by_its_device_tree(tmp_path: Path, compatible: str, model: str, name: str) -> None:
    files = {
        "proc/device-tree/compatible": compatible,
        "proc/device-tree/model": model + "\0",
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\n",
    }
    found = detect(_machine(tmp_path, files))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("model", "flags", "name"),
    [
        ("Intel(R) N100", "avx2 avx_vnni", "intel-n100"),
        ("12th Gen Intel(R) Core(TM) i7-1260P", "avx2 avx_vnni", "intel-core-12"),
        ("Intel(R) Core(TM) Ultra 7 155H", "avx2 avx_vnni", "intel-core-ultra"),
        ("Intel(R) Xeon(R) Platinum 8481C", "avx512f avx512_vnni avx_vnni amx_int8", "xeon-amx"),
        ("Intel(R) Xeon(R) Platinum 8380", "avx512f avx512_vnni", "xeon-vnni"),
        ("AMD EPYC 9654", "avx512f avx512_vnni", "generic-x86-64"),
    ],
)
def test_a_pc_is_known_by_its_processor(tmp_path: Path, model: str, flags: str, name: str) -> None:
    text = f"processor\t: 0\nvendor_id\t: x\nmodel name\t: {model}\nflags\t\t: fpu {flags}\n"
    found = detect(_machine(tmp_path, {"proc/cpuinfo": text}))
    assert found is not None
    assert found.name == name


def test_a_machine_that_says_nothing_is_not_guessed(tmp_path: Path) -> None:
    assert detect(tmp_path) is None
    assert installed_jetpack(tmp_path) is None


def test_the_jetpack_is_told_by_jetson_linux(tmp_path: Path) -> None:
    line = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 2025\n"
    found = installed_jetpack(_machine(tmp_path, {"etc/nv_tegra_release": line}))
    assert found is not None
    assert (found.version, found.tensorrt, found.cuda) == ("6.2", "10.3.0", "12.6")


def test_the_jetpack_is_told_by_dpkg_where_jetson_linux_is_newer_than_the_table(tmp_path: Path) -> None:
    status = (
        "Package: libnvinfer10\nStatus: install ok installed\nArchitecture: arm64\nVersion: 10.3.0.30-1+cuda12.5\n\n"
        "Package: nvidia-jetpack\nStatus: install ok installed\nVersion: 6.2.1+b38\nDepends: nvidia-jetpack-runtime\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    root = _machine(tmp_path, {"var/lib/dpkg/status": status})
    found = installed_jetpack(root)
    assert found is not None
    assert found.version == "6.2.1"
    assert installed("libnvinfer10", root) == "10.3.0.30-1+cuda12.5"
    assert installed("gone", root) == ""


def test_every_jetpack_is_on_a_device_and_has_a_source() -> None:
    used = {p.version for n in JETSONS for p in find(n).jetpacks}
    assert {p.version for p in jetpacks()} == used
    assert all(p.source and p.cuda and p.l4t for p in jetpacks())


def test_no_device_is_called_as_a_runtime_is() -> None:
    every = {n for row in catalogue().values() for n in (row.name, *row.aliases)}
    assert not every & set(registry.names("backends"))


def test_the_page_of_devices_stands_as_the_data_stands() -> None:
    assert PAGE.read_text(encoding="utf-8") == page() + "\n", "run scripts/hardware-page"


def test_the_command_lists_devices_and_shows_one_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--hardware"]) == 0
    assert "orin-nano-8gb" in capsys.readouterr().out
    assert main(["targets", "--hardware", "orin-nano"]) == 0
    text = capsys.readouterr().out
    assert "Jetson Orin Nano 8GB" in text
    assert "source       NVIDIA" in text
    assert main(["targets", "--hardware", "orin-nope"]) == 2
    assert "no such device" in capsys.readouterr().err


def test_a_part_that_a_device_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--hardware", "orin-nx:dla1"]) == 0
    assert main(["targets", "--hardware", "orin-nx:dla9"]) == 3
    assert "no dla9, only dla0 and dla1" in capsys.readouterr().err


def test_the_command_tells_this_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--hardware", "here", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["hardware"]
    here = detect()
    assert found is None if here is None else found["name"] == here.name


def _typed(dtype: int, quantised: bool = False) -> Model:
    """A model that adds to ``x`` in a type, or dequantises int8 weights."""
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=dtype), helper.make_node("Identity", ["c"], ["y"])]
    weights = []
    if quantised:
        nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
        weights = [
            numpy_helper.from_array(np.ones(8, np.int8), "w"),
            numpy_helper.from_array(np.array(0.5, np.float32), "s"),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", dtype, [8])],
        weights,
        value_info=[] if quantised else [helper.make_tensor_value_info("c", dtype, [8])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Model.of(ir.from_proto(proto), "net")


@pytest.mark.parametrize(
    ("dtype", "quantised", "precision"),
    [
        (TensorProto.BFLOAT16, False, "bf16"),
        (TensorProto.FLOAT8E4M3FN, False, "fp8"),
        (TensorProto.FLOAT16, False, "fp16"),
        (TensorProto.FLOAT, True, "int8"),
    ],
)
def test_a_models_types_are_what_it_asks_of_a_device(dtype: int, quantised: bool, precision: str) -> None:
    assert demand_of(_typed(dtype, quantised), plan("orin-nx")).precisions == (precision,)


def test_a_model_is_refused_where_its_types_cannot_be_computed() -> None:
    fp8, int8 = _typed(TensorProto.FLOAT8E4M3FN), _typed(TensorProto.FLOAT, quantised=True)
    with pytest.raises(UnsupportedError, match="does not compute FP8"):
        check_model(fp8, plan("orin-nx"))
    with pytest.raises(UnsupportedError, match="does not compute INT8"):
        check_model(int8, plan("jetson-nano"))
    check_model(fp8, plan("thor"))
    check_model(int8, plan("orin-nx:dla0"))
    check_model(int8, plan("jetson-nano:cpu"))
    check_model(fp8, Target("tensorrt:gpu", "tensorrt", "gpu"))  # no device is named


def test_settings_that_ask_for_more_than_the_device_has_are_refused() -> None:
    model = _typed(TensorProto.FLOAT16)
    with pytest.raises(UnsupportedError, match="does not compute FP8"):
        check_model(model, plan("agx-orin").with_settings({"precision": "fp8"}))
    with pytest.raises(UnsupportedError, match="2:4 sparse weights"):
        check_model(model, plan("xavier-nx").with_settings({"sparse": True}))
    check_model(model, plan("agx-orin").with_settings({"precision": "best", "sparse": True}))


def test_weights_that_the_module_cannot_hold_are_refused() -> None:
    model = _typed(TensorProto.FLOAT, quantised=True)
    asked = demand_of(model, plan("orin-nano"))
    assert asked.memory_bytes == 8 + 4
    small = replace(find("orin-nano"), memory_bytes=8)
    with pytest.raises(UnsupportedError, match="for everything"):
        check_model(model, replace(plan("orin-nano"), hardware=small))


def test_a_part_of_a_device_s_name_finds_those_that_have_it() -> None:
    with pytest.raises(InputError, match="no such device") as caught:
        find("Pi")
    assert caught.value.hint.endswith("raspberry-pi-3, raspberry-pi-4, raspberry-pi-5")


def test_the_list_of_devices_fits_eighty_columns_with_every_name_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["targets", "--hardware"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert {row.name for row in catalogue().values()} <= {word for line in lines for word in line.split()}
