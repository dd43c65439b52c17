"""``trtexec`` of TensorRT 8 to 11: the trace that ``--exportTimes`` writes, the log, and what both tell of layers.

The trace has every inference of one process, so that its percentiles are derived again; the log has aggregates only.
``latencyMs`` is transfer + compute + transfer of one query. A trace holds the warm-up too: what began within the first
200 ms (trtexec's default) is left out, as trtexec leaves it out. Layers come from ``--exportProfile`` and
``--exportLayerInfo`` (JSON) or from the log (``--dumpProfile``, ``--dumpLayerInfo``, a verbose build); files about one
engine that are given together are joined.
Source: TensorRT's sampleReporting.cpp (exportJSONTrace, printPerformanceReport), logs of versions 8.4 to 10.16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from ..errors import InputError
from ..measurement import LegRun
from ..strictjson import loads
from . import LIMIT_BYTES, Claim, Reading
from ._layers import joined_layers
from ._trt_layers import layers_of_json, layers_of_text, profile_of_json, profile_of_text

WARMUP_MS = 200.0
AGREE = 1e-3
"""Relative difference allowed between the latency and the sum of its parts: trtexec writes six digits of times that
count from the start of the process."""
_PARTS = ("h2dMs", "computeMs", "d2hMs", "latencyMs")
_PREFIX = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[A-Z]\] ?")
_VALUE = re.compile(r"(min|max|mean|median|percentile\((\d+(?:\.\d+)?)%\)) = ([0-9.e+-]+) ms")
_METRICS = {"50": "latency_p50", "90": "latency_p90", "95": "latency_p95", "99": "latency_p99"}
_FACTS = ("Selected Device", "Compute Capability", "Device Global Memory", "TensorRT version", "Precision", "Batch")


def recognises(record: bytes) -> bool:
    """By the keys of a trace, a profile or layer information, or by trtexec's own lines."""
    return bool(_form(record))


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says.

    Raises:
        InputError: json.*, import.value, import.mismatch.
    """
    form = _form(record)
    if form == "trace":
        return (_trace(record, subject),)
    if form in ("profile", "layers"):
        value = loads(record, subject, limit_bytes=LIMIT_BYTES)
        found = profile_of_json(value, subject) if form == "profile" else layers_of_json(record.decode("utf-8"))
        if not found:
            raise _wrong(subject, "names no layer")
        return (Reading(subject, target="tensorrt:gpu", layers=found),)
    return (_log(record, subject),)


def _form(record: bytes) -> str:
    """Which of trtexec's files it is; empty when it is none."""
    head = record[:4096].lstrip()
    if head[:1] == b"[" and b'"startComputeMs"' in head:
        return "trace"
    if head[:1] == b"[" and b'"count"' in head[:200] and (b'"averageMs"' in head or head.count(b"{") == 1):
        return "profile"
    if head[:1] == b"{" and b'"Layers"' in head[:200]:
        return "layers"
    summary = b"=== Performance summary ===" in record and (b"GPU Compute Time" in record or b"trtexec" in record)
    layers = b"=== Profile (" in record or b"LayerType: " in record or b"[DlaLayer]" in record
    return "log" if summary or (layers and (b"trtexec" in record or _PREFIX.match(head.decode("latin-1")))) else ""


def _trace(record: bytes, subject: str) -> Reading:
    value = loads(record, subject, limit_bytes=LIMIT_BYTES)
    latencies: list[int] = []
    warm = 0
    for i, entry in enumerate(value):
        latency, start = _entry(entry, f"{subject}: [{i}]")
        if start < WARMUP_MS:
            warm += 1
        else:
            latencies.append(round(latency * 1e6))
    if not latencies:
        raise _wrong(subject, f"has no inference after the warm-up of {WARMUP_MS:g} ms")
    note = f"{warm} inferences of the first {WARMUP_MS:g} ms are warm-up and left out"
    run = LegRun("", 0, tuple(latencies))
    return Reading(subject, target="tensorrt:gpu", runs=(run,), notes=(note, "a trace does not name device or shapes"))


