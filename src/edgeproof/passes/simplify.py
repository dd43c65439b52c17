"""Fewer nodes, same outputs: fold constants and shapes, absorb batch norms, scales and pads, drop what does nothing.

The rules of the passes beside this one run until nothing changes. Then original and result run on the same inputs; a
result that differs is thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.equivalence import Probe, difference, interface_change, probes
from ..graph.rewrite import Editor, Rule, deterministic, graphs
from ..graph.rules import until_stable
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .drop_no_ops import rewrite as drop_no_ops
from .fold_affine import rewrite as fold_affine
from .fold_branches import rewrite as fold_branches
from .fold_constants import rewrite as fold_constants
from .fold_shapes import rewrite as fold_shapes
from .freeze_weights import rewrite as freeze_weights
from .fuse_activation import rewrite as fuse_activation
from .infer_shapes import rewrite as infer_shapes
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
    fold_branches,
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
    """

    verify: bool = True
    tolerance: float = 1e-5

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        declined: list[tuple[str, str]] = []
        runs: list[Probe] = []
        if self.verify:
            context.progress("running the original", 0.0)
            found = probes(model, context) if deterministic(model.graph) else "it draws random numbers"
            if isinstance(found, str):
                declined.append(
                    ("verification", f"not possible, so only rules that are exact by themselves ran: {found}")
                )
            else:
                runs = found
        context.progress("simplifying", 0.2)
        editor = Editor(model.graph.clone())
        until_stable(editor, RULES)
        declined.extend(editor.declined)
        if not editor.edits:
            return Change.none(model, *declined)
        result = Model.of(editor.model, model.name)
        if result.digest == model.digest:
            return Change.none(model, *declined)
        context.progress(f"comparing {_nodes(editor.model)} nodes with the original", 0.8)
        problem = interface_change(model, result)
        if problem is None and runs:
            problem = difference(runs, result, context, self.tolerance)
        if problem is not None:
            declined.append(("result", f"was thrown away: {problem}"))
            return Change.none(model, *declined)
        facts = {"nodes_before": _nodes(model.graph), "nodes_after": _nodes(editor.model)}
        return Change(result, True, editor.applied(), tuple(declined), facts)


def _nodes(model: ir.Model) -> int:
    """Nodes of the main graph and all subgraphs."""
    return sum(len(g) for g in graphs(model.graph))


IMPL: type[Pass] = Simplify
