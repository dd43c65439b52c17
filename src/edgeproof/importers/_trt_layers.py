"""Layers in what ``trtexec`` writes: the profile (JSON and table), layer information (JSON and lines), DLA lists.

Layers keep TensorRT's own names, by which a profile and layer information of the same engine are joined.
Sources: TensorRT's sampleReporting.cpp (Profiler::print, exportJSONProfile) of versions 8.0, 8.5 and 8.6 to 10; *Engine
Inspector* in its developer guide; logs of DLA builds with TensorRT 8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..measurement import LayerTime
from ..tensorrt.layers import Layer, from_inspector

AGREE = 0.01
"""Relative difference allowed between the sum of a table and its total, beside what rounding to 0.01 ms makes."""
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_NEW = re.compile(rf"^\s*{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+(\S.*)$")
_OLD = re.compile(rf"^\s*(\S.*?)\s+{_NUMBER}\s+{_NUMBER}(?:\s+{_NUMBER})?\s+{_NUMBER}$")
_LINE = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]+)(?P<rest>.*)$")
_TENSORS = {key: re.compile(rf", {key}: \[(.*?)\](?=, [A-Z][A-Za-z]*: |$)") for key in ("Inputs", "Outputs")}
_FORMAT = re.compile(r"Format/Datatype: ([^}]*?) ?}")
_TACTIC = re.compile(r", TacticName: ([^,]*)")
_VERBOSE = re.compile(r"Layer\((?P<kind>\w+)\): (?P<name>.*?), Tactic: (?P<tactic>[^,]*), (?P<io>.*)$")
_SHORT = re.compile(r"\((\w+)\[[\d,:-]*\]\)")
_PART = re.compile(r"\[(?P<place>Dla|Gpu)Layer\] (?:(?P<kind>[A-Z][A-Z0-9_]*): )?(?P<name>.+?),?$")


def profile_of_json(value: Any, subject: str) -> tuple[LayerTime, ...]:
    """The mean time of every layer, from what ``--exportProfile`` wrote.

    Args:
        value: The JSON: ``[{"count": N}, {"name", "timeMs", "averageMs", "medianMs" from 8.4 on, "percentage"}, …]``.
        subject: For messages.

    Raises:
        InputError: import.value, import.mismatch.
    """
    head = value[0] if isinstance(value, list) and value else None
    count = head.get("count") if isinstance(head, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _wrong(subject, f"has a count of {count!r} inferences; expected at least 1")
    found = []
    for i, row in enumerate(value[1:], 1):
        at = f"{subject}: [{i}]"
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise _wrong(at, f"is {str(row)[:60]}; expected name, timeMs and averageMs")
        total, mean = _time(row, "timeMs", at), _time(row, "averageMs", at)
        if total > mean * (count + 1):
            problem = f"states {total:g} ms in {count} inferences, and {mean:g} ms on average"
            raise InputError("import.mismatch", at, problem, "the profile was changed; export it again")
        found.append(LayerTime(name, "", "", "", (round(mean * 1e6),)))
    return tuple(found)


def profile_of_text(lines: Sequence[str], subject: str) -> tuple[LayerTime, ...]:
    """The mean time of every layer, from the table of ``--dumpProfile``; empty when the lines have none.

    Args:
        lines: Of the log, without time and severity.
        subject: For messages.

    Raises:
        InputError: import.mismatch, when the rows do not add up to the total.
    """
    start = next(
        (i for i, line in enumerate(lines) if re.match(r"\s*=== Profile \(\d+ iterations ?\) ===", line)), None
    )
    if start is None or start + 1 >= len(lines):
        return ()
    new = lines[start + 1].rstrip().endswith("Layer")
    found: list[LayerTime] = []
    sum_ms = 0.0
    for line in lines[start + 2 :]:
        row = (_NEW if new else _OLD).match(line.rstrip())
        if row is None:
            break
        name = row[5] if new else row[1]
        total, mean = (float(row[1]), float(row[2])) if new else (float(row[2]), float(row[3]))
        if name == "Total":
            if abs(total - sum_ms) > AGREE * total + 0.005 * (len(found) + 1):
                problem = f"has layers of {sum_ms:.2f} ms in all; its total is {total:.2f}"
                raise InputError("import.mismatch", subject, problem, "the table was changed; run trtexec again")
            break
        sum_ms += total
        found.append(LayerTime(name, "", "", "", (round(mean * 1e6),)))
    return tuple(found)


def layers_of_json(text: str) -> tuple[LayerTime, ...]:
    """Layers with type, place and precision, without times, from what ``--exportLayerInfo`` wrote."""
    return tuple(_of(layer) for layer in from_inspector(text))


def layers_of_text(lines: Iterable[str]) -> tuple[LayerTime, ...]:
    """Layers from the lines of ``--dumpLayerInfo``, of a verbose build log of TensorRT 8, or of a DLA build.

    Args:
        lines: Of the log, without time and severity.
    """
    told: list[dict[str, Any]] = []
    verbose: list[LayerTime] = []
    parts: dict[str, LayerTime] = {}
    for line in lines:
        if (m := _LINE.search(line)) is not None:
            told.append({"Name": m["name"], "LayerType": m["kind"].strip(), **_tensors(m["rest"])})
        elif (m := _VERBOSE.search(line)) is not None:
            outputs = _SHORT.findall(m["io"].partition("->")[2])
            made = {"Name": m["name"], "LayerType": m["kind"], "TacticName": m["tactic"].strip()}
            formats = {"Outputs": [{"Format/Datatype": o} for o in outputs]}
            verbose += layers_of_json(json.dumps({"Layers": [{**made, **formats}]}))
        elif (m := _PART.search(line)) is not None:
            kind = m["kind"] or ("DLA" if m["place"] == "Dla" else "")
            parts[m["name"]] = LayerTime(m["name"], kind, m["place"].upper(), "", ())
    found = layers_of_json(json.dumps({"Layers": told})) or tuple(verbose) or tuple(parts.values())
    dla = {name for name, part in parts.items() if part.device == "DLA"}
    return tuple(replace(x, device="DLA") if x.name in dla else x for x in _unique(found))


def _of(layer: Layer) -> LayerTime:
    return LayerTime(layer.name, layer.kind, layer.place, layer.precision, (), layer.tactic)


def _tensors(rest: str) -> dict[str, Any]:
    """Inputs, outputs and kernel of a line, in the form that the JSON has."""
    found: dict[str, Any] = {}
    for key, pattern in _TENSORS.items():
        held = pattern.search(rest)
        found[key] = [{"Format/Datatype": f} for f in _FORMAT.findall(held[1])] if held else []
    tactic = _TACTIC.search(rest)
    return {**found, "TacticName": tactic[1].strip() if tactic else ""}


def _unique(layers: Iterable[LayerTime]) -> tuple[LayerTime, ...]:
    """A table that is printed twice counts once."""
    return tuple({x.name: x for x in layers}.values())


def _time(row: dict[str, Any], key: str, subject: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise _wrong(subject, f"has {str(value)[:40]!r} as {key}; expected ms")
    return float(value)


def _wrong(subject: str, problem: str) -> InputError:
    return InputError("import.value", subject, problem, "give what trtexec --exportProfile or --dumpProfile wrote")
