"""A receipt: what one measuring run measured, on what, and every raw sample.

It is bound to digests that were taken before the run: of the model, its files, the samples, the evaluator, the
environment and the policy. Numbers derived from the raw samples are not kept here: whoever reads a receipt derives
them. What is not known is empty or absent, never guessed; a sensor without readings has none, not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from .digest import digest_json
from .errors import InputError
from .files import check_record
from .measurement import Better, LegRun, Placement
from .strictjson import keys

SCHEMA = "edgeproof.receipt/1"
Kind = Literal["runs", "pipeline", "quality"]
"""``runs``: isolated inference, one `LegRun` a process. ``pipeline``: the same of the whole pipeline (decode,
preprocess, copies, inference, postprocess); the two are never mixed. ``quality``: scores, one per example."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Raw numbers of one metric that were not derived from runs.

    Attributes:
        metric: Name of the metric.
        unit: Its unit, as the source states it.
        better: Which direction is better.
        samples: Raw scores, one per independent replicate (example or run), in order.
    """

    metric: str
    unit: str
    better: Better
    samples: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """One measuring run.

    Attributes:
        kind: What was measured; see `Kind`.
        model: Digest of the model's content (`Model.digest` for ONNX; otherwise that of its file).
        files: Name of every file of the model → digest of its bytes.
        dataset: Digest of the samples used; empty when none were.
        evaluator: Digest of preprocessing, decoding and metric, or of the measuring plan; empty when not known.
        environment: Digest of the stable facts of the machine; empty when not known.
        policy: Digest of the policy under which it was made; empty for measurements made elsewhere.
        target: Name of the target with its settings.
        runs: Raw runs, of kinds ``runs`` and ``pipeline``.
        scores: Metric → raw scores: quality, or per-run numbers of a source that keeps no timings.
        device: What is known of the device: ``module``, ``memory_gib``, ``os``, ``runtime`` (package → version),
            ``power_mode``, ``clocks``, ``cooling``, ``throttling``.
        placement: Which node ran where and in which precision; None when the runtime did not say.
        source: ``edgeproof``, or the importer that read it.
        original: Digest of the kept original record; empty when edgeproof measured it.
    """

    kind: Kind
    model: str
    files: Mapping[str, str] = field(default_factory=dict)
    dataset: str = ""
    evaluator: str = ""
    environment: str = ""
    policy: str = ""
    target: str = ""
    runs: tuple[LegRun, ...] = ()
    scores: Mapping[str, Scores] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement | None = None
    source: str = "edgeproof"
    original: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON, with its schema."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _TEXTS},
            "files": dict(self.files),
            "runs": [r.to_json() for r in self.runs],
            "scores": [{**asdict(s), "samples": list(s.samples)} for _, s in sorted(self.scores.items())],
            "device": dict(self.device),
            "placement": None if self.placement is None else _placement_json(self.placement),
        }

    @staticmethod
    def from_json(value: Any, subject: str = "receipt") -> Receipt:
        """Inverse of `to_json`; every field is held against its type and no other key may be there.

        Raises:
            InputError: receipt.schema, receipt.kind, receipt.value, json.missing_key, json.unknown_key,
                json.not_object, files.value.
        """
        keys(value, ("schema", *_TEXTS, "files", "runs", "scores", "device", "placement"), (), subject)
        if value["schema"] != SCHEMA:
            raise _wrong("schema", subject, f"has schema {value['schema']!r}; expected {SCHEMA!r}")
        if value["kind"] not in get_args(Kind):
            raise _wrong("kind", subject, f"is of kind {value['kind']!r}; expected one of {', '.join(get_args(Kind))}")
        texts = {name: value[name] for name in _TEXTS}
        check_record(Receipt, {**texts, "files": value["files"], "device": value["device"]}, subject)
        return Receipt(
            **texts,
            files=value["files"],
            runs=tuple(_run(v, f"{subject}: runs[{i}]") for i, v in enumerate(_listed(value, "runs", subject))),
            scores=_scores(_listed(value, "scores", subject), subject),
            device=value["device"],
            placement=None if value["placement"] is None else _placement(value["placement"], subject),
        )

    @property
    def digest(self) -> str:
        """Digest of all of it."""
        return digest_json(self.to_json())


_TEXTS = ("kind", "model", "dataset", "evaluator", "environment", "policy", "target", "source", "original")
_RUN_KEYS = (
    "leg",
    "round",
    "latency_ns",
    "cold_start_ns",
    "peak_rss_bytes",
    "base_rss_bytes",
    "sensors",
    "environment",
)


def _run(value: Any, subject: str) -> LegRun:
    keys(value, _RUN_KEYS, (), subject)
    check_record(LegRun, value, subject)
    counts = [*value["latency_ns"], *(value[k] for k in _RUN_KEYS[3:6] if value[k] is not None)]
    if min(counts, default=0) < 0 or value["round"] < 0:
        raise _wrong("value", subject, "has a negative time, size or round")
    _check_conditions(value["environment"], subject)
    return LegRun.from_json(value)


def _check_conditions(environment: Mapping[str, Any], subject: str) -> None:
    """What the A/A control reads of how the machine did, held against its types."""
    for name in ("before", "after", "no_sensor"):
        if not isinstance(environment.get(name, {}), Mapping):
            raise _wrong("value", f"{subject}: environment.{name}", "is no object")
    numbers = [environment.get(name, {}).get("throttled", 0) for name in ("before", "after")]
    for number in (*numbers, environment.get("others_share", 0)):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _wrong("value", f"{subject}: environment", f"has {number!r} where a number is expected")
    if not all(isinstance(why, str) for why in environment.get("no_sensor", {}).values()):
        raise _wrong("value", f"{subject}: environment.no_sensor", "has a reason that is no text")


def _scores(values: list[Any], subject: str) -> dict[str, Scores]:
    found: dict[str, Scores] = {}
    for i, value in enumerate(values):
        keys(value, ("metric", "unit", "better", "samples"), (), f"{subject}: scores[{i}]")
        check_record(Scores, value, subject)
        if value["metric"] in found:
            raise _wrong("value", subject, f"has scores of {value['metric']!r} twice")
        found[value["metric"]] = Scores(**{**value, "samples": tuple(value["samples"])})
    return found


def _placement_json(placement: Placement) -> dict[str, Any]:
    return {
        "nodes": [list(n) for n in placement.nodes],
        "fallbacks": [list(f) for f in placement.fallbacks],
        "source": placement.source,
    }


def _placement(value: Any, subject: str) -> Placement:
    keys(value, ("nodes", "fallbacks", "source"), (), f"{subject}: placement")
    for name, width in (("nodes", 4), ("fallbacks", 2)):
        for row in _listed(value, name, subject):
            if not isinstance(row, list) or len(row) != width or not all(isinstance(x, str) for x in row):
                raise _wrong("value", f"{subject}: placement", f"has {name} that are no rows of {width} texts")
    nodes: Any = tuple(map(tuple, value["nodes"]))
    fallbacks: Any = tuple(map(tuple, value["fallbacks"]))
    return Placement(nodes, fallbacks, str(value["source"]))


def _listed(value: Mapping[str, Any], name: str, subject: str) -> list[Any]:
    if not isinstance(value[name], list):
        raise _wrong("value", subject, f"has {name} of type {type(value[name]).__name__}; expected a list")
    found: list[Any] = value[name]
    return found


def _wrong(rule: str, subject: str, problem: str) -> InputError:
    return InputError(f"receipt.{rule}", subject, problem, "get the receipt anew from where it was made")
