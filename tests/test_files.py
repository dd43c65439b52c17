import errno
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from edgeproof import files
from edgeproof.errors import InputError
from edgeproof.files import yaml_problem


def test_a_written_file_is_whole_and_leaves_no_temporary_behind(tmp_path):
    files.write_json(tmp_path / "deep" / "a.json", {"x": 1})
    assert files.read_json(tmp_path / "deep" / "a.json") == {"x": 1}
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_a_failure_while_writing_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def interrupted():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_process_killed_while_writing_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    script = (
        "import os, sys, signal; from pathlib import Path; from edgeproof.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    assert path.read_text() == "old"


def test_a_full_disk_is_named_with_its_remedy(tmp_path):
    error = files.os_error(tmp_path / "x", OSError(errno.ENOSPC, "No space left on device"))
    assert str(error) == (
        f"{tmp_path / 'x'}: no space left on the disk; nothing was half-written\n"
        "  hint: free some space or choose another folder with --out, then run the same command again"
        "  [files.disk_full]"
    )


def test_a_really_full_disk_keeps_the_old_content_and_says_so(tmp_path):
    """/dev/full stands for the disk: every write to it fails with ENOSPC, from the kernel itself."""

    def write():
        with files.replacing(tmp_path / "x"), Path("/dev/full").open("wb") as full:
            full.write(b"data")

    (tmp_path / "x").write_text("old")
    with pytest.raises(InputError, match="no space left on the disk"):
        write()
    assert (tmp_path / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_read_only_folder_is_named_with_its_remedy(number):
    error = files.os_error(Path("out/x"), OSError(number, os.strerror(number)))
    assert str(error) == (
        "out/x: cannot be written (permission denied)\n  hint: choose a writable folder with --out  [files.read_only]"
    )


def test_writing_below_a_file_is_an_input_error(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="a file stands where a folder is needed"):
        files.write_text(tmp_path / "f" / "x", "")


def test_broken_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        files.read_json(tmp_path / "x.json")


def test_nan_never_reaches_a_file(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "x.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_never_replaced_by_a_file(tmp_path):
    """Stands for devices too: renaming over one would take it from everybody else."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is no plain file"):
        files.write_bytes(pipe, b"data")
    assert pipe.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


@dataclass(frozen=True, slots=True)
class Kept:
    name: str
    count: int
    share: float | None
    readings: Mapping[str, tuple[float, ...]]


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 1), ("count", True), ("count", 1.5), ("share", "x"), ("share", math.inf), ("readings", {"W": ["x"]})],
)
def test_a_kept_record_names_the_field_of_another_type(field, value):
    good = {"name": "a", "count": 1, "share": None, "readings": {"W": [1, 2.5]}}
    files.check_record(Kept, good, "kept.json")
    with pytest.raises(InputError, match=rf"kept\.json: Kept\.{field}: is "):
        files.check_record(Kept, {**good, field: value}, "kept.json")


def test_a_record_that_is_no_object_is_refused():
    with pytest.raises(InputError, match="is \\[1\\]; expected Kept"):
        files.check_record(Kept, [1], "kept.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: [{a: 1}\nname: x\n", "line 2, column 1: a ',' or ']' is missing, in the list begun in line 1"),
        ("rules: [1, 2\n", "line 2, column 1: the end of the file, before the list begun in line 1 is closed"),
        ("- {a: '<=' b: 1}\n", "line 1, column 12: a ',' or '}' is missing, in the mapping begun in line 1"),
        ("rules:\n\t- a\n", "line 2, column 1: a character that no value starts with"),
        ("name: 'abc\n\nx: 1\n", "line 4, column 1: a quote is never closed: the one begun in line 1"),
        ("name: a: b\n", "line 1, column 8: a ':' where none may be"),
        ("rules:\n - a\n- b: 1\n", "line 3, column 1: an indentation that fits neither"),
    ],
)
def test_a_mistake_in_yaml_is_told_with_its_place_and_what_is_missing(text, said):
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(text)
    assert yaml_problem(caught.value).startswith(said)
    assert "\n" not in yaml_problem(caught.value)


def test_only_a_plain_file_is_read_whole(tmp_path):
    file, link, pipe = tmp_path / "f", tmp_path / "l", tmp_path / "p"
    file.write_bytes(b"x")
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert files.plain(file) == file
    assert files.plain(link) == link
    for endless in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is no plain file"):
            files.plain(endless)
    with pytest.raises(InputError) as caught:
        files.plain(tmp_path / "none")
    assert caught.value.code == "files.missing"