def _entry(entry: Any, subject: str) -> tuple[float, float]:
    """Latency and start of one inference; the latency is the sum of its parts."""
    found = [entry.get(k) for k in (*_PARTS, "startComputeMs")] if isinstance(entry, dict) else []
    numbers = [float(n) for n in found if isinstance(n, int | float) and not isinstance(n, bool)]
    if len(numbers) != len(_PARTS) + 1:
        raise _wrong(subject, f"is {str(entry)[:60]}; expected {', '.join(_PARTS)}")
    h2d, compute, d2h, latency, start = numbers
    if min(h2d, compute, d2h) < 0 or latency <= 0:
        raise _wrong(subject, f"has a latency of {latency:g} ms")
    if not math.isclose(h2d + compute + d2h, latency, rel_tol=AGREE, abs_tol=AGREE):
        problem = f"states a latency of {latency:g} ms; its parts add up to {h2d + compute + d2h:g}"
        raise InputError("import.mismatch", subject, problem, "the trace was changed; export it again")
    return latency, start


def _log(record: bytes, subject: str) -> Reading:
    lines = [_PREFIX.sub("", line.strip()) for line in record.decode("utf-8", "replace").splitlines()]
    claims: list[Claim] = []
    facts: dict[str, str] = {}
    for line in lines:
        name, colon, rest = line.partition(": ")
        if colon and name in _FACTS and name not in facts:
            facts[name] = rest.strip()[:200]
        if name == "Throughput" and rest.endswith(" qps"):
            claims.append(Claim("Throughput", _number(rest.removesuffix(" qps"), subject), "1/s", "throughput"))
        elif name in ("Latency", "GPU Compute Time", "End-to-End Host Latency", "H2D Latency", "D2H Latency"):
            claims += _aggregates(name, rest, subject)
    table = profile_of_text(lines, subject)
    layers = joined_layers([table, layers_of_text(lines)])
    if not claims and not layers:
        raise _wrong(subject, "has no performance summary, and tells of no layers")
    version = next((m[1] for line in lines if (m := re.search(r"\[TensorRT v(\d+)\]", line))), "")
    if version and "TensorRT version" not in facts:
        facts["TensorRT version"] = version
    shapes = sorted(line.partition(":")[2].strip() for line in lines if line.startswith("Input inference shape"))
    device = {"module": facts.get("Selected Device", ""), "runtime": {"tensorrt": facts.get("TensorRT version", "")}}
    return Reading(
        subject,
        target="tensorrt:gpu",
        inputs={"shapes": shapes} if shapes else None,
        machine={k: facts[k] for k in sorted(facts)} or None,
        claims=tuple(claims),
        device=device,
        layers=layers,
        notes=tuple(_log_notes(bool(claims), bool(table), record)),
    )


def _log_notes(claims: bool, table: bool, record: bytes) -> Iterator[str]:
    if claims:
        yield "a log of trtexec has aggregates only; add --exportTimes=times.json and import that"
    if claims and table and b"--separateProfileRun" not in record:
        yield "latency was taken while layers were timed, which slows it down; add --separateProfileRun"


def _aggregates(name: str, text: str, subject: str) -> list[Claim]:
    found = []
    for what, percent, number in _VALUE.findall(text):
        metric = ""
        if name == "Latency":
            metric = _METRICS.get(percent, "") if percent else ("latency_p50" if what == "median" else "")
        found.append(Claim(f"{name} {what}", _number(number, subject), "ms", metric))
    return found


def _number(text: str, subject: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise _wrong(subject, f"has {text[:40]!r} where a number is expected")
    return number


def _wrong(subject: str, problem: str) -> InputError:
    return InputError("import.value", subject, problem, "give a log of trtexec, or the JSON that --exportTimes wrote")
