"""Power cuts at every step, and that the harness would notice a missing step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.power_cuts.disk import Operation, Platter
from benchmarks.power_cuts.play import SCENARIOS, in_memory, play

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("golden", [False, True], ids=["no golden", "golden"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_after_a_power_cut_at_any_step_the_device_starts_with_the_old_bundle_or_the_new_one(scenario, golden):
    with in_memory() as folder:
        tally = play(scenario, folder, golden=golden)
    assert tally.problems == []
    assert tally.operations >= 4
    assert tally.disks > tally.operations
    assert tally.new > 0


@pytest.mark.parametrize("left_out", ["sync", "sync_folder"])
def test_the_harness_notices_when_the_device_leaves_out_a_sync(left_out):
    scenario = next(s for s in SCENARIOS if s.name == "rollback of a trial")
    with in_memory() as folder:
        assert play(scenario, folder, forget=frozenset({left_out})).problems


@pytest.mark.slow
def test_an_install_that_is_really_killed_at_random_points_leaves_the_old_bundle_or_the_new_one(tmp_path):
    command = [sys.executable, "-m", "benchmarks.power_cuts", "--kill", "120"]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout)
    assert outcomes.pop("problems") == 0
    assert sum(outcomes.values()) == 120
    assert outcomes["old"] > 0


def looks(*operations: Operation) -> list[dict[str, bytes]]:
    platter = Platter({"f": b"old"})
    for operation in operations:
        platter.apply(operation)
    return [dict(image) for image in platter.images()]


def test_the_model_of_a_disk_loses_what_was_not_synced():
    written = Operation("write", "f.part", data=b"new!")
    renamed = Operation("rename", "f.part", "f")
    unsynced = looks(written, renamed)
    assert {"f": b""} in unsynced
    assert {"f": b"ne"} in unsynced
    assert {"f": bytes(4)} in unsynced
    synced = looks(written, Operation("sync", "f.part"), renamed)
    assert {image["f"] for image in synced} == {b"old", b"new!"}
    assert looks(written, Operation("sync", "f.part"), renamed, Operation("sync_folder", ".")) == [{"f": b"new!"}]


def test_the_model_of_a_disk_may_bring_back_a_removed_file_until_the_folder_is_synced():
    assert looks(Operation("remove", "f")) == [{}, {"f": b"old"}]
    assert looks(Operation("remove", "f"), Operation("sync_folder", ".")) == [{}]
