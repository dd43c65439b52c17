from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeproof.cli import main
from edgeproof.workspace import Workspace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    workspace = Workspace.create(root, {"model_name": "m.onnx", "policy": {"name": "p", "rules": []}})
    workspace.write("result.json", {"state": "hold", "best": None, "metric": "top1", "candidates": []})
    return root


def test_the_page_is_written_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert "HOLD" in (run / "report.html").read_text()


def test_json_says_where_the_page_is_and_nothing_else(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(out), "bytes": out.stat().st_size}
    assert not (run / "report.html").exists()


def test_a_folder_that_is_no_run_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "[workspace.missing]" in capsys.readouterr().err


def test_an_unfinished_run_exits_with_two_and_the_hint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "result.json").unlink()
    assert main(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert "[report.unfinished]" in err
    assert "run the same 'edgeproof optimize' command again" in err


def test_a_page_cannot_take_the_place_of_a_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--out", str(run)]) == 2
    assert "[files.wrong_kind]" in capsys.readouterr().err
