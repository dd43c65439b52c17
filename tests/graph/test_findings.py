from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.graph.facts import Finding
from edgeproof.graph.findings import CHECKS
from edgeproof.graph.inspection import Inspection, inspect_model
from edgeproof.model import Model, load_model

F = TensorProto.FLOAT
RNG = np.random.default_rng(0)


def info(name: str, shape: list[int | str] | None, dtype: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def proto_of(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    opset: int = 17,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [info("x", [1, 3, 8, 8])],
        outputs or [info("y", None)],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if outputs is None:  # ONNX's checker wants a rank for every output
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output[0]
        proto.graph.output[0].CopyFrom(inferred)
    return proto


def inspected(proto: onnx.ModelProto) -> Inspection:
    return inspect_model(Model.of(ir.from_proto(proto), "m"))


def found(proto: onnx.ModelProto, check: str) -> list[Finding]:
    return [f for f in inspected(proto).findings if f.check == check]


def conv(weight: np.ndarray | None = None, bias: np.ndarray | None = None) -> onnx.ModelProto:
    weights = {"w": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32) if weight is None else weight}
    if bias is not None:
        weights["b"] = bias
    return proto_of([helper.make_node("Conv", ["x", *weights], ["y"], name="conv")], weights)


def test_a_sound_model_has_no_findings_and_every_check_is_assessed() -> None:
    result = inspected(conv())
    assert result.findings == ()
    assert {c.state for c in result.checks} == {"assessed"}
    assert [c.name for c in result.checks] == [c.__name__ for c in CHECKS]
    assert all(c.question for c in result.checks)


def test_nan_and_infinite_weights_are_defects_with_their_count() -> None:
    bias = np.array([1, np.nan, np.inf, np.nan], np.float32)
    assert found(conv(bias=bias), "finite_weights") == [
        Finding(
            "defect",
            "finite_weights",
            "b",
            "holds 2 NaN and 1 infinite of 4 values",
            "train or export it again; no measurement of this model means anything",
        )
    ]


def test_a_nan_is_found_in_a_branch_a_constant_and_half_precision() -> None:
    half = numpy_helper.from_array(np.array([1, np.nan], np.float16), "h")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=half),
        helper.make_node("Cast", ["c"], ["f"], to=F),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    (finding,) = found(proto_of(nodes, inputs=[info("x", [2])]), "finite_weights")
    assert (finding.kind, finding.subject) == ("defect", "c")

    def branch(value: float) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(np.full(2, value, np.float32), f"k{value}")
        node = helper.make_node("Add", ["x", f"k{value}"], [f"o{value}"])
        return helper.make_graph([node], "b", [], [info(f"o{value}", [2])], [tensor])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch(1.0), else_branch=branch(np.nan))
    proto = proto_of([node], inputs=[info("c", [], TensorProto.BOOL), info("x", [2])])
    (finding,) = found(proto, "finite_weights")
    assert finding.subject == "knan"


def test_a_single_infinity_is_a_mask_and_only_a_caution() -> None:
    nodes = [helper.make_node("Where", ["m", "x", "low"], ["y"])]
    inputs = [info("x", [4]), info("m", [4], TensorProto.BOOL)]
    (finding,) = found(proto_of(nodes, {"low": np.float32(-np.inf)}, inputs), "finite_weights")
    assert finding.kind == "caution"


def test_weights_beyond_half_precision_are_cautions() -> None:
    weight = np.zeros((4, 3, 3, 3), np.float32) + 1
    weight[0, 0, 0, 0] = -65505.0
    (finding,) = found(conv(weight), "fp16_range")
    assert (finding.kind, finding.subject, finding.problem) == (
        "caution",
        "w",
        "largest magnitude 65505; FP16 ends at 65504",
    )
    weight[0, 0, 0, 0] = 65504.0
    assert found(conv(weight), "fp16_range") == []
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(65520).astype(np.float16))  # what the limit stands for


