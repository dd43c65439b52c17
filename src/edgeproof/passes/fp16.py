"""Convert float32 to float16, with float32 islands where float16 overflows, underflows or loses accuracy.

The original runs once over the samples while the largest |x| of every tensor is recorded; a node that reads or makes
a tensor beyond float16's range, or one that is subnormal as a whole, stays float32. Then outputs are compared, those of
the float16 model as it runs here and those of an emulation (`graph.rounding`), since a CPU may compute float16 in
float32. While one differs by more than the tolerance, the nodes that add most error (their outputs' error beyond that
of their inputs) become islands too. What still differs at the end is declined as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..change import Change
from ..errors import EdgeproofError
from ..graph.equivalence import Probe, probes, relative_error
from ..graph.half import LARGEST, SMALLEST_NORMAL, Halving, is_float, is_half, key
from ..graph.rewrite import Editor, constant_tensor, deterministic, label
from ..graph.rounding import emulate_half
from ..graph.rules import until_stable
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Fp16:
    """Convert to float16.

    Attributes:
        keep_io: Inputs and outputs stay float32.
        tolerance: Largest difference of an output, as a share of its largest value.
        headroom: How far the largest |x| seen must stay below float16's largest number, as a factor.
        samples: How many samples are measured, at most.
        rounds: How often islands are added before giving up.
    """

    keep_io: bool = True
    tolerance: float = 0.02
    headroom: float = 2.0
    samples: int = 8
    rounds: int = 4

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        if not deterministic(model.graph):
            return Change.none(model, ("measurement", "not possible: the model draws random numbers"))
        context.progress("running the original", 0.0)
        runs = probes(model, context, count=max(1, self.samples))
        if isinstance(runs, str):
            return Change.none(model, ("measurement", f"not possible: {runs}"))
        base = Editor(model.graph.clone())
        freeze_weights(base)
        infer_shapes(base)
        recorded = self._largest(base.model, runs, context)
        if isinstance(recorded, str):
            return Change.none(model, ("measurement", f"not possible: {recorded}"))
        return self._search(model, base, runs, self._extremes(base.model, recorded), context)

    def _search(
        self, model: Model, base: Editor, runs: list[Probe], islands: dict[str, str], context: Context
    ) -> Change:
        """Convert, compare, and add islands until the outputs agree."""
        problem = ""
        for turn in range(self.rounds + 1):
            context.progress(f"comparing float16 with the original, round {turn + 1}", (turn + 1) / (self.rounds + 2))
            halving = Halving(Editor(base.model.clone()), self.keep_io, dict(islands))
            halving.run()
            until_stable(halving.editor, (drop_dead_code,))
            if not halving.halved:
                return Change.none(model, *_reasons(base.model, halving.islands), *_give_up(problem))
            result = Model.of(halving.editor.model, model.name)
            errors = self._errors(result, runs, context)
            if isinstance(errors, str):
                refused = _refused_operator(errors, base.model, halving.halved)
                problem = f"float16 does not run: {errors}"
                if not refused:
                    break
                islands.update(refused)
                continue
            emulated = self._errors(Model.of(emulate_half(base.model, set(halving.halved)), "emulated"), runs, context)
            if not isinstance(emulated, str):
                errors = {name: max(error, emulated.get(name, 0.0)) for name, error in errors.items()}
            worst = max(errors, key=lambda n: errors[n], default="")
            if not worst or errors[worst] <= self.tolerance:
                return self._done(model, base.model, result, halving, errors, runs)
            problem = (
                f"output {worst} differs by {errors[worst]:.2g} of its scale; at most {self.tolerance:g} is allowed"
            )
            more = self._worst_nodes(base.model, halving, runs[0], context)
            if not more:
                break
            islands.update(more)
        return Change.none(model, (model.name, f"float16 was thrown away after {turn + 1} rounds: {problem}"))

    def _done(
        self,
        model: Model,
        base: ir.Model,
        result: Model,
        halving: Halving,
        errors: Mapping[str, float],
        runs: list[Probe],
    ) -> Change:
        source = "random inputs, for want of samples" if runs[0].random else f"{len(runs)} samples"
        worst = max(errors.values(), default=0.0)
        applied = (
            f"{len(halving.halved)} nodes compute in float16, {len(halving.islands)} stay float32",
            f"largest difference of an output: {worst:.2g} of its scale, on {source}",
            *(f"{node}: {what}" for node, what in halving.clamped),
        )
        facts = {
            "half_nodes": len(halving.halved),
            "islands": len(halving.islands),
            "error": worst,
            "measured_on": source,
        }
        return Change(result, True, applied, tuple(_reasons(base, halving.islands)), facts)

    def _largest(self, base: ir.Model, runs: list[Probe], context: Context) -> dict[str, float] | str:
        """Largest finite |x| of every float32 tensor that a node of the main graph makes, over all samples."""
        largest: dict[str, float] = {}
        exposed = _exposed(base, "float32")
        try:
            session = context.compile(exposed)
        except EdgeproofError as e:
            return f"its inner values cannot be read: {e.problem}"
        try:
            for run in runs:
                for name, value in session.run(run.feeds).items():
                    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or not value.size:
                        continue
                    finite = np.abs(value[np.isfinite(value)])
                    largest[name] = max(largest.get(name, 0.0), float(finite.max()) if finite.size else 0.0)
                for name, value in run.feeds.items():
                    if value.dtype == np.float32 and value.size:
                        largest[name] = max(largest.get(name, 0.0), float(np.nan_to_num(np.abs(value)).max()))
        except EdgeproofError as e:
            return f"its inner values cannot be read: {e.problem}"
        finally:
            session.close()
        return largest

    def _extremes(self, base: ir.Model, largest: Mapping[str, float]) -> dict[str, str]:
        """Nodes that read or make a tensor that float16 cannot hold."""
        islands: dict[str, str] = {}
        for node in base.graph:
            for value in [*node.inputs, *node.outputs]:
                if value is None or not is_float(value) or constant_tensor(value) is not None:
                    continue
                top = largest.get(value.name or "", 0.0)
                if top * self.headroom > LARGEST:
                    islands[key(node)] = f"{value.name} reaches {top:.4g}; float16 ends at {LARGEST:.0f}"
                elif 0 < top < SMALLEST_NORMAL:
                    islands[key(node)] = f"{value.name} is at most {top:.2g}, where float16 loses its digits"
        return islands

    def _errors(self, result: Model, runs: list[Probe], context: Context) -> dict[str, float] | str:
        """Output → largest relative difference over the samples; or why it does not run."""
        errors: dict[str, float] = {}
        try:
            session = context.compile(result)
        except EdgeproofError as e:
            return e.problem
        try:
            for run in runs:
                got = session.run(_as_inputs(result, run.feeds))
                for name, want in run.outputs.items():
                    errors[name] = max(errors.get(name, 0.0), relative_error(want, _like(got.get(name), want)))
        except EdgeproofError as e:
            return e.problem
        finally:
            session.close()
        return errors

    def _worst_nodes(self, base: ir.Model, halving: Halving, run: Probe, context: Context) -> dict[str, str]:
        """The tenth of the float16 nodes that add most error, on one sample."""
        wanted = _inner_values(base, run.feeds, context)
        got = _inner_values(emulate_half(base, set(halving.halved)), run.feeds, context)
        if wanted is None or got is None:
            return {}
        half = set(halving.halved)
        added: list[tuple[float, str]] = []

        def error(value: ir.Value | None) -> float:
            if value is None or value.name not in wanted or value.name not in got:
                return 0.0
            found = relative_error(wanted[value.name], _like(got[value.name], wanted[value.name]))
            return found if np.isfinite(found) else 1e30

        for node in base.graph:
            if key(node) in half:
                grown = max(map(error, node.outputs), default=0.0) - max(map(error, node.inputs), default=0.0)
                added.append((grown, key(node)))
        added.sort(reverse=True)
        count = max(1, -(-len(half) // 10))
        return {name: f"in float16 it adds {grown:.2g} of relative error" for grown, name in added[:count] if grown > 0}


def _reasons(base: ir.Model, islands: Mapping[str, str]) -> list[tuple[str, str]]:
    names = {key(node): label(node) for node in base.graph}
    return [(names.get(k, k), reason) for k, reason in islands.items()]


def _give_up(problem: str) -> list[tuple[str, str]]:
    return [("model", problem or "no node can compute in float16")]


def _exposed(base: ir.Model, name: str) -> Model:
    """The model with every float tensor of the main graph as an output."""
    clone = base.clone()
    outputs = {id(v) for v in clone.graph.outputs}
    for node in clone.graph:
        for value in node.outputs:
            known = value.name and id(value) not in outputs and constant_tensor(value) is None
            if known and (is_float(value) or is_half(value)):
                clone.graph.outputs.append(value)
    return Model.of(clone, name)


def _inner_values(graph: ir.Model, feeds: Mapping[str, Any], context: Context) -> dict[str, Any] | None:
    exposed = _exposed(graph, "inner values")
    try:
        session = context.compile(exposed)
    except EdgeproofError:
        return None
    try:
        return {**session.run(_as_inputs(exposed, feeds)), **feeds}
    except EdgeproofError:
        return None
    finally:
        session.close()


def _as_inputs(model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Feeds in the dtypes of a model whose interface may be float16."""
    half = {s.name for s in model.inputs if s.dtype == "float16"}
    return {n: v.astype(np.float16) if n in half else v for n, v in feeds.items()}


def _like(got: Any, want: Any) -> Any:
    if isinstance(got, np.ndarray) and isinstance(want, np.ndarray) and got.dtype == np.float16:
        return got.astype(want.dtype) if want.dtype == np.float32 else got
    return got


def _refused_operator(problem: str, base: ir.Model, halved: list[str]) -> dict[str, str]:
    """Nodes of the operator that a runtime says it has no float16 implementation of."""
    match = re.search(r"implementation for (\w+)\(", problem) or re.search(r"node \S* ?Op \((\w+)\)", problem)
    if match is None:
        return {}
    half = set(halved)
    same = [n for n in base.graph if n.op_type == match[1] and key(n) in half]
    return {key(n): f"the runtime has no float16 {match[1]}" for n in same}


IMPL: type[Pass] = Fp16
