"""The scripts for hardware of their own: documented, well formed, and polite where that hardware is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(p.name for p in (ROOT / "scripts").glob("on-*"))


def test_there_is_one_for_every_platform() -> None:
    assert {"on-android", "on-jetson", "on-macos", "on-nvidia-gpu"} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_documented_can_be_started_and_parses(name: str) -> None:
    script = ROOT / "scripts" / name
    assert f"`scripts/{name}`" in (ROOT / "docs/platforms.md").read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).returncode == 0


def test_steps_are_kept_when_one_of_them_fails(tmp_path: Path) -> None:
    script = """
    set -euo pipefail
    . scripts/steps
    begin "A b/c"
    step good printf done
    step bad sh -c 'echo why >&2; exit 3'
    verdict held sh -c 'exit 5'
    step told printf '{}' --json
    finish
    """
    settings = {**os.environ, "EDGEPROOF_RECEIPTS": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 steps failed" in done.stderr
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("a-b-c-")
    assert (folder / "good.txt").read_text(encoding="utf-8") == "done"
    assert (folder / "bad.log").read_text(encoding="utf-8") == "why\n"
    assert (folder / "told.json").read_text(encoding="utf-8") == "{}"
    assert '"exit": 5' in (folder / "steps.json").read_text(encoding="utf-8")