def test_double_precision_is_a_caution() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = proto_of(nodes, {"w": np.ones(3)}, [info("x", [3], TensorProto.DOUBLE)])
    assert [f.subject for f in found(proto, "float64_weights")] == ["w"]
    assert [f.subject for f in found(proto, "interface_types")] == ["x"]


def test_unused_and_duplicate_weights_are_named() -> None:
    proto = conv()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(32, np.float32), "spare"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(32, np.float32), "twin"))
    assert [f.subject for f in found(proto, "unused_weights")] == ["spare", "twin"]
    (finding,) = found(proto, "duplicate_weights")
    assert finding.problem == "the same 128 bytes are stored 2 times: spare, twin"


def test_a_weight_that_only_a_branch_reads_is_used() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node("Add", ["x", "w"], [name])], name, [], [info(name, [2])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    inputs = [info("c", [], TensorProto.BOOL), info("x", [2])]
    assert found(proto_of([node], {"w": np.ones(2, np.float32)}, inputs), "unused_weights") == []


def test_dead_channels_are_counted_along_the_right_axis() -> None:
    weight = np.ones((4, 3, 3, 3), np.float32)
    weight[[1, 3]] = 0
    (finding,) = found(conv(weight), "dead_channels")
    assert finding.problem == "2 of 4 output channels of conv are zero (1, 3)"
    assert found(conv(np.ones((4, 3, 3, 3), np.float32) * np.array([0, 1, 1])[:, None, None]), "dead_channels") == []

    matrix = np.ones((5, 4), np.float32)
    matrix[:, 2] = 0
    proto = proto_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], {"w": matrix}, [info("x", [2, 5])])
    (finding,) = found(proto, "dead_channels")
    assert finding.problem == "1 of 4 output channels of mm are zero (2)"

    up = np.ones((4, 3, 2, 2), np.float32)  # [C, M/group], so channel 4 is number 1 of group 1
    up[2:, 1] = 0
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up", group=2)
    (finding,) = found(proto_of([node], {"w": up}, [info("x", [1, 4, 5, 5])]), "dead_channels")
    assert finding.problem == "1 of 6 output channels of up are zero (4)"


def test_channels_that_one_int8_scale_rounds_to_zero_are_counted() -> None:
    weight = np.ones((4, 3, 3, 3), np.float32)
    weight[2] = 1 / 300
    (finding,) = found(conv(weight), "channel_range")
    assert "one INT8 scale rounds 1 of 4 channels to zero" in finding.problem
    # The same by quantising: symmetric, 127 steps, half to even.
    assert [np.any(np.rint(c * 127)) for c in weight] == [True, True, False, True]
    weight[2] = 1 / 250
    assert found(conv(weight), "channel_range") == []
    assert np.any(np.rint(weight[2] * 127))


def test_a_quantised_model_is_said_to_be_one_and_a_zero_scale_is_a_defect() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"], name="dq"),
    ]
    good = found(proto_of(nodes, {"s": np.float32(0.1)}), "quantisation")
    assert [f.kind for f in good] == ["caution"]
    assert good[0].problem == "is quantised already: 2 QuantizeLinear and DequantizeLinear nodes"
    bad = found(proto_of(nodes, {"s": np.float32(0)}), "quantisation")
    assert [f.kind for f in bad] == ["defect", "defect", "caution"]
    assert bad[1].problem == "1 of 1 scales of dq are zero, negative or NaN; expected > 0"


def test_an_unknown_operator_domain_is_a_defect_and_a_runtimes_is_a_caution() -> None:
    proto = proto_of([helper.make_node("Magic", ["x"], ["y"], name="m1", domain="acme")], domains=("acme",))
    assert found(proto, "operators") == [
        Finding(
            "defect",
            "operators",
            "acme.Magic",
            "used 1× (m1); operator domain 'acme' is unknown and the model does not define it",
            "include it as a model function, or export the model with ONNX's own operators",
        )
    ]
    assert [f.kind for f in found(proto, "known_shapes")] == ["gap"]
    assert [(f.kind, f.subject, f.problem) for f in found(proto, "known_costs")] == [
        ("gap", "m1", "MACs unknown: no rule for operator acme.Magic"),
        ("gap", "m1", "memory unknown: the shape of 'y' is unknown"),
    ]

    node = helper.make_node("Gelu", ["x"], ["y"], name="g", domain="com.microsoft")
    (finding,) = found(proto_of([node], domains=("com.microsoft",)), "operators")
    assert (finding.kind, finding.problem) == ("caution", "used 1× (g); only ONNX Runtime runs it")


