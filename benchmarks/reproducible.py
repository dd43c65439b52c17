"""Seal the golden evidence files with several Python interpreters and compare the bytes.

``scripts/bench reproducible PYTHON …``: each interpreter needs the base dependencies (numpy, pyyaml, rfc8785, rich,
securesystemslib, tuf) and nothing else. Ends with 1 when any byte differs, between them or from tests/golden.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from edgeproof.digest import digest_file

ROOT = Path(__file__).parents[1]


def sealed_by(python: str) -> dict:
    """What an interpreter seals: its version, NumPy's, and the digest of each file."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(ROOT / "tests/golden/make.py"), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def main() -> int:
    kept = {p.name: digest_file(p) for p in sorted((ROOT / "tests/golden").glob("evidence-*.zip"))}
    same = True
    for python in dict.fromkeys([sys.executable, *sys.argv[1:]]):
        found = sealed_by(python)
        equal = found["files"] == kept
        same &= equal
        print(f"Python {found['python']}, NumPy {found['numpy']}: {'the golden bytes' if equal else found['files']}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
