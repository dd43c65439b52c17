"""How much of ONNX an importer into torch can do: ONNX's backend tests, its light models and the zoo.

    python -m benchmarks.importer run edgeproof --out ours.json [--zoo models]
    python -m benchmarks.importer run onnx2torch --out theirs.json [--zoo models]     # where onnx2torch is installed
    python -m benchmarks.importer table ours.json theirs.json

Needs torch, onnx and onnxruntime. onnx2torch 1.5.15 imports torchvision, which has no build for torch 2.13 on
CPU: install it with ``--no-deps`` and give it a ``torchvision`` that has ``ops.roi_align``, ``ops.nms`` and
``ops.box_convert``. Its own failures count as they come. A test passes when every output has ONNX's dtype and shape and
its numbers within the test's own tolerance; a stored model exports when torch.export takes the module and the exported
program gives the same (single nodes are not exported: many take their shapes as inputs, which nothing could export).
Expected outputs of tests are ONNX's; of the light models and of the zoo, ONNX Runtime's. Tests on text and those of
other domains than ONNX's own are left out for both.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from with_torch.backend_tests import BackendTest, backend_tests, in_scope, outputs_problem, tensor

LOOSE = (1e-3, 1e-4)
"""Relative and absolute tolerance for whole networks, the latter as a share of the largest output."""
ZOO_SHAPES = {
    "ppocr_cls": (1, 3, 48, 192), "ppocr_det": (1, 3, 320, 320), "ppocr_rec": (1, 3, 48, 320), "minilm": (1, 16),
    "efficientnet_lite0": (1, 3, 224, 224), "mnist_cnn": (1, 1, 28, 28), "centernet": (1, 3, 512, 512),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What became of a test: passes, differs, refused (no module), crashed (no output)."""

    suite: str
    name: str
    operator: str
    outcome: str
    exports: bool
    why: str = ""


def tests(zoo: Path | None) -> Iterator[BackendTest]:
    """Every test that both importers get."""
    from conformance.onnx_suite import DATA

    yield from backend_tests()
    for path in sorted((DATA / "light").glob("*.onnx")):
        yield _by_runtime("light", path, {})
    for path in sorted(zoo.glob("*.onnx")) if zoo else ():
        yield _by_runtime("zoo", path, ZOO_SHAPES)


def _by_runtime(suite: str, path: Path, shapes: dict[str, tuple[int, ...]]) -> BackendTest:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(2026)
    feeds = {}
    for value in session.get_inputs():
        shape = shapes.get(path.stem) or [d if isinstance(d, int) else 1 for d in value.shape]
        kind = np.int64 if "int64" in value.type else np.float32
        drawn = rng.integers(0, 2, shape) if kind is np.int64 else rng.standard_normal(shape)
        feeds[value.name] = drawn.astype(kind)
    want = session.run(None, feeds)
    floor = max((float(np.abs(w).max()) for w in want if w.dtype.kind == "f"), default=1.0)
    data = (list(feeds.values()), want)
    return BackendTest(suite, path.stem, "", onnx.load(path), (data,), LOOSE[0], LOOSE[1] * max(floor, 1e-2))


def of_edgeproof(model: Any) -> Callable[..., Any]:
    """Our importer."""
    import onnx_ir as ir

    from edgeproof import fx
    from edgeproof.model import Model

    module: Callable[..., Any] = fx.import_model(Model.of(ir.from_proto(model), "test")).module
    return module


def of_onnx2torch(model: Any) -> Callable[..., Any]:
    """onnx2torch."""
    import onnx2torch

    module: Callable[..., Any] = onnx2torch.convert(model).eval()
    return module


TOOLS = {"edgeproof": of_edgeproof, "onnx2torch": of_onnx2torch}


def tried(test: BackendTest, importer: Callable[[Any], Any]) -> Result:
    """One test."""
    import torch

    def result(outcome: str, why: object = "", *, exports: bool = False) -> Result:
        return Result(test.suite, test.name, test.operator, outcome, exports, " ".join(str(why).split())[:300])

    try:
        module = importer(test.model)
    except Exception as e:
        return result("refused", e)
    try:
        with torch.no_grad():
            for inputs, want in test.sets:
                wrong = outputs_problem(module(*(tensor(i) for i in inputs)), want, test)
                if wrong:
                    return result("differs", wrong)
    except Exception as e:
        return result("crashed", e)
    if test.suite == "node":
        return result("passes")
    try:
        inputs, want = test.sets[0]
        given = tuple(tensor(i) for i in inputs)
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):  # torch prints what it cannot export
            wrong = outputs_problem(torch.export.export(module, given).module()(*given), want, test)
        return result("passes", wrong, exports=not wrong)
    except Exception as e:
        return result("passes", e)


def run(tool: str, zoo: Path | None, only: str) -> list[Result]:
    """All tests on one importer."""
    import logging

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [tried(test, TOOLS[tool]) for test in tests(zoo) if only in test.name and in_scope(test)]


def table(files: list[Path]) -> str:
    """The results of several importers side by side, in Markdown."""
    runs = {p.stem: [Result(**r) for r in json.loads(p.read_text())] for p in files}
    lines = ["| tests | n |", "|---|---|"]
    for name in runs:
        lines[0] += f" {name}: pass | export | differ | crash | no module |"
        lines[1] += "---|" * 5
    suites = list(dict.fromkeys(r.suite for r in next(iter(runs.values()))))
    for suite in suites:
        counts = {name: [r for r in results if r.suite == suite] for name, results in runs.items()}
        row = f"| {suite} | {len(next(iter(counts.values())))} |"
        for results in counts.values():
            by = Counter(r.outcome for r in results)
            exported = "" if suite == "node" else sum(r.exports for r in results)
            row += f" {by['passes']} | {exported} | {by['differs']} | {by['crashed']} | {by['refused']} |"
        lines.append(row)
    for name, results in runs.items():
        by_operator: dict[str, list[bool]] = defaultdict(list)
        for r in results:
            if r.suite == "node" and r.operator:
                by_operator[r.operator].append(r.outcome == "passes")
        some = sum(any(v) for v in by_operator.values())
        whole = sum(all(v) for v in by_operator.values())
        lines.append(f"\n{name}: of {len(by_operator)} operators, {some} pass a test of theirs and {whole} pass all.")
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("tool", choices=TOOLS)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--zoo", type=Path)
    one.add_argument("--only", default="", help="tests whose names contain this")
    both = commands.add_parser("table")
    both.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "table":
        print(table(args.files))
        return
    results = run(args.tool, args.zoo, args.only)
    args.out.write_text(json.dumps([asdict(r) for r in results], indent=1))
    print(table([args.out]))


if __name__ == "__main__":
    main()
