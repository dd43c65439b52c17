"""Cut the power at every step of install, boot, commit, rollback, floor and recovery; or really end installs."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.power_cuts.play import SCENARIOS, in_memory, kills, play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="really end N installs with SIGKILL instead")
    args = parser.parse_args()
    if args.kill:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            print(json.dumps(kills(args.kill, Path(folder))))
        return
    rows = {}
    for scenario in SCENARIOS:
        for golden in (False, True):
            with in_memory() as folder:
                rows[f"{scenario.name}{', golden' if golden else ''}"] = play(scenario, folder, golden=golden)
    if args.json:
        print(json.dumps({k: {f: getattr(v, f) for f in v.__slots__} for k, v in rows.items()}, indent=1))
        return
    columns = ("operations", "images", "disks", "second_images", "second_disks", "old", "new", "problems")
    table = {name: [t.count(c) for c in columns] for name, t in rows.items()}
    table["all"] = [sum(column) for column in zip(*table.values(), strict=True)]
    print(f"{'':38}" + "".join(f"{c:>14}" for c in columns))
    for name, numbers in table.items():
        print(f"{name:38}" + "".join(f"{n:14}" for n in numbers))
    for name, t in rows.items():
        for problem in t.problems[:3]:
            print(f"{name}: {problem}")


if __name__ == "__main__":
    main()
