"""Which ONNX operators a runtime runs, in FP32, FP16 and INT8, by running ONNX's own tests of single nodes on it.

    python -m benchmarks.support --backend onnxruntime [--device cpu] [--most 6] [--ops Conv,Relu]

Run it in an environment where the backend is installed; it writes ``src/edgeproof/support/tables/BACKEND-DEVICE.json``.
FP16 is made by our pass ``fp16``, INT8 by our pass ``int8`` (layers) or by the Q/DQ that it would put around the
operator (followers, and what only moves values), as the target's scheme wants it. Every test has a time limit; a test
that ends the process it runs in is a test that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.support.cases import chosen, suite
from benchmarks.support.child import find

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "src/edgeproof/support/tables"
PRECISIONS = ("fp32", "fp16", "int8")
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "ncnn": "ncnn", "executorch": "executorch",
            "litert": "ai-edge-litert", "tvm": "apache-tvm", "tinygrad": "tinygrad",
            "tensorrt_rtx": "tensorrt-rtx-cu12", "coreml": "coremltools", "reference": "onnx"}  # fmt: skip
"""Backend → the package whose version is told."""


COMMON = tuple(
    """
    Conv Relu MaxPool AveragePool GlobalAveragePool Gemm MatMul Add Mul Sub Div Concat Reshape Transpose Flatten
    Clip Sigmoid HardSigmoid HardSwish Softmax BatchNormalization LayerNormalization ConvTranspose Resize Slice
    Split Squeeze Unsqueeze Gather Shape Cast Pad ReduceMean Pow Sqrt Erf Gelu Tanh LeakyRelu PRelu Expand Where
    TopK ArgMax QuantizeLinear DequantizeLinear LSTM GRU Exp Log Identity ReduceSum ReduceMax DepthToSpace
    SpaceToDepth InstanceNormalization NonMaxSuppression Elu Max Min Equal Range ConstantOfShape Tile Neg Abs
    Floor Dropout Einsum GlobalMaxPool Not And Greater Less
    """.split()  # noqa: SIM905 (a list would be a line each)
)
"""Operators that most models have."""
WAITING = 20
"""Wall seconds that are waited for each CPU second of a test's limit: the machine may be busy, or the test may hang."""
STARTING_S = 600.0


class Child:
    """The process that runs tests; started again when it is gone. A test's limit is in CPU time of that process."""

    def __init__(self, backend: str, device: str, limit_s: float) -> None:
        self._command = [sys.executable, "-m", "benchmarks.support.child", backend, device]
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, op: str, case: str, precision: str) -> dict[str, str]:
        """What became of one test."""
        process = self._running()
        assert process.stdin is not None
        asked = json.dumps({"op": op, "case": case, "precision": precision})
        process.stdin.write(asked.encode() + b"\n")
        line = self._read(process, self._limit_s)
        if line is None:
            self.close()
            return {"state": "fails", "why": f"did not end within {self._limit_s:g} s of CPU time"}
        if not line:
            code = process.wait()
            self.close()
            return {"state": "fails", "why": f"ended its process (code {code})"}
        return dict(json.loads(line))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, bufsize=0,
            )  # fmt: skip
            if not self._read(self._process, STARTING_S):
                raise SystemExit(f"{' '.join(self._command)} does not start")
        return self._process

    def _read(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes | None:
        """A line; nothing when the process ended; None when it took too long."""
        assert process.stdout is not None
        data, before, until = b"", cpu_seconds(process.pid), time.monotonic() + limit_s * WAITING
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], 1.0)
            if ready:
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    return b""
                data += piece
            elif cpu_seconds(process.pid) - before > limit_s or time.monotonic() > until:
                return None
        return data

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None


def cpu_seconds(pid: int) -> float:
    """What a process has used so far. Source: proc(5), fields utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", default="", help="default: the backend's first")
    parser.add_argument("--most", type=int, default=6, help="tests of one operator and precision")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds of one test")
    parser.add_argument("--ops", default="", help="only these, and nothing is written")
    parser.add_argument("--minutes", type=float, default=0, help="stop asking after this long; what is left is unknown")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the table that is there")
    args = parser.parse_args()
    target, runs = find(args.backend, args.device)
    path = TABLES / f"{target.backend}-{target.device}.json"
    operators: dict[str, dict[str, list[Any]]] = {}
    if args.resume and path.is_file():
        operators = json.loads(path.read_text(encoding="utf-8"))["operators"]
    child = Child(args.backend, target.device, args.limit)
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    asked = [op for op in ordered() if not args.ops or op in args.ops.split(",")]
    missed: set[str] = set()
    try:
        for op in asked:
            for precision in PRECISIONS:
                if precision in operators.get(op, {}):
                    continue
                if time.monotonic() > end:
                    missed.add(precision)
                    continue
                row = summed([child.ask(op, name, precision) for name in chosen(op, args.most)])
                if row:
                    operators.setdefault(op, {})[precision] = row
    finally:
        child.close()
    for precision in PRECISIONS:
        print(precision, Counter(r[precision][0] for r in operators.values() if precision in r), flush=True)
    if args.ops:
        print(json.dumps(operators, indent=1))
        return 0
    write(path, target.name, runs, operators, sorted(missed))
    return 0


def ordered() -> list[str]:
    """Every operator, those that most models have first: a run that is cut short has asked for these."""
    return [*(op for op in COMMON if op in suite()), *(op for op in suite() if op not in COMMON)]


def summed(found: list[dict[str, str]]) -> list[Any]:
    """[state, passed, tests, why] of an operator's tests; empty when none was asked."""
    asked = [f for f in found if f["state"] != "not asked"]
    if not asked:
        return []
    counts = Counter(f["state"] for f in asked)
    state = next(s for s in ("runs", "falls back", "fails") if counts[s])
    why = next((f["why"] for f in asked if f["state"] == ("fails" if state == "runs" else state)), "")
    return [state, counts["runs"] + counts["falls back"], len(asked), why]


def write(path: Path, name: str, runs: bool, operators: dict[str, dict[str, list[Any]]], missed: list[str]) -> None:
    backend = name.partition(":")[0]
    try:
        runtime = version(PACKAGES.get(backend, backend))
    except PackageNotFoundError:
        runtime = "unknown"
    source = {
        "kind": "probed" if runs else "built",
        "runtime": f"{PACKAGES.get(backend, backend)} {runtime}",
        "suite": f"onnx {version('onnx')}, tests of single nodes",
        "machine": f"{platform.system()} {platform.machine()}",
    }
    rows = []
    for op, row in sorted(operators.items()):
        rows.append(f"  {json.dumps(op)}: {json.dumps(row, ensure_ascii=False)}")
    about = {"runtime": name, "source": source, **({"unfinished": missed} if missed else {})}
    head = json.dumps(about, indent=1, ensure_ascii=False)
    text = head[:-2] + ',\n "operators": {\n' + ",\n".join(rows) + "\n }\n}\n"
    json.loads(text)
    path.write_text(text, encoding="utf-8")
    print(path.relative_to(ROOT), len(operators), "operators")


if __name__ == "__main__":
    sys.exit(main())
