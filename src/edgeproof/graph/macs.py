"""Multiply-accumulates of one operator, from the shapes of its inputs and outputs.

Counted are contractions: convolutions, matrix products, recurrences, attention. Element-wise work, pooling and
normalisation count 0, as in the tables of the papers. A bias is no multiplication. Every rule is exact for the work
that the operator's definition asks for; padding is counted as if it were data, as all published figures do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..model import attribute
from .dims import dims
from .symbolic import Amount, Dim, product, total

if TYPE_CHECKING:
    import onnx_ir as ir

ZERO = Amount({})


class UnknownAmountError(Exception):
    """An amount cannot be given; the text says why."""


def macs(node: ir.Node) -> Amount:
    """Multiply-accumulates of one run of a node without subgraphs.

    Raises:
        UnknownAmountError: When a shape is missing or no rule exists for the operator.
    """
    rule = _RULES.get((_domain(node), node.op_type))
    if rule is not None:
        return rule(node)
    if node.op_type in _NOT_COUNTED:
        raise UnknownAmountError(f"operator {node.op_type} has no fixed number of multiply-accumulates")
    if _domain(node) in ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training"):
        return ZERO
    if _domain(node) == "com.microsoft" and node.op_type in _NO_CONTRACTION:
        return ZERO
    raise UnknownAmountError(f"no rule for operator {node.domain}.{node.op_type}")


def extents(value: ir.Value | None, what: str = "") -> list[Dim]:
    """Dimensions of a value, all of them numbers or symbols.

    Raises:
        UnknownAmountError: Naming the value and the dimension.
    """
    if value is None:
        raise UnknownAmountError(f"{what or 'an input'} is absent")
    shape = dims(value)
    if shape is None:
        raise UnknownAmountError(f"the shape of {value.name!r} is unknown")
    known = [d for d in shape if d is not None]
    if len(known) != len(shape):
        raise UnknownAmountError(f"dimension {shape.index(None)} of {value.name!r} is unknown")
    return known


def _domain(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _input(node: ir.Node, i: int) -> ir.Value | None:
    return node.inputs[i] if i < len(node.inputs) else None


def _conv(weight: int) -> Callable[[ir.Node], Amount]:
    """Every output element takes one kernel: W is [M, C/group, k…]."""

    def rule(node: ir.Node) -> Amount:
        return product([*extents(node.outputs[0]), *extents(_input(node, weight), "the weight")[1:]])

    return rule


def _conv_transpose(node: ir.Node) -> Amount:
    """Every input element is spread over one kernel: W is [C, M/group, k…]."""
    return product([*extents(node.inputs[0]), *extents(node.inputs[1])[1:]])


def _matmul(a: int, b: int, trans: str = "") -> Callable[[ir.Node], Amount]:
    """Every output element is a sum over the inner dimension."""

    def rule(node: ir.Node) -> Amount:
        left, right = extents(_input(node, a)), extents(_input(node, b))
        inner: Dim = left[-2] if trans and attribute(node, trans, 0) and len(left) > 1 else left[-1]
        if isinstance(inner, str) and len(right) > 0:  # the weight's side is a number more often
            inner = right[-1] if len(right) == 1 or attribute(node, "transB", 0) else right[-2]
        return product([*extents(node.outputs[0]), inner])

    return rule


def _matmul_nbits(node: ir.Node) -> Amount:
    return product([*extents(node.outputs[0]), attribute(node, "K", 0)])


def _einsum(node: ir.Node) -> Amount:
    """Operands are contracted in order, two at a time; an index is summed as soon as nothing later needs it."""
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    size: dict[str, Dim] = {}
    operands: list[set[str]] = []
    for term, value in zip(terms, node.inputs, strict=True):
        shape = extents(value)
        labels = _labels(term, len(shape))
        for label, d in zip(labels, shape, strict=True):
            if size.get(label, 1) == 1:
                size[label] = d
        operands.append(set(labels))
    every = [label for term in terms for label in term if label.isalpha()]
    kept = set(result) if arrow else {label for label in every if every.count(label) == 1}
    kept |= {label for label in size if label.isdigit()}
    work = ZERO
    running = operands[0]
    for i, operand in enumerate(operands[1:], 1):
        work += product([size[label] for label in sorted(running | operand)])
        later = set().union(kept, *operands[i + 1 :])
        running = (running | operand) & later
    return work


def _labels(term: str, rank: int) -> list[str]:
    """One label per dimension; those under an ellipsis are numbered from the right, as they broadcast."""
    head, dots, tail = term.partition("...")
    covered = rank - len(head) - len(tail)
    return [*head, *(str(covered - 1 - i) for i in range(covered if dots else 0)), *tail]


def _recurrent(gates: int) -> Callable[[ir.Node], Amount]:
    """Per step, batch entry and direction: gates · hidden · (input + hidden)."""

    def rule(node: ir.Node) -> Amount:
        steps_batch = extents(node.inputs[0])[:2]  # in either order, as `layout` says
        directions, rows, width = extents(node.inputs[1])
        hidden = extents(node.inputs[2])[2]
        per_step = product([directions, rows, width]) + product([directions, rows, hidden])
        if isinstance(rows, int) and isinstance(hidden, int) and rows != gates * hidden:
            raise UnknownAmountError(f"W has {rows} rows; {gates} gates of {hidden} need {gates * hidden}")
        return product(steps_batch) * per_step

    return rule


def _attention(node: ir.Node) -> Amount:
    """ONNX Attention: Q·Kᵀ and the weighted sum of V, over past and present keys."""
    q, k, v = (extents(node.inputs[i]) for i in range(3))
    if len(q) == 3:
        heads: Dim = attribute(node, "q_num_heads", 0)
        kv_heads = attribute(node, "kv_num_heads", 0)
        batch, queries, keys = q[0], q[1], k[1]
        depth, value_depth = _split(q[2], heads), _split(v[2], kv_heads)
    else:
        batch, heads, queries, depth = q
        keys, value_depth = k[2], v[3]
    past = _input(node, 4)
    length = total([Amount.of(keys), Amount.of(extents(past)[2]) if past is not None else ZERO])
    return product([batch, heads, queries]) * length * total([Amount.of(depth), Amount.of(value_depth)])


def _split(width: Dim, heads: Dim) -> Dim:
    if not isinstance(width, int) or not isinstance(heads, int) or not heads:
        raise UnknownAmountError(f"a width of {width} cannot be split into {heads} heads")
    return width // heads


def _packed_attention(past_index: int) -> Callable[[ir.Node], Amount]:
    """com.microsoft Attention and QAttention: the projection of Q, K and V, then Q·Kᵀ and the weighted sum of V."""

    def rule(node: ir.Node) -> Amount:
        batch, length, width = extents(node.inputs[0])
        columns = extents(node.inputs[1])[1]
        sizes = attribute(node, "qkv_hidden_sizes", ())
        query, value = (sizes[0], sizes[2]) if sizes else (_split(columns, 3), _split(columns, 3))
        past = _input(node, past_index)
        keys = total([Amount.of(length), Amount.of(extents(past)[3]) if past is not None else ZERO])
        projection = product([batch, length, width, columns])
        return projection + product([batch, length]) * keys * (Amount.of(query) + Amount.of(value))

    return rule


def _multi_head(node: ir.Node) -> Amount:
    """com.microsoft MultiHeadAttention: no projection; Q, K, V apart, or packed in one of its two ways."""
    q = extents(node.inputs[0])
    key, value, past = _input(node, 1), _input(node, 2), _input(node, 6)
    batch, queries = q[:2]
    if len(q) == 5:  # [batch, length, heads, 3, depth]
        heads_depth = value_width = product([q[2], q[4]])
        keys = queries
    else:
        heads_depth = Amount.of(q[2])
        k = extents(key, "the key")
        keys = k[2] if len(k) == 4 else k[1]
        if len(k) == 5:  # [batch, length, heads, 2, depth]
            value_width = product([k[2], k[4]])
        else:
            v = extents(value, "the value")
            value_width = product([v[1], v[3]]) if len(v) == 4 else Amount.of(v[2])
    length = total([Amount.of(keys), Amount.of(extents(past)[2]) if past is not None else ZERO])
    return product([batch, queries]) * length * (heads_depth + value_width)


def _grouped_query(node: ir.Node) -> Amount:
    """com.microsoft GroupQueryAttention, over the whole length of the present keys."""
    batch, queries, width = extents(node.inputs[0])
    heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    depth = _split(width, heads if _input(node, 1) is not None else heads + 2 * kv_heads)
    keys = extents(node.outputs[1] if len(node.outputs) > 1 else _input(node, 3), "the present key")[2]
    return product([batch, heads, queries, keys, depth, 2])


_RULES: dict[tuple[str, str], Callable[[ir.Node], Amount]] = {
    ("", "Conv"): _conv(1),
    ("", "ConvInteger"): _conv(1),
    ("", "QLinearConv"): _conv(3),
    ("", "DeformConv"): _conv(1),
    ("", "CausalConvWithState"): _conv(1),
    ("", "ConvTranspose"): _conv_transpose,
    ("", "Gemm"): _matmul(0, 1, "transA"),
    ("", "MatMul"): _matmul(0, 1),
    ("", "MatMulInteger"): _matmul(0, 1),
    ("", "QLinearMatMul"): _matmul(0, 3),
    ("", "Einsum"): _einsum,
    ("", "LSTM"): _recurrent(4),
    ("", "GRU"): _recurrent(3),
    ("", "RNN"): _recurrent(1),
    ("", "Attention"): _attention,
    ("com.microsoft", "FusedConv"): _conv(1),
    ("com.microsoft", "NhwcFusedConv"): _conv(1),
    ("com.microsoft", "QLinearConv"): _conv(3),
    ("com.microsoft", "FusedMatMul"): _matmul(0, 1, "transA"),
    ("com.microsoft", "TransposeMatMul"): _matmul(0, 1, "transA"),
    ("com.microsoft", "FusedGemm"): _matmul(0, 1, "transA"),
    ("com.microsoft", "QGemm"): _matmul(0, 3, "transA"),
    ("com.microsoft", "MatMulIntegerToFloat"): _matmul(0, 1),
    ("com.microsoft", "DynamicQuantizeMatMul"): _matmul(0, 1),
    ("com.microsoft", "MatMulNBits"): _matmul_nbits,
    ("com.microsoft", "Attention"): _packed_attention(4),
    ("com.microsoft", "QAttention"): _packed_attention(8),
    ("com.microsoft", "MultiHeadAttention"): _multi_head,
    ("com.microsoft", "GroupQueryAttention"): _grouped_query,
}

_NOT_COUNTED = frozenset({"DFT", "STFT", "LinearAttention", "FlexAttention"})
"""Operators whose work depends on the algorithm that a runtime picks."""

_NO_CONTRACTION: Sequence[str] = (
    "BiasAdd",
    "BiasGelu",
    "BiasSoftmax",
    "BitmaskDropout",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "EmbedLayerNormalization",
    "FastGelu",
    "Gelu",
    "GatherBlockQuantized",
    "Inverse",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearReduceMean",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QuantizeLinear",
    "QuickGelu",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)


def elements(value: ir.Value) -> Amount:
    """Number of elements of a tensor.

    Raises:
        UnknownAmountError: When its shape is not known.
    """
    return product(extents(value))


def storage(value: ir.Value) -> Amount:
    """Bytes of a tensor as it lies in memory; types below one byte are packed.

    Raises:
        UnknownAmountError: When its shape or dtype is not known, or it is no tensor of fixed-size elements.
    """
    import onnx_ir as ir

    if value.dtype is None and value.type is None:
        raise UnknownAmountError(f"the type of {value.name!r} is unknown")
    if value.dtype is None or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        raise UnknownAmountError(f"the dtype of {value.name!r} has no fixed size")
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise UnknownAmountError(f"{value.name!r} is no plain tensor")
    count, bits = elements(value), value.dtype.bitwidth
    if count.value is not None:
        return Amount.of(math.ceil(count.value * bits / 8))
    if bits < 8:
        raise UnknownAmountError(f"{value.name!r} packs {8 // bits} elements into a byte and has open dimensions")
    return count * Amount.of(bits // 8)
