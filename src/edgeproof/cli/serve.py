"""Serve the model of the current slot on this machine, watch it, and keep it or go back.

POST /infer takes npz (application/x-npz) or JSON ({"inputs": {name: lists}}); GET /health and /metrics tell how it
goes. With --feeds nothing is served: the samples of a file are run --count times as a self-test.

exit codes: 0 ended, or the self-test's bundle is kept; 1 it was left; 4 nothing may run; 5 undecided
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TrustError
from ._device import add_root, described, provisioned
from .show import Show

if TYPE_CHECKING:
    from ..device.supervisor import Supervisor

TICK_S = 0.2


def arguments(parser: argparse.ArgumentParser) -> None:
    """Port, limits, self-test."""
    from . import whole_number

    add_root(parser)
    parser.add_argument("--port", type=whole_number, default=8600, metavar="P", help="on 127.0.0.1 (default: 8600)")
    parser.add_argument(
        "--threads", type=whole_number, default=0, metavar="N", help="of one inference (0: the runtime's)"
    )
    parser.add_argument("--by-hand", action="store_true", help="leave keeping a bundle to 'edgeproof mark-good'")
    parser.add_argument("--feeds", metavar="NPZ", help="run these inputs instead of serving: one array per input")
    parser.add_argument("--count", type=whole_number, default=100, metavar="N", help="inferences with --feeds")


def run(args: argparse.Namespace, show: Show) -> int:
    """Serve until interrupted, or run the self-test."""
    from ..device.supervisor import Supervisor

    home = provisioned(args)
    with home.serving():
        supervisor = Supervisor(home, threads=args.threads, by_hand=args.by_hand)
        stop = threading.Event()
        try:
            found = supervisor.start()
            if found.current is None:
                hint = "install a bundle with 'edgeproof install'; 'edgeproof status' shows the slots"
                raise TrustError("serve.stopped", str(home.root), f"nothing runs: {found.why}", hint)
            ticks = threading.Thread(target=_tick, args=(supervisor, stop), daemon=True)
            ticks.start()
            if args.feeds:
                return _self_test(supervisor, Path(args.feeds), args.count, show)
            show.text(f"{described(found.slot)} from {found.current}; {found.why}".removesuffix("; "))
            _serve(supervisor, args.port, show)
            return 0
        finally:
            stop.set()
            supervisor.close()


def _serve(supervisor: Supervisor, port: int, show: Show) -> None:
    import signal

    from ..device.web import Server

    server = Server(supervisor, port)

    def end(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, end)
    show.text(f"  http://127.0.0.1:{server.server_port}/infer, /health, /metrics")
    try:
        server.serve_forever()
    finally:
        server.server_close()


def _tick(supervisor: Supervisor, stop: threading.Event) -> None:
    while not stop.wait(TICK_S):
        supervisor.tick()


def _self_test(supervisor: Supervisor, feeds: Path, count: int, show: Show) -> int:
    from ..device.arrays import from_npz
    from ..errors import UnsupportedError
    from ..files import os_error, plain

    try:
        inputs = from_npz(plain(feeds).read_bytes())
    except OSError as e:
        raise os_error(feeds, e) from e
    before, failed = supervisor.health(), 0
    for _ in range(count):
        try:
            supervisor.infer(inputs)
        except UnsupportedError as e:
            failed += 1
            show.note(str(e))
            if supervisor.health()["current"] is None:
                break
    supervisor.tick()
    health = supervisor.health()
    left = health["bundle"] != before["bundle"]
    outcome = "left" if left else {"trial": "undecided"}.get(health["phase"], "kept")
    why = health["trial"]["why"] if health["trial"] else health["why"]
    show.text(
        f"{before['name']} {before['bundle_version']}: {outcome} after {count} inferences, {failed} of them failed"
    )
    if why:
        show.text(f"  {why}")
    show.result({"outcome": outcome, "failed": failed, "before": before, "after": health})
    return {"left": 1, "undecided": 5}.get(outcome, 0)
