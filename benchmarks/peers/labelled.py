"""Labelled samples for tools that choose by them: neither the test samples nor from their seed.

The first ``n`` of a split calibrate, the others are chosen by. edgeproof reads the data file; a peer is given the same
lines as ``.npz`` files with their texts, and scores them itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.catalogue import fetch, write_data
from benchmarks.zoo.packages import default_cache

from edgeproof.dataset import Split, load_spec, split
from edgeproof.evaluate import open_dataset
from edgeproof.model import load_model

from .tasks import CALIBRATION_SEED, Task, fresh

SEARCH = 300
"""Samples to choose by."""


def parts(count: int, calibration: int) -> Split:
    """Of ``count`` samples: those that calibrate, those that are chosen by, and one that `split` wants left over."""
    return split(count, 0, calibration=calibration, search=count - calibration - 1)


def write_labelled(task: Task, out: Path, calibration: int) -> Path:
    """Write them once.

    Returns:
        The data file.
    """
    count = calibration + SEARCH + 1
    folder = out / f"labelled-{count}"
    done = folder / "done.json"
    if not done.is_file():
        fresh(folder)
        write_data(task.data, default_cache(), folder, count, CALIBRATION_SEED + 1)
        done.write_text(json.dumps({"samples": count}))
    return folder / "data.yaml"


def write_lines(task: Task, out: Path, calibration: int) -> Path:
    """Lines to choose by as ``0000.npz`` … and ``lines.json`` (their texts; the symbol of every class).

    Returns:
        Their folder.
    """
    data, folder = write_labelled(task, out, calibration), out / f"lines-{calibration}"
    if (folder / "lines.json").is_file():
        return folder
    fresh(folder)
    folder.mkdir()
    original = load_model(fetch(task.model, default_cache()))
    dataset = open_dataset(load_spec(str(data)), original)
    texts: list[str] = []
    for i, index in enumerate(parts(len(dataset), calibration).search):
        arrays: dict[str, Any] = dict(dataset[index].feeds)
        np.savez(folder / f"{i:04}.npz", **arrays)
        texts.append(str(dataset[index].truth))
    symbols = ["", *original.graph.metadata_props["character"].split("\n")]
    classes = original.outputs[0].shape[-1] if original.outputs[0].shape else 0
    known = {"texts": texts, "symbols": [*symbols[: int(classes) - 1], " "]}
    (folder / "lines.json").write_text(json.dumps(known))
    return folder
