"""How commands show things: text and tables on stdout, progress and errors on stderr, or one JSON document."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import EdgeproofError
from ..protocols import Progress

_BETWEEN, _BORDERS = 3, 2
"""Columns that a table takes between its cells and around them."""

_FOLDED, _NARROW = 32, 12
"""Characters to which words in a last column are folded: before another column is left out, and when none is left."""


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of the terminal that `Show.table` needs to show every cell on one line."""
    cells = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return sum(cells) + _BETWEEN * (len(cells) - 1) + _BORDERS


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], right: str, words: int) -> int:
    """As `table_width`, with a last column that is not right-aligned folded to so many characters."""
    if not columns or right[len(columns) - 1 : len(columns)] == "r":
        return table_width(columns, rows)
    whole = max(len(row[-1]) for row in (columns, *rows))
    return table_width(columns, rows) - whole + min(whole, words)


class Show:
    """Output of one command.

    Args:
        json: Print one JSON document instead of text.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        # Commands run with stdout redirected, so that only what is shown here arrives there.
        self._out = sys.stdout if sys.stdout is not None else io.StringIO()  # None: closed before the start
        if isinstance(self._out, io.TextIOWrapper):
            self._out.reconfigure(errors="backslashreplace")  # names may hold what the terminal's encoding lacks

        # A JSON document that is not in UTF-8 is none (RFC 8259, 8.1); escapes are read alike everywhere.
        self._ascii = (self._out.encoding or "").lower().replace("-", "") != "utf8"

    @property
    def width(self) -> int:
        """Columns to fill: those of the terminal (or of ``COLUMNS``), 160 where there is none."""
        return shutil.get_terminal_size((160, 24)).columns if self._out.isatty() or "COLUMNS" in os.environ else 160

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def result(self, value: Any) -> None:
        """The command's result, when JSON was asked for."""
        if self.json:
            self._print(json.dumps(value, indent=2, ensure_ascii=self._ascii, allow_nan=False))

    def text(self, text: str = "") -> None:
        """A line for people; silent with ``--json``."""
        if not self.json:
            self._print(visible(text))

    def listing(self, lines: Sequence[str], most: int | None, more: str) -> None:
        """Lines for people: all of them, or the first and how many were left out.

        Args:
            lines: The lines.
            most: How many are shown; None for all.
            more: The line about the rest, with ``{}`` where their number goes.
        """
        for line in lines[:most]:
            self.text(line)
        if most is not None and len(lines) > most:
            self.text(more.format(len(lines) - most))

    def wrapped(self, text: str, *, indent: int = 0) -> None:
        """A paragraph for people, within the width."""
        import textwrap

        margin = " " * indent
        for line in textwrap.wrap(text, self.width, initial_indent=margin, subsequent_indent=margin):
            self.text(line)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str = "",
        right: str = "",
        optional: Sequence[str] = (),
    ) -> None:
        """A table for people; silent with ``--json``.

        No cell is ever cut: a table that does not fit folds its last column, and is wider than the terminal if need be.

        Args:
            columns: Headings.
            rows: Cells.
            title: Above the table.
            right: One character per column, ``r`` for right-aligned.
            optional: Headings of columns that are left out, in this order, until the rest fits.
        """
        if self.json:
            return
        right = right.ljust(len(columns))
        for name in optional:
            if _least_width(columns, rows, right, _FOLDED) > self.width and name in columns:
                keep = [i for i, column in enumerate(columns) if column != name]
                columns, right = [columns[i] for i in keep], "".join(right[i] for i in keep)
                rows = [[row[i] for i in keep] for row in rows]
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, box=box.SIMPLE, title_justify="left", pad_edge=False)
        for i, column in enumerate(columns):
            is_right = right[i : i + 1] == "r"
            # Only a last column of words gives way on a narrow terminal, so that numbers and names stay whole.
            folds = i == len(columns) - 1 and not is_right
            table.add_column(column, justify="right" if is_right else "left", no_wrap=not folds, overflow="fold")
        for row in rows:
            table.add_row(*(_escape(visible(cell, "")) for cell in row))
        console = Console(file=self._out, width=max(self.width, _least_width(columns, rows, right, _NARROW)))
        with console.capture() as captured:  # a pipe that is closed is then met here, not within rich, which exits
            console.print(table)
        self._print(captured.get().removesuffix("\n"))

    def note(self, text: str) -> None:
        """A remark on stderr."""
        print(visible(text), file=sys.stderr)

    def interrupted(self, text: str) -> None:
        """Say that the command was interrupted."""
        self.result({"error": {"code": "interrupted", "problem": text, "exit_code": 130}})
        self.note(f"interrupted; {text}")

    def silence(self) -> None:
        """Send what is still buffered nowhere: whoever read it is gone. Source: Python's docs on SIGPIPE."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def error(self, error: EdgeproofError) -> None:
        """An error: JSON on stdout when asked for, two lines on stderr in any case."""
        if self.json:
            self.result({"error": error.to_json()})
        print(visible(str(error)), file=sys.stderr)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A bar with what is happening and the time left; plain lines when stderr is no terminal."""
        if not sys.stderr.isatty():
            yield _lines()
            return
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            yield lambda what, share: bar.update(task, description=_escape(visible(what)), completed=share)


def _lines() -> Progress:
    """Progress for a log: a line when a new stage begins (the text before a colon) or ten seconds have passed."""
    stage, last = "", 0.0

    def tell(what: str, share: float) -> None:
        nonlocal stage, last
        head, now = what.partition(":")[0], time.monotonic()
        if (head != stage and now - last >= 1) or now - last >= 10:
            stage, last = head, now
            print(f"[{share:4.0%}] {visible(what)}", file=sys.stderr, flush=True)

    return tell


def quantity(
    value: float, unit: str, low: float | None = None, high: float | None = None, *, intervals: bool = True
) -> str:
    r"""A measured value in the unit in which it is read best, with its interval where there is one.

    >>> quantity(8.4249, "ms", 8.2, 8.71), quantity(33_020, "bytes")
    ('8.42\xa0ms [8.20, 8.71]', '33.0\xa0kB')
    """
    from ..report.units import bounds, text

    ends = "" if low is None or high is None or not intervals else f" {bounds(value, unit, low, high)}"
    return text(value, unit) + ends


def visible(text: str, kept: str = "\n\t") -> str:
    r"""Text with control and direction characters spelled out: a name in a model must not steer the terminal.

    >>> visible("red \x1b[31m")
    'red \\x1b[31m'
    """
    text = text.replace("\u00a0", " ")
    return "".join(c if c in kept or c == " " or c.isprintable() else ascii(c)[1:-1] for c in text)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
