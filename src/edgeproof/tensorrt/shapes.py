"""Optimisation profiles: for which sizes of open dimensions an engine is made, and for which it is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError, did_you_mean
from ..graph.example_shape import example_shape
from ..model import TensorSpec

LARGEST_BATCH = 8
"""Of the profile that is made where only the batch is open: few enough not to ask for much more memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """Sizes of one input: least, best and largest, a tuple of dimensions each."""

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]


Profile = Mapping[str, Span]
"""Input → its sizes."""


def profiles(text: str, inputs: Sequence[TensorSpec]) -> tuple[Profile, ...]:
    """Profiles that cover every open dimension.

    Args:
        text: ``INPUT=MIN:OPT:MAX`` with sizes like ``1x3x320x320``; one size stands for all three. Inputs are
            separated by ``;``, profiles by ``|``. Inputs that are not named keep to 1 to 8 in an open batch.
        inputs: Of the model.

    Returns:
        None where no dimension is open, unless the text names sizes.

    Raises:
        InputError: tensorrt.shapes, naming the input and the sizes that are missing or do not fit.
    """
    given = [_parse(part) for part in text.split("|")] if text.strip() else [{}]
    specs = {s.name: s for s in inputs}
    for name in {n for profile in given for n in profile}:
        if name not in specs:
            raise _wrong(name, "is not an input of the model", did_you_mean(name, specs))
    found = []
    for profile in given:
        spans = {}
        for spec in inputs:
            span = profile.get(spec.name) or _own(spec)
            if span is None:
                raise _open(spec, inputs)
            _fits(spec, span)
            if spec.dynamic or spec.name in profile:
                spans[spec.name] = span
        found.append(spans)
    return tuple(p for p in found if p)


def sizes(dims: Sequence[int]) -> str:
    """As trtexec writes them.

    >>> sizes((1, 3, 224, 224)), sizes(())
    ('1x3x224x224', 'scalar')
    """
    return "x".join(map(str, dims)) or "scalar"


def _own(spec: TensorSpec) -> Span | None:
    """Sizes that need not be given: all fixed, or nothing open but the batch."""
    if spec.shape is None:
        return None
    if not spec.dynamic:
        fixed = tuple(int(d) for d in spec.shape)
        return Span(fixed, fixed, fixed)
    if any(isinstance(d, str) for d in spec.shape[1:]) or len(spec.shape) < 2:
        return None
    rest = tuple(int(d) for d in spec.shape[1:])
    return Span((1, *rest), (1, *rest), (LARGEST_BATCH, *rest))


def _parse(text: str) -> dict[str, Span]:
    found: dict[str, Span] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        name, equals, values = part.strip().rpartition("=")
        steps = [_size(s, name) for s in values.split(":")]
        if not equals or not name or len(steps) not in (1, 3):
            raise _wrong(part.strip()[:80], "is not INPUT=SIZES or INPUT=MIN:OPT:MAX", "e.g. images=1x3x320x320")
        found[name] = Span(steps[0], steps[-2] if len(steps) == 3 else steps[0], steps[-1])
    return found


def _size(text: str, name: str) -> tuple[int, ...]:
    parts = [p.strip() for p in text.replace("x", ",").split(",")] if text.strip() not in ("", "scalar") else []
    if not all(p.isdecimal() for p in parts):
        raise _wrong(name, f"has the size {text[:40]!r}; expected numbers such as 1x3x224x224", "correct it")
    return tuple(int(p) for p in parts)


def _fits(spec: TensorSpec, span: Span) -> None:
    for step in (span.least, span.best, span.most):
        shape = spec.shape if spec.shape is not None else step
        if len(step) != len(shape):
            raise _wrong(spec.name, f"has {len(shape)} dimensions; {sizes(step)} has {len(step)}", f"it is {spec}")
        for got, wanted in zip(step, shape, strict=True):
            if isinstance(wanted, int) and got != wanted:
                raise _wrong(spec.name, f"is {spec}; {sizes(step)} contradicts it", "keep the fixed dimensions")
    if any(not a <= b <= c for a, b, c in zip(span.least, span.best, span.most, strict=True)):
        ordered = f"{sizes(span.least)}, {sizes(span.best)}, {sizes(span.most)}"
        raise _wrong(spec.name, f"has sizes out of order: {ordered}", "give the least, the best, the largest")


def _open(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> InputError:
    lines = []
    for s in inputs:
        if _own(s) is None:
            size = example_shape(s).replace(",", "x")
            lines.append(f"{s.name}={size}:{size}:{size}")
    return InputError(
        "tensorrt.shapes",
        f"input {spec.name}",
        f"is {spec}: for which sizes the engine is made is not known",
        f"give --set shapes='{';'.join(lines)}' (least:best:largest), or run pass fix_shapes first",
    )


def _wrong(name: str, problem: str, hint: str) -> InputError:
    return InputError("tensorrt.shapes", f"shapes: {name or '?'}", problem, hint)
