"""ONNX's single-node tests as models that a runtime would meet: constant parameters, the oldest opset they allow.

The suite gives weights, shapes and axes as inputs, and uses the newest opset. In models they are constants, and most
have opset 17 or so: a runtime that refuses a test for these two reasons would look worse than it is.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from edgeproof.model import Model
from edgeproof.quant.numerics import params
from edgeproof.target import QuantScheme

NODE = "the_node"
"""Name of the node under test."""
OPSET = 17
DATA_INPUTS: Mapping[str, int] = {
    "BatchNormalization": 1, "Clip": 1, "Compress": 1, "Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1,
    "DequantizeLinear": 1, "Dropout": 1, "GRU": 1, "Gemm": 1, "GroupNormalization": 1, "InstanceNormalization": 1,
    "LSTM": 1, "LayerNormalization": 1, "MatMul": 1, "MatMulInteger": 1, "NonMaxSuppression": 2, "OneHot": 1,
    "PRelu": 1, "Pad": 1, "QLinearConv": 1, "QLinearMatMul": 1, "QuantizeLinear": 1, "RMSNormalization": 1, "RNN": 1,
    "Resize": 1, "RotaryEmbedding": 1, "RoiAlign": 2, "Upsample": 1,
}  # fmt: skip
"""Operator → how many of its inputs are data; the rest are parameters, which a model holds as constants."""
PASSED_ON = ("Dropout", "Identity")
"""Operators that only pass their input on: alone they leave a runtime nothing to do; they stand between negations."""
FIRST_ONLY = ("LayerNormalization",)
"""Operators of which models use the first output alone, whatever the suite asks for."""
RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
          "RandomUniformLike")  # fmt: skip
"""Operators whose values are not compared, only their types and shapes."""
PLAIN = ("bool", "float32", "float64", "int32", "int64", "int8", "uint8")
"""Types of a test that counts: others (bfloat16, strings) say nothing about the three precisions."""
CASTS: Mapping[str, tuple[str, str]] = {
    "cast_float_to_int64": ("float32", "int64"),
    "cast_int64_to_float": ("int64", "float32"),
    "cast_float_to_bool": ("float32", "bool"),
    "cast_int64_to_int32": ("int64", "int32"),
}
"""Tests of our own: ONNX's are of rarer types."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        name: ONNX's.
        op: The operator.
        model: One node; more after `quantised`.
        feeds: Its inputs.
        wants: Output → what it should be.
    """

    name: str
    op: str
    model: Model
    feeds: dict[str, NDArray[Any]]
    wants: dict[str, NDArray[Any]]

    @property
    def floats(self) -> bool:
        """Whether it computes with floats at all."""
        arrays = (*self.feeds.values(), *self.wants.values())
        return any(a.dtype == np.float32 for a in arrays) and self.op not in ("Cast", "CastLike", "Shape", "Size")


@cache
def suite() -> dict[str, tuple[Any, ...]]:
    """Operator → ONNX's tests of one such node, by name."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, list[Any]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, while ONNX computes its own edge cases
        for case in collect_testcases(None):
            if case.model is not None and len(case.model.graph.node) == 1 and not case.model.graph.node[0].domain:
                found[case.model.graph.node[0].op_type].append(case)
    return {op: tuple(sorted(cases, key=lambda c: c.name)) for op, cases in sorted(found.items())}


def chosen(op: str, most: int) -> list[str]:
    """Names of at most so many tests of an operator, spread over all of its plain ones."""
    if op == "Cast":
        return list(CASTS)
    names = [c.name for c in suite()[op] if _plain(c)]
    step = max(1.0, len(names) / most)
    return [names[int(i * step)] for i in range(min(most, len(names)))]


def case(op: str, name: str) -> Case:
    """One test, ready for a runtime. Doubles become floats: they stand for "some float" in the suite."""
    if op == "Cast":
        return _cast(name)
    given = next(c for c in suite()[op] if c.name == name)
    proto = onnx.ModelProto()
    proto.CopyFrom(given.model)
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    node = proto.graph.node[0]
    node.name = NODE
    inputs, outputs = ([_single(a) for a in side] for side in given.data_sets[0][:2])
    arrays = dict(zip([v.name for v in proto.graph.input], inputs, strict=True))
    data = [n for n in node.input[: DATA_INPUTS.get(op, 99)] if n]
    first = arrays[data[0]].dtype if data and data[0] in arrays else None
    keep = [n for n in data if n in arrays and (n == data[0] or not _shapes(first, arrays[n]))]
    for value in [v for v in proto.graph.input if v.name not in keep]:
        proto.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
        proto.graph.input.remove(value)
    if op in FIRST_ONLY:
        del proto.graph.node[0].output[1:], proto.graph.output[1:], outputs[1:]
    _lower(proto)
    wants = dict(zip([v.name for v in proto.graph.output], outputs, strict=True))
    if op in PASSED_ON and wants[proto.graph.output[0].name].dtype == np.float32:
        _between_negations(proto)
    model = Model.of(ir.from_proto(proto), name)
    return Case(name, op, model, {n: arrays[n] for n in dict.fromkeys(keep)}, wants)


