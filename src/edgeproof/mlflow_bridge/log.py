"""Write an evaluation into MLflow: once, whole, and apart from training runs.

A run is found again by the evidence's digest, in its tags or its write-once params. What is there and finished is left
alone; what was interrupted is finished. Every value has the time at which the evidence was sealed, so that writing it
again changes nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .record import EVIDENCE, TRAINING, Record
from .tracking import EXPERIMENT, Tracking, experiment_id, is_absent, told

_PARAMS_AT_ONCE = 100
"""As many params as MLflow takes in one request."""


@dataclass(frozen=True, slots=True)
class Logged:
    """An evaluation in MLflow.

    Attributes:
        run: Id of its run.
        experiment: Id of the experiment.
        outcome: ``new``, ``finished`` (an interrupted one) or ``there`` (already, and left alone).
    """

    run: str
    experiment: str
    outcome: str


def log(record: Record, at: Tracking, *, experiment: str = EXPERIMENT, training_run: str = "") -> Logged:
    """Log an evaluation; the same evidence never makes a second run.

    Args:
        record: From `record_of`.
        at: Where.
        experiment: Name of the experiment; made when it is not there.
        training_run: Id of the run that trained the model; linked by a tag, and not written to.

    Raises:
        InputError: mlflow.server, mlflow.experiment, mlflow.training_run.
    """
    _check_training(at, training_run)
    group = experiment_id(at, experiment, create=True)
    known = [r for r in runs_of(at, group, record.tags[EVIDENCE]) if r.info.lifecycle_stage == "active"]
    with told(at.uri):
        if known:
            run, outcome = known[0], "there" if known[0].info.status == "FINISHED" else "finished"
        else:
            run, outcome = _created(record, at, group), "new"
        if outcome != "there":
            _fill(record, at, run.info.run_id)
        if training_run and run.data.tags.get(TRAINING) != training_run:
            at.client.set_tag(run.info.run_id, TRAINING, training_run)
        if outcome != "there":
            # Last: what is finished is whole.
            at.client.set_terminated(run.info.run_id, "FINISHED", end_time=record.time_ms)
    return Logged(run.info.run_id, group, outcome)


def runs_of(at: Tracking, experiment: str, evidence: str) -> list[Any]:
    """Runs of an experiment that say they are of this evidence, deleted ones too, oldest first.

    A changed tag does not hide a run, since params cannot be written twice; a run without params yet has the tag.
    """
    from mlflow.entities import ViewType

    found: dict[str, Any] = {}
    with told(at.uri):
        for place in ("tags", "params"):
            query = f"{place}.`{EVIDENCE}` = '{evidence}'"
            for run in at.client.search_runs([experiment], query, run_view_type=ViewType.ALL, max_results=100):
                found[run.info.run_id] = run
    return sorted(found.values(), key=lambda r: (r.info.start_time, r.info.run_id))


def _created(record: Record, at: Tracking, experiment: str) -> Any:
    tags = {**record.tags, "mlflow.note.content": record.note}
    return at.client.create_run(experiment, start_time=record.time_ms, tags=tags, run_name=record.name)


def _fill(record: Record, at: Tracking, run: str) -> None:
    """Everything but the tags; what is there already stays."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    params = [Param(k, v) for k, v in record.params.items()]
    for first in range(0, len(params), _PARAMS_AT_ONCE):
        at.client.log_batch(run, params=params[first : first + _PARAMS_AT_ONCE])
    at.client.log_batch(run, metrics=[Metric(k, v, record.time_ms, 0) for k, v in record.metrics.items()])
    at.client.log_batch(run, tags=[RunTag(k, v) for k, v in record.tags.items()])
    used = [
        DatasetInput(
            Dataset(d.name, d.cut, "edgeproof", d.digest),
            [InputTag("mlflow.data.context", "evaluation"), InputTag("edgeproof.digest", d.digest)],
        )
        for d in record.datasets
    ]
    at.client.log_inputs(run, datasets=used)
    with tempfile.TemporaryDirectory(prefix="edgeproof-mlflow-") as folder:
        for name, data in record.artifacts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        at.client.log_artifacts(run, folder)


def _check_training(at: Tracking, training_run: str) -> None:
    if not training_run:
        return
    try:
        with told(training_run):
            at.client.get_run(training_run)
    except InputError as e:
        if not is_absent(e):
            raise
        problem = f"there is no run {training_run!r} on {at.uri}"
        raise InputError("mlflow.training_run", "--training-run", problem, "give the id of a run there") from e
