"""PyTorch as the engine: the importer's graph, with Q/DQ nodes that pass gradients.

Forward is ONNX's: divide, round half to even, add the zero point, saturate. Backward passes the rounding as if it were
not there, and nothing where a value was clipped (Bengio et al. 2013, *Estimating or Propagating Gradients Through
Stochastic Neurons*); for a scale that is the gradient of LSQ (Esser et al. 2020, *Learned Step Size Quantization*). A
step takes it times 1 / √(values · largest code), as there, so that scales do not drown the rest where gradients are
clipped.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from .. import toolchain
from ..fx import import_model
from ..fx.arithmetic import clip, limits
from ..fx.call import Call, Handler
from ..fx.quantisation import bare, quantize
from ..fx.values import Constant, Tensor, Value
from ..graph.quantised import CODES
from ..model import Model
from ..protocols import Engine, Outputs
from .fit import Training
from .learning import nothing_trained, share, trained, wanted_of, watched, written
from .losses import Term
from .quantisers import Points, find
from .snapping import real, rounded, snapped

if TYPE_CHECKING:
    from ..dataset import Feeds


WHOLE = "quantised"
"""Where a node of codes says what it rounds, so that the node behind it can do both."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The engine."""

    def missing(self) -> str | None:
        """The line that installs it."""
        return None if importlib.util.find_spec("torch") else toolchain.missing("torch")

    def learner(self, model: Model, original: Model | None, training: Training) -> TorchLearner:
        """Make a graph trainable."""
        return TorchLearner(model, original, training)


