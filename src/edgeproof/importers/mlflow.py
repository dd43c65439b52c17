"""A run of MLflow, as its REST API answers (``{"run": …}``) or as ``Run.to_dictionary`` writes it.

MLflow keeps numbers, not samples: every metric is an aggregate here, and the gate holds on it. Digests of ours in tags
or params (``edgeproof.model``, ``.dataset``, ``.evaluator``, ``.environment``, ``.target``) are taken over.
"""

from __future__ import annotations

import math
from typing import Any

from .. import registry
from ..errors import InputError
from ..strictjson import loads
from . import LIMIT_BYTES, Claim, Reading

PREFIX = "edgeproof."


def recognises(record: bytes) -> bool:
    """By its first keys."""
    head = record[:65536]
    return record.lstrip()[:1] == b"{" and b'"info"' in head and (b'"run_id"' in head or b'"run_uuid"' in head)


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says.

    Raises:
        InputError: json.*, import.value.
    """
    value = loads(record, subject, limit_bytes=LIMIT_BYTES)
    run = value.get("run", value) if isinstance(value, dict) else {}
    info, data = (run.get(k) if isinstance(run, dict) else None for k in ("info", "data"))
    if not isinstance(info, dict) or not isinstance(data, dict):
        raise _wrong(subject, "has no info and data of a run")
    stated = {
        **_pairs(data.get("params", {}), f"{subject}: params"),
        **_pairs(data.get("tags", {}), f"{subject}: tags"),
    }
    claims = tuple(
        Claim(name, number, "", name if name in registry.names("metrics") else "")
        for name, number in _metrics(data.get("metrics", {}), f"{subject}: metrics")
    )
    ours = {k.removeprefix(PREFIX): str(v) for k, v in stated.items() if k.startswith(PREFIX)}
    note = "MLflow keeps aggregates, not samples; log the raw samples and import them as 'measured'"
    return (
        Reading(
            label=str(info.get("run_name") or stated.get("mlflow.runName") or info.get("run_id") or ""),
            model=ours.get("model", ""),
            target=ours.get("target", ""),
            inputs=ours.get("dataset") or None,
            settings=ours.get("evaluator") or None,
            machine=ours.get("environment") or None,
            claims=claims,
            notes=(note,),
        ),
    )


def _pairs(value: Any, subject: str) -> dict[str, Any]:
    """``{"a": 1}`` or ``[{"key": "a", "value": 1}]``."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(p, dict) and isinstance(p.get("key"), str) for p in value):
        raise _wrong(subject, "is neither an object nor a list of keys and values")
    found: dict[str, Any] = {}
    for pair in value:
        if pair["key"] in found and found[pair["key"]] != pair.get("value"):
            raise _wrong(subject, f"has {pair['key']!r} twice, with different values")
        found[pair["key"]] = pair.get("value")
    return found


def _metrics(value: Any, subject: str) -> list[tuple[str, float]]:
    """Metrics with their last value; a list may hold the history of one, step by step."""
    if isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("key"), str) for m in value):
        value = {m["key"]: m.get("value") for m in sorted(value, key=_when)}
    if not isinstance(value, dict):
        raise _wrong(subject, "is neither an object nor a list of keys and values")
    found = []
    for name, number in value.items():
        # The REST API writes numbers that JSON does not have as text.
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            if number in ("NaN", "Infinity", "-Infinity"):
                continue
            raise _wrong(f"{subject}: {name}", f"is {str(number)[:40]!r}; expected a number")
        found.append((name, float(number)))
    return found


def _when(metric: dict[str, Any]) -> tuple[int, int]:
    step, time = metric.get("step", 0), metric.get("timestamp", 0)
    return tuple(int(t) if str(t).lstrip("-").isdigit() and len(str(t)) < 19 else 0 for t in (step, time))  # type: ignore[return-value]


def _wrong(subject: str, problem: str) -> InputError:
    return InputError("import.value", subject, problem, "export the run again, e.g. with GET /api/2.0/mlflow/runs/get")
