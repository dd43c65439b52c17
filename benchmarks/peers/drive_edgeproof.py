"""edgeproof: passes as ``edgeproof apply`` runs them on the samples, or the search of ``edgeproof optimize``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from driving import Job, drive


def quantise(job: Job) -> dict[str, Any]:
    if "search" in job.settings:
        return _search(job)
    from edgeproof import registry
    from edgeproof.model import load_model, save_model
    from edgeproof.protocols import Context
    from edgeproof.runtimes import find_target

    target = find_target("onnxruntime:cpu", {"threads": 1})
    backend = registry.load("backends", "onnxruntime")()
    context = Context(lambda m: backend.compile(m, target), job.feeds, job.count, target)
    model, facts = load_model(job.model), {}
    for name, settings in job.settings["passes"]:
        change = registry.load("passes", name)(**settings)(model, context)
        model, facts = change.model, change.facts
    save_model(model, job.out)
    return {"calibration": facts.get("calibration", {})}


def _search(job: Job) -> dict[str, Any]:
    """The search of ``edgeproof optimize``, without its confirmation: the answer may well be the float model."""
    import shutil

    from edgeproof.dataset import load_spec, split
    from edgeproof.evaluate import complete, open_dataset
    from edgeproof.model import load_model
    from edgeproof.optimize import FASTER, _fixed_shapes
    from edgeproof.optimize import _search as _search_rows
    from edgeproof.policy import default_policy
    from edgeproof.runtimes import find_target
    from edgeproof.search.ladder import Ladder
    from edgeproof.trial import Setup, original_candidate, quality
    from edgeproof.workspace import Workspace

    quiet: Any = lambda _what, _share: None  # noqa: E731
    model, spec = load_model(job.model), load_spec(job.settings["labelled"])
    dataset = open_dataset(spec, model)
    spec = complete(spec, model, dataset)
    target = find_target("onnxruntime:cpu", {"threads": 1})
    parts = split(len(dataset), 0, calibration=job.count, search=len(dataset) - job.count - 1)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace.create(Path(folder) / "run", {"model": model.digest})
        setup = Setup(
            workspace, Path(job.model), model, dataset, spec, parts, spec.metric, default_policy(), target, "benchmark"
        )
        drop = job.settings["search"] * quality(setup, original_candidate(setup), "search", quiet).value
        rows = _search_rows(setup, Ladder(target, _fixed_shapes(setup), drop), quiet)
        good = [row for row in rows if row.candidate and row.search and not row.why and row.search["drop"] <= drop]
        best = max(good, key=lambda row: row.search["speedup"], default=None)
        if best is not None and best.search["speedup"] < FASTER:
            best = None
        chosen = best.candidate if best is not None else None
        shutil.copyfile(chosen.path if chosen is not None else job.model, job.out)
        found = [{"name": row.recipe.name, "why": row.why, **row.search} for row in rows]
        return {"chose": best.recipe.name if best else "float as it is", "candidates": found}


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "edgeproof.passes.int8")
