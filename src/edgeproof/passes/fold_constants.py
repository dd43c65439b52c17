"""Compute nodes whose inputs are all constant, once and for all.

Values come from ONNX's reference evaluator, one node at a time. Left alone: random operators, control flow, functions
and custom operators, DequantizeLinear and QuantizeLinear (folding them would undo a quantised model), and results that
would make the model larger than what they replace by more than ``max_growth_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..change import Change
from ..graph.dims import static
from ..graph.rewrite import Editor, array, constant_tensor, label, subgraphs
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

MAX_GROWTH_BYTES = 1 << 20

_NEVER = frozenset(
    {
        "Constant",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
        "ImageDecoder",
    }
)


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Fold constants.

    Attributes:
        max_growth_bytes: How much larger than its inputs a folded result may be.
    """

    max_growth_bytes: int = MAX_GROWTH_BYTES

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""

        def fold(editor: Editor) -> None:
            rewrite(editor, self.max_growth_bytes)

        return run_rules(model, (freeze_weights, fold, drop_dead_code))


def rewrite(editor: Editor, max_growth_bytes: int = MAX_GROWTH_BYTES) -> None:
    """One sweep in order, so that a chain of constants folds at once."""
    for node in editor.nodes():
        if node.op_type in _NEVER or not any(v is not None for v in node.inputs):
            continue
        if any(v is not None and constant_tensor(v) is None for v in node.inputs) or any(True for _ in subgraphs(node)):
            continue
        if any(v.is_graph_output() for v in node.outputs):
            continue  # a constant output needs a node that produces it
        if not any(v.uses() for v in node.outputs):
            continue
        _fold(editor, node, max_growth_bytes)


def _fold(editor: Editor, node: ir.Node, max_growth_bytes: int) -> None:
    import numpy as np

    tensors = [constant_tensor(v) for v in node.inputs]
    budget = sum(t.nbytes for t in tensors if t is not None) + max_growth_bytes
    expected = [static(v) for v in node.outputs]
    if any(s is not None and int(np.prod(s, dtype=np.int64)) > budget for s in expected):
        editor.decline(node, "its constant result would make the model larger than the node saves")
        return
    if node.op_type in ("ConstantOfShape", "Expand", "Tile") and _target_size(node) > budget:
        editor.decline(node, "its constant result would make the model larger than the node saves")
        return
    try:
        results = evaluate(node, editor.opset)
    except Exception as e:  # the evaluator lacks some operators and raises whatever comes
        editor.decline(node, f"the reference evaluator cannot compute it: {' '.join(str(e).split())[:120]}")
        return
    if any(not isinstance(r, np.ndarray) or r.dtype.kind in "OSU" for r in results if r is not None):
        editor.decline(node, "its constant result is no tensor of numbers")
        return
    if sum(r.nbytes for r in results if r is not None) > budget:
        editor.decline(node, "its constant result would make the model larger than the node saves")
        return
    assert node.graph is not None
    if any(
        v.dtype is not None and r is not None and v.dtype.numpy() != r.dtype
        for v, r in zip(node.outputs, results, strict=True)
    ):
        editor.decline(node, "the reference evaluator returns another dtype than the graph declares")
        return
    for value, result in zip(node.outputs, results, strict=True):
        if result is not None and value.uses():
            editor.replace(value, editor.constant(node.graph, f"{value.name}_constant", result))
    editor.did("folded constant", node)
    editor.remove(node)


def _target_size(node: ir.Node) -> int:
    """Elements of the result of an operator whose last input says how large it gets."""
    import numpy as np

    sizes = array(node.inputs[-1])
    if sizes is None or sizes.dtype.kind not in "iu":
        return 0
    count = int(np.prod(np.maximum(sizes.astype(np.float64), 1)))
    if node.op_type == "Tile":
        data = constant_tensor(node.inputs[0])
        count *= 1 if data is None else data.size
    return count


def evaluate(node: ir.Node, opset: int) -> list[NDArray[Any] | None]:
    """Outputs of one node whose inputs are all constant, in order; None for an absent optional output.

    Raises:
        Exception: Whatever the reference evaluator raises.
    """
    import warnings

    import numpy as np
    import onnx
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    proto: onnx.NodeProto = ir.to_proto(node)
    names = [f"in{i}" for i in range(len(node.inputs))]
    feeds = {n: array(v) for n, v in zip(names, node.inputs, strict=True) if v is not None}
    del proto.input[:]
    proto.input.extend(n if n in feeds else "" for n in names)
    wanted = [o for o in proto.output if o]
    graph = onnx.helper.make_graph(
        [proto],
        label(node),
        [onnx.ValueInfoProto(name=n) for n in feeds],
        [onnx.ValueInfoProto(name=n) for n in wanted],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        got = dict(zip(wanted, ReferenceEvaluator(model).run(wanted, feeds), strict=True))
    results: list[NDArray[Any] | None] = []
    for o in proto.output:
        value = got.get(o)
        results.append(np.asarray(value) if isinstance(value, np.generic) else value)
    return results


IMPL: type[Pass] = FoldConstants
