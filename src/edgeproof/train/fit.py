"""The training loop: batches, a rate that rises and falls, held-out loss, the best state kept, resumable.

The loop knows no engine. What is wanted of each sample comes from the teacher (the original model, unlabelled samples),
from labels, or from both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..digest import digest_json
from ..errors import InputError
from ..files import replacing
from ..protocols import Learner, Outputs, Progress
from .losses import Term

Sample = tuple[Feeds, Outputs]
"""Inputs of one step, and what is wanted of each tensor in the loss."""


LIMITS: Mapping[str, tuple[float, float, str]] = {
    "rate": (1e-12, 1e3, "2e-3"),
    "epochs": (1, 1e6, "10"),
    "batch": (1, 1e6, "8"),
    "warmup": (0, 1, "0.1"),
    "decay": (0, 1e3, "0"),
    "clip": (0, math.inf, "1"),
    "scale_rate": (0, 1e3, "0.1"),
    "l1": (0, 1e6, "0"),
    "held_out": (0, 0.9, "0.125"),
    "patience": (0, math.inf, "0"),
    "seconds": (0, math.inf, "0"),
    "threads": (0, 4096, "0"),
    "seed": (0, 2**63 - 1, "0"),
}
"""Setting → least value, greatest value, one that works."""


def check_limits(
    name: str, value: float, subject: str, limits: Mapping[str, tuple[float, float, str]] = LIMITS
) -> None:
    """Hold a setting that is a number against its limits.

    Args:
        name: Of the setting; one without limits passes.
        value: Its value.
        subject: What to call it.
        limits: As `LIMITS`.

    Raises:
        InputError: train.setting.
    """
    least, most, good = limits.get(name, (-math.inf, math.inf, ""))
    if not least <= value <= most:
        wanted = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise InputError("train.setting", subject, f"is {str(value)[:40]}; expected {wanted}", f"e.g. {name}: {good}")


@dataclass(frozen=True, slots=True)
class Training:
    """How to train.

    Raises:
        InputError: train.setting, for a number outside of `LIMITS`.

    Attributes:
        terms: The loss: the sum of these.
        optimizer: ``adam`` (AdamW) or ``sgd`` (Nesterov momentum 0.9).
        rate: Highest learning rate, as a share of each tensor's root mean square (Shazeer and Stern 2018, *Adafactor*,
            relative step size): with Adam, about how much of itself a tensor may change in one step.
        epochs: Passes over the samples.
        batch: Samples per step; their gradients are averaged.
        warmup: Share of the steps in which the rate rises; after it falls as a cosine.
        decay: Weight decay.
        clip: Longest gradient; 0 means any.
        scales: Whether quantisation scales stay (``fixed``) or are trained too (``learned``).
        scale_rate: Their rate, as a multiple of the others'.
        norms: Whether batch norms use their stored statistics (``frozen``) or are ``trained``.
        l1: Weight of the sum of magnitudes, for pruning.
        only: Names of tensors that may change, ``*`` and ``?`` match; empty means all.
        masks: Tensor → where it may be other than 0.
        held_out: Share of the samples that are only looked at, to keep the best state.
        patience: Epochs without a better held-out loss after which to stop; 0 means never.
        seconds: Longest time; 0 means any. The rate falls with the time that is left.
        precision: What is computed in; ``float16`` scales the loss, and the weights stay float32.
        device: In the engine's words.
        threads: 0 lets the engine decide.
        seed: Of the order and of all that is random.
    """

    terms: tuple[Term, ...] = ()
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 1e-3
    epochs: int = 10
    batch: int = 8
    warmup: float = 0.1
    decay: float = 0.0
    clip: float = 1.0
    scales: Literal["fixed", "learned"] = "learned"
    scale_rate: float = 0.1
    norms: Literal["frozen", "trained"] = "frozen"
    l1: float = 0.0
    only: tuple[str, ...] = ()
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    held_out: float = 0.125
    patience: int = 0
    seconds: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no training can go by."""
        for name in LIMITS:
            check_limits(name, getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the samples came to.

    Attributes:
        number: From 1.
        loss: Mean over its steps.
        held_out: Loss on the held-out samples; None when there are none.
        rate: Learning rate at its end.
        seconds: Since the start, those of earlier, interrupted runs included.
        before: Loss on the held-out samples ahead of it.
    """

    number: int
    loss: float
    held_out: float | None
    rate: float
    seconds: float
    before: float | None = None


def fit(
    learner: Learner,
    samples: Sequence[Sample],
    training: Training,
    *,
    stack: bool = False,
    checkpoint: Path | None = None,
    of: str = "",
    progress: Progress = lambda _what, _share: None,
    on_epoch: Callable[[Epoch], None] = lambda _epoch: None,
) -> list[Epoch]:
    """Train; afterwards the learner is in its best state by held-out loss, the beginning included.

    Args:
        learner: What is trained.
        samples: All of them; read in a new order every epoch.
        training: How.
        stack: Join the samples of a step along their first axis, where all have the same shapes; without, each is run
            alone and gradients are averaged.
        checkpoint: NPZ file written after every epoch; one of the same training is gone on from.
        of: Digest of models and samples: a checkpoint of others is not gone on from.
        progress: Told about every step.
        on_epoch: Given every epoch as it ends.

    Returns:
        The epochs, those of an interrupted run included.

    Raises:
        InputError: train.samples, train.not_finite, train.diverged.
    """
    rng = np.random.default_rng(training.seed)
    order = rng.permutation(len(samples))
    apart = int(len(samples) * training.held_out)
    kept, learned = order[:apart], order[apart:]
    if not len(learned):
        raise InputError(
            "train.samples", "training", f"has {len(samples)} samples, none to learn from", "give more samples"
        )
    epochs: list[Epoch] = []
    groups = [kept[i : i + training.batch] for i in range(0, len(kept), training.batch)]

    def look() -> float | None:
        """Mean loss on samples that nothing is learned from."""
        if not groups:
            return None
        steps = [_joined_if(stack, [samples[i] for i in group]) for group in groups]
        found = [float(np.mean([learner.loss(*one) for one in step])) for step in steps]
        return float(np.average(found, weights=[len(group) for group in groups]))

    best = look()
    if best is not None and not math.isfinite(best):
        raise InputError(
            "train.not_finite",
            "the loss before the first step",
            f"is {best}, on samples that are held out",
            "look for NaN and infinities in the samples, and run 'edgeproof inspect' for those in the weights",
        )
    best_state = learner.state()
    first = best
    if checkpoint is not None and checkpoint.is_file():
        resumed = _read(checkpoint, _key(training, len(samples), of))
        if resumed is not None:
            epochs, best, best_state, state = resumed
            learner.restore(state)
    before = epochs[-1].seconds if epochs else 0.0
    start = time.monotonic() - before
    for number in range(len(epochs) + 1, training.epochs + 1):
        rng = np.random.default_rng([training.seed, number])
        turn = learned[rng.permutation(len(learned))]
        batches = [turn[i : i + training.batch] for i in range(0, len(turn), training.batch)]
        losses = []
        rate = 0.0
        for done, batch in enumerate(batches):
            share = ((number - 1) * len(batches) + done) / (training.epochs * len(batches))
            if training.seconds:
                share = max(share, (time.monotonic() - start) / training.seconds)
            rate = training.rate * _schedule(min(share, 1.0), training.warmup)
            losses.append(learner.step(_joined_if(stack, [samples[i] for i in batch]), rate))
            if not math.isfinite(losses[-1]):
                raise _diverged(number, "the loss", losses[-1])
            progress(f"epoch {number} of {training.epochs}, loss {losses[-1]:.4g}", min(share, 1.0))
            if training.seconds and time.monotonic() - start > training.seconds:
                break
        seen = look()
        if seen is not None and not math.isfinite(seen):
            raise _diverged(number, "the loss on held-out samples", seen)
        ahead = epochs[-1].held_out if epochs else first
        epoch = Epoch(number, float(np.mean(losses)), seen, rate, time.monotonic() - start, ahead)
        epochs.append(epoch)
        on_epoch(epoch)
        if seen is None or best is None or seen < best:
            best, best_state = seen, learner.state()
        if checkpoint is not None:
            _write(checkpoint, _key(training, len(samples), of), epochs, best, best_state, learner.state())
        if training.seconds and epoch.seconds > training.seconds:
            break
        if training.patience and _stale(epochs, training.patience, first):
            break
    learner.restore(best_state)
    progress("trained", 1.0)
    return epochs


def _diverged(number: int, what: str, value: float) -> InputError:
    hint = "use a lower rate, and look for NaN and infinities in the samples"
    return InputError("train.diverged", f"epoch {number}", f"{what} became {value}", hint)


def joinable(step: Sequence[Sample]) -> bool:
    """Whether samples have the same shapes, and everything wanted has their first axis."""
    first = step[0]
    shapes = [{n: a.shape for n, a in part.items()} for part in first]
    count = {len(a) for a in first[0].values() if a.ndim}
    ranked = all(a.ndim and {len(a)} == count for part in first for a in part.values())
    return ranked and all([{n: a.shape for n, a in part.items()} for part in s] == shapes for s in step[1:])


def joined(step: Sequence[Sample]) -> Sample:
    """Samples as one, along their first axis."""
    feeds, wanted = ({n: np.concatenate([s[k][n] for s in step]) for n in step[0][k]} for k in (0, 1))
    return feeds, wanted


def _joined_if(stack: bool, step: Sequence[Sample]) -> Sequence[Sample]:
    return [joined(step)] if stack and joinable(step) else step


def _schedule(share: float, warmup: float) -> float:
    """Share of the highest rate: a straight rise, then half a cosine down to a hundredth."""
    if share < warmup:
        return max(share / warmup, 0.01)
    t = (share - warmup) / max(1 - warmup, 1e-9)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(t, 1.0)))


def _stale(epochs: Sequence[Epoch], patience: int, first: float | None) -> bool:
    """Whether the last epochs brought nothing."""
    seen = [first, *(e.held_out for e in epochs)]
    values = [v for v in seen if v is not None]
    return len(values) > patience and min(values[-patience:]) >= min(values[:-patience])


def _key(training: Training, samples: int, of: str) -> str:
    """What a checkpoint belongs to."""
    facts = {k: repr(getattr(training, k)) for k in Training.__slots__ if k not in ("masks", "threads", "seconds")}
    return digest_json({**facts, "samples": samples, "of": of})


def _write(
    path: Path,
    key: str,
    epochs: Sequence[Epoch],
    best: float | None,
    best_state: Outputs,
    state: Outputs,
) -> None:
    rows = [(e.number, e.loss, e.held_out, e.rate, e.seconds, e.before) for e in epochs]
    table = np.array([[np.nan if v is None else v for v in row] for row in rows])
    arrays: dict[str, Any] = {f"best:{n}": a for n, a in best_state.items()} | {f"now:{n}": a for n, a in state.items()}
    with replacing(path) as temporary, temporary.open("wb") as out:
        np.savez(
            out,
            key=np.frombuffer(key.encode(), np.uint8),
            epochs=table,
            best=np.array(np.nan if best is None else best),
            **arrays,
        )


def _read(path: Path, key: str) -> tuple[list[Epoch], float | None, Outputs, Outputs] | None:
    """A checkpoint of this very training; None for another's, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as z:
            if z["key"].tobytes().decode() != key:
                return None
            known = [[None if np.isnan(v) else float(v) for v in row] for row in z["epochs"]]
            rows = [Epoch(int(n or 0), a or 0.0, h, r or 0.0, s or 0.0, b) for n, a, h, r, s, b in known]
            best = float(z["best"])
            states = [
                {n.partition(":")[2]: z[n] for n in z.files if n.startswith(f"{which}:")} for which in ("best", "now")
            ]
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return rows, None if np.isnan(best) else best, states[0], states[1]
