"""Checks of the stored tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute, external_tensors, graphs
from .facts import Facts, Finding, Outcome, few, node_name

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

FP16_MAX = 65504.0
"""Largest finite value of IEEE 754 binary16."""

INT8_STEPS = 254
"""Half a step of a symmetric 8-bit scale is its largest value divided by this; what is smaller rounds to 0."""


def finite_weights(facts: Facts) -> Outcome:
    """NaN or infinity among the weights. A single infinite constant is a mask or a bound, and only a caution."""
    found = []
    for name, _, array in facts.floats:
        low, high = array.min(), array.max()
        if np.isfinite(low) and np.isfinite(high):
            continue
        nans, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        counts = " and ".join(f"{n:,} {what}" for n, what in ((nans, "NaN"), (infinite, "infinite")) if n)
        found.append(
            Finding(
                "caution" if array.size == 1 and not nans else "defect",
                "finite_weights",
                name,
                f"holds {counts} of {array.size:,} values",
                "train or export it again; no measurement of this model means anything"
                if array.size > 1 or nans
                else "a mask or a bound; FP16 and INT8 conversion must leave it alone",
            )
        )
    if facts.unreadable:
        return Outcome(tuple(found), "partial", f"unreadable: {few(list(facts.unreadable))}")
    return Outcome(tuple(found))


def fp16_range(facts: Facts) -> Outcome:
    """Weights beyond FP16's range, which become infinite there."""
    found = []
    for name, tensor, array in facts.floats:
        if tensor.dtype.bitwidth < 16 or tensor.dtype.name == "FLOAT16":
            continue
        with np.errstate(invalid="ignore"):
            worst = float(max(array.max(), -array.min()))
        if np.isfinite(worst) and worst > FP16_MAX:
            found.append(
                Finding(
                    "caution",
                    "fp16_range",
                    name,
                    f"largest magnitude {worst:.6g}; FP16 ends at 65504",
                    f"{facts.command('apply fp16', '--out half.onnx')} keeps its operator in FP32",
                )
            )
    return Outcome(tuple(found))


def float64_weights(facts: Facts) -> Outcome:
    """Double precision, which no edge accelerator runs."""
    return Outcome(
        tuple(
            Finding("caution", "float64_weights", name, f"is float64 ({array.size:,} values)", "export it as float32")
            for name, tensor, array in facts.floats
            if tensor.dtype.name == "DOUBLE"
        )
    )


def unused_weights(facts: Facts) -> Outcome:
    """Initializers that nothing reads."""
    found = []
    for graph in graphs(facts.model.graph):
        for name, value in graph.initializers.items():
            if value.uses() or value.is_graph_output() or value.const_value is None:
                continue
            found.append(
                Finding(
                    "caution",
                    "unused_weights",
                    name,
                    f"{value.const_value.nbytes:,} bytes that nothing reads",
                    facts.command("apply simplify", "--out simplified.onnx"),
                )
            )
    return Outcome(tuple(found))


def duplicate_weights(facts: Facts) -> Outcome:
    """The same bytes stored more than once."""
    groups: dict[str, list[str]] = {}
    size: dict[str, int] = {}
    for name, tensor, digest in facts.digests:
        if tensor.dtype.name != "STRING" and tensor.nbytes >= 64:
            groups.setdefault(digest, []).append(name)
            size[digest] = tensor.nbytes
    return Outcome(
        tuple(
            Finding(
                "caution",
                "duplicate_weights",
                names[0],
                f"the same {size[digest]:,} bytes are stored {len(names)} times: {few(names)}",
                facts.command("apply simplify", "--out simplified.onnx"),
            )
            for digest, names in groups.items()
            if len(names) > 1
        )
    )


def dead_channels(facts: Facts) -> Outcome:
    """Output channels whose weights are all zero."""
    found = []
    for node, name, peaks in _channels(facts):
        dead = np.flatnonzero(peaks == 0)
        if dead.size == peaks.size:
            problem = f"all {peaks.size} output channels of {node_name(node)} are zero"
        elif dead.size:
            problem = (
                f"{dead.size} of {peaks.size} output channels of {node_name(node)} are zero "
                f"({few([str(c) for c in dead])})"
            )
        else:
            continue
        found.append(
            Finding("caution", "dead_channels", name, problem, "prune them, or give them a scale of 1 when quantising")
        )
    return Outcome(tuple(found))


