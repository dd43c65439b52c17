"""Spelled-out activations become operators that mean the same, and everything else stays."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgeproof.change import Change
from edgeproof.model import Model
from edgeproof.passes.fuse_activation import FuseActivation
from edgeproof.protocols import Context

SHAPE = (2, 3, 4, 5)


def never(_model: Model):
    raise AssertionError("the pass needs no session")


def constant(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def build(
    nodes, constants=(), *, opset=13, dtype=np.float32, outputs=("y",), shape=SHAPE, out_shape=None, as_nodes=False
):
    """A model with one input x; constants as initializers or Constant nodes."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = [helper.make_node("Constant", [], [c.name], value=c) for c in constants] if as_nodes else []
    for i, node in enumerate(nodes):
        node.name = node.name or f"n{i}"
    graph = helper.make_graph(
        [*made, *nodes],
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(o, kind, out_shape or shape) for o in outputs],
        [] if as_nodes else list(constants),
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.of(ir.from_proto(proto), "m")


def apply(model: Model, **fields) -> Change:
    before = model.to_bytes()
    change = FuseActivation(**fields)(model, Context(compile=never))
    assert model.to_bytes() == before
    onnx.checker.check_model(onnx.load_from_string(change.model.to_bytes()))
    assert [(i.name, i.dtype, i.shape) for i in change.model.inputs] == [
        (i.name, i.dtype, i.shape) for i in model.inputs
    ]
    assert [o.name for o in change.model.outputs] == [o.name for o in model.outputs]
    assert change.modified == bool(change.applied) == (change.model.digest != model.digest)
    return change


def ops(model: Model) -> dict[str, int]:
    return dict(Counter(n.op_type for n in model.graph.graph if n.op_type != "Constant"))


def run(model: Model, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(onnx.load_from_string(model.to_bytes())).run(None, {model.inputs[0].name: x})


def run_ort(model: Model, x):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {model.inputs[0].name: x})


def values(dtype=np.float32, shape=SHAPE):
    """Both sides of every bend, and the bends themselves."""
    n = int(np.prod(shape))
    x = np.random.default_rng(0).uniform(-8, 8, n)
    x[:6] = [-3, 3, 0, -20, 20, 6]
    return x.reshape(shape).astype(dtype)


