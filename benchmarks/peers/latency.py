"""Latency of all tools' models of one task, interleaved, as multiples of FP32's.

Samples of one process are not independent: the same model loaded twice in one process can differ by a tenth all along,
by where its memory lies. So every figure comes from several fresh processes, which load the models in different orders;
its interval is over processes. ``again`` is the float model a second time: its distance from 1 is the method's error.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from edgeproof.bounds import ratio_bounds
from edgeproof.model import load_model

from .tasks import session_of

AGAIN = "again"
WARM_UP = 3


def latencies(paths: Mapping[str, Path], samples: Path, processes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Time every model.

    Args:
        paths: Tool → model; must hold ``float``.
        samples: Folder of ``0000.npz`` …; the first eight are taken in turn.
        processes: How many, at least 2.
        rounds: Of one inference of every model in each process.

    Returns:
        Tool → ``ms`` (CPU time, median over processes of medians), ``ratio`` to float (geometric mean over processes
        of the ratio of medians of CPU time) with its 95 % t-interval ``low`` and ``high``, ``wall_ratio``, and the
        medians.
    """
    every = {**{name: str(path) for name, path in paths.items()}, AGAIN: str(paths["float"])}
    found = [_process(every, samples, seed, rounds) for seed in range(processes)]
    return {name: _summary(found, name) for name in every}


def _process(paths: Mapping[str, str], samples: Path, seed: int, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        given, told = Path(folder) / "job.json", Path(folder) / "told.json"
        given.write_text(json.dumps({"paths": paths, "samples": str(samples), "seed": seed, "rounds": rounds}))
        subprocess.run([sys.executable, "-m", __spec__.name, given, told], check=True)
        result: dict[str, list[float]] = json.loads(told.read_text())
        return result


def _summary(found: list[dict[str, list[float]]], name: str) -> dict[str, Any]:
    """Of one model, from (CPU ms, wall ms) per process."""
    cpu, wall = ([run[name][k] for run in found] for k in (0, 1))
    base, wall_base = ([run["float"][k] for run in found] for k in (0, 1))
    low, high = ratio_bounds(base, cpu, 0.025, 0.025)
    return {
        "ms": median(cpu),
        "ratio": _geometric(cpu, base),
        "low": low,
        "high": high,
        "wall_ratio": _geometric(wall, wall_base),
        "cpu_ms": cpu,
        "wall_ms": wall,
    }


def _geometric(values: list[float], base: list[float]) -> float:
    return math.exp(fmean(math.log(v / b) for v, b in zip(values, base, strict=True)))


def _time(job: Mapping[str, Any]) -> dict[str, list[float]]:
    """In the child: model → medians of CPU and wall time, ms."""
    rng = np.random.default_rng(job["seed"])
    names = list(rng.permutation(list(job["paths"])))
    sessions = {name: session_of(load_model(job["paths"][name])) for name in names}
    feeds = [dict(np.load(path)) for path in sorted(Path(job["samples"]).glob("*.npz"))[:8]]
    cpu: dict[str, list[int]] = {name: [] for name in names}
    wall: dict[str, list[int]] = {name: [] for name in names}
    for n in range(job["rounds"] + WARM_UP):
        for name in rng.permutation(names):
            start, clock = time.process_time_ns(), time.perf_counter_ns()
            sessions[name].run(feeds[n % len(feeds)])
            if n >= WARM_UP:
                cpu[name].append(time.process_time_ns() - start)
                wall[name].append(time.perf_counter_ns() - clock)
    return {name: [median(cpu[name]) / 1e6, median(wall[name]) / 1e6] for name in names}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_time(json.loads(Path(sys.argv[1]).read_text()))))
