"""Where MLflow is, on the command line."""

from __future__ import annotations

import argparse

from ..mlflow_bridge.tracking import EXPERIMENT


def tracking_flags(parser: argparse.ArgumentParser, *, experiment: bool = True) -> None:
    """``--tracking`` and ``--experiment``."""
    parser.add_argument(
        "--tracking",
        metavar="URI",
        help="tracking server or store; a folder gets a SQLite store (default: MLFLOW_TRACKING_URI, else MLflow's own)",
    )
    if experiment:
        parser.add_argument(
            "--experiment", default=EXPERIMENT, metavar="NAME", help=f"experiment (default: {EXPERIMENT!r})"
        )
