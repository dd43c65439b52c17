"""Remove the channels, heads and groups that matter least, until a share of the multiply-accumulates is left.

What hangs together goes together: residual additions, concatenations, depthwise and grouped convolutions, gates, batch
norms, heads. The result is a smaller graph with the same inputs and outputs; it is checked, and run. It loses accuracy:
train it again, or use it as the student of a distillation. See docs/pruning.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..errors import EdgeproofError
from ..graph.equivalence import Probe, interface_change, probes
from ..graph.inference import inferred
from ..graph.shapes import Shape
from ..model import Model
from ..protocols import Context, Pass
from ..prune.account import Account, LayerChange, account
from ..prune.channels import Channels, channels
from ..prune.importance import SEEN, scores, watch
from ..prune.removal import remove
from ..prune.selection import Gone, Limits, choose


@dataclass(frozen=True, slots=True)
class PruneChannels:
    """Structured pruning.

    Attributes:
        keep: Share of the multiply-accumulates that may be left.
        criterion: What says how much a channel matters: ``l1``, ``l2``, ``bn``, and with samples ``activation`` and
            ``contribution``.
        rank: ``layer`` takes the same share from every layer, ``global`` compares scores over all, ``macs`` scores per
            multiply-accumulate saved.
        scale: Divide the scores of a layer by their ``mean`` or ``max`` before they are compared, or ``none``.
        round_to: Channels that stay are a multiple of this.
        least: A layer keeps at least so many channels (heads, groups).
        least_share: And at least this share.
        exclude: Layers that stay whole: node names, operators or patterns, comma separated; ``*`` and ``?`` match.
        samples: Look at the first so many samples; 0 means all.
    """

    keep: float = 0.5
    criterion: str = "l2"
    rank: str = "layer"
    scale: str = "mean"
    round_to: int = 8
    least: int = 1
    least_share: float = 0.1
    exclude: str = ""
    samples: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Prune.

        Raises:
            InputError: prune.keep, prune.criterion, prune.rank, prune.scale, prune.round_to, prune.least,
                prune.least_share, prune.exclude, prune.samples, prune.gradients.
        """
        limits = Limits(self.round_to, self.least, self.least_share)
        exclude = tuple(p.strip() for p in self.exclude.split(",") if p.strip())
        found = channels(model, _sizes(model, context), exclude=exclude)
        seen = watch(found, context, samples=self.samples) if self.criterion in SEEN and context.feeds else None
        importance = scores(found, self.criterion, seen=seen, scale=self.scale)
        gone = choose(found, importance, self.keep, rank=self.rank, limits=limits)
        declined = list(found.pinned)
        if not gone.any():
            return Change.none(model, *declined, (model.name, "has nothing to remove within the limits"))
        result = remove(found, gone)
        problem = interface_change(model, result) or _fault(model, result)
        if problem is not None:
            return Change.none(model, *declined, ("result", f"was thrown away: {problem}"))
        runs = probes(model, context, count=1)
        if isinstance(runs, str):
            declined.append(("verification", f"checked, but not run: {runs}"))
        elif (problem := _failure(runs, result, context)) is not None:
            return Change.none(model, *declined, ("result", f"was thrown away: {problem}"))
        counted = account(found, gone, result)
        left = counted.macs[1] / max(counted.macs[0], 1)
        if left > self.keep * (1 + 1e-9):
            declined.append((model.name, f"{left:.0%} of its work is left, not {self.keep:.0%}: the rest has to stay"))
        total = f"{left:.0%} of {counted.macs[0]:,} multiply-accumulates are left"
        applied = (total, *(_line(layer) for layer in counted.layers if layer.macs[0] != layer.macs[1]))
        return Change(result, True, applied, tuple(declined), _facts(found, gone, counted))


def _sizes(model: Model, context: Context) -> dict[str, Shape] | None:
    """Sizes of the first sample, where the model leaves some open."""
    if context.feeds is None or not any(spec.dynamic for spec in model.inputs):
        return None
    first = next(iter(context.feeds()), None)
    return None if first is None else {spec.name: first[spec.name].shape for spec in model.inputs if spec.name in first}


def _fault(model: Model, result: Model) -> str | None:
    """Why a result is no valid model; a model may be odd from the start, then running is what counts."""
    invalid = _invalid(result)
    return None if invalid is None or _invalid(model) is not None else f"it is not valid: {invalid}"


def _failure(runs: list[Probe], result: Model, context: Context) -> str | None:
    """Why a result does not run where the original does."""
    try:
        session = context.compile(result)
    except EdgeproofError as e:
        return f"it does not load: {e.problem}"
    try:
        for run in runs:
            got = session.run(run.feeds)
            for name, want in run.outputs.items():
                if getattr(got[name], "shape", None) != getattr(want, "shape", None):
                    return f"output {name} became {got[name].shape}; it was {want.shape}"
    except EdgeproofError as e:
        return f"it does not run: {e.problem}"
    finally:
        session.close()
    return None


def _invalid(model: Model) -> str | None:
    """What onnx's checker and strict shape inference say against a model."""
    import onnx

    proto = onnx.load_model_from_string(model.to_bytes())
    try:
        onnx.checker.check_model(proto)
        inferred(proto, strict=True)
    except Exception as e:  # onnx raises what it likes
        return " ".join(str(e).split())[:200]
    return None


def _line(layer: LayerChange) -> str:
    (before, after), macs = layer.channels, layer.macs
    made = f"{before} channels became {after}" if before != after else "reads less"
    return f"{layer.name} ({layer.op}): {made}, {macs[1] / max(macs[0], 1):.0%} of its MACs left"


def _facts(found: Channels, gone: Gone, counted: Account) -> dict[str, object]:
    groups = [
        {
            "name": group.name,
            "units": [len(group.units), int((~gone[group.units]).sum())],
            **({"inexact": group.inexact} if group.inexact else {}),
        }
        for group in found.groups
    ]
    shapes = {name: list(shape) for name, shape in found.shapes.items()}
    return {**counted.to_json(), "groups": groups, "shapes": shapes}


IMPL: type[Pass] = PruneChannels
