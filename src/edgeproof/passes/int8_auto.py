"""Quantise to INT8, and try what recovers accuracy, the cheapest first, keeping what measurably helps, within a time.

Starts with plain INT8. Then come, in this order: other range methods, for which no sample has to be read again; bias
correction, rounding and ranges by channel, which read the samples once; smoothing, equalisation and, where only layers
run in integers, levelling, which make another float model that is calibrated anew; and last the range methods once
more, if something was kept since. Each is tried on top of what was kept so far. Samples that are kept back judge, by
the noise of the outputs ahead of a final softmax, sigmoid or choice: the output that is worst off counts. No label is
needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np

from .. import registry
from ..change import Change
from ..errors import InputError
from ..model import Model
from ..protocols import Context, Pass
from ..quant.held_out import apart
from ..quant.sensitivity import Arrays, decided, output_errors
from .int8 import Int8

LEAST_DB = 0.1
"""What gains less at the worst output is not kept: on other samples it might as well lose."""

REFINING = frozenset(("bias_correction", "rounding", "channel_outputs"))
"""Settings of ``int8`` for which the samples are read once more."""

SILENT_DB = 200.0
"""Reported where there is no noise at all."""


@dataclass(frozen=True, slots=True)
class Int8Auto:
    """INT8 with the techniques that helped.

    Attributes:
        budget_s: Seconds after which nothing more is tried; nothing is begun that would likely take longer. The first
            INT8 model is made in any case.
        followers: Run what lies between layers in integers as well: fast. Without, only layers run in integers, which
            is slower and more accurate; then levelling is tried instead of equalisation.
        methods: Range methods to try, comma separated, the one to start with first; see ``int8``.
        keep: What stays in float: node names, operators or output names, comma separated; ``*`` and ``?`` match.
        samples: Use the first so many samples; 0 means all. Every trial reads them again.
        held: Samples kept back to judge on, at most a quarter of all.
    """

    budget_s: float = 300.0
    followers: bool = True
    methods: str = "percentile,mse,auto,minmax"
    keep: str = ""
    samples: int = 128
    held: int = 8

    def __call__(self, model: Model, context: Context) -> Change:
        """Quantise.

        Raises:
            InputError: int8_auto.methods; int8.samples, when there are fewer than 4, of which one can be kept back;
                and what ``int8`` raises.
            UnsupportedError: int8.target, when the target has no integer path.
        """
        methods = [part.strip() for part in self.methods.split(",") if part.strip()]
        if not methods:
            raise InputError("int8_auto.methods", "methods", "is empty; expected at least one", "try percentile,mse")
        start = Trial(methods[0], settings={"method": methods[0], "followers": self.followers, "keep": self.keep})
        if context.feeds is None:
            return Int8(methods[0])(model, context)  # which says what is missing
        seen, judges = apart(context, self.samples, self.held)
        if not judges:
            raise InputError(
                "int8.samples",
                model.name,
                f"has {seen.samples} samples; expected 4 or more, since a quarter is kept back to judge on",
                "give more, or use the pass int8",
            )
        climb = _Climb(model, seen, judges, self.budget_s)
        climb.first(start)
        if climb.best is None:
            return climb.change
        for step in _steps(methods, self.followers):
            climb.step(step)
        if len(climb.kept) > 1 and climb.kept[-1] not in methods:
            for method in methods:
                climb.step(Trial(f"{method} again", settings={"method": method}))
        return climb.result()


@dataclass(frozen=True, slots=True)
class Trial:
    """Something to try on top of what was kept.

    Attributes:
        name: What it is called in the report.
        passes: Float passes to run ahead of ``int8``, behind those that were kept.
        settings: Of ``int8``, over those that were kept.
    """

    name: str
    passes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def on(self, kept: Trial) -> Trial:
        """This and what was kept."""
        return Trial(self.name, (*kept.passes, *self.passes), {**kept.settings, **self.settings})


def _steps(methods: Sequence[str], followers: bool) -> Iterator[Trial]:
    for method in methods[1:]:
        yield Trial(method, settings={"method": method})
    yield Trial("bias_correction", settings={"bias_correction": True})
    yield Trial("rounding=gptq", settings={"rounding": "gptq"})
    yield Trial("channel_outputs", settings={"channel_outputs": True})
    if not followers:
        yield Trial("level", ("level",))
    yield Trial("smooth", ("smooth",))
    if followers:
        yield Trial("equalize", ("equalize",))


class _Climb:
    """Tries one thing after the other and remembers the best."""

    def __init__(self, model: Model, context: Context, judges: list[Any], budget_s: float) -> None:
        self.context, self.judges, self.budget_s = context, judges, budget_s
        self.began = monotonic()
        self.floats: dict[tuple[str, ...], Change] = {(): Change.none(model)}
        self.want: list[Arrays] = []
        self.best: Trial | None = None
        self.change = Change.none(model)
        self.worst_db = 0.0
        self.longest_s = {True: 0.0, False: 0.0}  # of the trials that read the samples, and of the others
        self.kept: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.declined: list[tuple[str, str]] = []

    def first(self, trial: Trial) -> None:
        """Plain INT8; it is kept whatever it is like."""
        self.context.progress(f"{trial.name}; then more, for at most {self.budget_s:g} s", 0.0)
        begun = monotonic()
        self.change = self._made(trial)
        if not self.change.modified:
            return
        self.want = decided(self._float(trial).model, self.context.compile, self.judges)
        self._judge(trial, self.change, begun)
        self.longest_s[True] = monotonic() - begun

    def step(self, trial: Trial) -> None:
        """Try something on top of the best, and keep it if the worst output gains."""
        assert self.best is not None
        full = trial.on(self.best)
        if full.passes == self.best.passes and full.settings == self.best.settings:
            return
        reads = bool(trial.passes) or bool(REFINING & set(full.settings))
        spent, need = monotonic() - self.began, self.longest_s[reads]
        if spent + need > self.budget_s:
            why = f"not tried: about {need:.1f} s more, after {spent:.1f} s of {self.budget_s:g} s"
            self.declined.append((trial.name, why))
            return
        self.context.progress(f"trying {trial.name}", min(1.0, spent / self.budget_s))
        begun = monotonic()
        if trial.passes and not self._float(full).modified:
            self.declined.append((trial.name, "finds nothing to do"))
            return
        self._judge(full, self._made(full), begun)
        self.longest_s[reads] = max(self.longest_s[reads], monotonic() - begun)

    def result(self) -> Change:
        """The best, and what every trial gained and cost."""
        assert self.best is not None
        ahead = self._float(self.best)
        return replace(
            self.change,
            applied=(*(_line(row) for row in self.rows if row["kept"]), *ahead.applied, *self.change.applied),
            declined=(
                *(
                    (r["name"], f"gained {r['gain_db']:+.2f} dB in {r['seconds']:.1f} s")
                    for r in self.rows
                    if not r["kept"]
                ),
                *self.declined,
                *ahead.declined,
                *self.change.declined,
            ),
            facts={
                **self.change.facts,
                "budget_s": self.budget_s,
                "trials": self.rows,
                "passes": list(self.best.passes),
            },
        )

    def _float(self, trial: Trial) -> Change:
        """The float model that a trial quantises; each is made once."""
        known = self.floats
        for i in range(len(trial.passes)):
            before, now = known[trial.passes[:i]], trial.passes[: i + 1]
            if now not in known:
                made = registry.load("passes", now[-1])()(before.model, self.context)
                known[now] = replace(
                    made,
                    applied=(*before.applied, *made.applied),
                    declined=(*before.declined, *made.declined),
                )
        return known[trial.passes]

    def _made(self, trial: Trial) -> Change:
        return Int8(**trial.settings)(self._float(trial).model, self.context)

    def _judge(self, trial: Trial, change: Change, begun: float) -> None:
        errors = output_errors(self.want, decided(change.model, self.context.compile, self.judges))
        outputs = [_db(error) for error in errors]
        worst = min(outputs, default=SILENT_DB)
        gain = worst - self.worst_db if self.rows else 0.0
        kept = not self.rows or gain >= LEAST_DB
        self.rows.append(
            {
                "name": trial.name,
                "outputs_db": [round(x, 2) for x in outputs],
                "gain_db": round(gain, 2),
                "seconds": round(monotonic() - begun, 2),
                "kept": kept,
            }
        )
        if kept:
            self.best, self.change, self.worst_db = trial, change, worst
            self.kept.append(trial.name)


def _db(error: float) -> float:
    if error <= 0.0:
        return SILENT_DB
    return float(np.clip(-10.0 * np.log10(error), -SILENT_DB, SILENT_DB))


def _line(row: Mapping[str, Any]) -> str:
    levels = ", ".join(f"{x:.1f}" for x in row["outputs_db"])
    gain = f"{row['gain_db']:+.2f} dB at the worst output, " if row["gain_db"] else ""
    return f"kept {row['name']}: {gain}outputs at {levels} dB, {row['seconds']:.1f} s"


IMPL: type[Pass] = Int8Auto
