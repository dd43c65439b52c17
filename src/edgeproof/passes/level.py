"""Bring all channels of a tensor between layers to one range, through whatever surrounds it.

A tensor takes one scale in the kernels of convolutions, so channels that stay small get few codes. Each is divided by a
factor of its own where codes are made, and multiplied by it where they are read:

* a convolution that makes the tensor divides its weights and bias, one that reads it multiplies its weights by input
  channel: both cost nothing;
* everything else (hard-swish, additions, gates of squeeze-and-excitation) gets a multiplication by a constant per
  channel, in float. So no operator in between has to be homogeneous, unlike for the pass ``equalize``; but the
  multiplications cost time, and keep operators beside them from running in integers: use ``int8`` with
  ``followers=False`` behind it.

Factors balance two errors that samples and weights tell: that of the activations, ``S²/12 Σ f_c² |W_c|²`` with S the
step that all channels share, and that of the weights, whose columns grow with the factor. Depthwise convolutions have a
scale per channel of their own, so that only the first counts there.

Source: the balance is that of Xiao et al. 2022, SmoothQuant, eq. 4, with its exponent chosen per tensor by the expected
error; expected errors of rounding are those of Nagel et al. 2021 (white paper), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..change import Change
from ..errors import InputError
from ..graph.rewrite import Editor, array
from ..model import Model, attribute
from ..protocols import Context, Pass
from ..quant.calibration import observed
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir

EXPONENTS = (0.0, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0)
"""Shares of a channel's range that its factor may take up; 0 leaves the tensor as it is."""

SPLITS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 3.0)
"""How far codes may reach below zero, as a multiple of how far they reach above."""

LEAST = 1e-6
"""Width below which a channel counts as silent, as a share of the widest."""

MOST = 2.0**12
"""Largest ratio of two factors of one tensor."""

Channels = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """Level the channels of tensors between convolutions.

    Attributes:
        samples: Look at the first so many samples; 0 means all.
    """

    samples: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Level every tensor that a convolution reads.

        Raises:
            InputError: level.samples, when there are none.
        """
        editor = Editor(model.graph.clone())
        infer_shapes(editor)  # so that the multiplications have shapes
        editor.done.clear()
        editor.edits = 0
        sites = list(_sites(editor))
        if not sites:
            return Change.none(model, (model.name, "has no convolutions with constant weights"))
        if context.feeds is None:
            raise InputError(
                "level.samples", model.name, "has no samples; levelling needs some", "give a data set with --data"
            )
        seen = _watch(model, sites, context, self.samples)
        factors: dict[str, Channels] = {}
        for site in sites:
            if site.name in seen:
                factors[site.name] = _factors(site, seen[site.name])
                _write(editor, site, factors[site.name])
        if not editor.edits:
            return Change.none(model, (model.name, "has channels of like ranges already"))
        facts = {name: [float(f.min()), float(f.max())] for name, f in factors.items() if (f != 1.0).any()}
        return Change(
            Model.of(editor.model, model.name), True, editor.applied(), editor.declined, {"least_and_most": facts}
        )


@dataclass(frozen=True, slots=True)
class Site:
    """A tensor and what surrounds it.

    Attributes:
        value: The tensor that layers read; one that a convolution makes, past a Relu, is its own.
        maker: The convolution that makes it, if one does.
        layers: Convolutions that read it as their data, one or more.
        others: (node, index) of what else reads it.
        channels: Their number.
        rank: Of the tensor.
    """

    value: ir.Value
    maker: ir.Node | None
    layers: tuple[ir.Node, ...]
    others: tuple[tuple[ir.Node, int], ...]
    channels: int
    rank: int

    @property
    def name(self) -> str:
        """The tensor's."""
        return self.value.name or ""


@dataclass(slots=True)
class Seen:
    """What samples showed of a tensor, by channel: bounds, and the sum of squares over so many values."""

    low: Channels
    high: Channels
    squares: Channels
    count: int = 0

    def add(self, x: NDArray[Any]) -> None:
        """Take in a tensor [N, C, …]."""
        flat = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
        self.low = np.minimum(self.low, flat.min(axis=1))
        self.high = np.maximum(self.high, flat.max(axis=1))
        self.squares += np.einsum("cn,cn->c", flat, flat, dtype=np.float64)
        self.count += flat.shape[1]


