"""A run folder as `optimize` leaves it, written through the real types."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from edgeproof.digest import digest_json
from edgeproof.environment import control_check
from edgeproof.measurement import LegRun, Measurement
from edgeproof.policy import Check, Policy, Rule, Verdict
from edgeproof.recipe import Recipe, Step
from edgeproof.workspace import Workspace

POLICY = Policy(
    "default",
    (
        Rule("quality", "<=", Decimal("0.01"), "drop", "baseline"),
        Rule("latency_p95", "<=", Decimal(80), "ms"),
        Rule("throughput", ">=", Decimal(20), "1/s"),
    ),
)


class RunBuilder:
    """Makes one run folder; attributes may be changed before `write`."""

    def __init__(self, root: Path, rounds: int = 4, inferences: int = 30) -> None:
        self.root = root
        self.rng = np.random.default_rng(7)
        self.rounds, self.inferences = rounds, inferences
        self.best = "int8-percentile"
        self.speed = {"original": 14.3, "control": 14.3, self.best: 8.4}
        self.quality = {"original": 0.967, self.best: 0.9655}
        self.sizes = {"original": 8_712_345, self.best: 5_560_001}
        self.screened = {"float": (12.1, 0.967, ""), "int8-minmax": (8.5, 0.401, "quality drop 0.5660, limit 0.01")}
        self.state = "accept"
        self.node = "conv_1"

    def legs(self) -> list[LegRun]:
        out = []
        for index in range(self.rounds):
            drift = 1 + 0.01 * self.rng.standard_normal()
            for leg, ms in self.speed.items():
                noise = np.exp(0.02 * self.rng.standard_normal() * 0.3 + 0.05 * self.rng.gamma(1.2, 1, self.inferences))
                ns = tuple(int(v) for v in ms * 1e6 * drift * noise)
                out.append(LegRun(leg, index, ns, cold_start_ns=int(9e7), peak_rss_bytes=120_000_000))
        return out

    def measured(self, leg: str, runs: list[LegRun]) -> dict[str, Measurement]:
        values = {}
        for metric, q in (("latency_p50", 0.5), ("latency_p95", 0.95)):
            per_run = [float(np.quantile(r.latency_ns, q)) / 1e6 for r in runs if r.leg == leg]
            mean = float(np.mean(per_run))
            values[metric] = Measurement(metric, mean, "ms", "lower", mean * 0.984, mean * 1.017, per_run, "sha256:ab")
        rate = 1000 / values["latency_p50"].value
        values["throughput"] = Measurement(
            "throughput", rate, "1/s", "higher", rate * 0.98, rate * 1.02, [rate], "sha256:ab"
        )
        values["size"] = Measurement("size", float(self.sizes[leg]), "bytes", "lower", None, None, [], "sha256:ab")
        q = self.quality[leg]
        hits = [int(v) for v in self.rng.random(200) < q]
        values["top1"] = Measurement("top1", q, "1", "higher", q - 0.012, q + 0.009, hits, "sha256:ab")
        return values

    def verdict(self, measured: dict[str, Measurement]) -> Verdict:
        drop, p95, fps = POLICY.rules
        got = measured["latency_p95"]
        worse = self.quality["original"] - measured["top1"].value
        states = {"accept": "pass", "reject": "fail", "hold": "undecided"}
        more = 800 if self.state == "hold" else None
        rate = measured["throughput"]
        checks = (
            Check(drop, states[self.state], worse, worse - 0.004, worse + 0.005, "paired drop against its limit", more),  # type: ignore[arg-type]
            Check(p95, "pass", got.value, got.low, got.high, "the typical run's p95 is below the limit"),
            Check(fps, "pass", rate.value, rate.low, rate.high, "fast enough"),
        )
        return Verdict(self.state, checks, POLICY.digest, "sha256:ab")  # type: ignore[arg-type]

    def change(self) -> dict[str, Any]:
        return {
            "digest": "sha256:cd",
            "size_bytes": self.sizes.get(self.best, 1),
            "before": {"nodes": 120, "ops": {"Conv": 50, "BatchNormalization": 50, "Relu": 20}},
            "after": {"nodes": 190, "ops": {"Conv": 50, "Relu": 20, "QuantizeLinear": 60, "DequantizeLinear": 60}},
            "steps": [
                {"pass": "simplify", "modified": True, "applied": [f"{self.node}: batch norm folded"], "declined": [],
                 "facts": {}},
                {"pass": "int8", "modified": True, "applied": [f"{self.node}: quantised"],
                 "declined": [[self.node, "softmax stays float"], ["resize_2", "softmax stays float"]],
                 "facts": {"examples": 64}},
            ],
        }  # fmt: skip

    def layers(self, leg: str) -> dict[str, Any]:
        precision = "float" if leg == "original" else "uint8"
        times = [
            {"name": f"{self.node}_{i}", "op": ("Conv", "Relu", "MatMul")[i % 3], "device": "CPUExecutionProvider",
             "precision": precision, "time_ms": self.speed[leg] * 0.2 * 0.85**i}
            for i in range(30)
        ]  # fmt: skip
        errors = [
            {"tensor": f"{self.node}_out_{i}", "op": "Conv", "sqnr_db": 38 - 0.5 * i + 5 * float(np.sin(i * 1.7)),
             "max_abs": 0.01 * (i + 1)}
            for i in range(40)
        ]  # fmt: skip
        return {
            "repeats": 20,
            "total_ms": sum(t["time_ms"] for t in times),
            "layers": times,
            "placement": {
                "source": "profile events",
                "by_device": {"CPUExecutionProvider": 30},
                "fallbacks": [["resize_2", "not supported"]] if leg != "original" else [],
            },
            "errors": errors if leg != "original" else [],
            "error_examples": 4,
            "error_against": "float",
        }

    def write(self) -> Path:
        request = {
            "edgeproof": "0.1.0", "model": digest_json("model"), "model_name": "mobilenet.onnx",
            "dataset": digest_json("data"), "evaluator": digest_json("evaluator"), "metric": "top1",
            "policy": POLICY.to_json(), "target": {"name": "onnxruntime:cpu", "settings": {}}, "seed": 0,
            "machine": digest_json("machine"),
        }  # fmt: skip
        workspace = Workspace.create(self.root, request)
        runs = self.legs()
        for index in range(self.rounds):
            workspace.write(f"confirm/round-{index:03d}.json", [r.to_json() for r in runs if r.round == index])
        workspace.write("environment.json", {"cpu": "Some CPU", "packages": {"onnxruntime": "1.25.0"}, "cores": 2})
        control = control_check(runs, "original", "control").to_json()
        workspace.write("control.json", control)
        rows = [self.row(leg, runs) for leg in self.quality]
        for name, (p50, quality, why) in self.screened.items():
            search = {"speedup": 14.3 / p50, "drop": 0.967 - quality, "p50_ms": p50, "quality": quality}
            rows.append({"name": name, "recipe": Recipe(name).to_json(), "state": "screened", "why": why or "slower",
                         "search": search, "measured": {}, "verdict": None, "size_bytes": 5_500_000.0})  # fmt: skip
            ns = tuple(int(v * 1e6) for v in (14.0, 14.5, p50))
            bench = [LegRun(leg, 0, ns) for leg in ("original", name)]
            workspace.write(f"candidates/{name}/bench-search.json", [r.to_json() for r in bench])
        rows.append({"name": "fp16", "recipe": Recipe("fp16").to_json(), "state": "failed", "why": "Cast: overflows",
                     "search": {}, "measured": {}, "verdict": None})  # fmt: skip
        accepted = self.state == "accept"
        result = {
            "format": "edgeproof.result/1", "state": self.state, "best": self.best if accepted else None,
            "metric": "top1",
            "samples": {"calibration": 64, "search": 136, "confirm": 200}, "control": control, "candidates": rows,
        }  # fmt: skip
        workspace.write("result.json", result)
        if accepted:
            workspace.write("best.json", {"name": self.best, "target": "onnxruntime:cpu", "settings": {"threads": 2}})
        workspace.record(
            {"kind": "quality-search", "candidate": "original", "model": "sha256:" + "ab" * 32, "result": "x"}
        )
        workspace.record(
            {"kind": "bench-confirm", "candidate": self.best, "model": "sha256:" + "cd" * 32, "result": "y"}
        )
        return self.root

    def row(self, leg: str, runs: list[LegRun]) -> dict[str, Any]:
        steps = (
            () if leg == "original" else (Step("simplify"), Step("int8", {"method": "percentile", "depthwise": False}))
        )
        measured = self.measured(leg, runs)
        value = {
            "name": leg,
            "recipe": Recipe(leg, steps, {} if leg == "original" else {"threads": 2}).to_json(),
            "state": "reject" if leg == "original" else self.state,
            "why": "every rule passes",
            "search": {"speedup": 14.3 / self.speed[leg], "drop": 0.0},
            "measured": {k: m.to_json() for k, m in measured.items()},
            "verdict": self.verdict(measured).to_json(),
            "model": digest_json(leg),
            "size_bytes": float(self.sizes[leg]),
            "layers": self.layers(leg),
            "fidelity": {"cosine": 0.9987, "sqnr": 25.1},
        }
        return value if leg == "original" else {**value, "change": self.change()}


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))
