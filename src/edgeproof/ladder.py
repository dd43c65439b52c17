"""From a network in training to the device, a rung at a time: every rung is held against a tolerance of its own.

The network itself is the first stage; its ONNX file must give the same numbers (0.01 %), float16 may lose a thousandth
of the task's score and INT8 a hundredth. The first rung that does not hold is named (`stages.first_failure`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from .dataset import DataSpec, Feeds
from .errors import EdgeproofError
from .measurement import LayerTime, Placement
from .model import Model
from .passes.fp16 import Fp16
from .passes.int8 import Int8
from .protocols import Context, Dataset, Outputs, Progress, Session
from .runtimes import compile_for
from .stages import HALF, INTEGER, Checked, Stage, check
from .target import Target

EXPORTED = 1e-4
"""Largest difference of outputs, as a share of their largest value, between a network and its ONNX file."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder.

    Attributes:
        name: What people call it.
        make: The exported float model → the model of this rung.
        judged: By its ``outputs`` against the rung below, or by its ``score`` against the network's.
        tolerance: Largest difference, as a share.
    """

    name: str
    make: Callable[[Model], Model]
    judged: Literal["outputs", "score"]
    tolerance: float


def rungs(context: Context) -> tuple[Rung, ...]:
    """ONNX, FP16 and INT8 with the passes of the same names.

    Args:
        context: Calibration samples, and where they are run; its target's scheme is the one of INT8.
    """
    return (
        Rung("onnx", lambda m: m, "outputs", EXPORTED),
        Rung("fp16", lambda m: Fp16()(m, context).model, "score", HALF),
        Rung("int8", lambda m: Int8()(m, context).model, "score", INTEGER),
    )


def climb(
    network: Callable[[Feeds], Outputs],
    model: Model,
    steps: Sequence[Rung],
    target: Target,
    dataset: Dataset,
    indices: Sequence[int],
    spec: DataSpec,
    progress: Progress = lambda _what, _share: None,
) -> tuple[tuple[Checked, ...], Mapping[str, Model]]:
    """Make every rung and check it.

    Args:
        network: The network as it was trained; see `in_tinygrad`.
        model: Its ONNX file.
        steps: From `rungs`, or others.
        target: Where the rungs run.
        dataset: Labelled samples.
        indices: Which of them are scored.
        spec: How.
        progress: Told about each rung.

    Returns:
        What was found of every rung, and the models by rung. A rung that cannot be made or run is ``broken``.
    """
    made: dict[str, Model] = {}
    stages = [Stage("network", model, lambda: Networked(network), "outputs", 0.0)]
    for done, step in enumerate(steps):
        progress(f"making {step.name}", done / (2 * len(steps)))
        failed: EdgeproofError | None = None
        try:
            made[step.name] = step.make(model)
        except EdgeproofError as e:
            failed = e
        held = made.get(step.name, model)
        stages.append(Stage(step.name, held, _opener(target, held, failed), step.judged, step.tolerance))
    found = check(
        stages, dataset, indices, spec, spec.metric, progress=lambda what, share: progress(what, 0.5 + share / 2)
    )
    return found, made


def in_tinygrad(network: Callable[..., Any], outputs: Sequence[str]) -> Callable[[Feeds], Outputs]:
    """A tinygrad network as `climb` wants it: arrays in, arrays out; its kernels are compiled once for every shape.

    Args:
        network: Called with tensors in the order of the feeds; gives one tensor, or several.
        outputs: Their names in the ONNX file.
    """
    from tinygrad import Tensor, TinyJit
    from tinygrad.helpers import Context as Settings

    captured: dict[tuple[tuple[int, ...], ...], Any] = {}

    def forward(*tensors: Any) -> tuple[Any, ...]:
        made = network(*tensors)
        results = tuple(made) if isinstance(made, list | tuple) else (made,)
        return tuple(t.contiguous().realize() for t in results)

    def run(feeds: Feeds) -> Outputs:
        key = tuple(a.shape for a in feeds.values())
        with Settings(TRAINING=0):
            tensors = [Tensor(np.ascontiguousarray(a)).realize() for a in feeds.values()]
            results = captured.setdefault(key, TinyJit(forward))(*tensors)
            return {name: t.numpy() for name, t in zip(outputs, results, strict=True)}

    return run


def table(found: Sequence[Checked]) -> str:
    """The rungs as text."""
    rows = [f"{'rung':8} {'judged by':10} {'found':>10} {'allowed':>8}  {'state':7} why"]
    for c in found:
        got = "" if c.got is None else f"{c.got:.4%}"
        rows.append(f"{c.name:8} {c.judged:10} {got:>10} {c.tolerance:8.2%}  {c.state:7} {c.reason}")
    return "\n".join(rows)


def _opener(target: Target, model: Model, failed: EdgeproofError | None) -> Callable[[], Session]:
    def opened() -> Session:
        if failed is not None:
            raise failed
        return compile_for(target, model)

    return opened


@final
class Networked:
    """A network as a session.

    Args:
        network: Arrays in, arrays out.
    """

    def __init__(self, network: Callable[[Feeds], Outputs]) -> None:
        self._network = network

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch."""
        return self._network(feeds)

    def placement(self) -> Placement:
        """Nothing is known of where a network runs."""
        return Placement((), (), "a network in training")

    def layers(self) -> tuple[LayerTime, ...]:
        """No times are taken."""
        return ()

    def close(self) -> None:
        """Nothing is held."""
