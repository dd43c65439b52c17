"""The cells of a folder as Markdown tables: accuracy, share of MACs in INT8, latency, cost, memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .latency import AGAIN
from .tasks import TASKS, Task
from .tools import TOOLS, Tool

Cell = Callable[[Path, Task, Tool, int], str]


def render(out: Path, n: int) -> str:
    """All tables for cells with ``n`` samples, and cost for every other number of samples there is."""
    tasks = [t for t in TASKS if (out / t.data).is_dir()]
    counts = sorted({int(p.parent.name.rpartition("-")[2]) for p in out.glob("*/*/cost.json")} - {n})
    parts = [
        _table("Quality (drop against FP32 in %, 95 % interval)", tasks, out, n, _quality),
        _table("Share of MACs in INT8", tasks, out, n, _share),
        _table("Latency as a multiple of FP32's, CPU time (95 % interval)", tasks, out, n, _latency),
        _table(f"Cost of quantising with {n} samples, × FP32 inference of them", tasks, out, n, _cost),
        _table(f"Peak memory with {n} samples, MB", tasks, out, n, _memory),
    ]
    for other in counts:
        some = [t for t in tasks if list((out / t.data).glob(f"*-{other}/cost.json"))]
        parts.append(_table(f"Cost with {other} samples, × FP32 inference", some, out, other, _cost))
        parts.append(_table(f"Peak memory with {other} samples, MB", some, out, other, _memory))
    failed = _failures(tasks, out, n)
    return "\n\n".join([*parts, *([failed] if failed else [])])


def _table(title: str, tasks: list[Task], out: Path, n: int, cell: Cell) -> str:
    rows = [f"**{title}**", "", f"| | {' | '.join(t.title for t in tasks)} |", f"|---{'|---' * len(tasks)}|"]
    for tool in TOOLS:
        cells = [cell(out, task, tool, n) for task in tasks]
        if any(cells):
            rows.append(f"| {tool.title} | {' | '.join(c or '–' for c in cells)} |")
    if cell is _latency:
        cells = [cell(out, task, Tool(AGAIN, "", ""), n) for task in tasks]
        rows.append(f"| FP32 a second time | {' | '.join(c or '–' for c in cells)} |")
    return "\n".join(rows)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None


def _told(out: Path, task: Task, tool: Tool, n: int) -> Any:
    return _read(out / task.data / f"{tool.name}-{n}" / "cost.json")


def _quality(out: Path, task: Task, tool: Tool, n: int) -> str:
    told = _told(out, task, tool, n)
    if told and "failed" in told:
        return "failed"
    found = sorted((out / task.data / f"{tool.name}-{n}").glob("test-*.json"), key=lambda p: -int(p.stem[5:]))
    if not found:
        return ""
    got = _read(found[0])
    if tool.name == "float":
        return f"{got['value']:.3f} (n={got['samples']})"
    return f"{got['value']:.3f} ({100 * got['drop']:.1f} [{100 * got['drop_low']:.1f}, {100 * got['drop_high']:.1f}])"


def _share(out: Path, task: Task, tool: Tool, n: int) -> str:
    told = _told(out, task, tool, n)
    return "" if not told or "failed" in told or tool.name == "float" else f"{100 * told['int8_share']:.0f} %"


def _latency(out: Path, task: Task, tool: Tool, n: int) -> str:
    found = (_read(out / task.data / f"latency-{n}.json") or {"models": {}})["models"].get(tool.name)
    if not found:
        return ""
    if tool.name == "float":
        return f"{found['ms']:.1f} ms"
    return f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _cost(out: Path, task: Task, tool: Tool, n: int) -> str:
    told, floor = _told(out, task, tool, n), _told(out, task, TOOLS[0], n)
    if not told or not floor:
        return ""
    if "failed" in told:
        return told["failed"] if told["failed"].startswith("stopped") else "failed"
    return f"{floor['cpu_s']:.1f} s" if tool.name == "float" else f"{told['cpu_s'] / floor['cpu_s']:.1f}"


def _memory(out: Path, task: Task, tool: Tool, n: int) -> str:
    told = _told(out, task, tool, n)
    return f"{told['peak_mb']:,.0f}" if told and "peak_mb" in told else ""


def _failures(tasks: list[Task], out: Path, n: int) -> str:
    lines = [
        f"- {tool.title} on {task.title}: `{told['failed']}`"
        for tool in TOOLS
        for task in tasks
        if (told := _told(out, task, tool, n)) and "failed" in told
    ]
    return "\n".join(["What failed:", "", *lines]) if lines else ""
