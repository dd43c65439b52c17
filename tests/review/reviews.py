"""Reviews of small models with made-up measurements in the documented JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgeproof.evaluate import metric_units
from edgeproof.policy import Policy, policy_from
from edgeproof.review import Prepared, prepare, run
from edgeproof.review.gather import Given
from structure.models import FIXTURES

TIME = "2026-12-01T09:30:00Z"
FASTER: dict[str, Any] = {
    "metric": "latency_p95",
    "op": "<=",
    "limit": "0.9",
    "unit": "ratio",
    "relative_to": "baseline",
}
QUALITY: dict[str, Any] = {"metric": "quality", "op": "<=", "limit": "0.01", "relative_to": "baseline"}


def rules(*listed: dict[str, Any], **more: Any) -> Policy:
    return policy_from({"name": "p", "rules": list(listed or (FASTER,)), **more}, "p", metric_units())


def models(folder: Path) -> tuple[Path, Path]:
    """Two TFLite models of one graph: the second has another weight."""
    found = (folder / "before.tflite", folder / "after.tflite")
    for path, name in zip(found, ("fc_int8", "fc_int8_weights"), strict=True):
        path.write_bytes((FIXTURES / f"{name}.tflite").read_bytes())
    return found


def latencies(ms: float, seed: int, rounds: int = 10, n: int = 200) -> list[dict[str, Any]]:
    """Runs that share each round's luck, as interleaved ones do."""
    shared = np.random.default_rng(7).normal(0, 0.02, rounds)
    rng = np.random.default_rng(seed)
    times = ms * 1e6 * np.exp(shared[:, None] + rng.normal(0, 0.03, (rounds, n)))
    return [{"round": i, "latency_ns": [int(t) for t in row]} for i, row in enumerate(times)]


def record(path: Path, role: str, **more: Any) -> Path:
    value = {
        "schema": "edgeproof.measured/1",
        "label": path.stem,
        "role": role,
        "target": "tensorrt:gpu",
        "dataset": "sha256:inputs",
        "evaluator": "sha256:settings",
        "environment": {"board": "Orin NX", "power": "MAXN"},
        **more,
    }
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))
    return path


def measured(folder: Path, candidate_ms: float = 5.0, **more: Any) -> list[Given]:
    """Baseline at 10 ms, its control, and the candidate; ``more`` is the candidate's."""
    sides = {"baseline": (10.0, 1, {}), "control": (10.0, 2, {}), "candidate": (candidate_ms, 3, more)}
    made = []
    for role, (ms, seed, extra) in sides.items():
        path = record(folder / f"{role}.json", role, **{"runs": latencies(ms, seed), **extra})
        made.append(Given((path,)))
    return made


def prepared(folder: Path, given: list[Given] | None = None, policy: Policy | None = None, **more: Any) -> Prepared:
    before, after = models(folder)
    return prepare(
        folder / "review",
        baseline=more.pop("baseline", before),
        candidate=more.pop("candidate", after),
        policy=policy or rules(),
        change="INT8 weights",
        given=measured(folder) if given is None else given,
        **more,
    )


def state(folder: Path) -> str:
    return run(folder / "review", folder / "evidence.zip", timestamp=TIME).sealed.verdict.state