def test_a_domain_that_the_model_defines_is_fine() -> None:
    body = helper.make_function(
        "acme", "Magic", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    node = helper.make_node("Magic", ["x"], ["y"], domain="acme")
    proto = proto_of([node], outputs=[info("y", [1, 3, 8, 8])], domains=("acme",))
    proto.functions.append(body)
    assert inspected(proto).findings == ()


def test_a_missing_opset_import_is_a_defect() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    proto = proto_of([node], outputs=[info("y", [1, 3, 8, 8])])
    finding = next(f for f in found(proto, "operators") if f.kind == "defect")
    assert finding.subject == "com.microsoft"
    assert finding.problem == "operators of this domain are used, but the model imports no opset of it"


def test_an_operator_that_the_opset_lacks_is_a_defect() -> None:
    proto = proto_of([helper.make_node("Gelu", ["x"], ["y"], name="g")], opset=17)  # Gelu came with 20
    (finding,) = found(proto, "operators")
    assert finding.problem == "used 1× (g); opset 17 of ai.onnx has no such operator"
    assert [f.kind for f in found(proto, "onnx_checker")] == ["defect"]


def test_deprecated_operators_and_old_opsets_are_cautions() -> None:
    node = helper.make_node("Upsample", ["x", "scales"], ["y"], name="up")
    proto = proto_of([node], {"scales": np.array([1, 1, 2, 2], np.float32)}, opset=10)
    (finding,) = found(proto, "operators")
    assert (finding.kind, finding.problem) == ("caution", "used 1× (up); deprecated since opset 10")
    (finding,) = found(proto, "opset")
    assert (finding.subject, finding.problem) == ("ai.onnx 10", "is older than 13: no quantisation per channel")


def test_an_opset_of_the_future_is_a_gap() -> None:
    proto = conv()
    proto.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    (finding,) = found(proto, "opset")
    assert finding.kind == "gap"
    assert next(c.state for c in inspected(proto).checks if c.name == "opset") == "partial"


def test_shapes_that_contradict_each_other_are_a_defect() -> None:
    proto = proto_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        {"w": np.ones((5, 4), np.float32)},
        [info("x", [2, 3])],
    )
    (finding,) = found(proto, "consistent_shapes")
    assert finding.kind == "defect"
    assert "Incompatible dimensions" in finding.problem