def _sites(editor: Editor) -> Iterator[Site]:
    """Every tensor that a plain convolution of the main graph reads, once."""
    layers = [n for n in editor.nodes("Conv") if n.graph is editor.model.graph and _plain(n)]
    known = set(layers)
    values: dict[str, tuple[ir.Value, ir.Node | None]] = {}
    for node in layers:
        made = _past_relu(node)
        if made is not None:
            values[made.name or ""] = made, node
    for node in layers:
        source = node.inputs[0]
        if source is not None and source.name not in values and array(source) is None:
            values[source.name or ""] = source, None
    for value, maker in values.values():
        uses = [(use.node, use.idx) for use in value.uses()]
        readers = tuple(n for n, i in uses if n in known and i == 0)
        others = tuple((n, i) for n, i in uses if not (n in known and i == 0))
        anchor = maker or readers[0]
        weight = _weight(anchor)
        channels = weight.shape[0] if maker is not None else weight.shape[1] * attribute(anchor, "group", 1)
        if (
            readers
            and channels > 1
            and not value.is_graph_output()
            and all(n.graph is editor.model.graph for n, _ in others)
        ):
            yield Site(value, maker, readers, others, channels, weight.ndim)


def _plain(node: ir.Node) -> bool:
    held = [array(v) for v in node.inputs[1:] if v is not None]
    return bool(held) and all(a is not None and a.dtype == np.float32 and bool(np.isfinite(a).all()) for a in held)


def _weight(node: ir.Node) -> NDArray[np.float32]:
    held: NDArray[np.float32] | None = array(node.inputs[1])
    assert held is not None
    return held


def _past_relu(node: ir.Node) -> ir.Value | None:
    """What a convolution makes, past a Relu of its own; None where another clip ends its range for all channels."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) == 1 and not value.is_graph_output():
        if uses[0].node.op_type == "Relu":
            return uses[0].node.outputs[0]
        if uses[0].node.op_type == "Clip":
            return None
    return value


def _watch(model: Model, sites: Sequence[Site], context: Context, samples: int) -> dict[str, Seen]:
    assert context.feeds is not None
    session = context.compile(observed(model, [site.name for site in sites]))
    found: dict[str, Seen] = {}
    total = min(samples or context.samples, context.samples)
    try:
        for count, sample in enumerate(islice(context.feeds(), samples or None), start=1):
            outputs = session.run(sample)
            for site in sites:
                x = outputs.get(site.name, sample.get(site.name))
                if isinstance(x, np.ndarray) and x.size and x.dtype == np.float32 and x.ndim == site.rank:
                    blank = np.zeros(site.channels)
                    found.setdefault(site.name, Seen(blank, blank, blank.copy())).add(x)
            context.progress(f"levelling, sample {count}", min(1.0, count / total) if total else 0.0)
    finally:
        session.close()
    return {name: seen for name, seen in found.items() if np.isfinite(seen.squares).all()}


def _factors(site: Site, seen: Seen) -> Channels:
    """A factor per channel; their geometric mean is 1."""
    low, high = seen.low, seen.high
    wide = high - low
    live = wide > LEAST * max(wide.max(), 1e-12)
    if not live.any():
        return np.ones(site.channels)
    best, least = np.ones(site.channels), np.inf
    down, up = max(0.0, -float(low[live].min())), max(0.0, float(high[live].max()))
    for split in {down / max(up, 1e-12), *(SPLITS if down > 0 and up > 0 else ())}:
        # All channels share one zero point, so that they share how far below zero codes reach: a channel that reaches
        # further down than its share leaves codes unused above.
        reach = np.where(live, np.maximum(high, -low / split if split > 0 else 0.0), 1.0)
        for factor in _candidates(site, reach, live):
            error = _expected(site, factor, reach * (1.0 + split), wide, live, seen)
            if error < least:
                best, least = factor, error
    return best


def _candidates(site: Site, reach: Channels, live: NDArray[np.bool_]) -> Iterator[Channels]:
    pointwise = [n for n in site.layers if attribute(n, "group", 1) == 1]
    for exponent in EXPONENTS if pointwise else (1.0,):
        yield _normal(reach**exponent, live)
    if pointwise:
        tops = np.maximum(np.max([_columns(n).max(axis=0) for n in pointwise], axis=0), 1e-12)
        for exponent in EXPONENTS[:-1]:
            yield _normal(reach**exponent / tops ** (1 - exponent), live)


def _normal(factor: Channels, live: NDArray[np.bool_]) -> Channels:
    mean = float(np.exp(np.mean(np.log(factor[live]))))
    made: Channels = np.where(live, np.clip(factor / mean, 1 / MOST, MOST), 1.0)
    return made


def _columns(node: ir.Node) -> Channels:
    """Magnitudes of a convolution's weight as [O, C]: the largest over the taps."""
    weight = np.abs(_weight(node)).astype(np.float64)
    return np.asarray(weight.reshape(*weight.shape[:2], -1).max(axis=2))


