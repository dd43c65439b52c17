"""The one place where MLflow is imported: a client, and its complaints as errors of ours."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedError

EXPERIMENT = "edgeproof deployments"
INSTALL = "pip install 'edgeproof[mlflow]'"
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports its use to its makers; nobody asked us to
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # with 7, a server that is not there takes minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
}


@dataclass(frozen=True, slots=True)
class Tracking:
    """A tracking server or store.

    Attributes:
        client: ``mlflow.MlflowClient``.
        uri: Where it is, without a password, for people.
        artifacts: Where a new experiment keeps its files; None for where the server says.
    """

    client: Any
    uri: str
    artifacts: str | None


def tracking(where: str | None) -> Tracking:
    """Open a tracking server or store; it becomes MLflow's own setting in this process.

    Args:
        where: A tracking URI, or a folder for a local SQLite store; None for what MLflow itself is set to.

    Raises:
        UnsupportedError: mlflow.package.
        InputError: mlflow.server.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        return _opened(where)
    except ModuleNotFoundError as e:
        problem = f"needs the package {e.name}, which is not installed here"
        raise UnsupportedError("mlflow.package", "MLflow", problem, INSTALL) from e
    except ImportError as e:  # e.g. MLflow 3.0 with SQLAlchemy 2.1
        problem = f"does not work with the packages installed here ({e.msg})"
        raise UnsupportedError("mlflow.package", "MLflow", problem, f"{INSTALL} --upgrade") from e


def _opened(where: str | None) -> Tracking:
    import alembic  # noqa: F401
    import mlflow
    import sqlalchemy  # noqa: F401

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # after the import, which sets it
    uri = where or mlflow.get_tracking_uri()
    if where and ":" not in where and where != "databricks":
        folder = Path(where).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
    shown = re.sub(r"//[^/@]*@", "//", uri)
    with told(shown):
        mlflow.set_tracking_uri(uri)  # clients of MLflow 3.0 look for artifacts there, whatever they were given
        client = mlflow.MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    # Without this, MLflow keeps the files of a SQLite store in whatever folder a command happens to run in.
    local = Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None
    return Tracking(client, shown, None if local is None else (local.parent / "artifacts").as_uri())


def experiment_id(at: Tracking, name: str, *, create: bool) -> str:
    """Id of an experiment; empty when there is none and none may be made.

    Raises:
        InputError: mlflow.experiment, when it was deleted; mlflow.server.
    """
    with told(at.uri):
        found = at.client.get_experiment_by_name(name)
        if found is None and create:
            place = None if at.artifacts is None else f"{at.artifacts}/{re.sub('[^A-Za-z0-9._-]', '-', name)}"
            return str(at.client.create_experiment(name, artifact_location=place))
    if found is None:
        return ""
    if create and found.lifecycle_stage != "active":
        hint = f"mlflow experiments restore --experiment-id {found.experiment_id}, or give another --experiment"
        raise InputError("mlflow.experiment", name, "was deleted on the tracking server", hint)
    return str(found.experiment_id)


@contextmanager
def told(subject: str) -> Iterator[None]:
    """Turn what MLflow complains of into an error of ours.

    Raises:
        InputError: mlflow.server.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as e:  # errors of requests are OSErrors
        raise _wrong(subject, e) from e


def is_absent(error: InputError) -> bool:
    """Whether the server answered that there is no such thing, rather than not at all."""
    return getattr(error.__cause__, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def _wrong(subject: str, error: Exception) -> InputError:
    said = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))[:300]
    return InputError("mlflow.server", subject, f"MLflow says: {said}", "check --tracking, and that the server runs")
