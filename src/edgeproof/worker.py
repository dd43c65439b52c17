"""The measuring process: ``python -m edgeproof.worker``, job JSON on stdin, result JSON on stdout.

Two tasks. ``interleaved`` loads every leg and times them in turns, a small block each, so that drift hits all alike.
``alone`` loads and runs one model in a process that does nothing else: cold start and peak memory. Which leg is being
worked on is told on stderr, so that a process that dies can be blamed on its leg.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import registry, runtimes
from .dataset import Feeds
from .environment import condition, others_share
from .errors import EdgeproofError
from .job import MARK, QUANTITIES, Leg, Plan, load_feeds
from .model import load_model
from .protocols import Backend, Sensor, Session, Timed

ORPHANED = 3
"""Exit code of a worker whose parent is gone."""


def main() -> int:
    """Read the job, do it, answer."""
    # Native libraries write to file descriptor 1 as they please: the answer gets a private copy of it.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.read())
    _end_with(job["parent"])
    try:
        result = TASKS[job["task"]](job)
    except EdgeproofError as e:
        result = {"error": e.to_json()}
    with answer:
        json.dump(result, answer, allow_nan=False)
    return 0


def interleaved(job: Mapping[str, Any]) -> dict[str, Any]:
    """Time all legs in turns.

    Args:
        job: ``legs``, ``plan``, ``feeds`` (path), ``inferences`` and ``round``.

    Returns:
        ``latency_ns`` and ``sensors`` per leg, and the ``environment``.
    """
    legs, plan = [Leg.from_json(v) for v in job["legs"]], Plan(**job["plan"])
    feeds = load_feeds(Path(job["feeds"]))
    order = random.Random(plan.seed * 1_000_003 + job["round"])  # noqa: S311 (a reproducible order, not a secret)
    sessions: dict[str, Session] = {}
    for leg in _shuffled(legs, order):  # what is loaded first gets the better memory: no leg always does
        sessions[leg.name] = _load(leg)
        _repeat(sessions[leg.name], feeds, plan.warmup)
    before, start, own = condition(), time.monotonic(), time.process_time()
    latency = _timed(legs, sessions, feeds, plan, job["inferences"], order)
    after = condition()
    others = others_share(before, after, time.process_time() - own, time.monotonic() - start)
    readings, absent = _sensed(_shuffled(legs, order), sessions, feeds, plan)
    for session in sessions.values():
        session.close()
    environment: dict[str, Any] = {"before": before, "after": after, "no_sensor": absent}
    if others is not None:
        environment["others_share"] = others
    return {"latency_ns": latency, "sensors": readings, "environment": environment}


def alone(job: Mapping[str, Any]) -> dict[str, Any]:
    """Load one model and run it.

    The runtime itself is loaded first, with a model of one node, so that cold start and memory are the model's own.

    Args:
        job: ``leg``, ``plan`` and ``feeds`` (path).

    Returns:
        ``cold_start_ns``, and ``peak_rss_bytes`` and ``base_rss_bytes`` where the system tells.
    """
    leg, plan = Leg.from_json(job["leg"]), Plan(**job["plan"])
    feeds = load_feeds(Path(job["feeds"]))
    _tell(leg)
    backend = runtimes.backend(leg.target.backend)
    with suppress(EdgeproofError):  # a runtime that refuses the one-node model is loaded by now all the same
        _one_node(backend, leg)
    gc.collect()
    base = peak_rss_bytes()
    model = load_model(leg.path)
    start = time.perf_counter_ns()
    session = backend.compile(model, leg.target)
    session.run(feeds[0])
    cold = time.perf_counter_ns() - start
    _repeat(session, feeds, max(plan.warmup, len(feeds)))
    result = {"cold_start_ns": cold, "peak_rss_bytes": peak_rss_bytes(), "base_rss_bytes": base}
    session.close()
    return result


TASKS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"interleaved": interleaved, "alone": alone}


def peak_rss_bytes() -> int | None:
    """Peak resident memory of this process image; None where the system does not tell.

    VmHWM belongs to the address space, which exec replaces. getrusage's ru_maxrss survives exec and would show the
    parent's memory.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _timed(
    legs: Sequence[Leg],
    sessions: Mapping[str, Session],
    feeds: Sequence[Feeds],
    plan: Plan,
    inferences: int,
    order: random.Random,
) -> dict[str, list[int]]:
    """Blocks in turns, in a new order each time; the garbage collector waits."""
    latency: dict[str, list[int]] = {leg.name: [] for leg in legs}
    gc.collect()
    gc.disable()
    try:
        done = 0
        while done < inferences:
            count = min(plan.block, inferences - done)
            for leg in _shuffled(legs, order):
                _tell(leg)
                _repeat(sessions[leg.name], feeds, plan.settle)
                latency[leg.name] += _block(sessions[leg.name], feeds, done, count)
            done += count
    finally:
        gc.enable()
    return latency