def channel_range(facts: Facts) -> Outcome:
    """Channels so much smaller than the largest that one INT8 scale for all of them rounds them to zero."""
    found = []
    for node, name, peaks in _channels(facts):
        live = peaks[(peaks > 0) & np.isfinite(peaks)]
        if live.size < 2:
            continue
        lost = int((live < live.max() / INT8_STEPS).sum())
        if lost:
            found.append(
                Finding(
                    "caution",
                    "channel_range",
                    name,
                    f"channel maxima of {node_name(node)} span {live.min():.3g} to {live.max():.3g}; one INT8 scale "
                    f"rounds {lost} of {peaks.size} channels to zero",
                    "quantise it per channel, or equalise the channels first",
                )
            )
    return Outcome(tuple(found))


def quantisation(facts: Facts) -> Outcome:
    """Q/DQ already in the model, and scales that cannot be."""
    found = []
    pairs = 0
    for node in facts.nodes():
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        pairs += 1
        scale = node.inputs[1] if len(node.inputs) > 1 else None
        stored = _stored(scale)
        if scale is None or stored is None:
            continue
        bad = int((~(stored.astype(np.float64) > 0)).sum())
        if bad:
            found.append(
                Finding(
                    "defect",
                    "quantisation",
                    scale.name or node_name(node),
                    f"{bad} of {stored.size} scales of {node_name(node)} are zero, negative or NaN; expected > 0",
                    "quantise the float model again",
                )
            )
    if pairs:
        found.append(
            Finding(
                "caution",
                "quantisation",
                facts.model.name,
                f"is quantised already: {pairs:,} QuantizeLinear and DequantizeLinear nodes",
                "start from the float model to compare quantisations",
            )
        )
    return Outcome(tuple(found))


def external_data(facts: Facts) -> Outcome:
    """Weights in files beside the model."""
    sizes: dict[str, int] = {}
    for tensor in external_tensors(facts.model.graph):
        sizes[str(tensor.location)] = sizes.get(str(tensor.location), 0) + int(tensor.nbytes)
    return Outcome(
        tuple(
            Finding("caution", "external_data", name, f"holds {n:,} bytes of weights", "ship it beside the model file")
            for name, n in sizes.items()
        )
    )


def weight_digests(facts: Facts) -> Outcome:
    """Every tensor has a digest, so that a changed weight never passes as unchanged."""
    known = len(facts.digests)
    return Outcome((), "assessed", f"{known:,} tensors digested")


_WEIGHT_AT = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "FusedConv": 1, "FusedMatMul": 1}


def _channels(facts: Facts) -> Iterator[tuple[ir.Node, str, NDArray[Any]]]:
    """(node, weight name, largest magnitude per output channel) of every stored weight of a contraction."""
    arrays = {id(tensor): array for _, tensor, array in facts.floats}
    seen: set[int] = set()
    for node in facts.nodes():
        at = _WEIGHT_AT.get(node.op_type)
        value = node.inputs[at] if at is not None and len(node.inputs) > at else None
        tensor = _tensor(value)
        array = None if tensor is None else arrays.get(id(tensor))
        if value is None or tensor is None or array is None or id(tensor) in seen or array.ndim < 2:
            continue
        seen.add(id(tensor))
        yield node, value.name or "", _peaks(node, array)


def _peaks(node: ir.Node, array: NDArray[Any]) -> NDArray[Any]:
    if node.op_type == "ConvTranspose":
        # [C, M/group, k…]: channel m of group g reads only the rows of that group.
        group = attribute(node, "group", 1)
        array = array.reshape(group, -1, *array.shape[1:])
        grouped: NDArray[Any] = np.abs(array).max(axis=(1, *range(3, array.ndim))).reshape(-1)
        return grouped
    last = node.op_type in ("MatMul", "Gemm", "FusedMatMul") and not attribute(node, "transB", 0)
    axis = array.ndim - 1 if last else array.ndim - 2 if node.op_type == "FusedMatMul" else 0
    peaks: NDArray[Any] = np.abs(array).max(axis=tuple(i for i in range(array.ndim) if i != axis))
    return peaks


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The stored tensor behind a value, initializer or Constant."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or "value" not in node.attributes:
        return None
    attr = node.attributes["value"]
    tensor: ir.TensorProtocol | None = None if attr.is_ref() else attr.value
    return tensor


def _stored(value: ir.Value | None) -> NDArray[Any] | None:
    tensor = _tensor(value)
    return None if tensor is None else tensor.numpy()
