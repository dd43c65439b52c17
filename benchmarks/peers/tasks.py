"""What every tool is given: a model of the zoo with fixed shapes and folded constants, samples, and labelled test data.

The float model is the same file for all: ``fix_shapes``, ``simplify``, operator set 17 (a scale per channel needs 13).
Samples are preprocessed once and lie as one ``.npz`` each, so that a tool which streams them is not charged for others'
memory. Test data comes from another seed than the samples.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.catalogue import DATA, fetch, write_data
from benchmarks.zoo.packages import default_cache

from edgeproof import registry
from edgeproof.dataset import load_spec
from edgeproof.evaluate import open_dataset
from edgeproof.graph.opset import raised
from edgeproof.model import Model, load_model, save_model
from edgeproof.protocols import Context, Progress, Session
from edgeproof.runtimes import find_target

CALIBRATION_SEED = 41
TEST_SEED = 2026
OPSET = 17


@dataclass(frozen=True, slots=True)
class Task:
    """A model on its data.

    Attributes:
        data: Name of the data set in the zoo; it brings its model.
        title: For people.
        metric: Name of the quality metric.
        test: Labelled samples of the full table.
        most: Samples to calibrate with that are prepared.
    """

    data: str
    title: str
    metric: str
    test: int
    most: int = 128

    @property
    def model(self) -> str:
        """Name of the model in the zoo."""
        return DATA[self.data].model


TASKS = (
    Task("scenes", "CenterNet", "map50", 300),
    Task("lines_medium", "PP-OCRv4 rec", "exact_match", 500, 512),
    Task("portraits", "EfficientNet-Lite0", "evaluator", 500),
    Task("reuters_r8", "MiniLM", "evaluator", 600),
    Task("turned", "PP-OCRv4 cls", "top1", 500, 512),
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task on disk.

    Attributes:
        task: The task.
        model: The float model that every tool is given.
        samples: Folder of ``0000.npz`` …, to calibrate with.
        test: Data file of the labelled test samples.
    """

    task: Task
    model: Path
    samples: Path
    test: Path


def prepare(task: Task, out: Path, test: int, progress: Progress) -> Prepared:
    """Write what a task needs into ``out/DATA``, or take what is there."""
    folder = out / task.data
    made = Prepared(task, folder / "float.onnx", folder / "samples", folder / f"test-{test}" / "data.yaml")
    cache = default_cache()
    if not made.model.is_file():
        progress("fetching the model and fixing its shapes", 0.0)
        folder.mkdir(parents=True, exist_ok=True)
        _write_samples(task, folder, made.samples, progress)
        save_model(_fixed(load_model(fetch(task.model, cache)), made.samples), made.model)
    done = made.test.with_name("done.json")
    if not done.is_file():
        progress("drawing the test data", 0.5)
        fresh(made.test.parent)
        write_data(task.data, cache, made.test.parent, test, TEST_SEED)
        done.write_text(json.dumps({"samples": test, "seed": TEST_SEED}))
    return made


def fresh(folder: Path) -> None:
    """Remove a half-written folder."""
    shutil.rmtree(folder, ignore_errors=True)


def _write_samples(task: Task, folder: Path, samples: Path, progress: Progress) -> None:
    drawn = folder / "calibration"
    fresh(drawn)
    fresh(samples)
    path = write_data(task.data, default_cache(), drawn, task.most, CALIBRATION_SEED)
    dataset = open_dataset(load_spec(str(path)), load_model(fetch(task.model, default_cache())))
    samples.mkdir()
    for i in range(task.most):
        arrays: dict[str, Any] = dict(dataset[i].feeds)
        np.savez(samples / f"{i:04}.npz", **arrays)
        progress(f"writing sample {i + 1} of {task.most}", i / task.most)


def _fixed(model: Model, samples: Path) -> Model:
    with np.load(samples / "0000.npz") as arrays:
        shapes = ";".join(f"{name}={','.join(map(str, arrays[name].shape))}" for name in arrays)
    context = Context(_no_session)
    model = registry.load("passes", "fix_shapes")(shapes)(model, context).model
    graph = raised(model.graph.clone(), OPSET)
    if isinstance(graph, str):
        raise SystemExit(f"{model.name}: {graph}")
    model = Model.of(graph, model.name)
    simple: Model = registry.load("passes", "simplify")()(model, Context(session_of)).model
    return simple


def session_of(model: Model, **settings: Any) -> Session:
    """One thread of ONNX Runtime's CPU provider."""
    session: Session = registry.load("backends", "onnxruntime")().compile(
        model, find_target("onnxruntime:cpu", {"threads": 1, **settings})
    )
    return session


def _no_session(_model: Model) -> Session:
    raise AssertionError("fixing shapes runs nothing")