def _block(session: Session, feeds: Sequence[Feeds], first: int, count: int) -> list[int]:
    """Nanoseconds of each of ``count`` inferences, from the call to its return."""
    if isinstance(session, Timed):
        return session.timed(feeds, first, count)
    times: list[int] = []
    for i in range(first, first + count):
        sample = feeds[i % len(feeds)]
        start = time.perf_counter_ns()
        outputs = session.run(sample)
        times.append(time.perf_counter_ns() - start)
        del outputs  # freed here, outside the clock
    return times


def _sensed(
    legs: Sequence[Leg], sessions: Mapping[str, Session], feeds: Sequence[Feeds], plan: Plan
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Read sensors while each leg runs for a while by itself; the timed part knows no such thread."""
    sensors: dict[str, Sensor] = {}
    absent: dict[str, str] = {}
    for name in registry.names("telemetry"):
        sensor: Sensor = registry.load("telemetry", name)()
        why = sensor.missing()
        if why is None:
            sensors[name] = sensor
        else:
            absent[name] = why
    readings: dict[str, dict[str, list[float]]] = {leg.name: {} for leg in legs}
    if sensors and plan.sensor_s > 0:
        for leg in legs:
            _tell(leg)
            readings[leg.name] = _by_quantity(_read_while(sensors, sessions[leg.name], feeds, plan), sensors)
    return readings, absent


def _by_quantity(readings: Mapping[str, list[float]], sensors: Mapping[str, Sensor]) -> dict[str, list[float]]:
    """Every sensor's readings, and per quantity those of the sensor that read most: the safe side."""
    found = dict(readings)
    for name in sorted(readings, key=lambda n: -max(readings[n], default=0.0)):
        found.setdefault(QUANTITIES.get(sensors[name].unit, name), readings[name])
    return found


def _read_while(
    sensors: Mapping[str, Sensor], session: Session, feeds: Sequence[Feeds], plan: Plan
) -> dict[str, list[float]]:
    readings: dict[str, list[float]] = defaultdict(list)
    stop = threading.Event()

    def poll() -> None:
        for sensor in sensors.values():  # a rate (power from an energy counter) starts to count here
            with suppress(OSError):
                sensor.read()
        while not stop.wait(1 / plan.sensor_hz):
            for name, sensor in sensors.items():
                with suppress(OSError, ValueError):  # a reading that fails is a reading less, never a zero
                    readings[name].append(sensor.read())

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + plan.sensor_s
        while time.monotonic() < end:
            _repeat(session, feeds, 1)
    finally:
        stop.set()
        thread.join()
    return dict(readings)


def _load(leg: Leg) -> Session:
    _tell(leg)
    return runtimes.compile_for(leg.target, load_model(leg.path))


def _repeat(session: Session, feeds: Sequence[Feeds], count: int) -> None:
    if isinstance(session, Timed):
        session.timed(feeds, 0, count)
        return
    for i in range(count):
        session.run(feeds[i % len(feeds)])


def _shuffled(legs: Sequence[Leg], order: random.Random) -> list[Leg]:
    return order.sample(list(legs), len(legs))


def _tell(leg: Leg) -> None:
    print(f"{MARK}{leg.name}", file=sys.stderr, flush=True)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that happens. Source: prctl(2), PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(ORPHANED)


def _one_node(backend: Backend, leg: Leg) -> None:
    import numpy as np
    import onnx_ir as ir
    from onnx import TensorProto, helper

    from .model import Model

    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [1, 8])], [value("y", TensorProto.FLOAT, [1, 8])]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one_node", *ends)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = backend.compile(Model.of(ir.from_proto(proto), "one_node"), leg.target)
    session.run({"x": np.zeros((1, 8), np.float32)})
    session.close()


if __name__ == "__main__":
    sys.exit(main())
