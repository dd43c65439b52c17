"""tinygrad as the engine: its ONNX runner, with Q/DQ nodes that pass gradients, on any device that tinygrad has.

The arithmetic is that of ONNX and of the engine ``torch``: divide, round half to even, add the zero point, saturate;
the gradient passes the rounding and stops where a value is clipped, and what a scale gets is LSQ's (see torch.py). A
step is captured once for each set of shapes and replayed after that.

Where several values of a max pool are equal, tinygrad spreads the gradient over them and torch takes the first; both
are subgradients.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from .. import toolchain
from ..errors import UnsupportedError
from ..model import Model, save_model
from ..protocols import Engine, Outputs
from .fit import Training
from .learning import nothing_trained, share, trained, wanted_of, watched, written
from .losses import Term
from .quantisers import Points, find
from .runner_graph import Prepared, prepare
from .tinygrad_ops import table_of

if TYPE_CHECKING:
    from ..dataset import Feeds

BETAS = (0.9, 0.99)
EPSILON = 1e-8
MOMENTUM = 0.9
Key = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Tinygrad:
    """The engine."""

    def missing(self) -> str | None:
        """The line that installs it, or the compiler that it needs on a processor."""
        return toolchain.missing("tinygrad") or (None if shutil.which("clang") else toolchain.CLANG)

    def learner(self, model: Model, original: Model | None, training: Training) -> TinygradLearner:
        """Make a graph trainable."""
        return TinygradLearner(model, original, training)


@final
class TinygradLearner:
    """A graph in tinygrad, its optimiser and its masks.

    Args:
        model: Float, or with Q/DQ.
        original: The float model behind a Q/DQ graph.
        training: What is minimised, and how. Its device is one of tinygrad's: ``cpu``, ``cuda``, ``metal``, …

    Raises:
        InputError: train.tensor, train.only.
        UnsupportedError: train.operator, train.precision.
    """

    def __init__(self, model: Model, original: Model | None, training: Training) -> None:
        if training.precision != "float32":
            raise UnsupportedError(
                "train.precision",
                training.precision,
                "the engine tinygrad trains in float32",
                "train with the engine torch, or with precision float32",
            )
        from tinygrad import Tensor

        self._model, self._training, self._device = model, training, training.device.upper()
        self._points: Points = find(model, original)
        seen, self._names = watched(model, training)
        self._graph: Prepared = prepare(seen, self._points, learned=training.scales == "learned")
        folder = tempfile.mkdtemp(prefix="edgeproof-tinygrad-")
        self._clean = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._file = save_model(self._graph.model, Path(folder, "model.onnx"))
        with self._context():
            Tensor.manual_seed(training.seed)
            self._weights = {n: self._buffer(a) for n, a in self._graph.weights.items()}
            self._statistics = {n: self._buffer(a) for n, a in self._graph.statistics.items()}
            self._changed = tuple(n for n in self._weights if trained(n, training.only))
            if not self._changed:
                raise nothing_trained(training)
            self._gradients = {n: self._buffer(np.zeros_like(self._graph.weights[n])) for n in self._changed}
            kinds = ("momentum",) if training.optimizer == "sgd" else ("exp_avg", "exp_avg_sq")
            self._moments = {
                f"{n}/{kind}": self._buffer(np.zeros_like(self._graph.weights[n]))
                for n in self._changed
                for kind in kinds
            }
            self._masks = {
                n: self._buffer(np.asarray(m, np.float32)) for n, m in training.masks.items() if n in self._weights
            }
            for name, mask in self._masks.items():
                self._weights[name].assign(self._weights[name] * mask).realize()
        self._shares = {n: share(self._size(n), training, scale=n in self._graph.scales) for n in self._changed}
        self._count = 0
        self._live: Any = None
        self._assigned: list[Any] = []
        self._captured: dict[tuple[str, Key], Any] = {}
        self._update_captured: Any = None

    def outputs(self, feeds: Feeds) -> Outputs:
        """Run forward."""
        with self._context():
            found = self._run("outputs", feeds, {}, lambda tensors, _wanted, _extra: self._forward(tensors))
            return {n: found[n].numpy() for n in self._names}

    def loss(self, feeds: Feeds, wanted: Outputs) -> float:
        """Loss on one batch."""
        with self._context():
            made = self._run("loss", feeds, self._wanted(wanted), lambda t, w, _extra: {"loss": self._loss(t, w)})
            return float(made["loss"].item())

    def gradients(self, feeds: Feeds, wanted: Outputs) -> tuple[float, Outputs]:
        """Loss, and its gradient for every trained tensor; zeros for those that may not change."""
        loss = self._accumulate(feeds, wanted, 1.0, first=True)
        with self._context():
            found = {n: self._shaped(n, g.numpy()) for n, g in self._gradients.items()}
        rest = {n: np.zeros_like(self._graph.weights[n]) for n in self._weights if n not in found}
        return loss, {**found, **rest}

    def step(self, batches: Sequence[tuple[Feeds, Outputs]], rate: float) -> float:
        """Take one step down the mean gradient of batches."""
        from tinygrad import Tensor, TinyJit

        part = 1 / len(batches)
        total = sum(self._accumulate(f, w, part, first=i == 0) * part for i, (f, w) in enumerate(batches))
        self._count += 1
        facts = (rate, 1 - BETAS[0] ** self._count, (1 - BETAS[1] ** self._count) ** 0.5)
        with self._context():
            if self._update_captured is None:
                self._update_captured = TinyJit(self._update)
            self._update_captured(Tensor(np.array(facts, np.float32), device=self._device).realize())
        return float(total)

    def state(self) -> Outputs:
        """Weights, statistics and the optimiser's moments."""
        groups = {"weights": self._weights, "statistics": self._statistics, "optimizer": self._moments}
        with self._context():
            kept = {f"{group}/{n}": t.numpy().copy() for group, held in groups.items() for n, t in held.items()}
        return {**kept, "count": np.asarray(self._count, np.int64)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state`."""
        from tinygrad import Tensor

        groups = {"weights": self._weights, "statistics": self._statistics, "optimizer": self._moments}
        with self._context():
            for group, held in groups.items():
                for name, tensor in held.items():
                    array = np.ascontiguousarray(state[f"{group}/{name}"])
                    # In place: captured steps hold the buffer.
                    tensor.assign(Tensor(array, device=self._device)).realize()
        self._count = int(state["count"])

    def model(self) -> Model:
        """The graph with what was learned: floats as floats, what was held in codes as codes again."""
        with self._context():
            held = {**self._weights, **self._statistics}
            table = {n: t.numpy() for n, t in held.items()}
        shapes = {**self._graph.weights, **self._graph.statistics}
        return written(self._model, self._points, {n: a.reshape(shapes[n].shape) for n, a in table.items()})

    def close(self) -> None:
        """Free the graph."""
        self._captured.clear()
        self._update_captured = None
        self._clean()

    @contextmanager
    def _context(self) -> Iterator[None]:
        from tinygrad.helpers import Context

        wanted: dict[str, Any] = {"DEV": self._device, "PARALLEL": 0}
        if self._training.threads:
            wanted["NUM_CPU_THREADS"] = self._training.threads
        with Context(**wanted):
            yield

    def _buffer(self, array: NDArray[Any]) -> Any:
        """A tensor with memory of its own; one number alone would become part of the kernels."""
        from tinygrad import Tensor

        held = np.ascontiguousarray(array).reshape(array.shape or (1,))
        return Tensor(held, device=self._device).contiguous().realize()

    def _shaped(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self._graph.weights[name].shape)

    def _size(self, name: str) -> float:
        with self._context():
            return float(np.sqrt(np.mean(self._weights[name].numpy() ** 2)))

    def _wanted(self, wanted: Outputs) -> dict[str, NDArray[Any]]:
        return {f"{i}": wanted_of(term, wanted) for i, term in enumerate(self._training.terms)}

    def _accumulate(self, feeds: Feeds, wanted: Outputs, part: float, *, first: bool) -> float:
        """Add a batch's share to the gradients, which the first one begins."""
        facts = np.array([part, 0.0 if first else 1.0], np.float32)
        with self._context():
            made = self._run("step", feeds, self._wanted(wanted), self._backward, facts)
            return float(made["loss"].item())

    def _run(
        self,
        what: str,
        feeds: Feeds,
        wanted: Mapping[str, NDArray[Any]],
        make: Callable[..., dict[str, Any]],
        extra: NDArray[Any] | None = None,
    ) -> dict[str, Any]:
        """Do something with a batch: captured with the second of its shapes, replayed after that."""
        from tinygrad import Tensor, TinyJit

        arrays = {**{f"x/{n}": feeds[n] for n in self._graph.inputs}, **{f"w/{n}": a for n, a in wanted.items()}}
        if extra is not None:
            arrays["extra"] = extra
        tensors = {n: Tensor(np.ascontiguousarray(a), device=self._device).realize() for n, a in arrays.items()}
        key = (what, tuple((n, tuple(a.shape)) for n, a in arrays.items()))
        if key not in self._captured:
            runner = self._runner(what)

            def call(held: dict[str, Any]) -> dict[str, Any]:
                self._live = runner
                inputs = {n.removeprefix("x/"): t for n, t in held.items() if n.startswith("x/")}
                targets = {n.removeprefix("w/"): t for n, t in held.items() if n.startswith("w/")}
                made = make(inputs, targets, held.get("extra"))
                results = {n: t.contiguous() for n, t in made.items()}
                Tensor.realize(*results.values(), *self._assigned)
                self._assigned.clear()
                return results

            self._captured[key] = TinyJit(call)
        result: dict[str, Any] = self._captured[key](tensors)
        return result

    def _runner(self, what: str) -> Any:
        """A runner of its own for each set of shapes: it keeps sizes as numbers."""
        from tinygrad import Tensor
        from tinygrad.nn.onnx import OnnxRunner

        try:
            runner = OnnxRunner(str(self._file)).to(self._device)
        except Exception as e:
            raise self._refused(str(e)) from e
        rest = [v for n, v in runner.graph_values.items() if isinstance(v, Tensor) and n not in self._weights]
        if rest:
            Tensor.realize(*rest)
        runner.onnx_ops = {
            **runner.onnx_ops,
            **table_of(self._graph, self._noted if self._training.norms == "trained" and what == "step" else None),
        }
        known = runner.onnx_ops
        absent = next((n.op for n in runner.graph_nodes if n.op not in known), None)
        if absent:
            raise UnsupportedError(
                "train.operator", self._model.name, f"has {absent}, which tinygrad does not have", "train with torch"
            )
        return runner

    def _noted(self, statistic: Any, value: Any) -> None:
        """A batch norm's running statistic is to become a value."""
        self._assigned.append(statistic.assign(value))

    def _forward(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        runner = self._live
        shapes = {**self._graph.weights, **self._graph.statistics}
        for name, tensor in (*self._weights.items(), *self._statistics.items()):
            runner.graph_values[name] = tensor if tensor.shape == shapes[name].shape else tensor.reshape(())
        try:
            found: dict[str, Any] = runner(dict(tensors))
        except Exception as e:
            raise self._refused(str(e)) from e
        return found

    def _refused(self, said: str) -> UnsupportedError:
        text = " ".join(said.split())[:300]
        return UnsupportedError("train.refused", self._model.name, f"tinygrad: {text}", "train with the engine torch")

    def _loss(self, tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:
        found = self._forward(tensors)
        loss: Any = 0.0
        for i, term in enumerate(self._training.terms):
            loss = loss + term.weight * _term(term, found[term.tensor].float(), wanted[f"{i}"])
        if self._training.l1:
            held = [t for n, t in self._weights.items() if t.ndim > 1 and n not in self._graph.scales]
            for tensor in held:
                loss = loss + self._training.l1 * tensor.abs().sum()
        return loss

    def _backward(self, tensors: Mapping[str, Any], wanted: Mapping[str, Any], facts: Any) -> dict[str, Any]:
        loss = self._loss(tensors, wanted)
        part, kept = facts[0:1], facts[1:2]
        found = loss.gradient(*(self._weights[n] for n in self._changed))
        for name, gradient in zip(self._changed, found, strict=True):
            total = self._gradients[name]
            shape = [1] * total.ndim
            total.assign(total * kept.reshape(shape) + gradient * part.reshape(shape))
            self._assigned.append(total)
        return {"loss": loss}

    def _update(self, facts: Any) -> None:
        """One step of the optimiser from the gradients that were gathered."""
        from tinygrad import Tensor

        training = self._training
        damped = {n: g * self._graph.factors.get(n, 1.0) for n, g in self._gradients.items()}
        coefficient: Any = 1.0
        if training.clip:
            squares = sum((g.square().sum() for g in damped.values()), Tensor(0.0, device=self._device))
            coefficient = (training.clip / (squares.sqrt() + 1e-6)).minimum(1.0)
        changed = []
        for name, gradient in damped.items():
            weight, scale = self._weights[name], name in self._graph.scales
            rates = facts.reshape([3] + [1] * weight.ndim)
            decay = training.decay if weight.ndim > 1 and not scale else 0.0
            change = self._sgd if training.optimizer == "sgd" else self._adam
            new, moments = change(name, gradient * coefficient, rates, decay)
            if name in self._masks:
                new = new * self._masks[name]
            if scale:
                new = new.maximum(float(np.finfo(np.float32).tiny))
            changed += [*moments, weight.assign(new)]
        Tensor.realize(*changed)

    def _adam(self, name: str, gradient: Any, facts: Any, decay: float) -> tuple[Any, list[Any]]:
        """AdamW (Loshchilov and Hutter 2019), as torch computes it."""
        weight, rate = self._weights[name], facts[0] * self._shares[name]
        first, second = self._moments[f"{name}/exp_avg"], self._moments[f"{name}/exp_avg_sq"]
        mean = first * BETAS[0] + gradient * (1 - BETAS[0])
        square = second * BETAS[1] + gradient.square() * (1 - BETAS[1])
        kept = weight * (1 - rate * decay) if decay else weight
        new = kept - rate / facts[1] * mean / (square.sqrt() / facts[2] + EPSILON)
        return new, [first.assign(mean), second.assign(square)]

    def _sgd(self, name: str, gradient: Any, facts: Any, decay: float) -> tuple[Any, list[Any]]:
        """Nesterov's momentum, as torch computes it."""
        weight, held = self._weights[name], self._moments[f"{name}/momentum"]
        gradient = gradient + weight * decay if decay else gradient
        moving = held * MOMENTUM + gradient
        return weight - facts[0] * self._shares[name] * (gradient + moving * MOMENTUM), [held.assign(moving)]


def _term(term: Term, got: Any, wanted: Any) -> Any:
    """One part of the loss; see `losses`."""
    from tinygrad import Tensor

    if term.kind == "mse":
        return (got - wanted).square().mean() / (term.variance or wanted.var(correction=0).maximum(1e-12))
    if term.kind == "kl":
        t = term.temperature
        teacher, student = (wanted / t).log_softmax(-1), (got / t).log_softmax(-1)
        rows = max(got.numel() // got.shape[-1], 1)
        return (teacher.exp() * (teacher - student)).sum() * (t * t / rows)
    if term.kind == "cross_entropy":
        classes = got.shape[-1]
        chosen = wanted.reshape(-1, 1).cast("int32") == Tensor.arange(classes).reshape(1, -1)
        return -chosen.where(got.reshape(-1, classes).log_softmax(-1), 0.0).sum(-1).mean()
    one, other = (_unit(v.reshape(v.shape[0], -1)) for v in (got, wanted))
    return (one @ one.transpose() - other @ other.transpose()).square().mean()


def _unit(rows: Any) -> Any:
    return rows / rows.square().sum(1, keepdim=True).sqrt().maximum(1e-12)


IMPL: type[Engine] = Tinygrad
