"""The device's commands, and that they need nothing that optimises."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from device_kit import DEVICE, LINE, Maker, model, put, repository
from edgeproof.cli import main
from edgeproof.device.home import Home
from edgeproof.frames import Frame, receive, send


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "maker")


@pytest.fixture
def device(maker, tmp_path):
    root = tmp_path / "device"
    arguments = ["--root", str(root), "--device", DEVICE, "--line", LINE, "--key", str(maker.public)]
    assert main(["provision", *arguments, "--golden", str(maker.bundle(1))]) == 0
    return root


@pytest.fixture
def said(capsys):
    def run(*arguments: str) -> tuple[int, dict]:
        capsys.readouterr()
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def feeds(tmp_path, value: float = 1.0) -> str:
    np.savez(tmp_path / "feeds.npz", x=np.full((1, 4), value, np.float32))
    return str(tmp_path / "feeds.npz")


def test_from_the_factory_to_a_raised_floor(device, maker, tmp_path, said):
    root = ["--root", str(device)]
    assert said("status", *root)[1]["current"] == "golden"
    assert main(["install", str(maker.bundle(2, security_version=2)), *root]) == 0
    code, status = said("status", *root)
    assert (code, status["current"], status["a"]["phase"]) == (5, "a", "trial")
    assert main(["mark-good", *root]) == 2
    assert main(["serve", *root, "--feeds", feeds(tmp_path), "--count", "3", "--threads", "1"]) == 5
    assert main(["serve", *root, "--feeds", feeds(tmp_path), "--count", "8", "--threads", "1"]) == 0
    assert said("status", *root, "--check")[0] == 0
    told = str(tmp_path / "floor.json")
    assert main(["floor", "2", "--line", LINE, "--key", str(maker.key), "--out", told]) == 0
    assert main(["mark-good", *root, "--raise-floor", told]) == 0
    assert said("status", *root)[1]["floor"] == 2
    assert main(["install", str(maker.bundle(3)), *root]) == 4
    events = [p.name.split("-")[1] for p in sorted((device / "receipts").iterdir())]
    assert events == ["installed.json", "kept.json", "floor.json"]


def test_rollback_goes_back_and_an_older_bundle_is_not_installed(device, maker, tmp_path, said):
    home = Home(device)
    put(home, old := maker.bundle(2))
    put(home, maker.bundle(3))
    assert main(["install", str(old), "--root", str(device)]) == 4
    code, result = said("rollback", "--root", str(device), "--reason", "blurry", "--quarantine")
    assert (code, result["current"]) == (0, "a")
    assert home.state().quarantine[0].reason == "blurry"
    assert main(["rollback", "--root", str(device)]) == 4
    assert main(["install", str(maker.folder / "plate-reader-3.bundle"), "--root", str(device)]) == 4


def test_a_self_test_of_a_bundle_that_gives_nan_ends_with_1(device, maker, tmp_path, said):
    put(Home(device), maker.bundle(2))
    put(Home(device), maker.bundle(3, model("Log", -1.0)), keep=False)
    code, result = said("serve", "--root", str(device), "--feeds", feeds(tmp_path), "--count", "5", "--threads", "1")
    assert (code, result["outcome"], result["after"]["bundle_version"]) == (1, "left", 2)


def test_install_from_a_stick(maker, tmp_path):
    where, first = repository(tmp_path / "r", maker, maker.bundle(1))
    root = ["--root", str(tmp_path / "device")]
    assert main(["provision", *root, "--device", DEVICE, "--line", LINE, "--repository-root", str(first)]) == 0
    assert main(["install", str(where), *root]) == 0
    assert Home(tmp_path / "device").state().a.version == 1


def test_status_shows_rot_only_when_asked_to_read(device, maker, said):
    home = Home(device)
    put(home, maker.bundle(2))
    home.bundle("a").write_bytes(b"rot")
    assert said("status", "--root", str(device))[0] == 0
    code, status = said("status", "--root", str(device), "--check")
    assert (code, list(status["faults"])) == (4, ["a"])


@pytest.mark.parametrize("command", [["status"], ["serve"], ["mark-good"], ["rollback"], ["install", __file__]])
def test_a_folder_that_is_no_devices_is_bad_input(tmp_path, command):
    assert main([*command, "--root", str(tmp_path / "nothing")]) == 2


def test_serving_ends_at_once_where_nothing_may_run(maker, tmp_path, capsys):
    root = ["--root", str(tmp_path / "bare")]
    assert main(["provision", *root, "--device", DEVICE, "--line", LINE, "--key", str(maker.public)]) == 0
    assert main(["serve", *root]) == 4
    assert "edgeproof install" in capsys.readouterr().err


def test_a_device_is_provisioned_once_and_believes_somebody(device, maker, tmp_path):
    again = ["provision", "--root", str(device), "--device", DEVICE, "--line", LINE]
    assert main([*again, "--key", str(maker.public)]) == 2
    assert main(["provision", "--root", str(tmp_path / "n"), "--device", DEVICE, "--line", LINE]) == 2


def test_provisioning_that_was_cut_short_is_done_again(device, maker):
    (device / "device.json").unlink()  # it is written last
    again = ["provision", "--root", str(device), "--device", DEVICE, "--line", LINE, "--key", str(maker.public)]
    assert main(["status", "--root", str(device)]) == 2
    assert main([*again, "--golden", str(maker.folder / "plate-reader-1.bundle")]) == 0
    put(Home(device), maker.bundle(2))


def test_a_first_bundle_is_left_for_the_golden_one_only_when_that_is_said(device, maker, said):
    put(Home(device), maker.bundle(2), keep=False)
    assert main(["rollback", "--root", str(device)]) == 4
    assert said("rollback", "--root", str(device), "--golden")[1]["current"] == "golden"


def test_a_golden_bundle_is_held_against_the_device(maker, tmp_path):
    arguments = [
        "provision",
        "--root",
        str(tmp_path / "d"),
        "--device",
        "other",
        "--line",
        LINE,
        "--key",
        str(maker.public),
    ]
    assert main([*arguments, "--golden", str(maker.bundle(1))]) == 4
    assert not (tmp_path / "d" / "device.json").exists()


def test_two_supervisors_of_one_device_are_one_too_many(device, maker):
    put(Home(device), maker.bundle(2))
    with Home(device).serving():
        assert main(["serve", "--root", str(device)]) == 2


def test_serve_answers_until_it_is_told_to_end_and_keeps_what_it_watched(device, maker):
    put(Home(device), maker.bundle(2), keep=False)
    command = [sys.executable, "-m", "edgeproof", "serve", "--root", str(device), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serve:
        try:
            assert serve.stdout.readline().startswith("plate-reader 2")
            port = int(serve.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/health")
            assert json.loads(connection.getresponse().read())["trial"]["boots"] == 1
            connection.close()
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(30) == 0
        finally:
            serve.kill()
    assert Home(device).state().trial.served_s > 0


LEAN = """
import sys
HEAVY = {"onnx", "onnx_ir", "onnxruntime", "PIL", "pycocotools", "scipy", "mlflow"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"no {name} on a device", name=name)
sys.meta_path.insert(0, Refuse())
from edgeproof.cli import main
root, bundle, told, key = sys.argv[1:]
codes = [
    main(["provision", "--root", root, "--device", "bench-camera", "--line", "cameras", "--key", key]),
    main(["install", bundle, "--root", root]),
    main(["status", "--root", root, "--check"]),
    main(["mark-good", "--root", root]),
    main(["rollback", "--root", root]),
]
import pkgutil, importlib, edgeproof.device
for module in pkgutil.iter_modules(edgeproof.device.__path__):
    importlib.import_module("edgeproof.device." + module.name)
