"""Bytes of a repository from a web server or from a folder, bounded in size by the caller and in time here.

One fetcher for both, so that a USB stick passes the same checks as a server. Time is bounded as a whole: whatever a
server does between two bytes, after ``grace_s`` it must have sent more than ``slowest`` bytes a second on average.
From a folder only plain files inside it are read, so that a stick cannot point elsewhere with links or devices.
Source: TUF specification 1.0, section 1.5.2 (slow retrieval, endless data).
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final
from urllib.parse import unquote, urlsplit

from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError
from tuf.ngclient import FetcherInterface, Urllib3Fetcher

GRACE_S = 30.0
SLOWEST = 2048
"""Slowest average rate in bytes per second: a 200 MB bundle then takes at most about a day."""
_SOCKET_S = 20
_CHUNK = 2**16
_FOLDER_CHUNK = 2**20


def base_url(source: str) -> str:
    """The URL of a repository given as a URL or as a folder, ending in a slash.

    >>> base_url("https://updates.example.org/models")
    'https://updates.example.org/models/'
    """
    scheme = urlsplit(source).scheme
    url = source if scheme in ("http", "https", "file") else Path(source).absolute().as_uri()
    return url.rstrip("/") + "/"


@final
class Fetcher(FetcherInterface):
    """Reads files under one base URL.

    Args:
        base: What `base_url` gives.
        grace_s: Seconds before the average rate counts.
        slowest: Bytes a second.

    Attributes:
        last: Name and content of the metadata file that was read last, to say what was wrong with it.
    """

    def __init__(self, base: str, *, grace_s: float = GRACE_S, slowest: int = SLOWEST) -> None:
        self._base = base
        self._grace_s = grace_s
        self._slowest = slowest
        self._web = Urllib3Fetcher(socket_timeout=_SOCKET_S, chunk_size=_CHUNK, app_user_agent="edgeproof")
        self.last: tuple[str, bytes] = ("", b"")

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """Read a whole metadata file."""
        self.last = (url.rpartition("/")[2], b"")
        data = super().download_bytes(url, max_length)
        self.last = (self.last[0], data)
        return data

    def _fetch(self, url: str) -> Iterator[bytes]:
        if not url.startswith(self._base):
            raise DownloadError(f"{url} lies outside the repository")
        if self._base.startswith("file:"):
            return self._from_folder(unquote(url[len(self._base) :]))
        return self._from_web(url)

    def _from_folder(self, name: str) -> Iterator[bytes]:
        root = Path(unquote(urlsplit(self._base).path))
        parts = name.split("/")
        if not all(parts) or not all(part.strip(".") and "\0" not in part for part in parts):
            raise DownloadError(f"{name!r} leaves the repository")
        try:
            handle = _opened(root, parts)
        except FileNotFoundError as e:
            if not root.is_dir():
                raise DownloadError(f"{root} is no folder") from e
            raise DownloadHTTPError(f"{name} is not there", 404) from e
        except OSError as e:
            raise DownloadError(f"{name} cannot be read: {e.strerror}") from e
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise DownloadError(f"{name} is no plain file")
        return _chunks(handle)

    def _from_web(self, url: str) -> Iterator[bytes]:
        """Read in a thread of its own: a server that drips headers or chunk sizes blocks it, and not us."""
        received: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
        stop = threading.Event()
        args = (self._web, url, received, stop)
        threading.Thread(target=_pump, args=args, name="edgeproof-fetch", daemon=True).start()
        first = self._next(received, time.monotonic(), 0, stop)
        return self._rest(first, received, stop)

    def _rest(
        self, item: bytes | None, received: queue.Queue[bytes | BaseException | None], stop: threading.Event
    ) -> Iterator[bytes]:
        started, count = time.monotonic(), 0
        try:
            while item is not None:
                count += len(item)
                yield item
                item = self._next(received, started, count, stop)
        finally:
            stop.set()

    def _next(
        self, received: queue.Queue[bytes | BaseException | None], started: float, count: int, stop: threading.Event
    ) -> bytes | None:
        left = started + self._grace_s + count / self._slowest - time.monotonic()
        try:
            item = received.get(timeout=max(0.0, left))
        except queue.Empty as e:
            stop.set()
            problem = f"sent {count} bytes in {time.monotonic() - started:.0f} s"
            raise SlowRetrievalError(problem) from e
        if isinstance(item, BaseException):
            stop.set()
            raise item
        return item


def _pump(
    web: Urllib3Fetcher, url: str, received: queue.Queue[bytes | BaseException | None], stop: threading.Event
) -> None:
    """Put chunks, then None, or what went wrong; give up when nobody takes them any more."""

    def put(item: bytes | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                received.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    try:
        for chunk in web.fetch(url):
            if not put(chunk):
                return
        put(None)
    except BaseException as e:  # it is raised again in the thread that waits
        put(e)


def _opened(root: Path, parts: list[str]) -> int:
    """Open a file below a folder without following a link anywhere on the way."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)


def _chunks(handle: int) -> Iterator[bytes]:
    with os.fdopen(handle, "rb") as f:
        while chunk := f.read(_FOLDER_CHUNK):
            yield chunk
