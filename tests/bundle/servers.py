"""Web servers on this machine: one that serves a folder, and some that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, directory=str(folder), **options)

        def log_message(self, *args: object) -> None:
            pass

    with serving(Handler) as url:
        yield url


@contextmanager
def dripping(what: str) -> Iterator[str]:
    """A server that answers, but slowly: one byte in a while, for hours; or quickly and without an end."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "root" in self.path:
                return self.send_error(404)
            with suppress(OSError):  # the client hangs up, as it should
                self._answer()
            return None

        def _answer(self) -> None:
            if what == "endless":
                self.send_response(200)
                self.end_headers()
                while not over.is_set():
                    self.wfile.write(b" " * 65536)
            if what == "body":
                self.send_response(200)
                self.send_header("Content-Length", "10000")
                self.end_headers()
            if what == "headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not over.wait(0.05):
                if what != "silence":
                    self.wfile.write(b"x")
                    self.wfile.flush()

        def log_message(self, *args: object) -> None:
            pass

    try:
        with serving(Handler) as url:
            yield url
            over.set()
    finally:
        over.set()
