"""Fewer nodes, same outputs: fold constants and shapes, absorb batch norms, scales and pads, drop what does nothing.

Two ways, of which the smaller result counts: the rules of the passes beside this one until nothing changes, and the
same rules after onnxslim (MIT licence). onnxslim is kept on a leash: it gets a copy, its output is caught, and the
interface must come back as it was. Last, original and result run on the same inputs; a result that differs is
thrown away.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..change import Change
from ..errors import EdgeproofError
from ..graph.equivalence import Probe, difference, interface_change, probes
from ..graph.rewrite import Editor, Rule, deterministic, graphs
from ..graph.rules import until_stable
from ..model import PROTO_LIMIT_BYTES, Model, weight_bytes
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .drop_no_ops import rewrite as drop_no_ops
from .fold_batch_norm import rewrite as fold_batch_norm
from .fold_constants import MAX_GROWTH_BYTES
from .fold_constants import rewrite as fold_constants
from .fold_scale import gemm as make_gemm
from .fold_scale import rewrite as fold_scale
from .fold_shapes import rewrite as fold_shapes
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import rewrite as infer_shapes
from .merge_duplicates import rewrite as merge_duplicates
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
    fold_batch_norm,
    fold_scale,
    make_gemm,
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
        candidates: list[tuple[int, bool, Editor]] = []
        for slim in (False, True) if trust_onnxslim else (False,):
            context.progress("simplifying with onnxslim" if slim else "simplifying", 0.5 if slim else 0.2)
            try:
                editor = _simplified(model, slim=slim)
            except _DeclinedError as e:
                declined.append(("onnxslim", str(e)))
                continue
            if editor.edits:
                candidates.append((sum(len(g) for g in editor.graphs()), slim, editor))
        for nodes, slim, editor in sorted(candidates, key=lambda c: c[:2]):
            result = Model.of(editor.model, model.name)
            if result.digest == model.digest:
                continue
            problem = interface_change(model, result)
            context.progress(f"comparing {nodes} nodes with the original", 0.8)
            if problem is None and runs is not None:
                problem = difference(runs, result, context, self.tolerance)
            if problem is None:
                return Change(result, True, editor.applied(), (*declined, *editor.declined), _facts(model, result))
            declined.append(("onnxslim" if slim else "own rules", f"its result was thrown away: {problem}"))
        return Change.none(model, *declined)


class _DeclinedError(Exception):
    """onnxslim cannot be used on this model."""


def _facts(before: Model, after: Model) -> dict[str, Any]:
    return {"nodes_before": count_nodes(before), "nodes_after": count_nodes(after)}


def count_nodes(model: Model) -> int:
    """Nodes of the main graph and all subgraphs."""
    return sum(len(g) for g in graphs(model.graph.graph))


def _simplified(model: Model, *, slim: bool) -> Editor:
    """Run the rules, around onnxslim if wanted."""
    editor = Editor(model.graph.clone())
    if not slim:
        until_stable(editor, RULES)
        return editor
    before = len(list(editor.nodes()))
    slimmed = _onnxslim(model)
    editor = Editor(slimmed)
    after = len(list(editor.nodes()))
    if after != before:
        editor.edits += 1
        editor.done[f"onnxslim, {before} nodes to {after}"].append(model.name)
    until_stable(editor, RULES)
    return editor


def _onnxslim(model: Model) -> ir.Model:
    """Run onnxslim on a copy, with the interface put back as it was.

    Raises:
        _DeclinedError: When it fails, or is no good for such a model.
    """
    import onnx
    import onnx_ir as ir

    if weight_bytes(model.graph) > PROTO_LIMIT_BYTES:
        raise _DeclinedError("the weights are larger than a protobuf message can be")
    if model.graph.functions:
        raise _DeclinedError("the model has functions of its own")
    quantised = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
    if any(n.op_type in quantised for g in graphs(model.graph.graph) for n in g):
        raise _DeclinedError("the model is quantised, and onnxslim may undo that")
    try:
        data = model.to_bytes()
        with _muted():
            import onnxslim

            out = onnxslim.slim(onnx.load_model_from_string(data), size_threshold=MAX_GROWTH_BYTES)
            slimmed: ir.Model = ir.from_proto(out)
    except EdgeproofError as e:
        raise _DeclinedError(e.problem) from e
    except Exception as e:  # it raises whatever its dependencies raise
        raise _DeclinedError(f"it failed with {type(e).__name__}: {' '.join(str(e).split())[:160]}") from e
    _restore_interface(model, slimmed)
    return slimmed


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
