"""Container files: what a parser of Dockerfiles reads back, what is pinned, and the start of the container itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from device_kit import DEVICE, LINE, Maker
from edgeproof.bundle.opening import open_bundle
from edgeproof.cli import main
from edgeproof.errors import InputError, TrustError, UnsupportedError
from edgeproof.manifest import Runtime
from edgeproof.serving.containers import JETPACK, Cargo, Container, write_container

BASES = [Container(), Container("gpu"), Container("openvino"), *(Container("jetson", j) for j in JETPACK)]


def cargo(tmp_path: Path, **changes: Any) -> Cargo:
    maker = Maker(tmp_path / "maker")
    path = maker.bundle(3, **changes)
    with open_bundle(path) as bundle:
        return Cargo(bundle.manifest, path, [maker.public])


@pytest.mark.parametrize("asked", BASES, ids=lambda c: f"{c.base}-{c.jetpack}")
def test_a_parser_finds_one_pinned_image_a_plain_user_a_health_check_and_the_entry_point(asked, tmp_path):
    write_container(cargo(tmp_path), tmp_path / "out", asked)
    parser = DockerfileParser(str(tmp_path / "out" / "Dockerfile"))
    said = {i["instruction"]: i["value"] for i in parser.structure}
    assert re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]*\d[a-z0-9.-]*", parser.baseimage)
    assert "latest" not in parser.baseimage
    assert said["USER"] == "10001:10001"
    assert "/health" in json.loads(said["HEALTHCHECK"].partition("CMD ")[2])[-1]
    assert json.loads(said["ENTRYPOINT"]) == ["/opt/edgeproof/entrypoint.sh"]
    assert json.loads(said["VOLUME"]) == ["/var/lib/edgeproof"]
    for line in (i["value"] for i in parser.structure if i["instruction"] == "COPY"):
        assert (tmp_path / "out" / line.split()[0]).exists()


@pytest.mark.parametrize("asked", BASES, ids=lambda c: f"{c.base}-{c.jetpack}")
def test_every_requirement_is_an_exact_version_and_one_of_them_is_a_runtime(asked, tmp_path):
    write_container(cargo(tmp_path), tmp_path / "out", asked)
    lines = (tmp_path / "out" / "requirements.txt").read_text().split()
    assert all(re.fullmatch(r"[a-z0-9-]+==\d[0-9a-z.+]*", line) for line in lines)
    assert sum(line.startswith("onnxruntime") for line in lines) == 1
    assert f"edgeproof=={version('edgeproof')}" in lines
    assert f"tuf=={version('tuf')}" in lines


def test_the_compose_file_gives_the_container_no_more_than_it_needs(tmp_path):
    write_container(cargo(tmp_path), tmp_path / "out", Container("jetson"))
    value = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    service = value["services"]["serve"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["network_mode"] == "host"
    assert service["runtime"] == "nvidia"
    assert set(value["volumes"]) == {"state"}


def test_no_secret_is_in_the_folder(tmp_path):
    files = write_container(cargo(tmp_path), tmp_path / "out", Container())
    assert not any(b"PRIVATE KEY" in f.read_bytes() for f in files)


def test_a_wheel_of_ones_own_is_installed_instead(tmp_path):
    given = cargo(tmp_path)
    wheel = tmp_path / "onnxruntime_gpu-1.23.0-cp311-cp311-linux_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/__init__.py", "")
    made = wheel.read_bytes()
    write_container(Cargo(given.manifest, given.bundle, given.keys, [wheel]), tmp_path / "out", Container("jetson"))
    assert "onnxruntime-gpu==1.23.0\n" in (tmp_path / "out" / "requirements.txt").read_text()
    assert "--find-links" in (tmp_path / "out" / "Dockerfile").read_text()
    assert (tmp_path / "out" / "wheels" / wheel.name).read_bytes() == made


@pytest.mark.parametrize("name", ["onnxruntime.whl", "onnxruntime-1.24.1-cp311-cp311-linux_aarch64.whl"])
def test_what_is_no_wheel_is_refused_before_anything_is_written(tmp_path, name):
    given = cargo(tmp_path)
    (tmp_path / name).write_bytes(b"not a ZIP")
    with pytest.raises(InputError, match="is no wheel"):
        write_container(
            Cargo(given.manifest, given.bundle, given.keys, [tmp_path / name]), tmp_path / "out", Container("jetson")
        )
    assert not (tmp_path / "out").exists()


def test_a_board_without_a_fitting_python_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"6\.0, 6\.1, 6\.2, 7\.0"):
        write_container(cargo(tmp_path), tmp_path / "out", Container("jetson", "5.1"))


def test_a_device_that_the_bundle_is_not_for_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"is for {DEVICE}, not for elsewhere"):
        write_container(cargo(tmp_path), tmp_path / "out", Container(device="elsewhere"))


def test_a_runtime_that_the_bundle_does_not_take_is_refused(tmp_path):
    wanted = (Runtime("onnxruntime", "1.0", "1.1"),)
    with pytest.raises(InputError, match=r"takes onnxruntime 1\.0 to 1\.1"):
        write_container(cargo(tmp_path, runtime=wanted), tmp_path / "out", Container())


def test_a_bundle_of_another_format_or_without_keys_is_refused(tmp_path):
    given = cargo(tmp_path, format="engine")
    with pytest.raises(UnsupportedError):
        write_container(given, tmp_path / "out", Container())
    given = cargo(tmp_path / "second")
    with pytest.raises(InputError, match="believes nobody"):
        write_container(Cargo(given.manifest, given.bundle, ()), tmp_path / "out", Container())


def test_the_command_refuses_a_bundle_that_no_given_key_signed(tmp_path, capsys):
    given, other = cargo(tmp_path), Maker(tmp_path / "other")
    ask = ["export", str(given.bundle), "--as", "dockerfile", "--out", str(tmp_path / "out"), "--key"]
    assert main([*ask, str(other.public)]) == TrustError.exit_code
    assert not (tmp_path / "out").exists()
    assert main([*ask, str(given.keys[0]), "--set", "base=gpu"]) == 0
    assert (tmp_path / "out" / "Dockerfile").is_file()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(folder: Path, root: Path, port: int) -> subprocess.Popen[bytes]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "EDGEPROOF_ROOT": str(root), "EDGEPROOF_PORT": str(port)}
    return subprocess.Popen([str(folder / "entrypoint.sh")], env=environment, start_new_session=True)


def health(port: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return dict(json.load(answer))
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None
            time.sleep(0.05)
    raise AssertionError("no answer")


def test_the_entry_point_makes_a_device_serves_and_takes_a_newer_bundle(tmp_path):
    maker, root = Maker(tmp_path / "maker"), tmp_path / "state"
    seen = []
    for number in (1, 2, 1):
        path = maker.bundle(number)
        with open_bundle(path) as bundle:
            given = Cargo(bundle.manifest, path, [maker.public])
        out = tmp_path / f"out-{len(seen)}"
        write_container(given, out, Container())
        port = free_port()
        process = start(out, root, port)
        try:
            found = health(port, process)
            seen.append((found["bundle_version"], found["phase"]))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
    # Golden at once; version 2 on trial; the older image changes nothing.
    assert [v for v, _ in seen] == [1, 2, 2]
    assert seen[1][1] == "trial"
    assert LINE in (root / "device.json").read_text()
