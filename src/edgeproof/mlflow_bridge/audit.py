"""Hold a run in MLflow against the sealed evidence, and name whatever was changed since.

The evidence is verified first and is what counts. Tags outside ``edgeproof.`` belong to whoever keeps the server, and
a link to a training run may be added; everything else in the run must be as it was logged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..digest import digest_bytes, digest_file
from ..errors import InputError
from .log import runs_of
from .record import EVIDENCE, OURS, TRAINING, Record
from .tracking import EXPERIMENT, Tracking, experiment_id, is_absent, told

NOTHING = "nothing"
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Drift:
    """Something that MLflow says otherwise than the evidence.

    Attributes:
        code: Which check found it: mlflow.missing, .deleted, .unfinished, .twice, .param, .tag, .metric, .history,
            .dataset, .artifact.
        what: What it is about.
        got: What MLflow has.
        expected: What follows from the evidence.
    """

    code: str
    what: str
    got: str
    expected: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.what}: MLflow has {self.got}, the evidence gives {self.expected}  [{self.code}]"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        run: Id of the run; empty when there is none.
        drifts: Everything that differs; empty when the run is what the evidence gives.
        compared: How many params, tags, metrics, datasets and artifacts were held against the evidence.
        notes: What a reader should know.
    """

    run: str
    drifts: tuple[Drift, ...]
    compared: Mapping[str, int]
    notes: tuple[str, ...]


def audit(record: Record, at: Tracking, *, experiment: str = EXPERIMENT, run: str = "") -> Audit:
    """Compare a run with the evidence that it is of.

    Args:
        record: From `record_of`.
        at: Where the run is.
        experiment: Where to look for it by the evidence's digest.
        run: Or its id.

    Raises:
        InputError: mlflow.server, when the server cannot be asked.
    """
    candidates = _named(at, run) if run else _by_evidence(record, at, experiment)
    if not candidates:
        what = f"run {run}" if run else f"run in {experiment!r}"
        return Audit(run, (Drift("mlflow.missing", what, NOTHING, f"a run of {record.tags[EVIDENCE]}"),), {}, ())
    active = [r for r in candidates if r.info.lifecycle_stage == "active"]
    found = (active or candidates)[0]
    drifts = [*_state(found, active), *_values(record, found), *_histories(record, at, found)]
    drifts += [*_datasets(record, found), *_artifacts(record, at, found.info.run_id)]
    names = ("params", "tags", "metrics", "datasets", "artifacts")
    compared = {name: len(getattr(record, name)) for name in names}
    return Audit(found.info.run_id, tuple(drifts), compared, tuple(_notes(at, found, candidates, active)))


def _named(at: Tracking, run: str) -> list[Any]:
    try:
        with told(at.uri):
            return [at.client.get_run(run)]
    except InputError as e:
        if is_absent(e):
            return []
        raise


def _by_evidence(record: Record, at: Tracking, experiment: str) -> list[Any]:
    known = experiment_id(at, experiment, create=False)
    return runs_of(at, known, record.tags[EVIDENCE]) if known else []


def _state(run: Any, active: list[Any]) -> Iterator[Drift]:
    name = f"run {run.info.run_id}"
    if not active:
        yield Drift("mlflow.deleted", name, "it deleted", "a run that is kept")
    if len(active) > 1:
        yield Drift("mlflow.twice", name, f"{len(active)} runs of this evidence", "one")
    if run.info.status != "FINISHED":
        yield Drift("mlflow.unfinished", name, f"status {run.info.status}", "FINISHED")


def _values(record: Record, run: Any) -> Iterator[Drift]:
    tags = {k: v for k, v in run.data.tags.items() if k.startswith(OURS) and k != TRAINING}
    yield from _compared("param", record.params, run.data.params)
    yield from _compared("tag", record.tags, tags)
    yield from _compared("metric", record.metrics, run.data.metrics)


def _compared(kind: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[Drift]:
    for name in sorted(expected.keys() | got.keys()):
        if name not in expected or name not in got or got[name] != expected[name]:
            has, gives = (_text(side[name]) if name in side else NOTHING for side in (got, expected))
            yield Drift(f"mlflow.{kind}", f"{kind} {name}", has, gives)


def _histories(record: Record, at: Tracking, run: Any) -> Iterator[Drift]:
    """A metric that was written again and set back leaves its other values behind."""
    for name, value in record.metrics.items():
        if run.data.metrics.get(name) != value:
            continue  # told already
        with told(at.uri):
            history = [m.value for m in at.client.get_metric_history(run.info.run_id, name)]
        if history != [value]:
            yield Drift("mlflow.history", f"metric {name}", f"{len(history)} values {_text(history)}", _text([value]))


def _datasets(record: Record, run: Any) -> Iterator[Drift]:
    """By name and cut digest; the full digest stands in a tag of the input."""
    got = {}
    for one in run.inputs.dataset_inputs if run.inputs else ():
        tags = {t.key: t.value for t in one.tags}
        got[f"{one.dataset.name} {one.dataset.digest}"] = tags.get(f"{OURS}digest", "no digest of ours")
    yield from _compared("dataset", {f"{d.name} {d.cut}": d.digest for d in record.datasets}, got)


def _artifacts(record: Record, at: Tracking, run: str) -> Iterator[Drift]:
    with told(at.uri):
        sizes = _listed(at, run, "", depth=0)
    expected = {name: digest_bytes(data) for name, data in record.artifacts.items()}
    with tempfile.TemporaryDirectory(prefix="edgeproof-audit-") as folder:
        for name in sorted(expected.keys() | sizes.keys()):
            if name not in sizes or name not in expected:
                has = f"{sizes[name]} bytes" if name in sizes else NOTHING
                yield Drift("mlflow.artifact", f"artifact {name}", has, expected.get(name, NOTHING))
                continue
            size = len(record.artifacts[name])
            if sizes[name] not in (None, size):  # not fetched: it may be of any size
                yield Drift("mlflow.artifact", f"artifact {name}", f"{sizes[name]} bytes", f"{size} bytes")
                continue
            with told(at.uri):
                got = digest_file(Path(at.client.download_artifacts(run, name, folder)))
            if got != expected[name]:
                yield Drift("mlflow.artifact", f"artifact {name}", got, expected[name])


def _listed(at: Tracking, run: str, folder: str, *, depth: int) -> dict[str, int | None]:
    """Path of every file → its size, as the server says; a folder deeper than any of ours counts as one file."""
    found: dict[str, int | None] = {}
    for entry in at.client.list_artifacts(run, folder or None):
        if entry.is_dir and depth < 2:
            found |= _listed(at, run, entry.path, depth=depth + 1)
        else:
            found[entry.path] = entry.file_size
    return found


def _notes(at: Tracking, run: Any, candidates: list[Any], active: list[Any]) -> Iterator[str]:
    if active and len(candidates) > len(active):
        yield f"{len(candidates) - len(active)} other runs of this evidence were deleted"
    training = run.data.tags.get(TRAINING)
    if training:
        kept = _named(at, training)
        state = kept[0].info.lifecycle_stage if kept else "no longer there"
        yield f"linked to training run {training}, which is {state}"


def _text(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
