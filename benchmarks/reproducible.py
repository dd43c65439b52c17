"""Seal the golden evidence files, and a run, with several Python interpreters and compare the bytes.

``scripts/bench reproducible [--run RUN] PYTHON …``: each interpreter needs the base dependencies (numpy, pyyaml,
rfc8785, rich, securesystemslib, tuf) and nothing else. Ends with 1 when any byte differs, between them or from
tests/golden.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from edgeproof.digest import digest_file

ROOT = Path(__file__).parents[1]


def child(python: str, *arguments: str) -> str:
    """What a script prints under an interpreter that sees this checkout."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"}
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=False, env=environment)
    if done.returncode not in (0, 1, 5):
        raise SystemExit(f"{python} {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="*", default=[], help="further interpreters")
    parser.add_argument("--run", help="folder of a finished run, sealed too")
    args = parser.parse_args()
    kept = {p.name: digest_file(p) for p in sorted((ROOT / "tests/golden").glob("evidence-*.zip"))}
    same, runs = True, set()
    with tempfile.TemporaryDirectory() as folder:
        for python in dict.fromkeys([sys.executable, *args.python]):
            found = json.loads(child(python, str(ROOT / "tests/golden/make.py"), folder))
            equal = found["files"] == kept
            same &= equal
            told = (
                f"Python {found['python']}, NumPy {found['numpy']}: {'the golden bytes' if equal else found['files']}"
            )
            if args.run:
                out = Path(folder) / "run.zip"
                sealing = ("seal", args.run, "--timestamp", "2026-12-01T09:30:00Z", "--out", str(out), "--json")
                digest = json.loads(child(python, "-m", "edgeproof", *sealing))["digest"]
                runs.add(digest)
                told += f"; the run as {digest}"
            print(told)
    return 0 if same and len(runs) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
