"""Olive's output: ``footprint.json`` (every model tried), ``models_rank.json`` and ``metrics.json``.

Olive keeps one number a metric: every metric is an aggregate here, and the gate holds on it.
Source: Olive's footprint and its packaging documentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..errors import InputError
from ..strictjson import loads
from . import LIMIT_BYTES, Claim, Reading, Role

METRICS = {
    "latency-p50": ("latency_p50", "ms"), "latency-p90": ("latency_p90", "ms"), "latency-p95": ("latency_p95", "ms"),
    "latency-p99": ("latency_p99", "ms"), "throughput-avg": ("throughput", "1/s"), "latency-avg": ("", "ms"),
    "latency-min": ("", "ms"), "latency-max": ("", "ms"), "accuracy-accuracy_score": ("top1", "1"),
}  # fmt: skip
NOTE = "Olive keeps one number for each metric; without samples there is no interval"


def recognises(record: bytes) -> bool:
    """By the keys of its nodes, its ranks, or its metrics."""
    text = record[:LIMIT_BYTES]
    nodes = b'"parent_model_id"' in text and b'"model_config"' in text
    return nodes or (b'"higher_is_better"' in text and b'"priority"' in text)


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says of every model that has metrics.

    Raises:
        InputError: json.*, import.value.
    """
    value = loads(record, subject, limit_bytes=LIMIT_BYTES)
    found = [
        Reading(label, role=role, claims=_claims(m, f"{subject}: {label}"), notes=(NOTE,))
        for label, role, m in _models(value)
    ]
    if not found:
        raise _wrong(subject, "has no model with metrics")
    return tuple(found)


def _models(value: Any) -> Iterator[tuple[str, Role, Any]]:
    """(name, side, metrics) of every model: the input model is the baseline, the last one made the candidate."""
    if isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and entry.get("metrics"):
                rank = entry.get("rank")
                yield f"rank {rank}", "candidate" if rank == 1 else "", entry["metrics"]
        return
    if not isinstance(value, dict):
        return
    nodes = [
        (str(k), v) for k, v in value.items() if isinstance(v, dict) and "parent_model_id" in v and v.get("metrics")
    ]
    made = [name for name, v in nodes if v["parent_model_id"] is not None]
    for name, v in nodes:
        role: Role = "baseline" if v["parent_model_id"] is None else "candidate" if name == made[-1] else ""
        yield name, role, v["metrics"]
    if not nodes and value and all(isinstance(v, dict) and "value" in v for v in value.values()):
        yield "model", "", value


def _claims(metrics: Any, subject: str) -> tuple[Claim, ...]:
    inner = metrics.get("value", metrics) if isinstance(metrics, dict) else None
    if not isinstance(inner, dict):
        raise _wrong(subject, "has metrics that are no object")
    found = []
    for name, entry in inner.items():
        number = entry.get("value") if isinstance(entry, dict) else entry
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise _wrong(f"{subject}: {name}", f"is {str(number)[:40]!r}; expected a number")
        metric, unit = METRICS.get(name, ("", ""))
        found.append(Claim(name, float(number), unit, metric))
    return tuple(found)


def _wrong(subject: str, problem: str) -> InputError:
    return InputError("import.value", subject, problem, "give Olive's footprint.json, models_rank.json or metrics.json")
