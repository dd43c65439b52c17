"""Pictures with one class each: a folder with a subfolder per class, or a table of path and label.

Classes are the subfolders' names in sorted order, unless a file lists them or all names are numbers: a number is the
class index itself (``10`` is class 10, not the third after ``0`` and ``1``).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..dataset import PICTURES, DataSpec, settings_from
from ..errors import InputError, did_you_mean
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ._samples import bad_label, beside, existing, from_pictures, lines_of

_TABLES = (".csv", ".tsv", ".txt")


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set.

    Attributes:
        labels: Table of picture path and label (.csv or .tsv), relative to the samples; empty looks for labels.csv and
            labels.tsv, then takes subfolders as classes.
        classes: File with one class name a line, in the order of the model's classes.
    """

    labels: str = ""
    classes: str = ""


@dataclass(frozen=True, slots=True)
class Images:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """List the pictures and their classes; the first picture is decoded and checked against the model."""
        options = settings_from(Options, spec.options, spec.place("options"))
        path = existing(spec)
        table = beside(spec, options.labels) if options.labels else _table_at(path)
        rows = _from_table(table) if table else _from_folders(path)
        folder = table.parent if table else path
        classes = _classes(beside(spec, options.classes)) if options.classes else None
        names = [name for name, _ in rows]
        labels = _indices(rows, classes)
        return from_pictures(
            spec, inputs, [folder / n for n in names], names, lambda i, _meta: labels[i], lambda i: labels[i]
        )


def _table_at(path: Path) -> Path | None:
    if path.is_file():
        return path
    return next((t for s in (".csv", ".tsv") if (t := path / f"labels{s}").is_file()), None)


def _from_folders(path: Path) -> list[tuple[str, str]]:
    """(relative path, class name) of every picture in a subfolder, sorted; hidden files and folders are left out."""
    found = (p.relative_to(path) for p in path.rglob("*") if p.suffix.lower() in PICTURES and p.parent != path)
    return [(p.as_posix(), p.parts[0]) for p in sorted(found) if not any(part.startswith(".") for part in p.parts)]


def _from_table(table: Path) -> list[tuple[str, str]]:
    """(path, label) of every row; a first row that names no picture is a heading."""
    if table.suffix.lower() not in _TABLES:
        raise InputError(
            "data.format", str(table), "is not a table", "expected .csv or .tsv with picture path and label"
        )
    delimiter = "," if table.suffix.lower() == ".csv" else "\t"
    rows: list[tuple[str, str]] = []
    for number, row in enumerate(csv.reader(lines_of(table), delimiter=delimiter), 1):
        if not row:
            continue
        if len(row) != 2:
            raise InputError(
                "data.row",
                f"{table}:{number}",
                f"has {len(row)} columns; expected 2: picture path, label",
                "fix the row",
            )
        is_heading = number == 1 and Path(row[0]).suffix.lower() not in PICTURES
        if not is_heading:
            rows.append((row[0].strip(), row[1].strip()))
    return rows


def _classes(path: Path) -> list[str]:
    return [line.strip() for line in lines_of(path) if line.strip()]


def _indices(rows: Sequence[tuple[str, str]], classes: list[str] | None) -> list[int]:
    """Class index of every row."""
    words = sorted({label for _, label in rows})
    numeric = all(w.isdecimal() for w in words)
    if classes is None and not numeric:
        classes = words
    index = {name: i for i, name in enumerate(classes or [])}
    labels: list[int] = []
    for name, label in rows:
        if label in index:
            labels.append(index[label])
        elif label.isdecimal() and numeric and (classes is None or int(label) < len(classes)):
            labels.append(int(label))
        elif label.isdecimal() and classes is not None:
            raise bad_label(
                name, f"has label {label}; expected 0..{len(classes) - 1}", "fix the label or the classes file"
            )
        else:
            raise bad_label(name, f"has label {label!r}, which is not one of the classes", did_you_mean(label, index))
    return labels


IMPL: type[DataFormat] = Images