def _expected(
    site: Site, factor: Channels, reach: Channels, wide: Channels, live: NDArray[np.bool_], seen: Seen
) -> float:
    """Expected squared error of what reads the codes; where that is unknown, of every channel relative to its width."""
    step = float((reach / factor)[live].max()) / 255.0
    noise = np.where(live, (step * factor) ** 2 / 12.0, 0.0)
    dense = [node for node in site.layers if attribute(node, "group", 1) == 1]
    if not dense:
        return float(np.sum((noise / np.maximum(wide, 1e-30) ** 2)[live]))
    power = seen.squares / max(seen.count, 1)
    total = 0.0
    for node in dense:
        weight = _weight(node).astype(np.float64)
        energy = np.square(weight).reshape(*weight.shape[:2], -1)
        steps = (_columns(node) * factor).max(axis=1) / 127.0
        total += float(np.sum(noise * energy.sum(axis=(0, 2))))
        total += float(np.sum(steps**2) / 12.0 * np.sum(power / factor**2) * energy.shape[2])
    return total


def _write(editor: Editor, site: Site, factor: Channels) -> None:
    if (factor == 1.0).all():
        return
    if site.maker is not None:
        _scale(editor, site.maker, 1, 1.0 / factor)
        if len(site.maker.inputs) > 2 and site.maker.inputs[2] is not None:
            _scale(editor, site.maker, 2, 1.0 / factor)
    for node in site.layers:
        _scale_inputs(editor, node, factor)
    if site.maker is None:
        value = _multiplied(editor, site.layers[0], site, 1.0 / factor)
        for node in site.layers:
            node.replace_input_with(0, value)
    elif site.others:  # they get back what the convolution made before
        first = min((n for n, _ in site.others), key=list(editor.model.graph).index)
        value = _multiplied(editor, first, site, factor)
        for node, index in site.others:
            node.replace_input_with(index, value)
    editor.did("level", site.name)


def _multiplied(editor: Editor, before: ir.Node, site: Site, factor: Channels) -> ir.Value:
    shape = (1, site.channels, *[1] * (site.rank - 2))
    held = editor.constant(editor.model.graph, f"{site.name}_level", factor.astype(np.float32).reshape(shape))
    return editor.insert(before, "Mul", [site.value, held], site.value)


def _scale_inputs(editor: Editor, node: ir.Node, factor: Channels) -> None:
    weight = _weight(node)
    groups = attribute(node, "group", 1)
    each = factor.reshape(groups, 1, -1).repeat(weight.shape[0] // groups, 1).reshape(weight.shape[:2])
    _put(editor, node, 1, weight * each.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)))


def _scale(editor: Editor, node: ir.Node, index: int, factor: Channels) -> None:
    held = array(node.inputs[index])
    assert held is not None
    _put(editor, node, index, held * factor.reshape(-1, *[1] * (held.ndim - 1)))


def _put(editor: Editor, node: ir.Node, index: int, made: NDArray[np.float64]) -> None:
    held = node.inputs[index]
    assert held is not None
    node.replace_input_with(index, editor.constant(editor.model.graph, f"{held.name}_level", made.astype(np.float32)))
    editor.drop(held)


IMPL: type[Pass] = Level
