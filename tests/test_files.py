import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeproof import files
from edgeproof.errors import InputError


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