def quantised(given: Case, scheme: QuantScheme) -> Case | None:
    """A case with Q/DQ around its node, as a scheme wants it of a follower; None where it has no float to quantise.

    An operator that only moves values keeps the parameters of its first input.
    """
    graph = given.model.graph.clone()
    node = next(n for n in graph.graph if n.name == NODE)
    spread: dict[str, tuple[float, float]] = {}
    constants = {n: v.const_value.numpy() for n, v in graph.graph.initializers.items() if v.const_value is not None}
    for name, array in {**constants, **given.feeds, **given.wants}.items():
        if array.dtype == np.float32 and array.size and np.isfinite(array).all():
            spread[name] = (min(0.0, float(array.min())), max(0.0, float(array.max())))
    shares = given.op in scheme.share
    wanted = [v for v in node.inputs[: 1 if shares else None] if v is not None and v.name in spread]
    made = [v for v in node.outputs if v.name in spread]
    if not wanted or not made:
        return None
    together = [*wanted, *made] if shares or given.op in scheme.one_scale else []
    if together:
        ends = [spread[v.name or ""] for v in together]
        spread |= dict.fromkeys([v.name or "" for v in together], (min(e[0] for e in ends), max(e[1] for e in ends)))

    def pair(value: ir.Value, fixed: tuple[float, int] | None) -> ir.Value:
        low, high = spread[value.name or ""]
        p = params(low, high, scheme.activation, symmetric=scheme.activation_symmetric)
        scale, zero = (np.asarray(p.scale, np.float32), p.zero_point)
        if fixed is not None:
            scale, zero = np.array(fixed[0], np.float32), np.array(fixed[1], scheme.activation)
        held = [
            ir.Value(name=f"{value.name}_{what}", const_value=ir.tensor(np.asarray(array).reshape(())))
            for what, array in (("scale", scale), ("zero", zero))
        ]
        for v in held:
            graph.graph.initializers[v.name or ""] = v
        q = ir.node("QuantizeLinear", [value, *held], name=f"{value.name}_q")
        dq = ir.node("DequantizeLinear", [q.outputs[0], *held], name=f"{value.name}_dq")
        dq.outputs[0].dtype, dq.outputs[0].shape = value.dtype, value.shape
        graph.graph.extend([q, dq])
        return dq.outputs[0]

    for value in dict.fromkeys(wanted):
        replaced = pair(value, None)
        for i, source in enumerate(node.inputs):
            if source is value:
                node.replace_input_with(i, replaced)
    for value in made:
        replaced = pair(value, scheme.fixed_output.get(given.op))
        index = list(graph.graph.outputs).index(value)
        name, value.name = value.name, f"{value.name}_float"
        replaced.name = name
        graph.graph.outputs[index] = replaced
    graph.graph.sort()
    return Case(given.name, given.op, Model.of(graph, given.name), given.feeds, given.wants)


def _plain(given: Any) -> bool:
    if not given.data_sets:
        return False
    inputs, outputs = given.data_sets[0]
    values = (*inputs, *outputs)
    if not inputs or not all(isinstance(a, np.ndarray | np.generic) and a.dtype.name in PLAIN for a in values):
        return False
    return all(a.size for a in outputs)


def _single(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _cast(name: str) -> Case:
    source, to = CASTS[name]
    x = np.array([[-2, 0, 3], [1, 7, -1]]).astype(source)
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (source, to)]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["x"], ["y"], name=NODE, to=kinds[1])],
        name,
        [info("x", kinds[0], x.shape)],
        [info("y", kinds[1], x.shape)],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8)
    return Case(name, "Cast", Model.of(ir.from_proto(made), name), {"x": x}, {"y": x.astype(to)})


def _shapes(first: Any, array: NDArray[Any]) -> bool:
    """Whether an input beside float data is one of whole numbers: axes, sizes, indices."""
    return bool(first is not None and first.kind == "f" and array.dtype == np.int64)


def _between_negations(proto: onnx.ModelProto) -> None:
    node, source, made = proto.graph.node[0], proto.graph.input[0].name, proto.graph.output[0].name
    node.input[0], node.output[0] = "negated", "passed_on"
    proto.graph.node.insert(0, onnx.helper.make_node("Neg", [source], ["negated"]))
    proto.graph.node.append(onnx.helper.make_node("Neg", ["passed_on"], [made]))


def _lower(proto: onnx.ModelProto) -> None:
    """Give it the oldest opset from 17 on under which ONNX's own checker takes it."""
    newest, newest_ir = proto.opset_import[0].version, proto.ir_version
    for version in range(OPSET, max(OPSET + 1, newest)):
        proto.opset_import[0].version = version
        proto.ir_version = min(newest_ir, 8 if version <= 18 else 10)
        if _valid(proto):
            return
    proto.opset_import[0].version, proto.ir_version = newest, newest_ir


def _valid(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception:  # the checker has many errors, and each means no
        return False
    return True
