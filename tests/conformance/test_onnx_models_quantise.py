"""Every model of ONNX's backend test suite is quantised with sane outputs, or declined with a reason; none crashes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.change import Change
from edgeproof.dataset import Feeds
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.passes.int8_accurate import Int8Accurate
from edgeproof.protocols import Context, Pass
from edgeproof.quant.numerics import sqnr_db
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = sorted(p.stem for p in (DATA / "light").glob("*.onnx"))
WEIGHTED = {"Conv", "Gemm", "MatMul"}


@dataclass(frozen=True)
class Case:
    name: str
    proto: onnx.ModelProto
    inputs: list[object]
    outputs: list[object]


def quantised(model: Model, feeds: list[Feeds], step: Pass = Int8()) -> Change:  # noqa: B008
    compile_ = lambda m: OnnxRuntime().compile(m, TARGET)  # noqa: E731
    return step(model, Context(compile_, lambda: iter(feeds), len(feeds), TARGET))


def stored() -> Iterator[Case]:
    """The suites that come as files."""
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for folder in sorted((DATA / kind).iterdir()):
            proto = onnx.load(folder / "model.onnx")
            sets = folder / "test_data_set_0"
            yield Case(
                folder.name,
                proto,
                [read(sets / f"input_{i}.pb") for i in range(len(list(sets.glob("input_*.pb"))))],
                [read(sets / f"output_{i}.pb") for i in range(len(proto.graph.output))],
            )


def generated() -> Iterator[Case]:
    """The suite of single nodes, which the onnx package makes on the fly."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, while ONNX computes its own edge cases
        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None and case.data_sets:
            inputs, outputs = case.data_sets[0]
            yield Case(case.name, case.model, list(inputs), list(outputs))


def read(path: Path) -> object:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return numpy_helper.to_array(tensor)
    except Exception:  # a sequence or an optional
        return None


def frozen(case: Case) -> Case:
    """The case with every input but the first as a weight."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.proto)
    for value, array in list(zip(case.proto.graph.input, case.inputs, strict=False))[1:]:
        if isinstance(array, np.ndarray) and array.dtype == np.float32:
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
    held = {i.name for i in proto.graph.initializer}
    keep = [i for i, v in enumerate(case.proto.graph.input) if v.name not in held]
    return Case(f"{case.name} frozen", proto, [case.inputs[i] for i in keep if i < len(case.inputs)], case.outputs)


def outcome(case: Case, step: Pass = Int8()) -> str:  # noqa: B008
    """``quantised``, with the outputs that ONNX gives for the case, or ``declined``."""
    model = Model.of(ir.from_proto(case.proto), case.name)
    names = [v.name for v in case.proto.graph.input if v.name not in {i.name for i in case.proto.graph.initializer}]
    feeds = {n: a for n, a in zip(names, case.inputs, strict=False) if isinstance(a, np.ndarray)}
    change = quantised(model, [feeds], step)
    if not change.modified:
        assert change.declined, case.name
        assert all(node and reason for node, reason in change.declined), case.name
        return "declined"
    got = OnnxRuntime().compile(change.model, TARGET).run(feeds)
    for spec, want in zip(model.outputs, case.outputs, strict=False):
        if isinstance(want, np.ndarray) and want.dtype == np.float32:
            assert got[spec.name].shape == want.shape, case.name
            assert sqnr_db(want, got[spec.name]) > 25.0, case.name
    return "quantised"


def test_stored_models_are_quantised_or_declined_with_a_reason() -> None:
    counts = Counter(outcome(case) for case in stored())
    assert sum(counts.values()) > 130
    assert counts["quantised"] >= 27


def test_single_nodes_are_quantised_or_declined_with_a_reason() -> None:
    counts = Counter(outcome(case) for case in generated())
    assert sum(counts.values()) > 25.0


def test_single_nodes_with_constant_weights_are_quantised_or_declined_with_a_reason() -> None:
    cases = [frozen(c) for c in generated() if any(n.op_type in WEIGHTED for n in c.proto.graph.node)]
    counts = Counter(outcome(case) for case in cases)
    assert len(cases) > 20
    assert counts["quantised"] > 15


def test_the_most_accurate_int8_takes_or_declines_the_same_models() -> None:
    step = Int8Accurate(methods="mse")
    cases = [frozen(c) for c in generated() if any(n.op_type in WEIGHTED for n in c.proto.graph.node)]
    counts = Counter(outcome(case, step) for case in (*cases, *stored()))
    assert counts["quantised"] > 40


def with_random_weights(name: str) -> Model:
    """A light architecture whose weights, all equal in the file, are drawn at random (He et al. 2015, eq. 10)."""
    proto = onnx.load(DATA / "light" / f"{name}.onnx")
    shapes = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    rng = np.random.default_rng(0)
    reads = {n: node.op_type for node in proto.graph.node for n in node.input}
    for node in [n for n in proto.graph.node if n.op_type == "ConstantOfShape"]:
        shape = tuple(int(d) for d in shapes[node.input[0]])
        array = rng.standard_normal(shape, np.float32)
        if len(shape) > 1:
            array *= np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        elif reads[node.output[0]] in ("BatchNormalization", "Mul"):
            array = np.abs(array) * np.float32(0.2) + np.float32(0.9)
        else:
            array *= np.float32(0.05)
        proto.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        proto.graph.node.remove(node)
    last = proto.graph.node[-1]
    if last.op_type == "Softmax":  # scores say more than saturated probabilities
        proto.graph.output[0].name = last.input[0]
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        proto.graph.node.remove(last)
    return Model.of(ir.from_proto(proto), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_architectures_keep_their_outputs(name: str) -> None:
    model = with_random_weights(name)
    spec = model.inputs[0]
    rng = np.random.default_rng(1)
    shape = [d if isinstance(d, int) else 1 for d in spec.shape or ()]
    samples = [{spec.name: rng.standard_normal(shape, np.float32)} for _ in range(2)]
    change = quantised(model, samples)
    ops = Counter(n.op_type for n in model.graph.graph)
    assert change.modified
    assert sum("(Conv)" in a for a in change.applied) == ops["Conv"]
    assert {reason for _, reason in change.declined} <= {"its weight is not a constant"}  # one Reshape of a weight
    want = OnnxRuntime().compile(model, TARGET).run(samples[0])
    got = OnnxRuntime().compile(change.model, TARGET).run(samples[0])
    for output in want:
        assert sqnr_db(want[output], got[output]) > 25.0
