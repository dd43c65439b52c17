"""A model against itself, and against one that does a tenth more work: what the gate says of real runs.

The network is a chain of equal 3 × 3 convolutions, so that ten per cent more of them is ten per cent more work. All
are measured interleaved, as ``edgeproof bench`` does, and judged by *p50 / baseline ≤ 1.03* and the same of p95.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeproof.benchfile import cases, run_bench
from edgeproof.gate import decide
from edgeproof.policy import Policy, policy_from
from edgeproof.target import Target


def chain(path: Path, convolutions: int) -> Path:
    """Equal convolutions in a row, 16 channels, 48 × 48 pixels."""
    weight = np.random.default_rng(0).normal(0, 0.08, (16, 16, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", [f"x{i}", "w"], [f"x{i + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for i in range(convolutions)
    ]
    ends = [[helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1, 16, 48, 48])] for i in (0, convolutions)]
    graph = helper.make_graph(nodes, "chain", *ends, [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def margin(metric: str, runs: int, inferences: int) -> Policy:
    """At most three per cent slower than the baseline."""
    rule = {"metric": metric, "op": "<=", "limit": "1.03", "unit": "ratio", "relative_to": "baseline"}
    return policy_from({"rules": [rule], "runs": runs, "inferences": inferences}, "benchmark", {metric: "ms"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--inferences", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    policies = {metric: margin(metric, args.runs, args.inferences) for metric in ("latency_p50", "latency_p95")}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = {"baseline": 20, "same": 20, "tenth_more": 22, "quarter_more": 25}
        paths = [chain(root / f"{name}.onnx", n) for name, n in names.items()]
        target = Target("onnxruntime:cpu", "onnxruntime", "cpu", settings={"threads": 1})
        kept = run_bench(
            paths,
            target,
            root / "out",
            rounds=args.runs,
            inferences=args.inferences,
            progress=lambda what, share: None if args.json else print(f"[{share:4.0%}] {what}", flush=True),
        )
        verdicts = {
            f"{c.name}, {metric}": decide(policy, c.baseline, c.candidate, quality_metric="", control=c.control)
            for metric, policy in policies.items()
            for c in cases(root / "out" / "bench.json", policy)
        }
    if args.json:
        result = {"control": kept.control.to_json(), **{n: v.to_json() for n, v in verdicts.items()}}
        print(json.dumps(result, indent=1))
        return
    print("A/A control:", kept.control)
    for name, verdict in verdicts.items():
        print(f"{name:27}{verdict.state:8}{verdict.checks[0].reason}")


if __name__ == "__main__":
    main()
