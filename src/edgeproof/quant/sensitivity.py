"""How much each layer's quantisation costs, measured at the model's outputs with that layer alone in INT8.

The error is the noise-to-signal ratio of the outputs, ``Σ (got - want)² / Σ want²``, averaged over outputs. Outputs
that a softmax, a sigmoid or a choice of the largest makes are compared ahead of it: there the noise of layers that are
quantised together adds up, nearly, so that the sum ranks any subset, while behind it one close decision that flips
outweighs all else (PP-OCRv4's recogniser: 17 of 47 layers showed the same 0.05 behind the softmax, for one frame).
Where an output is sorted or picked (a detector's boxes), what the last layers make is compared, each for itself.

One compiled graph serves all layers (`switched`); it runs once per sample and layer, and once more per sample without
any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..model import Model
from ..protocols import Progress, Session
from .layers import constant
from .switched import Switched

if TYPE_CHECKING:
    import onnx_ir as ir

SQUASHING = ("Softmax", "LogSoftmax", "Sigmoid", "ArgMax", "ArgMin", "TopK", "Cast")
"""Operators that an output is followed through to the numbers that decide it."""

PICKING = ("TopK", "NonMaxSuppression", "NonZero", "ArgMax", "ArgMin")
"""Operators behind which entries have other places once one score changes."""

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

CODES = ("QuantizeLinear", "DequantizeLinear")
AFFINE = ("Mul", "Add", "Sub", "Div")

MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")

Arrays = Sequence[NDArray[Any]]
Sensitivities = dict[str, float]
"""Layer → noise-to-signal ratio of the outputs; 0 is no error, 1 an error as large as the output."""


def decisive(model: Model) -> Model:
    """A copy that ends ahead of softmax, sigmoid and choices, output by output; where it picks, at its last layers."""
    graph = model.graph.clone()
    ends: list[ir.Value] = []
    for value in graph.graph.outputs:
        ahead = _ahead(value)
        for end in _heads(ahead) or [value if any(ahead is other for other in ends) else ahead]:
            if not any(end is other for other in ends):  # values and indices of one TopK have the same
                ends.append(end)
    graph.graph.outputs[:] = ends
    return Model(f"{model.name}-decisive", model.digest, model.inputs, model.outputs, graph)


def _ahead(value: ir.Value) -> ir.Value:
    """The value that decides an output; the output itself when nothing squashes it."""
    at, found = value, value
    while (node := at.producer()) is not None and node.op_type in (*SQUASHING, *MOVES):
        before = node.inputs[0]
        if before is None or constant(before) is not None:
            break
        at = before
        if node.op_type in SQUASHING:
            found = at
    return found


def _heads(value: ir.Value) -> list[ir.Value]:
    """What the last layers ahead of a value make, where something between them and it picks entries; else nothing.

    Behind a layer's codes and constant factors and sums, so that it means the same however the layer is quantised.
    """
    found: list[ir.Value] = []
    picks, seen, ahead = False, set(), [(value, value)]
    while ahead:
        at, end = ahead.pop()
        node = at.producer()
        if node is None or at in seen:
            continue
        seen.add(at)
        if node.op_type in WEIGHTED:
            found.append(end)
            continue
        picks = picks or node.op_type in PICKING
        inputs = [v for v in node.inputs if v is not None]
        same = node.op_type in CODES or (node.op_type in AFFINE and any(constant(v) is not None for v in inputs))
        ahead += [(v, end if same else v) for v in reversed(inputs)]
    return found if picks else []


def cost(simulation: Switched, samples: int) -> int:
    """Inferences that `sensitivities` will take."""
    return (len(simulation.layers) + 1) * samples


def sensitivities(
    simulation: Switched,
    compile: Callable[[Model], Session],  # noqa: A002  (the name that Context has)
    samples: Sequence[Feeds],
    progress: Progress = lambda _what, _share: None,
) -> Sensitivities:
    """The output error of every layer on its own.

    Args:
        simulation: The INT8 model behind switches.
        compile: Makes a runnable session.
        samples: A few calibration samples.
        progress: Told after every layer; the first message announces the number of inferences.
    """
    total = cost(simulation, len(samples))
    session = compile(decisive(simulation.model))
    try:
        progress(f"sensitivity of {len(simulation.layers)} layers, {total} inferences", 0.0)
        want = _outputs(session, simulation, samples, ())
        found: Sensitivities = {}
        for i, layer in enumerate(simulation.layers):
            found[layer] = output_error(want, _outputs(session, simulation, samples, (layer,)))
            progress(f"sensitivity of layer {i + 1} of {len(simulation.layers)}", (i + 1) / len(simulation.layers))
        return found
    finally:
        session.close()


def subset_error(
    simulation: Switched,
    compile: Callable[[Model], Session],  # noqa: A002
    samples: Sequence[Feeds],
    quantised: Collection[str],
) -> float:
    """The output error with these layers in INT8 together."""
    session = compile(decisive(simulation.model))
    try:
        want = _outputs(session, simulation, samples, ())
        return output_error(want, _outputs(session, simulation, samples, quantised))
    finally:
        session.close()


def model_error(
    plain: Model,
    model: Model,
    compile: Callable[[Model], Session],  # noqa: A002
    samples: Sequence[Feeds],
) -> float:
    """The output error of any model against another on the same samples."""
    return output_error(decided(plain, compile, samples), decided(model, compile, samples))


def decided(
    model: Model,
    compile: Callable[[Model], Session],  # noqa: A002
    samples: Sequence[Feeds],
) -> list[Arrays]:
    """What a model computes ahead of squashing and picking: per sample, the arrays of `decisive`'s outputs."""
    session = compile(decisive(model))
    try:
        return [list(session.run(sample).values()) for sample in samples]
    finally:
        session.close()


def output_error(want: Sequence[Arrays], got: Sequence[Arrays]) -> float:
    """Noise-to-signal ratio over samples, the mean over outputs of floats.

    Of outputs without floats (classes, indices) the share of entries that differ counts, since theirs is no distance.
    An output that is not finite, or has another shape, counts as infinitely wrong.

    Args:
        want: Per sample, the arrays of the outputs in order.
        got: The same of another model.
    """
    ratios = output_errors(want, got)
    return float(np.mean(ratios)) if ratios else 0.0


def output_errors(want: Sequence[Arrays], got: Sequence[Arrays]) -> list[float]:
    """The same as `output_error`, output by output."""
    return [_ratio([(w[i], g[i]) for w, g in zip(want, got, strict=True)]) for i in range(len(want[0]) if want else 0)]


def _ratio(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    noise = signal = 0.0
    for want, got in pairs:
        if want.shape != got.shape:
            return float("inf")
        if want.dtype.kind != "f":
            noise += float(np.count_nonzero(want != got))
            signal += float(want.size)
            continue
        reference = want.astype(np.float64)
        noise += float(np.square(got.astype(np.float64) - reference).sum())
        signal += float(np.square(reference).sum())
    if not np.isfinite(noise):
        return float("inf")
    return noise / signal if signal else (0.0 if noise == 0.0 else float("inf"))


def _outputs(session: Session, simulation: Switched, samples: Sequence[Feeds], on: Collection[str]) -> list[Arrays]:
    fixed = simulation.feeds(on)
    return [list(session.run({**sample, **fixed}).values()) for sample in samples]
