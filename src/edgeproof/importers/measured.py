"""The documented JSON for measurements of any other tool: ``measured.schema.json`` beside this file."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..files import check_record
from ..measurement import LegRun
from ..receipt import Scores
from ..strictjson import keys, loads
from . import LIMIT_BYTES, Reading

SCHEMA = "edgeproof.measured/1"
_OPTIONAL = (
    "role", "model", "target", "kind", "dataset", "evaluator", "environment", "device", "runs", "scores", "tool",
    "notes",
)  # fmt: skip
_RUN = ("round", "cold_start_ns", "peak_rss_bytes", "base_rss_bytes", "sensors", "environment")
_DEVICE = ("module", "memory_gib", "os", "runtime", "power_mode", "clocks", "cooling", "throttling")


def recognises(record: bytes) -> bool:
    """By its ``schema``."""
    return SCHEMA.encode() in record[:4096] and record.lstrip()[:1] == b"{"


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says.

    Raises:
        InputError: json.*, import.value.
    """
    value = loads(record, subject, limit_bytes=LIMIT_BYTES)
    keys(value, ("schema", "label"), _OPTIONAL, subject)
    if value["schema"] != SCHEMA:
        raise _wrong(subject, f"has schema {value['schema']!r}; expected {SCHEMA!r}")
    for name in ("label", "target", "model", "dataset", "evaluator"):
        if not isinstance(value.get(name, ""), str):
            raise _wrong(f"{subject}: {name}", "is no text")
    if value.get("role", "") not in ("", "baseline", "control", "candidate"):
        raise _wrong(f"{subject}: role", f"is {value['role']!r}; expected baseline, control or candidate")
    if value.get("kind", "runs") not in ("runs", "pipeline", "quality"):
        raise _wrong(f"{subject}: kind", f"is {value['kind']!r}; expected runs, pipeline or quality")
    device = keys(value.get("device", {}), (), _DEVICE, f"{subject}: device")
    environment = value.get("environment", {})
    if not isinstance(environment, dict) or not isinstance(value.get("tool", {}), dict):
        raise _wrong(subject, "has an environment or tool that is no object")
    notes = value.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(n, str) for n in notes):
        raise _wrong(f"{subject}: notes", "is no list of texts")
    runs = tuple(_run(r, f"{subject}: runs[{i}]", i) for i, r in enumerate(_list(value, "runs", subject)))
    scores = [_scores(s, f"{subject}: scores[{i}]") for i, s in enumerate(_list(value, "scores", subject))]
    if len({s.metric for s in scores}) != len(scores):
        raise _wrong(f"{subject}: scores", "has one metric twice")
    return (
        Reading(
            label=value["label"],
            kind=value.get("kind", "runs"),
            role=value.get("role", ""),
            model=value.get("model", ""),
            target=value.get("target", ""),
            inputs=value.get("dataset") or None,
            settings=value.get("evaluator") or None,
            machine=environment or None,
            runs=runs,
            scores={s.metric: s for s in scores},
            device=device,
            notes=tuple(notes),
        ),
    )


def _list(value: dict[str, Any], name: str, subject: str) -> list[Any]:
    found = value.get(name, [])
    if not isinstance(found, list):
        raise _wrong(f"{subject}: {name}", "is no list")
    return found


def _run(value: Any, subject: str, number: int) -> LegRun:
    keys(value, ("latency_ns",), _RUN, subject)
    check_record(LegRun, value, subject)
    if not value["latency_ns"] or min(value["latency_ns"]) <= 0:
        raise _wrong(subject, "has no latency, or one that is not above 0; what was not measured is left out")
    return LegRun.from_json({"leg": "", "round": number, **value})


def _scores(value: Any, subject: str) -> Scores:
    keys(value, ("metric", "unit", "better", "samples"), (), subject)
    check_record(Scores, value, subject)
    return Scores(value["metric"], value["unit"], value["better"], tuple(value["samples"]))


def _wrong(subject: str, problem: str) -> InputError:
    return InputError("import.value", subject, problem, "see measured.schema.json in the package")
