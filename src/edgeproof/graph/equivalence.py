"""Does a changed model still compute the same? Run the original, run the candidate, compare output by output.

Inputs are the caller's samples when there are some, else seeded random numbers whose open dimensions get sizes that the
original accepts, two different ones where it can, so that a size that was baked in by mistake shows.

Rounding differs between any two orders of the same sums. Where the original itself answers a change of its inputs in
the last place by more than the tolerance, that noise is the limit instead: on a detector's map of scores near 1e-5,
ONNX Runtime's own optimisation levels differ by 5e-3 of the largest score (measured on PP-OCRv4).
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dataset import Feeds
from ..errors import EdgeproofError
from ..model import Model, TensorSpec
from ..protocols import Context, Session

NOISE_FACTOR = 4.0
"""The inputs are rounded once, the layers many times."""

NOISE_LIMIT = 0.01
"""A model that amplifies rounding beyond this cannot be compared."""

DRAWS = 4
"""Random inputs may hit a tie, which rounding breaks either way and a TopK shows as other rows: then draw again."""

CALM = 1e-5
"""Noise up to which the first draw is taken; else the calmest is."""

MOST_VALUES = 2**28
"""Values of an input that are still made up; as 64-bit numbers, which random ones are at first, they take 2 GiB."""

SIZES = (64, 96, 32, 128, 224, 16, 8, 4, 2, 3, 1)
"""Sizes to try for an open dimension that is not the batch."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of the original.

    Attributes:
        feeds: Inputs.
        outputs: What the original made of them.
        random: Whether the inputs are random numbers.
        noise: Output → relative change when the inputs change in the last place; 0 where nothing can be said.
    """

    feeds: Feeds
    outputs: dict[str, Any]
    random: bool
    noise: dict[str, float]


def probes(model: Model, context: Context, *, count: int = 2) -> list[Probe] | str:
    """Run the original.

    Args:
        model: The original.
        context: Compiles it; its samples are used when it has some.
        count: At most this many runs.

    Returns:
        The runs, at least one, or the reason why it cannot be run here.
    """
    try:
        session = context.compile(model)
    except EdgeproofError as e:
        return f"the original does not load: {e.problem}"
    try:
        return _run(model, context, session, count)
    finally:
        session.close()


def difference(original: list[Probe], candidate: Model, context: Context, tolerance: float) -> str | None:
    """How a candidate's outputs differ from the original's.

    Args:
        original: Runs of the original.
        candidate: The changed model.
        context: Compiles it.
        tolerance: Largest allowed |a − b| over the largest |a| of an output (integers and booleans: must be equal).

    Returns:
        A sentence, or None when nothing differs by more.
    """
    try:
        session = context.compile(candidate)
    except EdgeproofError as e:
        return f"it does not load: {e.problem}"
    try:
        for probe in original:
            try:
                got = session.run(probe.feeds)
            except EdgeproofError as e:
                return f"it does not run: {e.problem}"
            for name, want in probe.outputs.items():
                error = relative_error(want, got.get(name))
                limit = allowed(want, tolerance, probe.noise.get(name, 0.0))
                if not error <= limit:
                    return f"output {name} differs by {error:.2g} of its scale; at most {limit:.2g} is allowed"
    finally:
        session.close()
    return None


def interface_change(before: Model, after: Model) -> str | None:
    """How names, dtypes, shapes or order of inputs and outputs differ; None when they do not."""
    if before.inputs != after.inputs:
        return f"its inputs became {', '.join(map(str, after.inputs))}"
    if before.outputs != after.outputs:
        return f"its outputs became {', '.join(map(str, after.outputs))}"
    return None


def allowed(want: Any, tolerance: float, noise: float = 0.0) -> float:
    """The tolerance, or four roundings of a narrower output dtype, or the noise of the original, where that is more."""
    floor = 4 * 2.0**-10 if getattr(want, "dtype", None) == np.float16 else 0.0
    return max(tolerance, floor, min(NOISE_FACTOR * noise, NOISE_LIMIT))


def relative_error(want: Any, got: Any) -> float:
    """Largest |want − got| over the largest finite |want|; infinite when shapes, dtypes, NaNs or integers differ.

    >>> relative_error(np.array([1.0, -2.0]), np.array([1.0, -1.0]))
    0.5
    >>> relative_error(np.array([1]), np.array([2]))
    inf
    """
    if want is None or got is None:
        return 0.0 if want is got else float("inf")
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple) or len(want) != len(got):
            return float("inf")
        return max((relative_error(w, g) for w, g in zip(want, got, strict=True)), default=0.0)
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if want.dtype.kind not in "fcV":
        return 0.0 if bool(np.array_equal(want, got)) else float("inf")
    if want.size == 0:
        return 0.0
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = want.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(a[finite]).max())
    return float(np.abs(a[finite] - b[finite]).max()) / (scale or 1.0)


def random_feeds(model: Model, rng: np.random.Generator, batch: int, size: int) -> dict[str, Any] | str:
    """Random inputs.

    Args:
        model: Its inputs say what is needed: floats are normal, integers 0 or 1, text is ``a``.
        rng: Source of numbers.
        batch: Size of open first dimensions.
        size: Size of the other open dimensions.

    Returns:
        Input name → array, or the reason why there is none.
    """
    sizes = _symbols(model.inputs, batch, size)
    feeds: dict[str, Any] = {}
    for spec in model.inputs:
        if spec.shape is None:
            return f"input {spec.name} has no known rank"
        shape = [d if isinstance(d, int) else sizes.get(d, batch if i == 0 else size) for i, d in enumerate(spec.shape)]
        if math.prod(shape) > MOST_VALUES:
            return f"input {spec.name} would have {math.prod(shape):,} values; at most {MOST_VALUES:,} are made up"
        value = _random(spec.dtype, tuple(shape), rng)
        if value is None:
            return f"input {spec.name} is {spec.dtype}, for which there are no random values"
        feeds[spec.name] = value
    return feeds


def _run(model: Model, context: Context, session: Session, count: int) -> list[Probe] | str:
    found: list[Probe] = []
    reason = "it takes no samples"
    if context.feeds is not None:
        for feeds in itertools.islice(context.feeds(), count):
            try:
                found.append(_probe(session, feeds, random=False))
            except EdgeproofError as e:
                reason = f"the original does not run on the samples: {e.problem}"
        return found or reason
    rng = np.random.default_rng([context.seed, zlib.crc32(model.digest.encode())])
    shapes: set[tuple[Any, ...]] = set()
    for index, size in enumerate(SIZES if any(spec.dynamic for spec in model.inputs) else SIZES[:1]):
        probe = _calmest(model, session, rng, 1 + index % 2, size, shapes if found else set())
        if isinstance(probe, str):
            reason = probe
        elif probe is not None:
            shapes.add(_shapes(probe.feeds))
            found.append(probe)
        if len(found) >= count:
            break
    return found or reason


def _calmest(
    model: Model, session: Session, rng: np.random.Generator, batch: int, size: int, known: set[tuple[Any, ...]]
) -> Probe | str | None:
    """The run on random inputs that answers rounding least, or why there is none; None when the shapes are known."""
    best: Probe | None = None
    for _ in range(DRAWS):
        feeds = random_feeds(model, rng, batch, size)
        if isinstance(feeds, str):
            return f"the original cannot be run: {feeds}"
        if _shapes(feeds) in known:
            return None
        try:
            probe = _probe(session, feeds, random=True)
        except EdgeproofError as e:
            return f"the original does not run on random inputs: {e.problem}"
        if best is None or _loudest(probe) < _loudest(best):
            best = probe
        if _loudest(best) <= CALM:
            break
    return best


def _shapes(feeds: Feeds) -> tuple[Any, ...]:
    return tuple(v.shape for v in feeds.values())


def _loudest(probe: Probe) -> float:
    return max(probe.noise.values(), default=0.0)


def _probe(session: Session, feeds: Feeds, *, random: bool) -> Probe:
    outputs = dict(session.run(feeds))
    if not any(x.dtype.kind == "f" for x in feeds.values()):
        return Probe(feeds, outputs, random, {})
    sign = np.random.default_rng(0)
    shaken = {
        name: (x * (1 + sign.choice((-1, 1), x.shape) * np.finfo(x.dtype).eps)).astype(x.dtype)
        if x.dtype.kind == "f"
        else x
        for name, x in feeds.items()
    }
    try:
        again = session.run(shaken)
    except EdgeproofError:
        return Probe(feeds, outputs, random, {})
    noise = {name: relative_error(want, again.get(name)) for name, want in outputs.items()}
    return Probe(feeds, outputs, random, {name: n if np.isfinite(n) else 0.0 for name, n in noise.items()})


def _symbols(specs: tuple[TensorSpec, ...], batch: int, size: int) -> dict[str, int]:
    """Symbol → size; a symbol that comes first in an input of rank two or more is a batch."""
    out: dict[str, int] = {}
    for spec in specs:
        for i, d in enumerate(spec.shape or ()):
            if isinstance(d, str) and d != "?":
                if i == 0 and len(spec.shape or ()) > 1:
                    out[d] = batch
                else:
                    out.setdefault(d, size)
    return out


def _random(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "f": lambda: rng.standard_normal(shape).astype(dtype),
        "i": lambda: rng.integers(0, 2, shape).astype(dtype),
        "u": lambda: rng.integers(0, 2, shape).astype(dtype),
        "b": lambda: rng.integers(0, 2, shape).astype(bool),
        "c": lambda: (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype),
    }
    if dtype == "string":
        return np.full(shape, "a", dtype=object)
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        return None
    return makers[kind]() if kind in makers else None
