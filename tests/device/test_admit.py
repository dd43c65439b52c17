"""What a bundle must meet before a device takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from device_kit import DEVICE, LINE, NOW, Maker, put
from edgeproof.device.admit import Facts, admit, facts
from edgeproof.device.home import Profile
from edgeproof.device.install import install
from edgeproof.device.sources import FileSource
from edgeproof.device.state import Slot, State
from edgeproof.errors import EdgeproofError
from edgeproof.manifest import File, Manifest, Runtime

HERE = Facts(DEVICE, LINE, "535.104.05", {"onnxruntime": "1.23.0"})
START = State(floor=2, last_seen=NOW)
PLAIN = Manifest(
    name="plate-reader",
    product_line=LINE,
    format="onnx",
    model="model/model.onnx",
    files=(File("model/model.onnx", "sha256:" + "0" * 64, 1),),
    bundle_version=7,
    security_version=2,
    device_allow=(DEVICE,),
)


def refusal(manifest: Manifest, state: State = START, here: Facts = HERE, digest: str = "sha256:d") -> str:
    with pytest.raises(EdgeproofError) as caught:
        admit(manifest, digest, state, here)
    return caught.value.code


def test_a_bundle_that_meets_everything_is_taken():
    demanding = replace(
        PLAIN, min_driver="535.104", max_driver="540", runtime=(Runtime("onnxruntime", "1.20", "1.23"),)
    )
    admit(demanding, "sha256:d", START, HERE)


@pytest.mark.parametrize("allowed", [(), ("bench-camera-2",), ("Bench-Camera",), ("bench",)])
def test_a_device_that_is_not_listed_letter_by_letter_is_not_allowed(allowed):
    assert refusal(replace(PLAIN, device_allow=allowed)) == "device.not_allowed"


def test_a_bundle_of_another_product_line_is_refused():
    assert refusal(replace(PLAIN, product_line="drones")) == "device.other_line"


def test_a_bundle_below_the_floor_is_refused_and_one_at_the_floor_is_not():
    assert refusal(replace(PLAIN, security_version=1)) == "device.below_floor"
    admit(PLAIN, "sha256:d", START, HERE)


def test_a_driver_that_is_too_old_is_refused_and_versions_are_no_decimals():
    assert refusal(replace(PLAIN, min_driver="535.105")) == "device.driver"
    nine = replace(HERE, driver="9.10")
    admit(replace(PLAIN, min_driver="9.9"), "sha256:d", START, nine)
    assert refusal(replace(PLAIN, max_driver="9.9"), here=nine) == "device.driver"


def test_a_driver_that_cannot_be_told_meets_no_demand():
    blind = replace(HERE, driver=None)
    assert refusal(replace(PLAIN, min_driver="1"), here=blind) == "device.driver_unknown"
    admit(PLAIN, "sha256:d", START, blind)


@pytest.mark.parametrize(
    "runtime", [Runtime("onnxruntime", "1.24"), Runtime("onnxruntime", "", "1.9"), Runtime("tensorrt")]
)
def test_a_runtime_that_is_missing_or_out_of_range_is_refused(runtime):
    assert refusal(replace(PLAIN, runtime=(runtime,))) == "device.runtime"
    admit(replace(PLAIN, runtime=(runtime, Runtime("onnxruntime", "1.23"))), "sha256:d", START, HERE)


def test_a_quarantined_bundle_is_refused_with_its_reason():
    state = START.quarantining("sha256:d", "sla.hard: crashes", NOW)
    with pytest.raises(EdgeproofError, match=r"sla\.hard: crashes") as caught:
        admit(PLAIN, "sha256:d", state, HERE)
    assert caught.value.code == "device.quarantined"


@pytest.mark.parametrize("version", [6, 7])
def test_an_older_bundle_than_the_one_that_runs_is_refused(version):
    runs = Slot("good", "sha256:r", "sha256:m", "plate-reader", 7, 2)
    state = replace(START, current="a", a=runs)
    assert refusal(replace(PLAIN, bundle_version=version), state) == "device.older"
    admit(replace(PLAIN, bundle_version=8), "sha256:d", state, HERE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sys/module/nvidia/version", "535.104.05\n"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build\n",
        ),
    ],
)
def test_the_driver_is_read_from_the_kernel(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="ascii")
    profile = Profile(DEVICE, LINE, 0, NOW)
    assert facts(profile, tmp_path).driver == "535.104.05"
    assert facts(replace(profile, driver="1.2"), tmp_path).driver == "1.2"
    assert facts(profile, tmp_path / "nowhere").driver is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"device_allow": ()}, "device.not_allowed"),
        ({"min_driver": "999"}, "device.driver"),
        ({"security_version": 0}, "device.below_floor"),
        ({"product_line": "drones"}, "device.other_line"),
        ({"runtime": (Runtime("onnxruntime", "99"),)}, "device.runtime"),
    ],
)
def test_an_install_asks_all_of_it_and_a_refused_bundle_costs_no_slot(tmp_path, changes, code):
    maker = Maker(tmp_path / "maker")
    home = maker.device(tmp_path / "device", floor=1, driver="535.104")
    put(home, maker.bundle(1))
    before = home.state()
    with pytest.raises(EdgeproofError) as caught:
        install(home, FileSource(maker.bundle(2, **changes)), NOW)
    assert caught.value.code == code
    assert home.state() == before
    assert sorted(p.name for p in home.slots.iterdir()) == ["a.bundle"]
