"""Samples from Python: a callable without arguments that returns a sequence or an iterable.

An item is an `Example`, a pair (feeds, truth), or feeds alone; feeds map input names to arrays, and a bare array feeds
a model with one input. A sequence is read item by item; any other iterable is kept in memory as a list. Where
``preprocess`` is declared, arrays are uint8 pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..dataset import Boxes, DataSpec, Example, settings_from, source_digest
from ..digest import digest_array
from ..errors import InputError
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ..registry import callable_at
from ._samples import Convert, Samples, called, converter, fitted


@dataclass(frozen=True, slots=True)
class Options:
    """Nothing can be set."""


@dataclass(frozen=True, slots=True)
class FromCallable:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """Call it; the first sample is checked against the model.

        Raises:
            InputError: registry.callable, data.callable, data.empty, data.mismatch.
        """
        settings_from(Options, spec.options, spec.place("options"))
        items = _items(callable_at(spec.path, spec.root), spec.path)
        convert, settings = converter(spec, inputs)
        settings["source"] = source_digest(spec.path, spec.root)

        def read(i: int) -> Example:
            return _example(items[i], i, inputs, convert, spec.path)

        names = [str(i) for i in range(len(items))]
        samples = Samples(names, read, lambda i: _fingerprint(read(i)), settings, spec.path)
        samples[0]
        return samples


def _items(make: Callable[[], Any], subject: str) -> Sequence[Any]:
    try:
        made = make()
        if isinstance(made, Sequence) and not isinstance(made, str | bytes):
            return made
        if isinstance(made, Iterable) and not isinstance(made, str | bytes | Mapping):
            return list(made)
    except (Exception, SystemExit) as e:  # the user's code may raise anything, and call exit()
        raise InputError("data.callable", subject, f"raised {type(e).__name__}: {e}", "run it on its own first") from e
    raise InputError(
        "data.callable",
        subject,
        f"returned a {type(made).__name__}; expected a sequence or an iterable of samples",
        "yield (feeds, truth) per sample, e.g.  yield {'x': array}, 3",
    )


def _example(item: Any, index: int, inputs: Sequence[TensorSpec], convert: Convert, subject: str) -> Example:
    given = item if isinstance(item, Example) else Example(str(index), *_parts(item, inputs, subject))
    wanted = {t.name for t in inputs}
    if set(given.feeds) != wanted:
        raise InputError(
            "data.mismatch",
            called(given.id, subject),
            f"feeds {', '.join(map(str, given.feeds)) or 'nothing'}; the model expects {', '.join(map(str, inputs))}",
            "name the arrays like the model's inputs",
        )
    feeds: dict[str, Any] = {}
    meta = dict(given.meta)
    for tensor in inputs:
        array, more = convert(np.asarray(given.feeds[tensor.name]), called(given.id, subject))
        feeds[tensor.name] = fitted(array, tensor, given.id, subject)
        meta |= more
    return Example(given.id, feeds, given.truth, meta)


def _parts(item: Any, inputs: Sequence[TensorSpec], subject: str) -> tuple[dict[str, Any], Any]:
    feeds, truth = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if isinstance(feeds, Mapping):
        return dict(feeds), truth
    if len(inputs) == 1 and isinstance(feeds, np.ndarray):
        return {inputs[0].name: feeds}, truth
    raise InputError(
        "data.callable",
        subject,
        f"gave a sample of type {type(feeds).__name__}; expected a dictionary of input name to array",
        "return (feeds, truth) per sample, e.g. ({'x': array}, 3)",
    )


def _fingerprint(example: Example) -> Any:
    feeds = {name: digest_array(array) for name, array in sorted(example.feeds.items())}
    return [example.id, feeds, _truth_print(example.truth)]


def _truth_print(truth: Any) -> Any:
    if isinstance(truth, Boxes):
        crowd = None if truth.crowd is None else truth.crowd.tolist()
        return [digest_array(truth.xyxy), truth.classes.tolist(), crowd]
    if isinstance(truth, np.ndarray):
        return digest_array(truth)
    if isinstance(truth, np.generic):
        return truth.item()
    return truth if isinstance(truth, bool | int | float | str | None) else repr(truth)


IMPL: type[DataFormat] = FromCallable
