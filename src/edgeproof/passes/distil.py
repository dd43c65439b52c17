"""Train a quantised or pruned model to answer as the model before the last pass did: no label, no training code.

The samples that calibrate are the ones that teach. Quantised weights are trained as floats that are rounded at every
step, through the very Q/DQ nodes that will run (quantisation-aware training); scales may be trained too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from ..change import Change
from ..errors import InputError
from ..model import Model
from ..protocols import Context, Pass
from ..train.child import train
from ..train.fit import Epoch, Training
from ..train.losses import Term
from ..train.teacher import features, heads

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Distil:
    """Distillation from the model before the last pass.

    Attributes:
        engine: ``torch``, ``tinygrad``, or ``auto`` for the first that is installed.
        epochs: Passes over the samples.
        rate: Highest learning rate, as a share of each tensor's size.
        batch: Samples per step.
        samples: Learn from the first so many; 0 means all.
        loss: ``mse`` (outputs of the last layers) or ``kl`` (softmax at ``temperature``, for classifiers).
        temperature: For ``kl``.
        features: Layers in between whose outputs count too, evenly spread.
        feature_weight: Their weight, each, against 1 for an output.
        scales: ``learned`` or ``fixed``.
        norms: ``trained`` or ``frozen`` batch norms, where the model still has them.
        optimizer: ``adam`` or ``sgd``.
        seconds: Longest time; 0 means any.
        patience: Epochs without progress on held-out samples after which to stop; 0 means never.
        threads: 0 lets the engine decide.
    """

    engine: str = "auto"
    epochs: int = 10
    rate: float = 2e-3
    batch: int = 8
    samples: int = 0
    loss: Literal["mse", "kl"] = "mse"
    temperature: float = 4.0
    features: int = 0
    feature_weight: float = 0.25
    scales: Literal["learned", "fixed"] = "learned"
    norms: Literal["frozen", "trained"] = "frozen"
    optimizer: Literal["adam", "sgd"] = "adam"
    seconds: float = 0.0
    patience: int = 0
    threads: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Train.

        Raises:
            InputError: distil.samples, distil.teacher, distil.setting; train.diverged and others of `train.fit`.
            UnsupportedError: train.engine, train.crashed, fx.operator.
        """
        if context.feeds is None:
            raise InputError(
                "distil.samples", model.name, "has no samples to learn from", "give a data set with --data"
            )
        if context.before is None:
            raise InputError(
                "distil.teacher", model.name, "has no teacher", "give the model to learn from with --before FLOAT.onnx"
            )
        for name in ("samples", "features", "feature_weight"):
            _least(name, getattr(self, name), 0)
        _least("temperature", self.temperature, 1e-3)
        for name, kind in get_type_hints(Distil).items():
            if get_origin(kind) is Literal:
                _choose(name, getattr(self, name), get_args(kind))
        teacher = context.before()
        ends, inner = heads(model, teacher), features(model, teacher, self.features)
        if not ends:
            return Change.none(model, (model.name, "shares no output of a layer with its teacher"))
        terms = [Term(self.loss, n, temperature=self.temperature) for n in ends]
        terms += [Term("mse", n, self.feature_weight) for n in inner]
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name in Training.__dataclass_fields__}
        training = Training(terms=tuple(terms), seed=context.seed, **shared)
        feeds = islice(context.feeds(), self.samples or None)
        trained, epochs = train(model, teacher, feeds, training, engine_name=self.engine, progress=context.progress)
        return Change(
            Model.of(trained.graph, model.name),
            True,
            (told(epochs),),
            (),
            {"epochs": [asdict(e) for e in epochs], "taught": list(ends), "features": list(inner)},
        )


def told(epochs: Sequence[Epoch]) -> str:
    """What training came to, in one line."""
    best = min((e for e in epochs if e.held_out is not None), key=lambda e: e.held_out or 0.0, default=epochs[-1])
    first = epochs[0].before
    if best.held_out is None or first is None:
        seen = ""
    elif best.held_out < first:
        seen = f": held-out loss {first:.4g} before, {best.held_out:.4g} in epoch {best.number}"
    else:
        seen = f": held-out loss {first:.4g} before, which no epoch lowered; the weights stay as they were"
    return f"trained {len(epochs)} epochs in {epochs[-1].seconds:.0f} s{seen}"


def _least(name: str, value: float, least: float) -> None:
    if value < least:
        raise InputError("distil.setting", f"{name}={value}", f"expected at least {least:g}", "leave it out")


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError("distil.setting", f"{name}={value}", f"is not one of {', '.join(known)}", f"{name}={known[0]}")


IMPL: type[Pass] = Distil
