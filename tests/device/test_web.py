"""The supervisor over HTTP, and strangers' arrays."""

from __future__ import annotations

import http.client
import io
import json
import threading
import zipfile

import numpy as np
import pytest

from device_kit import Maker, model, put
from edgeproof.device.arrays import from_json, from_npz, to_json, to_npz
from edgeproof.device.sensors import Sensors
from edgeproof.device.supervisor import Supervisor
from edgeproof.device.web import JSON, NPZ, Server, metrics
from edgeproof.errors import InputError

X = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    maker = Maker(folder / "maker")
    home = maker.device(folder / "device")
    put(home, maker.bundle(1, model("Log")))
    supervisor = Supervisor(home, threads=1, sensors=Sensors({}))
    supervisor.start()
    server = Server(supervisor, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()
    supervisor.close()


def request(port, method, path, body=None, kind=JSON, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, {"Content-Type": kind, **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read()
    finally:
        connection.close()


def test_npz_in_npz_out(port):
    status, kind, body = request(port, "POST", "/infer", to_npz(X), NPZ)
    assert (status, kind) == (200, NPZ)
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        assert arrays["y"].tolist() == [[0.0] * 4]


def test_where_nothing_runs_a_request_is_told_so_and_not_that_its_inputs_are_unknown(tmp_path):
    home = Maker(tmp_path / "maker").device(tmp_path / "device")
    server = Server(Supervisor(home, threads=1, sensors=Sensors({})), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        for body, kind in ((b'{"inputs":{"x":[[1,1,1,1]]}}', JSON), (to_npz(X), NPZ)):
            status, _, answer = request(server.server_port, "POST", "/infer", body, kind)
            assert (status, json.loads(answer)["error"]["code"]) == (503, "serve.stopped")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_json_in_json_out(port):
    status, _, body = request(port, "POST", "/infer", json.dumps({"inputs": {"x": [[1, 1, 1, 1]]}}))
    assert status == 200
    assert json.loads(body)["outputs"] == {"y": [[0.0] * 4]}


def test_health_tells_what_runs(port):
    status, _, body = request(port, "GET", "/health")
    health = json.loads(body)
    assert status == 200
    assert (health["serving"], health["phase"], health["bundle_version"]) == (True, "good", 1)
    assert health["interface"]["inputs"] == [{"name": "x", "type": "tensor(float)", "shape": [1, 4]}]


def test_metrics_are_in_prometheus_text_and_a_missing_sensor_has_no_line(port):
    request(port, "POST", "/infer", to_npz(X), NPZ)
    status, kind, body = request(port, "GET", "/metrics")
    assert (status, kind) == (200, "text/plain")
    lines = body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["edgeproof_inferences_total"]) >= 1
    assert 'edgeproof_latency_ms{quantile="0.95"}' in values
    assert values["edgeproof_serving"] == "1"
    assert not [name for name in values if "temperature" in name or "power" in name]
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(typed) == len(set(typed))


def test_metrics_of_a_device_that_stopped_say_so():
    health = {
        "serving": False,
        "current": None,
        "phase": "empty",
        "bundle": "",
        "bundle_version": 0,
        "alarm": "",
        "trial": None,
        "watched": {"inferences": 0, "failed": 0, "crashes": 0, "nan_outputs": 0, "last": {"temperature": 71.5}},
    }
    text = metrics(health, [])
    assert "edgeproof_serving 0\n" in text
    assert "edgeproof_temperature 71.5\n" in text
    assert "latency" not in text


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "headers", "expected"),
    [
        ("GET", "/", None, JSON, {}, (404, "serve.path")),
        ("POST", "/health", b"{}", JSON, {}, (404, "serve.path")),
        ("POST", "/infer", b"x=1", "application/x-www-form-urlencoded", {}, (415, "serve.type")),
        ("POST", "/infer", b"{}", "text/plain", {}, (415, "serve.type")),
        ("POST", "/infer", None, JSON, {"Content-Length": "99999999999"}, (413, "serve.length")),
        ("POST", "/infer", None, JSON, {"Content-Length": "-1"}, (413, "serve.length")),
        ("POST", "/infer", b"{}", JSON, {}, (400, "json.missing_key")),
        ("POST", "/infer", b'{"inputs":{"x":[NaN]}}', JSON, {}, (400, "json.not_finite")),
        ("POST", "/infer", b'{"inputs":{"x":[[1,2],[3]]}}', JSON, {}, (400, "serve.json")),
        ("POST", "/infer", b'{"inputs":{"z":[1]}}', JSON, {}, (400, "serve.json")),
        ("POST", "/infer", b'{"inputs":{"x":[[1,1,1]]}}', JSON, {}, (400, "serve.refused")),
        ("POST", "/infer", b"PK no zip", NPZ, {}, (400, "serve.npz")),
        ("POST", "/infer", to_npz({"x": np.full((1, 4), np.nan, np.float32)}), NPZ, {}, (400, "serve.input_nan")),
        ("POST", "/infer", to_npz({"x": np.full((1, 4), -np.inf, np.float32)}), NPZ, {}, (400, "serve.input_infinite")),
        ("POST", "/infer", b'{"inputs":{"x":[[1e39,1,1,1]]}}', JSON, {}, (400, "serve.input_infinite")),
    ],
)
def test_what_is_no_request_is_refused_with_its_code(port, method, path, body, kind, headers, expected):
    status, _, answer = request(port, method, path, body, kind, **headers)
    assert (status, json.loads(answer)["error"]["code"]) == expected


def test_npz_reads_what_numpy_writes():
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.asfortranarray(np.eye(3)), "c": np.array(True)}
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, **arrays)
        for name, array in from_npz(out.getvalue()).items():
            np.testing.assert_array_equal(array, arrays[name])
            assert array.dtype == arrays[name].dtype


def member(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", data)
    return out.getvalue()


def header(text: str) -> bytes:
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


def pickled() -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.array([{}], dtype=object))
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        pickled(),
        member(b"no array"),
        member(header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }") + bytes(16)),
        member(header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }") + bytes(16)),
        member(header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + bytes(8)),
        member(header("__import__('os').getpid()")),
        b"",
    ],
    ids=["object", "text", "huge", "negative", "object dtype", "code", "empty"],
)
def test_arrays_that_claim_more_than_they_are_or_could_run_code_are_refused(data):
    with pytest.raises(InputError) as caught:
        from_npz(data)
    assert caught.value.code == "serve.npz"


def test_a_bomb_is_refused_before_it_is_unpacked():
    out = io.BytesIO()
    np.savez_compressed(out, x=np.zeros(200_000, np.float32), y=np.zeros(200_000, np.float32))
    assert len(out.getvalue()) < 20_000
    assert set(from_npz(out.getvalue(), limit=1_700_000)) == {"x", "y"}
    with pytest.raises(InputError) as caught:  # each is below the limit, both are not
        from_npz(out.getvalue(), limit=1_000_000)
    assert caught.value.code == "serve.npz"


def test_json_values_take_the_models_type_and_what_is_not_finite_becomes_null():
    inputs = [{"name": "i", "type": "tensor(int64)"}, {"name": "s", "type": "tensor(string)"}]
    assert from_json(b'{"inputs":{"i":[1,2]}}', inputs)["i"].dtype == np.int64
    with pytest.raises(InputError):
        from_json(b'{"inputs":{"s":["a"]}}', inputs)
    assert to_json({"y": np.array([1.5, np.nan, np.inf])}) == {"y": [1.5, None, None]}