def same(model: Model, change: Change, tolerance=2e-6, dtype=np.float32):
    x = values(dtype, model.inputs[0].shape)
    for runner in (run, run_ort):
        for want, got in zip(runner(model, x), runner(change.model, x), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def spelled(order, divide, swaps=(False, False, False), three=3.0, six=6.0):
    """Nodes of x·Clip(x + 3, 0, 6)/6 with the division at one of three places."""

    def pair(a, b, swap):
        return [b, a] if swap else [a, b]

    step = helper.make_node
    scale = (
        (lambda i, o: step("Div", [i, "six"], [o]))
        if divide
        else (lambda i, o: step("Mul", pair(i, "sixth", swaps[2]), [o]))
    )
    nodes = [step("Add", pair("x", "three", swaps[0]), ["a"]), step("Clip", ["a", "zero", "top"], ["c"])]
    if order == "after the product":
        nodes += [step("Mul", pair("x", "c", swaps[1]), ["m"]), scale("m", "y")]
    elif order == "after the clip":
        nodes += [scale("c", "d"), step("Mul", pair("x", "d", swaps[1]), ["y"])]
    else:
        nodes += [scale("x", "d"), step("Mul", pair("d", "c", swaps[1]), ["y"])]
    constants = {"three": three, "zero": 0.0, "top": 6.0, "six": six, "sixth": 1 / six}
    used = {i for n in nodes for i in n.input}
    return nodes, {k: v for k, v in constants.items() if k in used}


ORDERS = ("after the product", "after the clip", "before the product")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("opset", [11, 13, 14, 20])
def test_hard_swish_is_found_in_every_order(order, divide, opset):
    for swaps in itertools.product([False, True], repeat=3):
        nodes, constants = spelled(order, divide, swaps)
        model = build(nodes, [constant(k, v) for k, v in constants.items()], opset=opset)
        change = apply(model)
        assert ops(change.model) == ({"HardSwish": 1} if opset >= 14 else {"HardSigmoid": 1, "Mul": 1})
        assert not change.model.graph.graph.initializers
        assert change.declined == ()
        same(model, change)


def test_constant_nodes_and_constants_of_one_entry_are_read():
    for shape in ((), (1,), (1, 1, 1), (1, 1, 1, 1)):
        nodes, constants = spelled("after the product", True)
        made = [constant(k, np.full(() if k in ("zero", "top") else shape, v)) for k, v in constants.items()]
        model = build(nodes, made, as_nodes=True)
        change = apply(model)
        assert [n.op_type for n in change.model.graph.graph] == ["HardSigmoid", "Mul"]
        same(model, change)


def test_the_operator_can_be_kept_out():
    nodes, constants = spelled("after the product", True)
    model = build(nodes, [constant(k, v) for k, v in constants.items()], opset=14)
    assert ops(apply(model, hard_swish=False).model) == {"HardSigmoid": 1, "Mul": 1}


def test_clip_with_attributes_is_read_below_opset_11():
    nodes, constants = spelled("after the product", True)
    nodes[1] = helper.make_node("Clip", ["a"], ["c"], min=0.0, max=6.0)
    model = build(nodes, [constant(k, v) for k, v in constants.items() if k in ("three", "six")], opset=10)
    change = apply(model)
    assert ops(change.model) == {"HardSigmoid": 1, "Mul": 1}
    same(model, change)


def test_the_name_of_the_output_and_every_node_appear_in_the_report():
    nodes, constants = spelled("after the product", True)
    change = apply(build(nodes, [constant(k, v) for k, v in constants.items()]))
    assert change.applied == ("wrote HardSigmoid and Mul: 1 (n0 + n1 + n2 + n3)",)


def test_float16_is_rewritten_within_its_precision():
    nodes, constants = spelled("after the product", True)
    model = build(nodes, [constant(k, v, np.float16) for k, v in constants.items()], dtype=np.float16)
    change = apply(model)
    assert ops(change.model) == {"HardSigmoid": 1, "Mul": 1}
    same(model, change, tolerance=8e-3, dtype=np.float16)


def test_hard_sigmoid_with_any_slope_is_found():
    step = helper.make_node
    nodes = [
        step("Mul", ["slope", "x"], ["s"]),
        step("Sub", ["s", "minus"], ["a"]),
        step("Clip", ["a", "zero", "five"], ["c"]),
        step("Div", ["c", "five"], ["y"]),
    ]
    constants = [constant("slope", 2), constant("minus", -1.5), constant("zero", 0), constant("five", 5)]
    model = build(nodes, constants)
    change = apply(model)
    (node,) = change.model.graph.graph
    assert node.op_type == "HardSigmoid"
    assert node.attributes["alpha"].value == pytest.approx(0.4)
    assert node.attributes["beta"].value == pytest.approx(0.3)
    same(model, change)


def test_a_clip_to_one_needs_no_division():
    step = helper.make_node
    nodes = [
        step("Mul", ["x", "slope"], ["s"]),
        step("Add", ["s", "half"], ["a"]),
        step("Clip", ["a", "zero", "one"], ["y"]),
    ]
    model = build(nodes, [constant("slope", 0.2), constant("half", 0.5), constant("zero", 0), constant("one", 1)])
    change = apply(model)
    assert ops(change.model) == {"HardSigmoid": 1}
    same(model, change)


@pytest.mark.parametrize("form", ["max first", "min first", "relu"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("opset", [10, 11, 13])
def test_min_and_max_become_clip(form, swap, opset):
    def pair(a, b):
        return [b, a] if swap else [a, b]

    step = helper.make_node
    low = step("Relu", ["x"], ["a"]) if form == "relu" else step("Max", pair("x", "zero"), ["a"])
    nodes = [low, step("Min", pair("a", "six"), ["y"])]
    if form == "min first":
        nodes = [step("Min", pair("x", "six"), ["a"]), step("Max", pair("a", "zero"), ["y"])]
    constants = [constant("six", 6)] + ([] if form == "relu" else [constant("zero", 0)])
    model = build(nodes, constants, opset=opset)
    change = apply(model)
    assert ops(change.model) == {"Clip": 1}
    same(model, change, tolerance=0)
    assert not apply(model, clip=False).modified


def test_hard_swish_spelled_with_min_and_max_takes_two_steps():
    nodes, constants = spelled("after the product", True)
    nodes[1:2] = [
        helper.make_node("Max", ["a", "zero"], ["r"]),
        helper.make_node("Min", ["r", "top"], ["c"]),
    ]
    model = build(nodes, [constant(k, v) for k, v in constants.items()], opset=14)
    change = apply(model)
    assert ops(change.model) == {"HardSwish": 1}
    assert len(change.applied) == 3
    same(model, change)


def test_a_second_run_changes_nothing():
    nodes, constants = spelled("after the product", True)
    change = apply(build(nodes, [constant(k, v) for k, v in constants.items()]))
    again = apply(change.model)
    assert not again.modified
    assert again.model is change.model


def test_a_branch_is_rewritten_inside():
    nodes, constants = spelled("after the product", True)
    for i, node in enumerate(nodes):
        node.name = f"b{i}"
    kind = TensorProto.FLOAT
    inner = helper.make_graph(nodes, "then", [], [helper.make_tensor_value_info("y", kind, SHAPE)])
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])], "else", [], [helper.make_tensor_value_info("z", kind, SHAPE)]
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["yes"]),
            helper.make_node("If", ["yes"], ["out"], then_branch=inner, else_branch=other),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("out", kind, SHAPE)],
        [constant(k, v) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model = Model.of(ir.from_proto(proto), "m")
    change = apply(model)
    assert change.applied == ("wrote HardSigmoid and Mul: 1 (b0 + b1 + b2 + b3)",)
    for x in (np.abs(values()), -np.abs(values())):
        np.testing.assert_allclose(run_ort(change.model, x)[0], run_ort(model, x)[0], atol=2e-6)


def left_alone(model: Model) -> dict[str, str]:
    change = apply(model)
    assert not change.modified
    assert change.model is model
    return dict(change.declined)


def swish(three=3.0, six=6.0, extra=(), outputs=("y",), dtype=np.float32, **fields):
    nodes, constants = spelled("after the product", True, three=three, six=six)
    return build(
        [*nodes, *extra], [constant(k, v, dtype) for k, v in constants.items()], outputs=outputs, dtype=dtype, **fields
    )


def test_silu_is_left_alone():
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    assert left_alone(build(nodes)) == {}


def test_a_plain_clip_is_left_alone():
    nodes = [helper.make_node("Clip", ["x", "zero", "six"], ["y"])]
    assert left_alone(build(nodes, [constant("zero", 0), constant("six", 6)])) == {}


@pytest.mark.parametrize("inside", ["a", "c", "m"])
def test_a_value_inside_that_is_an_output_keeps_the_pattern(inside):
    reasons = left_alone(swish(outputs=("y", inside)))
    assert reasons["n3"] == f"{inside}, inside the pattern, is an output of the graph"


@pytest.mark.parametrize("inside", ["a", "c", "m"])
def test_a_value_inside_that_others_read_keeps_the_pattern(inside):
    reasons = left_alone(swish(outputs=("y", "z"), extra=[helper.make_node("Exp", [inside], ["z"])]))
    assert reasons["n3"] == f"{inside}, inside the pattern, has 2 users"


def test_a_division_by_another_number_is_declined():
    reasons = left_alone(swish(six=5.0))
    assert reasons["n3"].startswith("its Clip ends at 6, but the result is multiplied by 0.2")


def test_a_missing_division_is_declined():
    nodes, constants = spelled("after the product", True)
    nodes[2].output[0] = "y"
    reasons = left_alone(build(nodes[:3], [constant(k, v) for k, v in constants.items() if k != "six"]))
    assert reasons == {"n2": "x · Clip(…, 0, 6) is not divided by 6"}


def test_float64_is_declined():
    assert "float64" in left_alone(swish(dtype=np.float64))["n3"]


def test_another_hard_sigmoid_is_not_called_hard_swish():
    nodes = [helper.make_node("HardSigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    assert left_alone(build(nodes, opset=14)) == {
        "n1": "alpha 0.2 and beta 0.5 are not those of HardSwish, 1/6 and 0.5"
    }


def test_an_offset_per_channel_is_left_alone():
    assert left_alone(swish(three=np.full((3, 1, 1), 3.0))) == {}


def test_an_offset_that_raises_the_rank_is_left_alone():
    nodes, constants = spelled("after the product", True)
    made = [constant(k, np.full((1,) * 5, v) if k == "three" else v) for k, v in constants.items()]
    assert left_alone(build(nodes, made, out_shape=(1, *SHAPE))) == {}


def test_bounds_that_are_fed_are_left_alone():
    nodes, constants = spelled("after the product", True)
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, SHAPE), helper.make_tensor_value_info("three", kind, ())],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        [constant(k, v) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert left_alone(Model.of(ir.from_proto(proto), "m")) == {}


def test_crossed_bounds_are_declined():
    nodes = [helper.make_node("Max", ["x", "six"], ["a"]), helper.make_node("Min", ["a", "zero"], ["y"])]
    reasons = left_alone(build(nodes, [constant("zero", 0), constant("six", 6)]))
    assert reasons == {"n1": "its lower bound 6 is above its upper bound 0"}


def test_bounds_on_integers_are_left_alone():
    nodes = [helper.make_node("Max", ["x", "low"], ["a"]), helper.make_node("Min", ["a", "high"], ["y"])]
    model = build(nodes, [constant("low", 0, np.int64), constant("high", 6, np.int64)], dtype=np.int64)
    assert left_alone(model) == {}


def test_an_operator_of_another_domain_is_left_alone():
    nodes, constants = spelled("after the product", True)
    nodes[1].domain = "com.example"
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
            [constant(k, v) for k, v in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("com.example", 1)],
        ir_version=8,
    )
    change = FuseActivation()(Model.of(ir.from_proto(proto), "m"), Context(compile=never))
    assert not change.modified


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    divide=st.booleans(),
    swaps=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    three=st.sampled_from([3.0, 3.0, 3.0, 2.5, -1.0]),
    six=st.sampled_from([6.0, 6.0, 6.0, 5.0]),
    opset=st.sampled_from([11, 13, 14, 18]),
    extra=st.sampled_from([None, "a", "c"]),
)
def test_whatever_it_does_the_values_stay(order, divide, swaps, three, six, opset, extra):
    nodes, constants = spelled(order, divide, swaps, three, six)
    outputs = ("y",) if extra is None else ("y", extra)
    model = build(nodes, [constant(k, v) for k, v in constants.items()], opset=opset, outputs=outputs)
    change = apply(model)
    x = values()
    for want, got in zip(run(model, x), run(change.model, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=4e-6)
    assert change.modified == (six == 6.0 and extra is None)