@final
class TorchLearner:
    """A graph in torch, its optimiser and its masks.

    Args:
        model: Float, or with Q/DQ.
        original: The float model behind a Q/DQ graph.
        training: What is minimised, and how.
    """

    def __init__(self, model: Model, original: Model | None, training: Training) -> None:
        import torch

        torch.set_num_threads(training.threads or torch.get_num_threads())
        torch.manual_seed(training.seed)
        self._torch, self._model, self._training = torch, model, training
        self._points = find(model, original)
        seen, self._names = watched(model, training)
        self._factors: dict[str, float] = {}
        self._imported = import_model(seen, train=training.norms == "trained", operators=self._operators())
        self._module = self._imported.module.to(training.device)
        self._scales = {n for n, onnx in self._imported.parameters.items() if onnx in self._scale_names()}
        self._masks = {
            ours: torch.from_numpy(np.ascontiguousarray(training.masks[onnx])).to(training.device)
            for ours, onnx in self._imported.parameters.items()
            if onnx in training.masks
        }
        self._optimizer = self._made_optimizer()
        self._scaler = torch.amp.GradScaler(training.device, enabled=training.precision == "float16")
        self._apply_masks()

    def outputs(self, feeds: Feeds) -> Outputs:
        """Run forward."""
        self._module.eval()
        with self._torch.no_grad():
            found = self._forward(feeds)
        return {n: t.float().cpu().numpy() for n, t in zip(self._names, found, strict=True)}

    def loss(self, feeds: Feeds, wanted: Outputs) -> float:
        """Loss on one batch."""
        self._module.eval()
        with self._torch.no_grad():
            return float(self._loss(feeds, wanted))

    def gradients(self, feeds: Feeds, wanted: Outputs) -> tuple[float, Outputs]:
        """Loss, and its gradient for every trained tensor."""
        self._module.train(self._training.norms == "trained")
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(feeds, wanted)
        loss.backward()
        named = dict(self._module.named_parameters())
        found = {}
        for ours, onnx in self._imported.parameters.items():
            gradient = named[ours].grad
            held = named[ours] if gradient is None else gradient
            found[onnx] = (held * 0 if gradient is None else held).detach().float().cpu().numpy()
        return float(loss.detach()), found

    def step(self, batches: Sequence[tuple[Feeds, Outputs]], rate: float) -> float:
        """Take one step down the mean gradient of batches."""
        training = self._training
        self._module.train(training.norms == "trained")
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for feeds, wanted in batches:
            loss = self._loss(feeds, wanted) / len(batches)
            self._scaler.scale(loss).backward()
            total += float(loss.detach())
        self._scaler.unscale_(self._optimizer)
        self._damp_scales()
        if training.clip:
            self._torch.nn.utils.clip_grad_norm_(self._module.parameters(), training.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._apply_masks()
        self._keep_scales_positive()
        return total

    def state(self) -> Outputs:
        """Weights, statistics and the optimiser's moments."""
        kept = {f"module/{n}": t.detach().cpu().numpy().copy() for n, t in self._module.state_dict().items()}
        for index, moments in self._optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                kept[f"optimizer/{index}/{name}"] = self._torch.as_tensor(value).detach().cpu().numpy().copy()
        if self._scaler.is_enabled():
            kept["scaler"] = np.asarray(self._scaler.get_scale(), np.float64)
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state`."""
        torch = self._torch
        own = {
            n.removeprefix("module/"): torch.from_numpy(np.array(a))
            for n, a in state.items()
            if n.startswith("module/")
        }
        self._module.load_state_dict(own)
        moments: dict[int, dict[str, Any]] = {}
        for name, array in state.items():
            if name.startswith("optimizer/"):
                _, index, what = name.split("/", 2)
                moments.setdefault(int(index), {})[what] = torch.from_numpy(np.array(array))
        held = self._optimizer.state_dict()
        held["state"] = moments
        self._optimizer.load_state_dict(held)
        if "scaler" in state:
            self._scaler.update(float(state["scaler"]))

    def model(self) -> Model:
        """The graph with what was learned: floats as floats, what was held in codes as codes again."""
        named = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        table = {
            onnx: named[ours].detach().float().cpu().numpy()
            for ours, onnx in (*self._imported.parameters.items(), *self._imported.buffers.items())
        }
        return written(self._model, self._points, table)

    def close(self) -> None:
        """Free the module."""
        self._module = self._optimizer = None

    def _forward(self, feeds: Feeds) -> Any:
        torch = self._torch
        order = [torch.from_numpy(np.array(feeds[s.name])).to(self._training.device) for s in self._imported.inputs]
        kinds = {"float16": torch.float16, "bfloat16": torch.bfloat16}
        kind = kinds.get(self._training.precision)
        with torch.autocast(self._training.device, dtype=kind, enabled=kind is not None):
            return self._module(*order)

    def _loss(self, feeds: Feeds, wanted: Outputs) -> Any:
        found = dict(zip(self._names, self._forward(feeds), strict=True))
        device = self._training.device
        loss = sum(
            term.weight
            * _term(
                self._torch,
                term,
                found[term.tensor].float(),
                self._torch.from_numpy(wanted_of(term, wanted)).to(device),
            )
            for term in self._training.terms
        )
        if self._training.l1:
            held = [p for n, p in self._module.named_parameters() if p.dim() > 1 and n not in self._scales]
            loss = loss + self._training.l1 * sum(p.abs().sum() for p in held)
        return loss

    def _made_optimizer(self) -> Any:
        """Every tensor is a group of its own: its rate is a share of its own size."""
        torch, training = self._torch, self._training
        groups: list[dict[str, Any]] = []
        for name, parameter in self._module.named_parameters():
            if not trained(self._imported.parameters.get(name, ""), training.only):
                parameter.requires_grad_(False)
                continue
            scale = name in self._scales
            size = float(parameter.detach().square().mean().sqrt())
            groups.append(
                {
                    "params": [parameter],
                    "share": share(size, training, scale=scale),
                    "weight_decay": training.decay if parameter.dim() > 1 and not scale else 0.0,
                }
            )
        if not groups:
            raise nothing_trained(training)
        if training.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
        return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99))

    def _scale_names(self) -> set[str]:
        return {*self._points.activations, *self._points.weights}

    def _apply_masks(self) -> None:
        with self._torch.no_grad():
            named = dict(self._module.named_parameters())
            for name, mask in self._masks.items():
                named[name].mul_(mask)

    def _damp_scales(self) -> None:
        named = dict(self._module.named_parameters())
        for name in self._scales:
            if named[name].grad is not None:
                named[name].grad.mul_(self._factors.get(self._imported.parameters[name], 1.0))

    def _keep_scales_positive(self) -> None:
        with self._torch.no_grad():
            named = dict(self._module.named_parameters())
            for name in self._scales:
                named[name].clamp_(min=float(np.finfo(np.float32).tiny))

    def _operators(self) -> dict[str, Handler]:
        learn = self._training.scales == "learned"
        return {
            "QuantizeLinear": lambda n: _quantize(n, learn, self._factors),
            "DequantizeLinear": lambda n: _dequantize(n, self._points, learn, self._factors),
            "Clip": _clip,
        }


def _clip(n: Call) -> Value:
    """Clip between two numbers as torch's ReLU6 does it: going back costs one pass over the values, clamp's five."""
    low, high = limits(n)
    if n.floating() and isinstance(low, int | float) and isinstance(high, int | float) and low <= high:
        return n.call(n.functional.hardtanh, n[0], low, high)
    return clip(n)


def _quantize(n: Call, learn: bool, factors: dict[str, float]) -> Value:
    """QuantizeLinear of an activation; of other dtypes and in blocks as the importer does it."""
    zero = n.node.inputs[2] if len(n.node.inputs) > 2 else None
    name = "" if zero is None or zero.dtype is None else zero.dtype.name
    if name not in CODES:
        return quantize(n)
    scale = n[1] if learn else bare(n[1])
    if isinstance(n[1], Constant) and n[1].name:
        values = math.prod(d or 1 for d in n.shape(0) or ()) // max(n[1].tensor.numel(), 1)
        factors[n[1].name] = 1 / math.sqrt(max(values, 1) * CODES[name][1])
    how = (*CODES[name], n.attr("axis", 1), n.attr("block_size", 0))
    made = n.build.emit(rounded, n[0], scale, _point(n, 2), *how)
    made.node.meta[WHOLE] = (n[0], scale, _point(n, 2), how, n.node.inputs[1])
    return made


def _dequantize(n: Call, points: Points, learn: bool, factors: dict[str, float]) -> Value:
    """DequantizeLinear, of an activation's codes or of floats that stand for stored ones."""
    source = n.node.inputs[0]
    held = points.held.get(source.name or "") if source is not None else None
    axis, block, zero = n.attr("axis", 1), n.attr("block_size", 0), _point(n, 2)
    if held is None:
        whole = n[0].node.meta.get(WHOLE) if isinstance(n[0], Tensor) else None
        if whole is not None and whole[4] is n.node.inputs[1]:
            x, scale, point, how, _ = whole  # the pair of one tensor: both steps in one
            return n.build.emit(snapped, x, scale, point, *how)
        return n.build.emit(real, n[0], n[1] if learn else bare(n[1]), zero, axis, block)
    pair = [n.outside[name] for name in held.tied or (held.scale,)]
    pair = [v if learn else bare(v) for v in pair]
    scale = n.build.emit(n.torch.mul, *pair) if held.tied else pair[0]
    if held.tied is None:
        values = held.floats.size // max(math.prod(d or 1 for d in n.build.shape(scale) or ()), 1)
        factors[held.scale] = 1 / math.sqrt(max(values, 1) * held.high)
    floats = Constant(n.torch.from_numpy(held.floats.copy()), held.name)
    wide = n.build.emit("double", floats) if held.high > 1 << 24 else floats
    return n.build.emit(snapped, wide, scale, zero, held.low, held.high, axis, block)


def _point(n: Call, i: int) -> Value | None:
    """A zero point that is not 0."""
    if not n.has(i):
        return None
    tensor = n.constant(i)
    return None if tensor is not None and not bool(tensor.to(n.torch.int64).count_nonzero()) else bare(n[i])


def _term(torch: Any, term: Term, got: Any, wanted: Any) -> Any:
    """One part of the loss; see `losses`."""
    functional = torch.nn.functional
    if term.kind == "mse":
        return ((got - wanted) ** 2).mean() / (term.variance or wanted.var(unbiased=False).clamp(min=1e-12))
    if term.kind == "kl":
        t = term.temperature
        teacher = functional.log_softmax(wanted / t, -1)
        student = functional.log_softmax(got / t, -1)
        rows = max(got.numel() // got.shape[-1], 1)
        return functional.kl_div(student, teacher, reduction="sum", log_target=True) * (t * t / rows)
    if term.kind == "cross_entropy":
        return functional.cross_entropy(got.reshape(-1, got.shape[-1]), wanted.long().reshape(-1))
    one, other = (functional.normalize(v.reshape(len(v), -1), dim=1) for v in (got, wanted))
    return ((one @ one.T - other @ other.T) ** 2).mean()


IMPL: type[Engine] = Torch
