"""The supervisor over HTTP, for programs on the same machine.

    POST /infer     npz in, npz out (application/x-npz), or JSON: {"inputs": {name: lists}}
    GET  /health    what runs and how it goes; 503 when nothing does
    GET  /metrics   the same for Prometheus (text format 0.0.4)

Both content types are ones that a web page elsewhere cannot send unasked.
"""

from __future__ import annotations

import json
import math
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final

from ..errors import EdgeproofError, InputError
from .arrays import LIMIT_BYTES, from_json, from_npz, to_json, to_npz
from .sla import statistic
from .supervisor import Supervisor

JSON, NPZ, TEXT = "application/json", "application/x-npz", "text/plain; version=0.0.4; charset=utf-8"
_SLOW_S = 30


@final
class Server(ThreadingHTTPServer):
    """Answers on the loopback interface only.

    Args:
        supervisor: What answers.
        port: 0 for any free one.
    """

    daemon_threads = True
    request_queue_size = 128  # the five of the base class are gone at once when many ask at a time

    def __init__(self, supervisor: Supervisor, port: int) -> None:
        self.supervisor = supervisor
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of ours; everything else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@final
class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SLOW_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "edgeproof", ""

    def do_GET(self) -> None:
        supervisor = self.server.supervisor
        if self.path == "/health":
            health = supervisor.health()
            status = HTTPStatus.OK if health["serving"] else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, JSON, json.dumps(health, allow_nan=False).encode())
        elif self.path == "/metrics":
            self._send(HTTPStatus.OK, TEXT, metrics(supervisor.health(), supervisor.latencies()).encode())
        else:
            self._refuse(HTTPStatus.NOT_FOUND, InputError("serve.path", self.path, "is nothing here", "GET /health"))

    def do_POST(self) -> None:
        self.close_connection = True  # whatever is left of a request that was refused is not the next request
        if self.path != "/infer":
            self._refuse(HTTPStatus.NOT_FOUND, InputError("serve.path", self.path, "is nothing here", "POST /infer"))
            return
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        length = self.headers.get("Content-Length") or ""
        if kind not in (JSON, NPZ):
            error = InputError("serve.type", kind or "no content type", "is not taken", f"send {NPZ} or {JSON}")
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, error)
        elif not length.isascii() or not length.isdigit() or len(length) > 12 or int(length) > LIMIT_BYTES:
            problem = f"has the length {length[:40]!r}; expected at most {LIMIT_BYTES} bytes"
            error = InputError("serve.length", "request", problem, "send fewer samples at once")
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        else:
            self._infer(kind, self.rfile.read(int(length)))

    def _infer(self, kind: str, body: bytes) -> None:
        supervisor = self.server.supervisor
        try:
            interface = supervisor.interface()
            if not interface:
                feeds = {}  # nothing runs, whatever was sent: the supervisor says why
            else:
                feeds = from_npz(body) if kind == NPZ else from_json(body, interface.get("inputs", ()))
            answer = supervisor.infer(feeds)
        except InputError as e:
            self._refuse(HTTPStatus.BAD_REQUEST, e)
            return
        except EdgeproofError as e:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, e)
            return
        if kind == NPZ:
            self._send(HTTPStatus.OK, NPZ, to_npz(answer.outputs))
            return
        value = {
            "outputs": to_json(answer.outputs),
            "latency_ms": answer.latency_ms,
            "nan_outputs": answer.nan_outputs,
        }
        self._send(HTTPStatus.OK, JSON, json.dumps(value, allow_nan=False).encode())

    def _refuse(self, status: HTTPStatus, error: EdgeproofError) -> None:
        self._send(status, JSON, json.dumps({"error": error.to_json()}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name in the base class)
        """Requests are counted, not logged: a camera sends thirty a second."""


def metrics(health: dict[str, Any], latencies: list[float]) -> str:
    """The health page for Prometheus; a reading that is missing has no line.

    Args:
        health: What `Supervisor.health` gives.
        latencies: The last ones, in ms.

    Source: Prometheus exposition format, text version 0.0.4.
    """
    watched, lines = health["watched"], []

    def line(name: str, kind: str, value: float, labels: str = "") -> None:
        if math.isfinite(value):
            lines.extend([f"# TYPE edgeproof_{name} {kind}", f"edgeproof_{name}{labels} {value:.17g}"])

    current, phase = health["current"] or "none", health["phase"]
    labels = f'{{slot="{current}",phase="{phase}",bundle="{health["bundle"]}",version="{health["bundle_version"]}"}}'
    line("serving", "gauge", float(health["serving"]))
    line("slot_info", "gauge", 1.0, labels)
    line("alarm", "gauge", float(bool(health["alarm"])))
    for name in ("inferences", "failed", "crashes", "nan_outputs"):
        line(f"{name}_total", "counter", float(watched[name]))
    if latencies:
        lines.append("# TYPE edgeproof_latency_ms gauge")
        for share in ("50", "95", "99"):
            value = statistic(f"p{share}", latencies)
            lines.append(f'edgeproof_latency_ms{{quantile="0.{share}"}} {value:.17g}')
    for metric, value in sorted(watched["last"].items()):
        if metric not in ("latency", "throughput"):
            line(metric, "gauge", value)
    if health["trial"]:
        line("trial_served_seconds", "gauge", health["trial"]["served_s"])
        line("trial_boots", "gauge", float(health["trial"]["boots"]))
    return "\n".join(lines) + "\n"
