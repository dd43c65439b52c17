"""What a start costs: bare Python, importing edgeproof, and ``edgeproof --help``, interleaved."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import edgeproof": [sys.executable, "-c", "import edgeproof"],
    "edgeproof --help": [sys.executable, "-m", "edgeproof", "--help"],
    "edgeproof bench --help": [sys.executable, "-m", "edgeproof", "bench", "--help"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for i in range(args.rounds + 1):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if i:  # the first round fills the file cache
                seconds[name].append(time.perf_counter() - start)
    base = median(seconds["python -c pass"])
    rows = [{"command": n, "median_s": median(s), "of_bare_python": median(s) / base} for n, s in seconds.items()]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['command']:24}{row['median_s']:8.3f} s  {row['of_bare_python']:6.2f} × bare Python")


if __name__ == "__main__":
    main()
