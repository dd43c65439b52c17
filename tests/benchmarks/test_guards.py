"""The table of guards stays true: every guard is where it says, every test that must notice its absence exists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.guards.__main__ import page
from benchmarks.guards.table import GROUPS, Case, Edit, cases, problems
from benchmarks.guards.trial import Trial

ROOT = Path(__file__).parents[2]
CASES = cases()


@pytest.mark.parametrize("group", GROUPS)
def test_every_fragment_is_in_its_file_once_and_every_test_exists(group):
    assert [p for c in CASES if c.group == group for p in problems(c)] == []


def test_no_case_stands_twice():
    names = [(c.group, c.case) for c in CASES]
    assert len(set(names)) == len(names)


def test_a_guard_that_moved_and_a_test_that_is_gone_are_named():
    edit = Edit("edgeproof/archive.py", "if this was never written:", "if False:")
    found = list(problems(Case("archive", "x", (edit,), "tests/test_archive.py::test_that_never_was", 1, False)))
    assert ["0 times" in found[0], "no test" in found[1]] == [True, True]


def test_the_page_of_guards_has_a_row_for_every_case_and_none_survived():
    text = (ROOT / "docs/guards.md").read_text(encoding="utf-8")
    assert text == page([(c, Trial("noticed", "")) for c in CASES])


TRIALS = """
import json, sys
from pathlib import Path
from benchmarks.guards.table import Case, Edit
from benchmarks.guards.trial import run

tree = Path(sys.argv[1])
found = []
for guard, gone in json.loads(sys.argv[2]):
    case = Case("device", "x", (Edit("edgeproof/door.py", guard, gone),), "tests/test_door.py::test_you", 15, False)
    found.append(run(case, tree, tree / "log").outcome)
print(json.dumps(found))
"""


def test_a_guard_that_is_taken_away_is_noticed_and_one_that_does_nothing_survives(tmp_path):
    (tmp_path / "src/edgeproof").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    source = tmp_path / "src/edgeproof/door.py"
    source.write_text(
        "def may_enter(name):\n    if name != 'me':\n        return False\n    idle = 1\n    return True\n"
    )
    (tmp_path / "src/edgeproof/__init__.py").touch()
    test = "from edgeproof.door import may_enter\n\ndef test_you():\n    assert not may_enter('you')\n"
    (tmp_path / "tests/test_door.py").write_text(test)
    before = source.read_text()
    trials = {
        ("if name != 'me':", "if False:"): "noticed",
        ("if name != 'me':", "while True:\n        pass\n    if False:"): "noticed",  # ended by its limit
        ("idle = 1", "idle = 2"): "survived",
        ("never there", ""): "not found",
        ("return True", "return True +"): "broken",
    }
    # In a process of its own: it forks, and this one may have threads.
    command = [sys.executable, "-c", TRIALS, str(tmp_path), json.dumps(list(trials))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == list(trials.values())
    assert source.read_text() == before