print(codes, sorted(HEAVY & set(sys.modules)))
"""


def test_nothing_on_a_device_but_the_models_process_loads_a_model_library(maker, tmp_path):
    arguments = [str(tmp_path / "device"), str(maker.bundle(1)), "", str(maker.public)]
    done = subprocess.run([sys.executable, "-c", LEAN, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 5, 2, 4] []"


ONLY_RUNTIME = """
import sys
HEAVY = {"onnx", "onnx_ir", "PIL", "pycocotools", "scipy", "mlflow"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"no {name} on a device", name=name)
sys.meta_path.insert(0, Refuse())
import runpy
runpy.run_module("edgeproof.device.child", run_name="__main__")
"""


def test_the_models_process_needs_the_runtime_and_nothing_else(device, maker, tmp_path):
    put(Home(device), maker.bundle(2))
    slot = Home(device).state().a
    command = [sys.executable, "-c", ONLY_RUNTIME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        to, back = child.stdin.fileno(), child.stdout.fileno()
        send(to, Frame({"path": str(Home(device).bundle("a")), "slot": asdict(slot), "threads": 1}))
        assert receive(back, 60).head["inputs"][0]["name"] == "x"
        send(to, Frame({}, {"x": np.ones((1, 4), np.float32)}))
        assert receive(back, 60).arrays["y"].tolist() == [[-1.0] * 4]
        child.stdin.close()
        assert child.wait(20) == 0
