"""Fewer nodes, same outputs: fold constants and shapes, absorb batch norms, scales and pads, drop what does nothing.

The rules of the passes beside this one run until nothing changes. Then onnxslim (MIT licence) tries, and the rules once
more; what it made counts only where it is smaller. onnxslim is kept on a leash: it gets a copy without large weights,
its output is caught, and the interface must come back as it was. Last, original and result run on the same inputs; a
result that differs is thrown away.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..change import Change
from ..graph.equivalence import Probe, difference, interface_change, probes
from ..graph.rewrite import Editor, Rule, deterministic, graphs
from ..graph.rules import until_stable
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .drop_no_ops import rewrite as drop_no_ops
from .fold_affine import rewrite as fold_affine
from .fold_constants import MAX_GROWTH_BYTES
from .fold_constants import rewrite as fold_constants
from .fold_shapes import rewrite as fold_shapes
from .freeze_weights import rewrite as freeze_weights
from .fuse_activation import rewrite as fuse_activation
from .infer_shapes import rewrite as infer_shapes
from .infer_shapes import without_weights
from .merge_duplicates import rewrite as merge_duplicates
from .merge_gemm import rewrite as merge_gemm
from .merge_pads import rewrite as merge_pads
from .merge_views import rewrite as merge_views

if TYPE_CHECKING:
    import onnx_ir as ir

RULES: tuple[Rule, ...] = (
    freeze_weights,
    infer_shapes,
    fold_constants,
    fold_shapes,
    drop_no_ops,
    fuse_activation,  # before fold_affine, which would move parts of a hard-swish into weights
    fold_affine,
    merge_gemm,
    merge_pads,
    merge_views,
    merge_duplicates,
    drop_dead_code,
)
"""What runs, in this order, until a round changes nothing."""


@dataclass(frozen=True, slots=True)
class Simplify:
    """Simplify.

    Attributes:
        verify: Run original and result, and keep the original when their outputs differ.
        tolerance: Largest difference of an output, as a share of its largest value.
        onnxslim: Also use onnxslim.
    """

    verify: bool = True
    tolerance: float = 1e-5
    onnxslim: bool = True

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        declined: list[tuple[str, str]] = []
        runs: list[Probe] | None = None
        trust_onnxslim = self.onnxslim
        if self.verify:
            context.progress("running the original", 0.0)
            found = probes(model, context) if deterministic(model.graph) else "it draws random numbers"
            if isinstance(found, str):
                declined.append(
                    ("verification", f"not possible, so only rules that are exact by themselves ran: {found}")
                )
                trust_onnxslim = False
            else:
                runs = found
        context.progress("simplifying", 0.2)
        candidates = [editor := Editor(model.graph.clone())]
        until_stable(editor, RULES)
        if trust_onnxslim:
            context.progress("simplifying with onnxslim", 0.5)
            try:
                slimmed = _slimmed(model, editor)
            except _DeclinedError as e:
                declined.append(("onnxslim", str(e)))
            else:
                if _nodes(slimmed.model) < _nodes(editor.model):
                    candidates.insert(0, slimmed)
        for candidate in candidates:
            if not candidate.edits:
                continue
            result = Model.of(candidate.model, model.name)
            if result.digest == model.digest:
                continue
            problem = interface_change(model, result)
            context.progress(f"comparing {_nodes(candidate.model)} nodes with the original", 0.8)
            if problem is None and runs is not None:
                problem = difference(runs, result, context, self.tolerance)
            if problem is None:
                facts = {"nodes_before": _nodes(model.graph), "nodes_after": _nodes(candidate.model)}
                return Change(result, True, candidate.applied(), (*declined, *candidate.declined), facts)
            whose = "own rules" if candidate is editor else "onnxslim"
            declined.append((whose, f"its result was thrown away: {problem}"))
        return Change.none(model, *declined)


class _DeclinedError(Exception):
    """onnxslim cannot be used on this model."""


def _nodes(model: ir.Model) -> int:
    """Nodes of the main graph and all subgraphs."""
    return sum(len(g) for g in graphs(model.graph))


def _slimmed(model: Model, done: Editor) -> Editor:
    """Run onnxslim on what the rules made of a model, and the rules again.

    Raises:
        _DeclinedError: When onnxslim fails, or is no good for such a model.
    """
    slimmed = _onnxslim(model, done.model)
    editor = Editor(slimmed)
    editor.edits, before, after = done.edits, _nodes(done.model), _nodes(slimmed)
    for rule, names in done.done.items():
        editor.done[rule] += names
    if after != before:
        editor.edits += 1
        editor.done[f"onnxslim, {before} nodes to {after}"].append(model.name)
    until_stable(editor, RULES)
    return editor


def _onnxslim(model: Model, graph: ir.Model) -> ir.Model:
    """Run onnxslim on a copy without large weights, with weights and interface put back as they were.

    The rules have folded all constants that can be, so that it finds nothing to compute in the large ones.

    Raises:
        _DeclinedError: When it fails, or is no good for such a model.
    """
    import onnx_ir as ir

    if graph.functions:
        raise _DeclinedError("the model has functions of its own")
    quantised = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
    if any(n.op_type in quantised for g in graphs(graph.graph) for n in g):
        raise _DeclinedError("the model is quantised, and onnxslim may undo that")
    try:
        proto = ir.to_proto(without_weights(graph))
        with _muted():
            import onnxslim

            slimmed: ir.Model = ir.from_proto(onnxslim.slim(proto, size_threshold=MAX_GROWTH_BYTES))
    except Exception as e:  # it raises whatever its dependencies raise
        raise _DeclinedError(f"it failed with {type(e).__name__}: {' '.join(str(e).split())[:160]}") from e
    _restore_weights(graph, slimmed)
    _restore_interface(model, slimmed)
    return slimmed


def _restore_weights(graph: ir.Model, slimmed: ir.Model) -> None:
    """Make the inputs that stand for large weights weights again."""
    own = {v.name for v in graph.graph.inputs}
    weights = {n: v.const_value for n, v in graph.graph.initializers.items() if n not in own}
    for value in list(slimmed.graph.inputs):
        if value.name in weights:
            slimmed.graph.inputs.remove(value)
            value.const_value = weights[value.name]
            slimmed.graph.register_initializer(value)


@contextlib.contextmanager
def _muted() -> Any:
    """Catch what onnxslim prints and the logging handlers that it installs."""
    log, reader = logging.getLogger("onnxslim"), logging.getLogger("onnx_ir")
    handlers, levels = list(log.handlers), (log.level, reader.level)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        reader.setLevel(logging.CRITICAL)  # a graph that onnxslim broke is found out by comparison
        try:
            yield
        finally:
            log.handlers[:] = handlers
            log.setLevel(levels[0])
            reader.setLevel(levels[1])


def _restore_interface(model: Model, slimmed: ir.Model) -> None:
    """Put back unused inputs, declared types and shapes, and metadata, which onnxslim drops.

    Raises:
        _DeclinedError: When an output is gone.
    """
    import onnx_ir as ir

    graph, original = slimmed.graph, model.graph.graph
    present = {v.name: v for v in graph.inputs}
    inputs: list[ir.Value] = []
    for want in original.inputs:
        if want.name in original.initializers:
            continue
        value = present.get(want.name) or ir.Value(name=want.name)
        value.type, value.shape = want.type, want.shape.copy() if want.shape is not None else None
        inputs.append(value)
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    if [v.name for v in graph.outputs] != [v.name for v in original.outputs]:
        raise _DeclinedError("its result has other outputs")
    for value, want in zip(graph.outputs, original.outputs, strict=True):
        if not value.is_graph_input():
            value.type, value.shape = want.type, want.shape.copy() if want.shape is not None else None
    slimmed.metadata_props.clear()
    slimmed.metadata_props.update(model.graph.metadata_props)
    slimmed.producer_name = model.graph.producer_name
    slimmed.producer_version = model.graph.producer_version
    graph.name = original.name


IMPL: type[Pass] = Simplify
