"""Coverage-guided fuzzing (atheris) of every reader of files that others make: executions, coverage, crashes, memory.

    scripts/bench fuzz [--minutes M] [--corpus FOLDER] [--only TARGET …]

Atheris lives in an environment of its own, made when it is missing. Each target runs M minutes in a fresh process,
begins with what tests/ keeps and what earlier runs left in FOLDER/TARGET, and stops at its first crash, whose input
is written to FOLDER/crashes. Exit code 1 when there was one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environments import python_of

from . import targets

ROOT = Path(__file__).parents[2]
RSS_MB, TIMEOUT_S = 2048, 60
_LINE = re.compile(r"#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)/")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [t.name for t in targets.TARGETS]
    parser.add_argument("--minutes", type=float, default=1.0, help="of each target; default: 1")
    parser.add_argument("--corpus", type=Path, default=Path("fuzz-corpus"), help="kept from run to run")
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="TARGET", help=", ".join(names))
    args = parser.parse_args()
    python = python_of("atheris")
    crashes = 0
    for target in targets.TARGETS:
        if target.name in args.only:
            row = fuzz(target, python, args.minutes, args.corpus)
            crashes += bool(row["crash"])
            with (args.corpus / "rows.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
    print(table(args.corpus))
    return min(crashes, 1)


def fuzz(target: targets.Target, python: Path, minutes: float, corpus: Path) -> dict[str, object]:
    """Run one target; what came of it."""
    folder, found = corpus / target.name.replace(" ", "-"), corpus / "crashes"
    for path in (folder, found):
        path.mkdir(parents=True, exist_ok=True)
    longest = 1
    for seed in target.seeds():
        (folder / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
        longest = max(longest, len(seed))
    prefix = found / f"{folder.name}-"
    options = {
        "max_total_time": int(minutes * 60),
        "max_len": longest * 5 // 4 + 4096,
        "rss_limit_mb": RSS_MB,
        "timeout": TIMEOUT_S,
        "print_final_stats": 1,
        "artifact_prefix": prefix,
    }
    command = [
        str(python),
        "-m",
        "benchmarks.fuzz.child",
        target.name,
        *(f"-{k}={v}" for k, v in options.items()),
        str(folder),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="edgeproof-fuzz-", dir=targets.scratch_root()) as scratch:
        env["TMPDIR"] = scratch
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, errors="replace", check=False)
    (corpus / f"{folder.name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = _LINE.findall(done.stderr)
    last = lines[-1] if lines else ("0",) * 4
    rss = re.findall(r"rss: (\d+)Mb", done.stderr)
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    return {
        "target": target.name,
        "minutes": minutes,
        "executions": int(runs[1] if runs else last[0]),
        "edges": int(last[1]),
        "features": int(last[2]),
        "corpus": int(last[3]),
        "peak_mb": max(map(int, rss), default=0),
        "crash": "" if done.returncode == 0 else _cause(done.stderr),
    }


def _cause(text: str) -> str:
    """The last line that names an exception or libFuzzer's own complaint."""
    named = [line for line in text.splitlines() if re.match(r"(\S+(Error|Exception)\b|==\d+== ?ERROR)", line)]
    return (named or ["ended"])[-1][:200]


def table(corpus: Path) -> str:
    """Everything that was run so far: sums of minutes and executions, the rest of the latest run."""
    rows: dict[str, dict[str, object]] = {}
    for line in (corpus / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        before = rows.get(row["target"], {"minutes": 0, "executions": 0})
        sums = {key: row[key] + before[key] for key in ("minutes", "executions")}
        rows[row["target"]] = {**row, **sums}
    names = ("target", "minutes", "executions", "edges", "features", "corpus", "peak MB", "crash")
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|"
    body = [
        f"| {r['target']} | {r['minutes']:g} | {r['executions']:,} | {r['edges']:,} | {r['features']:,} "
        f"| {r['corpus']:,} | {r['peak_mb']:,} | {r['crash'] or 'none'} |"
        for r in rows.values()
    ]
    return "\n".join([head, *body])


if __name__ == "__main__":
    sys.exit(main())
