"""Measurements made elsewhere, as receipts: one format of record a file.

The original record is kept, byte by byte, and the receipt carries its digest. What the record has raw samples of is
derived again from them. Where it has only aggregates (a mean, a percentile), the receipt says so by having no samples,
and the gate holds: without samples there is no interval. What a record does not state of data, settings or machine is
unknown, and unknown is equal to nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ..digest import digest_bytes, digest_json
from ..errors import InputError
from ..files import os_error
from ..measurement import LayerTime, LegRun
from ..receipt import Kind, Receipt, Scores
from ._layers import joined_layers, layer_notes, placement_of

FORMATS: tuple[str, ...] = ("measured", "mlflow", "olive", "trtexec", "benchmark_app", "benchmark_model")
"""Formats in the order in which they are tried."""
LIMIT_BYTES = 64 * 2**20
AGREE = 0.01
"""Relative difference allowed between a stated percentile and the samples next to where it lies among ours: tools
interpolate and round differently."""
Role = Literal["", "baseline", "control", "candidate"]


@dataclass(frozen=True, slots=True)
class Claim:
    """An aggregate that a record states without the samples behind it.

    Attributes:
        name: As the record calls it.
        value: Its value, in ``unit``.
        unit: Its unit; empty when the record does not tell.
        metric: The metric of ours that it is an aggregate of; empty for none.
    """

    name: str
    value: float
    unit: str
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one record says of one model.

    Attributes:
        label: What the record calls the model or run.
        kind: Of the receipt.
        role: Which side it says it is; empty when it does not.
        model: Digest of the model, where the record states ours; else empty.
        target: Where it ran.
        inputs: What is stated of the input data: a digest of ours, or facts; None when nothing is.
        settings: What is stated of how it was measured; None when nothing is.
        machine: What is stated of the machine; None when nothing is.
        runs: Raw runs; ``leg`` and ``round`` are set when the receipt is made.
        scores: Metric → raw scores.
        claims: Aggregates without samples.
        device: For `Receipt.device`.
        notes: What a reader should know, one sentence each.
        layers: Layers that were executed, by the tool's own names, with times where it took them.
    """

    label: str
    kind: Kind = "runs"
    role: Role = ""
    model: str = ""
    target: str = ""
    inputs: str | Mapping[str, Any] | None = None
    settings: str | Mapping[str, Any] | None = None
    machine: str | Mapping[str, Any] | None = None
    runs: tuple[LegRun, ...] = ()
    scores: Mapping[str, Scores] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    device: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layers: tuple[LayerTime, ...] = ()


class Importer(Protocol):
    """What a format's module has."""

    @staticmethod
    def recognises(record: bytes) -> bool:
        """Whether the record is of this format, from its content alone."""

    @staticmethod
    def read(record: bytes, subject: str) -> tuple[Reading, ...]:
        """What it says, one entry per model."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A receipt with the records it was made from.

    Attributes:
        receipt: The receipt.
        records: Name → bytes of every original record.
        claims: Aggregates that have no samples.
        notes: What a reader should know.
        layers: Layers that were executed, with times where the records have them.
    """

    receipt: Receipt
    records: Mapping[str, bytes]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    layers: tuple[LayerTime, ...] = ()


def read_records(paths: Sequence[Path], *, label: str = "") -> tuple[str, tuple[Reading, ...], dict[str, bytes]]:
    """Read records of one format, e.g. one file for each process.

    Args:
        paths: The files.
        label: Take only what is said of the model or run of this name.

    Returns:
        Name of the format, readings in order, and file name → bytes.

    Raises:
        InputError: import.missing, import.unknown, import.mixed, import.label, import.too_large; and what the format's
            module raises.
    """
    records: dict[str, bytes] = {}
    for path in paths:
        name = path.name if path.name not in records else f"{len(records)}-{path.name}"
        records[name] = _bytes(path)
    formats = {name: _format(record, name) for name, record in records.items()}
    kinds = sorted(set(formats.values()))
    if len(kinds) != 1:
        what = ", ".join(kinds) or "nothing"
        raise InputError("import.mixed", ", ".join(records), f"are of formats {what}", "give records of one format")
    module = _module(kinds[0])
    readings = tuple(r for name, record in records.items() for r in module.read(record, name))
    if label:
        named = tuple(r for r in readings if r.label == label)
        if not named:
            known = ", ".join(sorted({r.label for r in readings})[:8])
            raise InputError("import.label", label, "is not in the record", f"it tells of: {known}")
        readings = named
    return kinds[0], readings, records


def import_records(
    paths: Sequence[Path], *, model: str, files: Mapping[str, str], role: Role = "", label: str = ""
) -> Imported:
    """Make one receipt of records about one model.

    Args:
        paths: Records of one format.
        model: Digest of the model that they are about, as whoever imports them says.
        files: Its files: name → digest.
        role: Which side it is, to choose among the models that a record tells of.
        label: Or the record's own name of it.

    Raises:
        InputError: import.*; import.other_model, when the record states the digest of another model.
    """
    source, readings, records = read_records(paths, label=label)
    if len(readings) > len(paths) and not label:
        readings = tuple(r for r in readings if r.role == role) or readings
    readings = _joined(_with_layers(readings))
    if len(readings) > len(paths):
        known = ", ".join(sorted(r.label for r in readings)[:8])
        raise InputError("import.label", ", ".join(records), "tells of several models", f"name one of: {known}")
    for r in readings:
        if r.model and r.model != model:
            raise InputError(
                "import.other_model", r.label, f"states that it is of model {r.model[:19]}, not {model[:19]}",
                "give the record of this model",
            )  # fmt: skip
    digests = sorted(digest_bytes(b) for b in records.values())
    original = digests[0] if len(digests) == 1 else digest_json(digests)
    claims = tuple(c for r in readings for c in r.claims)
    layers = readings[0].layers
    notes = tuple(dict.fromkeys([*(n for r in readings for n in r.notes), *layer_notes(layers)]))
    receipt = _receipt(source, readings, original, model, files, role or "candidate")
    return Imported(receipt, records, claims, notes, layers)


