"""OpenVINO's ``benchmark_app``: its JSON or CSV report, or its log. All have aggregates only.

Reports write milliseconds with two digits; the log is finer for fast models. Latency is one inference request's.
Source: reports and logs of OpenVINO 2026.4.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..errors import InputError
from ..strictjson import loads
from . import LIMIT_BYTES, Claim, Reading

_RESULTS = {
    "latency (ms)": ("latency_p50", "ms"), "avg latency": ("", "ms"), "min latency": ("", "ms"),
    "max latency": ("", "ms"),
    "throughput": ("throughput", "1/s"), "first inference time (ms)": ("", "ms"), "compile model time (ms)": ("", "ms"),
    "read model time (ms)": ("", "ms"),
}  # fmt: skip
_SETUP = (
    "target device", "API", "inference_only", "precision", "batch size", "number of iterations",
    "number of parallel infer requests", "duration (ms)", "number of CPU streams",
)  # fmt: skip
_LATENCY = re.compile(r"^\[ INFO \]\s+(Median|Average|Min|Max):\s+([0-9.]+) (ms|us)$")
_THROUGHPUT = re.compile(r"^\[ INFO \] Throughput:\s+([0-9.]+) FPS$")
_BUILD = re.compile(r"^\[ INFO \] Build \.+ (\S+)$")
_DEVICES = re.compile(r"^\[ INFO \] Execution Devices:\s*(.+)$")
_RUNTIME = re.compile(
    r"^\[ INFO \]\s+(INFERENCE_NUM_THREADS|NUM_STREAMS|INFERENCE_PRECISION_HINT|PERFORMANCE_HINT): (.+)$"
)
_NOTE = "benchmark_app keeps aggregates only; without samples there is no interval"


def recognises(record: bytes) -> bool:
    """By a report's sections, or by the steps of a log."""
    head = record[: 1 << 16]
    if b"execution_results" in head and b"configuration_setup" in head:
        return True
    return b"Execution results" in head or b"[Step 11/11]" in record


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says.

    Raises:
        InputError: json.*, import.value.
    """
    text = record.lstrip()
    if text[:1] == b"{":
        return (_json(record, subject),)
    if b"[Step 11/11]" in record:
        return (_log(record.decode("utf-8", "replace"), subject),)
    return (_csv(record.decode("utf-8", "replace"), subject),)


def _json(record: bytes, subject: str) -> Reading:
    value = loads(record, subject, limit_bytes=LIMIT_BYTES)
    sections = [value.get(k) for k in ("cmd_options", "configuration_setup", "execution_results")]
    if not all(isinstance(s, dict) for s in sections[1:]):
        raise _wrong(subject, "has no configuration_setup and execution_results")
    return _report(sections[0] or {}, sections[1], sections[2], subject)


def _csv(text: str, subject: str) -> Reading:
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        name, semicolon, value = line.partition(";")
        if not semicolon:
            section = sections.setdefault(name.strip(), {})
        elif name:
            section[name] = value
    setup, results = sections.get("Configuration setup", {}), sections.get("Execution results", {})
    return _report(sections.get("Command line parameters", {}), setup, results, subject)


def _report(options: Any, setup: Any, results: Any, subject: str) -> Reading:
    claims = []
    for name, (metric, unit) in _RESULTS.items():
        if name in results:
            claims.append(Claim(name, _number(results[name], f"{subject}: {name}"), unit, metric))
    if not any(c.metric for c in claims):
        raise _wrong(subject, "states neither latency nor throughput")
    settings = {k: str(setup[k]) for k in _SETUP if k in setup}
    named = options.get("-m", "") if isinstance(options, dict) else ""
    return Reading(
        label=str(named or setup.get("topology") or subject),
        target=f"openvino:{str(setup.get('target device', '')).lower()}",
        settings=settings or None,
        claims=tuple(claims),
        notes=(_NOTE, "a report does not name the machine"),
    )


def _log(text: str, subject: str) -> Reading:
    claims: list[Claim] = []
    machine: dict[str, str] = {}
    settings: dict[str, str] = {}
    for line in text.splitlines():
        if m := _LATENCY.match(line):
            value = _number(m[2], subject) / (1000 if m[3] == "us" else 1)
            claims.append(Claim(f"latency {m[1].lower()}", value, "ms", "latency_p50" if m[1] == "Median" else ""))
        elif m := _THROUGHPUT.match(line):
            claims.append(Claim("throughput", _number(m[1], subject), "1/s", "throughput"))
        elif m := _BUILD.match(line):
            machine.setdefault("openvino", m[1])
        elif m := _RUNTIME.match(line):
            settings[m[1]] = m[2]
        elif m := _DEVICES.match(line):
            settings["devices"] = m[1]
    if not claims:
        raise _wrong(subject, "states neither latency nor throughput")
    device = {"runtime": {"openvino": machine["openvino"]}} if machine else {}
    return Reading(
        label=subject,
        target="openvino:" + ",".join(re.findall(r"\w+", settings.get("devices", ""))).lower(),
        settings=settings or None,
        claims=tuple(claims),
        device=device,
        notes=(_NOTE, "a log names the runtime, not the machine"),
    )


def _number(value: Any, subject: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise _wrong(subject, f"has {str(value)[:40]!r} where a number is expected")
    return number


def _wrong(subject: str, problem: str) -> InputError:
    return InputError(
        "import.value", subject, problem, "give a report of benchmark_app (-report_type no_counters) or its log"
    )
