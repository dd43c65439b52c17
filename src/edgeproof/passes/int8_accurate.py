"""Quantise every convolution and matrix product to INT8 with all that recovers accuracy, and take the better ranges.

Levels channels (`level`), moves outliers of products into their weights (`smooth`), leaves what lies between layers in
float, rounds weights by second moments and corrects biases (`int8`). Ranges are made by each of a few methods from most
of the samples; the rest decides, by the error of the outputs against the float model's. No label is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..change import Change
from ..errors import InputError
from ..model import Model
from ..protocols import Context, Pass
from ..quant.held_out import apart
from ..quant.sensitivity import model_error
from .int8 import Int8
from .level import Level
from .smooth import Smooth


@dataclass(frozen=True, slots=True)
class Int8Accurate:
    """The most accurate INT8 of all layers.

    Attributes:
        methods: Range methods that are tried, comma separated, the preferred one first; see ``int8``.
        keep: What stays in float: node names, operators or output names, comma separated; ``*`` and ``?`` match.
        samples: Use the first so many samples; 0 means all.
        held: Samples kept back to choose the method on, at most a quarter of all.
    """

    methods: str = "mse,auto"
    keep: str = ""
    samples: int = 0
    held: int = 8

    def __call__(self, model: Model, context: Context) -> Change:
        """Quantise.

        Raises:
            InputError: int8_accurate.methods; int8.samples, when there are none; and what ``int8`` raises.
            UnsupportedError: int8.target, when the target has no integer path.
        """
        methods = [part.strip() for part in self.methods.split(",") if part.strip()]
        if not methods:
            raise InputError("int8_accurate.methods", "methods", "is empty; expected at least one", "try mse,auto")
        passes = [
            Int8(method, keep=self.keep, followers=False, channel_outputs=True, bias_correction=True, rounding="gptq")
            for method in methods
        ]
        if context.feeds is None:
            return passes[0](model, context)  # which says what is missing
        seen, kept = apart(context, self.samples, self.held if len(methods) > 1 else 0)
        level = Level()(model, seen)
        smooth = Smooth()(level.model, seen)
        floats, ready = (level, smooth), smooth.model
        changes = {method: one(ready, seen) for method, one in zip(methods, passes, strict=True)}
        made = {method: change for method, change in changes.items() if change.modified}
        if not made:
            return Change.none(model, *next(iter(changes.values())).declined)
        if len(made) == 1:
            kept = []
        errors = {m: model_error(model, change.model, context.compile, kept) for m, change in made.items() if kept}
        best = min(errors, key=lambda m: errors[m], default=next(iter(made)))
        change = made[best]
        return replace(
            change,
            applied=(*(line for one in floats for line in one.applied), *change.applied),
            declined=(*(d for one in floats for d in one.declined), *change.declined),
            facts={**change.facts, "output_errors": errors},
        )


IMPL: type[Pass] = Int8Accurate
