"""Builds engines for `benchmarks.tensorrt`, one after the other in a process of its own, since a builder may crash.

    python -m benchmarks.tensorrt_builds JOBS.json ROWS.jsonl

A job is ``{"name", "model", "shapes", "capability"}``. A line ``{"name", "begun": true}`` is written before each, and
a row after it, so that whoever started this knows at which job it died.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from edgeproof.errors import EdgeproofError
from edgeproof.model import load_model
from edgeproof.tensorrt.build import Engine, make_engine
from edgeproof.tensorrt.network import prepared, refusals
from edgeproof.tensorrt.settings import Plan


def main() -> None:
    import tensorrt_rtx

    jobs = json.loads(Path(sys.argv[1]).read_text())
    with Path(sys.argv[2]).open("a") as out:
        for job in jobs:
            out.write(json.dumps({"name": job["name"], "begun": True}) + "\n")
            out.flush()
            out.write(json.dumps({"name": job["name"], **row(tensorrt_rtx, job)}) + "\n")
            out.flush()


def row(trt: Any, job: dict[str, Any]) -> dict[str, Any]:
    """What came of one job."""
    start = time.process_time()
    try:
        model = load_model(job["model"])
        plan = Plan("tensorrt_rtx", shapes=job["shapes"], capabilities=(job["capability"],))
        engine = make_engine(trt, model, plan)
    except EdgeproofError as e:
        found: dict[str, Any] = {"state": "refused", **e.to_json()}
        if e.code.startswith("backend."):
            asked = refusals(trt, prepared(load_model(job["model"])))
            found["parser"] = [[r.node, r.operator, r.problem[:300]] for r in asked[:5]]
        return found
    return {
        "state": "built",
        "bytes": len(engine.data),
        "cpu_s": round(time.process_time() - start, 2),
        **counts(engine),
    }


def counts(engine: Engine) -> dict[str, int]:
    """What a table of layers adds up to."""
    layers = [x for x in engine.layers if x.kind not in ("signal", "wait", "shape_call")]
    return {
        "layers": len(layers),
        "multiply": sum(x.multiplies for x in layers),
        "integers": sum(x.integers for x in layers),
        "moves": sum(x.moves for x in layers),
    }


if __name__ == "__main__":
    main()