def test_a_given_shape_that_the_model_cannot_take_is_no_defect_of_the_model() -> None:
    """Down by 2 and up again: only even sizes meet the skip connection."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], mode="nearest"),
        helper.make_node("Add", ["x", "b"], ["y"]),
    ]
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    proto = proto_of(nodes, weights, [info("x", [1, 3, "h", "w"])], [info("y", [1, 3, "h", "w"])])
    model = Model.of(ir.from_proto(proto), "m")
    even = inspect_model(model, shapes={"x": (1, 3, 8, 8)})
    assert [f for f in even.findings if f.check == "consistent_shapes"] == []
    odd = inspect_model(model, shapes={"x": (1, 3, 9, 8)})
    (finding,) = [f for f in odd.findings if f.check == "consistent_shapes"]
    assert (finding.kind, finding.subject) == ("caution", "--shape x=1,3,9,8")


def test_a_declared_output_shape_that_cannot_be_is_a_defect() -> None:
    proto = proto_of([helper.make_node("Relu", ["x"], ["y"])], outputs=[info("y", [1, 3, 8, 9])])
    assert [f.kind for f in found(proto, "consistent_shapes")] == ["defect"]


def test_dynamic_inputs_are_cautions_with_the_shape_to_give() -> None:
    proto = proto_of([helper.make_node("Relu", ["x"], ["y"])], inputs=[info("x", ["N", 3, "h", "w"])])
    (finding,) = found(proto, "dynamic_inputs")
    assert finding.problem == "has open dimensions: x float32[N, 3, h, w]"
    assert finding.hint == (
        "many accelerators need fixed shapes: edgeproof apply fix_shapes m --shapes x=1,3,224,224 --out fixed.onnx"
    )
    (gap,) = found(proto, "known_shapes")
    assert gap.problem == "1 of 1 values have open dimensions; costs are given as expressions"


def test_constants_left_to_compute_are_named() -> None:
    nodes = [helper.make_node("Mul", ["a", "a"], ["b"], name="square"), helper.make_node("Add", ["x", "b"], ["y"])]
    (finding,) = found(proto_of(nodes, {"a": np.ones(8, np.float32)}), "constant_subgraphs")
    assert finding.problem == "1 operators compute constants: square"


def test_training_mode_is_a_caution() -> None:
    weights = {n: np.ones(3, np.float32) for n in ("s", "b", "m", "v")}
    nodes = [
        helper.make_node("BatchNormalization", ["x", *weights], ["a", "m2", "v2"], name="bn", training_mode=1),
        helper.make_node("Dropout", ["a", "", "on"], ["y"], name="drop"),
    ]
    proto = proto_of(nodes, {**weights, "on": np.array(True)})
    assert [f.subject for f in found(proto, "training_mode")] == ["bn", "drop"]
    nodes = [
        helper.make_node("BatchNormalization", ["x", *weights], ["a"], name="bn"),
        helper.make_node("Dropout", ["a"], ["y"], name="drop"),
    ]
    assert found(proto_of(nodes, weights), "training_mode") == []


def test_external_weights_are_a_caution_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(conv(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    result = inspect_model(load_model(path), path)
    assert [(f.kind, f.subject) for f in result.findings] == [("caution", "m.data")]
    assert result.findings[0].problem == "holds 432 bytes of weights"


def test_every_tensor_is_digested() -> None:
    weight = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3)
    before, after = inspected(conv(weight)), inspected(conv(weight + 1))
    assert [(n, d, s) for n, d, s, _ in before.tensors] == [("w", "float", (4, 3, 3, 3))]
    assert before.tensors[0][3] != after.tensors[0][3]


def test_findings_come_defects_first() -> None:
    weight = np.zeros((4, 3, 3, 3), np.float32)
    weight[0] = np.nan
    proto = conv(weight)
    proto.opset_import[0].version = 11
    kinds = [f.kind for f in inspected(proto).findings]
    assert kinds == sorted(kinds, key=["defect", "caution", "gap"].index)
    assert {"defect", "caution"} <= set(kinds)


def test_a_check_that_fails_is_unavailable_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import edgeproof.graph.findings as findings

    def broken(facts: object) -> None:
        """It breaks."""
        raise RuntimeError("boom")

    monkeypatch.setattr(findings, "CHECKS", (broken, *CHECKS))
    result = inspected(conv())
    assert [(c.name, c.state) for c in result.checks][:2] == [("broken", "unavailable"), ("onnx_checker", "assessed")]
    assert [(f.kind, f.problem) for f in result.findings] == [("gap", "the check failed: RuntimeError: boom")]


def test_a_huge_model_is_checked_without_its_weights_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import edgeproof.graph.graph_checks as graph_checks

    monkeypatch.setattr(graph_checks, "CHECKER_LIMIT_BYTES", 1000)
    weight = RNG.normal(size=(64, 3, 5, 5)).astype(np.float32)
    result = inspected(conv(weight))
    check = next(c for c in result.checks if c.name == "onnx_checker")
    assert (check.state, check.reason) == ("partial", "the 19,200 bytes of weights were left out")
    assert result.findings == ()
    proto = conv(weight)
    proto.graph.node[0].attribute.append(helper.make_attribute("no_such", 1))
    (finding,) = found(proto, "onnx_checker")
    assert "no_such" in finding.problem
