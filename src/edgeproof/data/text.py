"""Lines of text: pictures of text with their transcription, or text with a class, for which a tokenizer is named.

A .tsv or .txt file has one sample a line, two columns separated by a tab: picture path and text, or text and class
index. A .jsonl file has an object a line: ``{"image": …, "text": …}`` or ``{"text": …, "label": …}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..dataset import DataSpec, Example, settings_from, source_digest
from ..errors import InputError
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ..registry import callable_at
from ._samples import Samples, bad_label, beside, existing, fitted, from_pictures, lines_of


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set.

    Attributes:
        images: Folder that picture paths start at; empty is the file's own.
        tokenizer: ``file.py:callable`` or ``module:callable``: text → input name → array, with or without a batch
            dimension. The columns are then text and class index.
    """

    images: str = ""
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """Read the lines; the first sample is checked against the model."""
        options = settings_from(Options, spec.options, spec.place("options"))
        path = existing(spec)
        keys = ("text", "label") if options.tokenizer else ("image", "text")
        rows = _rows(path, keys)
        if options.tokenizer:
            return _tokenized(spec, inputs, rows, options.tokenizer)
        folder = beside(spec, options.images) if options.images else path.parent
        return from_pictures(
            spec,
            inputs,
            [folder / image for _, image, _ in rows],
            [image for _, image, _ in rows],
            lambda i, _meta: rows[i][2],
            lambda i: rows[i][2],
            resize="pad_right",
        )


def _rows(path: Path, keys: tuple[str, str]) -> list[tuple[str, str, str]]:
    """(name of the line, first column, second column)."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        first, second = _json_row(line, keys, where) if path.suffix == ".jsonl" else _tab_row(line, keys, where)
        rows.append((f"line {number}", first, second))
    return rows


def _tab_row(line: str, keys: tuple[str, str], where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise InputError(
            "data.row",
            where,
            f"has {len(columns)} columns; expected 2, separated by a tab: {keys[0]}, {keys[1]}",
            "separate the columns by one tab character, or write .jsonl",
        )
    return columns[0], columns[1]


def _json_row(line: str, keys: tuple[str, str], where: str) -> tuple[str, str]:
    try:
        value = json.loads(line)
    except ValueError as e:
        raise InputError("data.row", where, f"is not a JSON object: {e}", "one object a line") from e
    if not isinstance(value, Mapping) or set(value) != set(keys):
        raise InputError(
            "data.row", where, f"is {line.strip()[:80]}; expected keys {keys[0]} and {keys[1]}", "fix the line"
        )
    return str(value[keys[0]]), str(value[keys[1]])


def _tokenized(
    spec: DataSpec, inputs: Sequence[TensorSpec], rows: Sequence[tuple[str, str, str]], tokenizer: str
) -> Dataset:
    tokenize = callable_at(tokenizer, spec.root)
    if spec.preprocess is not None:
        raise InputError(
            "data.value", "preprocess", "is for pictures, and a tokenizer makes the inputs", "leave one of them out"
        )
    for name, _, label in rows:
        if not label.strip().isdecimal():
            raise bad_label(name, f"has label {label!r}; expected a class index", "number the classes from 0")

    def read(i: int) -> Example:
        name, text, label = rows[i]
        try:
            tokens = tokenize(text)
        except (Exception, SystemExit) as e:  # the user's code may raise anything, and call exit()
            raise InputError(
                "data.callable", tokenizer, f"raised {type(e).__name__}: {e} on {name}", "run it on its own first"
            ) from e
        if not isinstance(tokens, Mapping) or set(tokens) != {t.name for t in inputs}:
            got = ", ".join(map(str, tokens)) if isinstance(tokens, Mapping) else type(tokens).__name__
            raise InputError(
                "data.mismatch",
                tokenizer,
                f"returned {got}; expected arrays for {', '.join(t.name for t in inputs)}",
                "return a dictionary with one array per model input",
            )
        return Example(name, {t.name: fitted(np.asarray(tokens[t.name]), t, name) for t in inputs}, int(label))

    settings: dict[str, Any] = {
        "format": "text",
        "tokenizer": tokenizer.rpartition(":")[2],
        "source": source_digest(tokenizer, spec.root),
    }
    samples = Samples([r[0] for r in rows], read, lambda i: [rows[i][1], rows[i][2]], settings, spec.path)
    samples[0]
    return samples


IMPL: type[DataFormat] = Text
