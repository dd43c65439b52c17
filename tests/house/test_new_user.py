"""What somebody who is new here meets first: scripts that say what they wait for, pages that explain what is shown."""

import os
import re
import subprocess
from dataclasses import fields
from pathlib import Path

from edgeproof.cli import INTERRUPTED
from edgeproof.errors import VERDICT_EXIT, InputError, InternalError, TrustError, UnsupportedError
from edgeproof.runtimes import find_target
from edgeproof.search.ladder import RANGE_METHODS, Ladder
from edgeproof.search.mixed import Mixed

ROOT = Path(__file__).parents[2]

UV = """#!/bin/sh
# Stands in for uv: `uv venv … FOLDER` makes a folder with a python in it, and nothing is installed.
[ "$1" = venv ] || exit 0
for last; do :; done
mkdir -p "$last/bin"
printf '#!/bin/sh\\n' > "$last/bin/python"
chmod +x "$last/bin/python"
"""


def test_scripts_say_once_that_they_make_the_environment(tmp_path):
    (tmp_path / "uv").write_text(UV, encoding="utf-8")
    (tmp_path / "uv").chmod(0o755)
    venv = tmp_path / "venv"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "EDGEPROOF_VENV": str(venv)}
    said = []
    for _ in range(2):
        command = ["bash", "-c", ". scripts/environment package test"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        said.append(done.stdout + done.stderr)
    assert said == [f"making {venv} (about half a minute, once)\n", ""]


def test_the_page_explains_every_name_that_the_default_search_gives():
    page = (ROOT / "docs/candidates.md").read_text(encoding="utf-8")
    ladder = Ladder(find_target("onnxruntime:cpu", {}), threads=(1, 2))
    names = []
    while (recipe := ladder.ask()) is not None:
        names.append(recipe.name)
        ladder.tell(recipe, {"ok": True, "speedup": 1.0, "drop": 0.0})
    assert "int8-mse" in names
    prefix = next(f.default for f in fields(Mixed) if f.name == "prefix")
    plain = {re.sub(r"-\d+-thread(s?)$", r"-N-thread\1", name) for name in names}
    assert plain <= {"float", "fp16", *(f"int8-{m}" for m in RANGE_METHODS), "float-N-thread", "float-N-threads"}
    for word in ("original", "float", "fp16", "int8-METHOD", *RANGE_METHODS, f"{prefix}-N", "NAME-N-threads"):
        assert f"`{word}`" in page
    assert "docs/candidates.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_every_exit_code():
    line = (ROOT / "README.md").read_text(encoding="utf-8").split("exit codes are")[1].split("\n\n")[0]
    codes = {*VERDICT_EXIT.values(), INTERRUPTED}
    codes |= {e.exit_code for e in (InputError, UnsupportedError, TrustError, InternalError)}
    assert codes <= {int(n) for n in re.findall(r"\b\d+\b", line)}
