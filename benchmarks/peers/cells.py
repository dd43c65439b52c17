"""Measure cells and keep them: ``OUT/DATA/TOOL-N/{model.onnx, cost.json, quality.json, log.txt}``.

Latency is one file a model, ``OUT/DATA/latency-N.json``, since all tools' models are timed together; it holds their
digests and is measured again when one of them is another.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeproof.digest import digest_file
from edgeproof.errors import EdgeproofError
from edgeproof.files import write_bytes

from . import children, quality
from .environments import installed
from .labelled import write_labelled, write_lines
from .latency import latencies
from .tasks import Prepared, Task, fresh, prepare
from .tools import TOOLS, Tool

PROCESSES = 6
"""Fresh processes that a latency comes from."""


@dataclass(slots=True)
class Bench:
    """One model's cells.

    Attributes:
        task: Model and data.
        folder: Of this model.
        again: Measure anew what is there.
        limit_gb: Memory that a tool may hold.
        limit_s: Time that a tool may take.
    """

    task: Prepared
    folder: Path
    again: bool
    limit_gb: float
    limit_s: float

    @staticmethod
    def prepare(task: Task, out: Path, test: int, again: bool, limit_gb: float, limit_s: float) -> Bench:
        """Write the model and the data, once."""
        made = prepare(task, out.resolve(), test, lambda what, share: say(task.data, what, share))
        return Bench(made, out.resolve() / task.data, again, limit_gb, limit_s)

    def run(self, tools: Sequence[Tool], counts: Sequence[int], stages: Sequence[str], rounds: int) -> None:
        """All cells of some tools; the accuracy and the latency of those with the first count only."""
        for i, n in enumerate(counts):
            for tool in [t for t in TOOLS if self._wants(t, tools, i)]:
                again = self.again and tool in tools
                if "quantise" in stages:
                    self._quantise(tool, n, again)
                if "quality" in stages and i == 0:
                    self._quality(tool, n, again)
            if "latency" in stages and i == 0:
                self._latency(n, rounds)

    def _wants(self, tool: Tool, tools: Sequence[Tool], later: int) -> bool:
        """FP32 always, since all is told against it; a tool that chooses with the first number of samples only."""
        if tool.name == "float":
            return True
        fits = not tool.data or self.task.task.data in tool.data
        return tool in tools and fits and not (tool.labels and later)

    def cell(self, tool: Tool, n: int) -> Path:
        """Folder of a cell."""
        return self.folder / f"{tool.name}-{n}"

    def _quantise(self, tool: Tool, n: int, again: bool) -> None:
        cell = self.cell(tool, n)
        if (cell / "cost.json").is_file() and not again:
            return
        fresh(cell)
        cell.mkdir(parents=True)
        settings = dict(tool.settings)
        if tool.labels:
            write_for = write_labelled if tool.peer == "edgeproof" else write_lines
            settings["labelled"] = str(write_for(self.task.task, self.folder, n))
        job = {
            "model": str(self.task.model),
            "out": str(cell / "model.onnx"),
            "samples": str(self.task.samples),
            "count": n,
            "settings": settings,
        }
        say(self.task.task.data, f"{tool.title}, {n} samples", 0.0)
        found = children.run(tool, job, cell / "log.txt", self.limit_gb, self.limit_s)
        if tool.peer != "edgeproof" and "failed" not in found:
            found["environment_bytes"] = installed(tool.peer)["bytes"]
        if "failed" not in found:
            found |= self._looked_into(cell / "model.onnx")
        write(cell / "cost.json", {"tool": tool.name, "samples": n, "settings": dict(tool.settings), **found})
        outcome = found.get("failed") or f"{found['cpu_s']:.1f} CPU s, {found['peak_mb']:.0f} MB"
        print(f"{self.task.task.data:<14} {tool.title:<28} {n:>4} samples  {outcome}", file=sys.stderr, flush=True)

    def _looked_into(self, model: Path) -> dict[str, Any]:
        """What a tool's model holds, and whether the runtime takes it; one that does not run is a failure."""
        try:
            return {
                **quality.integers(model),
                "kernels": quality.kernels(model, next(self.feeds(1))),
                "digest": digest_file(model),
                "bytes": model.stat().st_size,
            }
        except EdgeproofError as e:
            model.unlink(missing_ok=True)
            return {"failed": f"ONNX Runtime refuses its model: {e.problem}"[:300]}

    def _quality(self, tool: Tool, n: int, again: bool) -> None:
        cell, test = self.cell(tool, n), self.task.test.parent.name
        kept, model = cell / f"{test}.json", cell / "model.onnx"
        if not model.is_file() or (kept.is_file() and not again):
            return
        scores = quality.scores_of(
            model, self.task, lambda what, share: say(self.task.task.data, f"{tool.title}: {what}", share)
        )
        base_path = self.cell(TOOLS[0], n) / f"{test}.json"
        base = json.loads(base_path.read_text())["scores"] if tool.name != "float" else scores
        found = quality.value_and_drop(self.task, base, scores)
        write(kept, {"metric": self.task.task.metric, "samples": len(scores), **found, "scores": scores})
        print(
            f"{self.task.task.data:<14} {tool.title:<28} {self.task.task.metric} {found['value']:.4f}, "
            f"drop {100 * found['drop']:.1f} % [{100 * found['drop_low']:.1f}, {100 * found['drop_high']:.1f}]",
            file=sys.stderr,
            flush=True,
        )

    def _latency(self, n: int, rounds: int) -> None:
        paths = {t.name: p for t in TOOLS if (p := self.cell(t, n) / "model.onnx").is_file()}
        digests = {name: digest_file(path) for name, path in paths.items()}
        kept = self.folder / f"latency-{n}.json"
        if kept.is_file():
            known = json.loads(kept.read_text())
            if known["digests"] == digests and known["rounds"] == rounds and "processes" in known:
                return
        say(self.task.task.data, f"timing {len(paths)} models in turn", 0.0)
        found = latencies(paths, self.task.samples, PROCESSES, rounds)
        write(kept, {"digests": digests, "rounds": rounds, "processes": PROCESSES, "models": found})

    def feeds(self, count: int) -> Any:
        """Calibration samples, read one at a time."""
        import numpy as np

        for i in range(count):
            with np.load(self.task.samples / f"{i:04}.npz") as arrays:
                yield dict(arrays)


def write(path: Path, value: Any) -> None:
    """As JSON, whole or not at all."""
    write_bytes(path, json.dumps(value, indent=1).encode())


def say(model: str, what: str, share: float) -> None:
    """Progress on one line, where somebody watches."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{f'{model}: {what} {share:.0%}'[:width]:<{width}}", end="\r", file=sys.stderr, flush=True)
