"""LiteRT's ``benchmark_model`` (once TensorFlow Lite's): its log, with operators where it was told to profile them.

The log has aggregates only. The line ``count=… avg=…`` of the timed runs is the second one; the first is the warm-up.
Whether a delegate took the whole graph, a part or nothing is said in a sentence, and stands in the notes.
Source: TensorFlow, ``lite/tools/benchmark`` (benchmark_model.cc, profiling_listener.cc), ``lite/profiling`` and
``core/util/stats_calculator.cc``; published logs.
"""

from __future__ import annotations

import re

from ..errors import InputError
from ..measurement import LayerTime
from . import Claim, Reading

_STATS = re.compile(r"^(?:INFO: )?count=(\d+)((?: \w+=[0-9.e+-]+)+)\s*$")
_TIMINGS = re.compile(r"Inference timings in us: (.*)$")
_PAIR = re.compile(r"(\w[\w ()]*?)[:=] ?([0-9.]+(?:e[+-]?\d+)?)(?:, |\s|$)")
_DELEGATE = re.compile(r"(?:Explicitly applied|Created TensorFlow Lite|Applied) .*delegate.*$")
_OPTION = re.compile(r"^(?:INFO: )?(?:Use (gpu|NNAPI|xnnpack)|Num threads|Graph): \[(.*)\]$")
_METRICS = {"median": "latency_p50", "p95": "latency_p95"}
_MEMORY = re.compile(r"Memory footprint delta from the start of the tool \(MB\): init=([0-9.]+) overall=([0-9.]+)")


def recognises(record: bytes) -> bool:
    """By its summary line."""
    return b"Inference timings in us:" in record


def read(record: bytes, subject: str) -> tuple[Reading, ...]:
    """What it says.

    Raises:
        InputError: import.value.
    """
    lines = record.decode("utf-8", "replace").splitlines()
    stats = [m for line in lines if (m := _STATS.match(line.strip()))]
    timings = next((m for line in lines if (m := _TIMINGS.search(line))), None)
    if timings is None:
        raise InputError("import.value", subject, "has no line of inference timings", "give the log of benchmark_model")
    claims = [Claim(name.strip(), float(value), "us") for name, value in _PAIR.findall(timings[1])]
    if not any(c.name == "Inference (avg)" and c.value > 0 for c in claims):
        raise InputError("import.value", subject, "states no average above 0", "run benchmark_model again")
    if len(stats) > 1:
        claims += [
            Claim(f"inference {name}", float(value) / 1e3, "ms", _METRICS.get(name, ""))
            for name, value in _PAIR.findall(stats[-1][2])
            if name not in ("first", "curr")
        ]
        claims.append(Claim("inferences", float(stats[-1][1]), ""))
    memory = next((m for line in lines if (m := _MEMORY.search(line))), None)
    if memory is not None:
        claims.append(Claim("memory footprint", float(memory[2]), "MB"))
    options = [line.strip().removeprefix("INFO: ") for line in lines if _OPTION.match(line.strip())]
    said = [m[0] for line in lines if (m := _DELEGATE.search(line))]
    return (
        Reading(
            subject,
            target=_target(options),
            settings={"options": options} if options else None,
            claims=tuple(claims),
            notes=("benchmark_model keeps no samples, only aggregates", *dict.fromkeys(said)),
            layers=_layers(lines, subject),
        ),
    )


def _target(options: list[str]) -> str:
    for name, device in (("Use gpu", "gpu"), ("Use NNAPI", "nnapi")):
        if any(o.startswith((f"{name}: [1", f"{name}: [true")) for o in options):
            return f"litert:{device}"
    return "litert:cpu"


def _layers(lines: list[str], subject: str) -> tuple[LayerTime, ...]:
    """Operators of the timed runs, in order: the table *Run Order* after the line that says what it is of.

    Its columns are separated by tabs in older versions and by spaces in newer ones, and may begin with ``[start]``.
    """
    start = next((i for i, line in enumerate(lines) if "Operator-wise Profiling Info for Regular" in line), None)
    if start is None:
        return ()
    found: list[LayerTime] = []
    columns: list[str] = []
    for line in lines[start + 1 :]:
        if "Top by Computation Time" in line:
            break
        if "[node type]" in line:
            columns = re.findall(r"\[[^\]]+\]", line)
        elif columns and line.strip():
            row = [c.strip() for c in re.split(r"\t+| {2,}", line.strip()) if c.strip()]
            if len(row) < len(columns) or "[avg ms]" not in columns:
                continue
            mean = row[columns.index("[avg ms]")]
            if not re.fullmatch(r"[0-9.]+", mean):
                raise InputError("import.value", subject, f"has {mean[:40]!r} as average of {row[0]}", "run it again")
            name = " ".join(row[len(columns) - 1 :]).removeprefix("[").replace("]:", ":")
            found.append(LayerTime(name, row[0], "", "", (round(float(mean) * 1e6),)))
    return tuple(found)