def _with_layers(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """What only tells of layers goes to the readings beside it, which it is about; alone, all becomes one."""
    only = [r for r in readings if r.layers and not (r.runs or r.scores or r.claims)]
    rest = [r for r in readings if r not in only]
    if not only:
        return tuple(readings)
    about = rest or only[:1]
    layers = joined_layers([r.layers for r in (*about, *only)])
    return tuple(replace(r, layers=layers) for r in about)


def _joined(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Raw runs beside the summaries of the same runs, in order: the summary names the machine, the runs bear it out.

    Raises:
        InputError: import.mismatch, when a summary states another latency than the runs have.
    """
    raw = [r for r in readings if r.runs]
    summaries = [r for r in readings if not r.runs and not r.scores]
    if not raw or len(raw) != len(summaries) or len(raw) + len(summaries) != len(readings):
        return tuple(readings)
    for one, other in zip(raw, summaries, strict=True):
        for claim in other.claims:
            _borne_out(claim, one)
    return tuple(
        replace(
            r,
            target=r.target or s.target,
            inputs=r.inputs or s.inputs,
            settings=r.settings or s.settings,
            machine=r.machine or s.machine,
            device=r.device or s.device,
            claims=s.claims,
            layers=r.layers or s.layers,
        )
        for r, s in zip(raw, summaries, strict=True)
    )


def _borne_out(claim: Claim, reading: Reading) -> None:
    """A stated percentile of the latency lies where the raw samples have it."""
    if not claim.metric.startswith("latency_p") or claim.unit != "ms":
        return
    samples = sorted(ns / 1e6 for run in reading.runs for ns in run.latency_ns)
    at = int(claim.metric.removeprefix("latency_p")) / 100 * (len(samples) - 1)
    low, high = samples[max(math.floor(at) - 1, 0)], samples[min(math.ceil(at) + 1, len(samples) - 1)]
    if not low * (1 - AGREE) <= claim.value <= high * (1 + AGREE):
        raise InputError(
            "import.mismatch",
            reading.label,
            f"has {claim.name} between {low:g} and {high:g} ms in its raw samples; the summary states {claim.value:g}",
            "one of the two was changed, or they are of different runs",
        )


def _receipt(
    source: str, readings: Sequence[Reading], original: str, model: str, files: Mapping[str, str], role: str
) -> Receipt:
    first = readings[0]
    for r in readings[1:]:
        same = (r.kind, r.target, r.inputs, r.settings, r.machine)
        if same != (first.kind, first.target, first.inputs, first.settings, first.machine):
            what = f"{first.label} and {r.label}"
            problem = "were not measured alike (target, inputs, settings, machine)"
            raise InputError("import.mixed", what, problem, "import them apart")
    runs = [run for r in readings for run in r.runs]
    rounds = [run.round for run in runs]
    if len(set(rounds)) != len(rounds):
        rounds = list(range(len(runs)))
    numbered = tuple(replace(run, leg=role, round=n) for n, run in zip(rounds, runs, strict=True))
    scores: dict[str, Scores] = {}
    for r in readings:
        for name, s in r.scores.items():
            before = scores[name].samples if name in scores else ()
            scores[name] = Scores(s.metric, s.unit, s.better, (*before, *s.samples))
    return Receipt(
        kind=first.kind,
        model=model,
        files=dict(files),
        dataset=_stated(first.inputs, original),
        evaluator=_stated(first.settings, original),
        environment=_stated(first.machine, original),
        target=first.target,
        runs=numbered,
        scores={**_without_samples(readings, scores, bool(numbered)), **scores},
        device=dict(first.device),
        source=source,
        original=original,
        placement=placement_of(first.layers, source),
    )


def _without_samples(readings: Sequence[Reading], scores: Mapping[str, Scores], has_runs: bool) -> dict[str, Scores]:
    """Metrics that a record states as a number only: in the receipt with no samples, so that the gate says so."""
    from .. import registry

    found = {}
    for name in sorted({c.metric for r in readings for c in r.claims if c.metric and c.metric not in scores}):
        metric = registry.load("metrics", name)
        if has_runs and metric.needs == "runs":
            continue  # derived again from the runs
        found[name] = Scores(name, metric.unit, metric.better, ())
    return found


def _stated(stated: str | Mapping[str, Any] | None, original: str) -> str:
    """A digest that is equal only where the same was stated; what was not stated is equal to nothing."""
    if isinstance(stated, str) and stated:
        return stated
    return digest_json(dict(stated) if isinstance(stated, Mapping) and stated else {"not stated in": original})


def _format(record: bytes, name: str) -> str:
    for kind in FORMATS:
        if _module(kind).recognises(record):
            return kind
    hint = f"known are {', '.join(FORMATS)}; or write the documented JSON of 'measured'"
    raise InputError("import.unknown", name, "is a record of no known format", hint)


def _module(kind: str) -> Importer:
    module: Any = importlib.import_module(f".{kind}", __package__)
    return module  # type: ignore[no-any-return]


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise InputError(
                "import.too_large", str(path), f"has more than {LIMIT_BYTES:,} bytes", "shorten the record"
            )
        return path.read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
