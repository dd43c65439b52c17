"""Tables for people: whole cells on any terminal."""

import pytest

from edgeproof.cli.show import Show

COLUMNS = ["name", "kind", "size", "why"]
ROWS = [["a-long-name", "middling", "55.3 M", "because of many short words that fold"]]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_columns_are_left_out_in_order_until_the_rest_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, want in ((100, COLUMNS), (66, ["name", "size", "why"]), (56, ["name", "why"])):
        monkeypatch.setenv("COLUMNS", str(width))
        Show().table(COLUMNS, ROWS, right="llr", optional=("kind", "size"))
        shown = lines(capsys)
        assert shown[0].split() == want
        assert max(map(len, shown)) <= width


def test_a_table_that_cannot_fit_is_wider_than_the_terminal_and_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Show().table(COLUMNS[:3], [ROWS[0][:3]], right="llr")
    assert lines(capsys)[-1].split() == ["a-long-name", "middling", "55.3", "M"]
