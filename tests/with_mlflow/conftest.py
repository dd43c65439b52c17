"""Tests against a real tracking server: ``scripts/test-mlflow`` runs them, in an environment of their own."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("mlflow") else ["test_*.py"]
START_S = 300


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Address of a server with a SQLite store that keeps artifacts itself."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "host": "127.0.0.1",
        "port": port,
        "workers": 1,
        "backend-store-uri": f"sqlite:///{folder}/mlflow.db",
        "artifacts-destination": folder / "artifacts",
    }
    command = [sys.executable, "-m", "mlflow", "server", *(f"--{k}={v}" for k, v in options.items())]
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = folder / "log"
    with log.open("w") as f:
        # A group of its own, since a server has children that would outlive it.
        process = subprocess.Popen(
            command, stdout=f, stderr=f, cwd=folder, env={**os.environ, **settings}, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(address, process, log)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _wait(address, process, log):
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}")
