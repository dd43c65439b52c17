"""The process that runs single tests on one backend: a line of JSON in, a line of JSON out. A crash ends only it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.support.cases import NODE, RANDOM, Case, case, quantised, suite
from numpy.typing import NDArray

from edgeproof import registry
from edgeproof.errors import EdgeproofError
from edgeproof.protocols import Builder, Context, Planning
from edgeproof.target import Target

TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "int8": 0.1}
"""Largest difference, as a share of an output's largest value. FP32: what ONNX's own runner allows."""
INTEGER = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "QAttention", "Quantized")
SLOW = "not tuned"
"""What a backend says of code that runs where it was asked to, slowly: no fallback in the sense of the table."""
CHANGES = ("QuantizeLinear", "DequantizeLinear", "Quantize", "Dequantize", "Reorder", "Convert", "Cast", "FakeQuantize",
           "Parameter", "Input", "Result", "Output", "Constant", "Const")  # fmt: skip


def main() -> int:
    target = find(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    answer = os.dup(1)
    os.dup2(2, 1)  # native libraries print to file descriptor 1 as they please
    suite()
    os.write(answer, b"ready\n")
    for line in sys.stdin:
        asked = json.loads(line)
        found = probe(target, asked["op"], asked["case"], asked["precision"])
        os.write(answer, (json.dumps(found) + "\n").encode())
    return 0


def find(name: str, device: str) -> tuple[Target, bool]:
    """The target that is probed, and whether models run here (else they are only built)."""
    backend = registry.load("backends", name)()
    line = backend.missing()
    if line is not None:
        raise SystemExit(f"{name} is not installed: {line}")
    targets: Sequence[Target] = backend.targets()
    runs = bool(targets)
    if not targets and isinstance(backend, Planning):
        targets = backend.planned()
    chosen = next((t for t in targets if not device or t.device == device), None)
    if chosen is None:
        raise SystemExit(f"{name} has no {device or 'target'} here")
    return chosen, runs


def probe(found: tuple[Target, bool], op: str, name: str, precision: str) -> dict[str, str]:
    """What becomes of one test: ``state`` is runs, falls back, fails or not asked; ``why`` says more."""
    target, runs = found
    try:
        given = case(op, name)
        made = prepared(given, precision, target)
    except Exception as e:  # our own preparation, not the runtime's fault
        return {"state": "not asked", "why": f"{type(e).__name__}: {first(e)}"}
    if isinstance(made, str):
        return {"state": "not asked", "why": made}
    try:
        return ran(made, precision, target) if runs else built(made, target)
    except EdgeproofError as e:
        return {"state": "fails", "why": first(e.problem)}
    except Exception as e:  # what a backend lets through is a failure of the backend
        return {"state": "fails", "why": f"{type(e).__name__}: {first(e)}"}


def prepared(given: Case, precision: str, target: Target) -> Case | str:
    """The test in a precision; or why it has none."""
    if not given.feeds:
        return "has no input that is data"
    if precision == "fp32":
        return given
    if not given.floats:
        return "computes with whole numbers only"
    if precision == "fp16":
        change = registry.load("passes", "fp16")(tolerance=0.05)(given.model, context(given, target))
        halved = any(n.name == NODE for n in change.model.graph.graph) and change.modified
        if not halved:
            return first(change.declined[0][1]) if change.declined else "stays float32"
        return Case(given.name, given.op, change.model, given.feeds, given.wants)
    scheme = target.scheme
    if scheme is None:
        return "the target has no integer path"
    if given.op in scheme.ops:
        change = registry.load("passes", "int8")()(given.model, context(given, target))
        if not change.modified:
            return first(change.declined[0][1]) if change.declined else "stays float"
        return Case(given.name, given.op, change.model, given.feeds, given.wants)
    if given.op in (*scheme.follow, *scheme.share):
        return quantised(given, scheme) or "has no float tensor to quantise"
    return "is not quantised for this target"


def context(given: Case, target: Target) -> Context:
    ort = registry.load("backends", "onnxruntime")()
    here = next(t for t in ort.targets() if t.device == "cpu")
    return Context(lambda m: ort.compile(m, here), lambda: iter([given.feeds]), 1, target)


def ran(given: Case, precision: str, target: Target) -> dict[str, str]:
    """Compile it, run it, compare, and ask where it ran."""
    backend = registry.load("backends", target.backend)()
    names = {f.name for f in fields(backend.settings)}
    wanted = {k: v for k, v in {"threads": 1, "profile": True}.items() if k in names}
    session = backend.compile(given.model, target.with_settings(wanted))
    try:
        got = session.run(given.feeds)
        problem = compare(given, got, precision)
        if problem:
            return {"state": "fails", "why": problem}
        placement = session.placement()
    finally:
        session.close()
    left = [why for _, why in placement.fallbacks if not why.startswith(SLOW)]
    if left:
        return {"state": "falls back", "why": first(left[0])}
    why = elsewhere(given, placement.nodes, precision)
    return {"state": "falls back" if why else "runs", "why": why}


def built(given: Case, target: Target) -> dict[str, str]:
    """Build it for a device that is not here."""
    backend = registry.load("backends", target.backend)()
    if not isinstance(backend, Builder):
        return {"state": "not asked", "why": "the backend builds no file"}
    with tempfile.TemporaryDirectory() as folder:
        done = backend.build(given.model, target, Path(folder) / "model", lambda _what, _share: None)
    if done.fallbacks:
        return {"state": "falls back", "why": first(done.fallbacks[0][1])}
    return {"state": "runs", "why": ""}


def compare(given: Case, got: dict[str, NDArray[Any]], precision: str) -> str:
    """What is wrong with the outputs; empty when nothing is."""
    for name, want in given.wants.items():
        value = np.asarray(got[name])
        if value.shape != want.shape:
            return f"{name} has the shape {list(value.shape)}; expected {list(want.shape)}"
        if given.op in RANDOM:
            continue
        if want.dtype.kind != "f":
            share = float(np.mean(value == want)) if want.size else 1.0
            if share < (1.0 if precision == "fp32" else 0.9):
                return f"{name} differs in {1 - share:.0%} of its values"
            continue
        finite = np.isfinite(want)
        if not np.array_equal(np.isnan(value), np.isnan(want)):
            return f"{name} has NaN elsewhere than expected"
        scale = float(np.abs(want[finite]).max()) if finite.any() else 1.0
        with np.errstate(invalid="ignore"):
            error = np.abs(value.astype(np.float64) - want)[finite].max(initial=0.0) / max(scale, 1e-6)
        if not error <= TOLERANCE[precision]:
            return f"{name} differs by {error:.2g} of its largest value"
    return ""


def elsewhere(given: Case, nodes: Sequence[tuple[str, str, str, str]], precision: str) -> str:
    """Why it ran in another precision than asked for, by the runtime's own record; empty where it did not."""
    if precision == "fp32":
        return ""
    if precision == "fp16":
        if any("InsertedPrecisionFreeCast" in n for n, *_ in nodes):  # ONNX Runtime's name for a cast that it adds
            return "computed in float32, between casts that the runtime adds"
        own = [p for n, op, _, p in nodes if p and (n == NODE or op == given.op)]
        own = own or [p for n, op, _, p in nodes if p and not op.startswith(CHANGES)]
        return "computed in float32" if own and all(p in ("float", "float32") for p in own) else ""
    computing = [(op, p) for n, op, _, p in nodes if not op.startswith(CHANGES) and not _changes(n)]
    if any(op.startswith(INTEGER) or p in ("int8", "uint8") for op, p in computing) or not computing:
        return ""
    return "computed in float, between conversions" if any(p for _, p in computing) else ""


def _changes(name: str) -> bool:
    return name.endswith(("_q", "_dq", "_QuantizeLinear", "_DequantizeLinear"))


def first(problem: object) -> str:
    """One short line, without what a runtime says of itself."""
    text = " ".join(str(problem).split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |Exception during initialization: |\S*/\S+:\d+:? ", "", text)
    with contextlib.suppress(ValueError):
        text = text[: text.index(" hint: ")]
    return text if len(text) <= 160 else text[:157] + "…"


if __name__ == "__main__":
    sys.exit(main())
