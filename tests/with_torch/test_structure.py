"""What an import looks like, what it refuses, and how it says so."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgeproof.errors import UnsupportedError
from edgeproof.fx import import_model
from edgeproof.fx.call import Call
from edgeproof.fx.values import Value
from edgeproof.model import Model
from small_nets import net, node, number, small_cnn, weight
from with_torch.nets import by_runtime, by_torch, drawn


def test_inputs_and_outputs_keep_onnx_order_and_names() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("Sub", ["in.a", "b:0"], ["late"]), node("Neg", ["b:0"], ["1st"])],
        "two",
        [info("b:0", TensorProto.FLOAT, [2]), info("in.a", TensorProto.FLOAT, [2])],
        [info("late", TensorProto.FLOAT, [2]), info("1st", TensorProto.FLOAT, [2])],
    )
    model = Model.of(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), "two")
    imported = import_model(model)
    assert dict(imported.placeholders) == {"b:0": "b_0", "in.a": "in_a"}
    assert [s.name for s in imported.inputs] == ["b:0", "in.a"]
    assert imported.outputs == ("late", "1st")
    late, first = imported.module(torch.tensor([1.0, 2.0]), torch.tensor([5.0, 5.0]))
    assert late.tolist() == [4, 3]
    assert first.tolist() == [-1, -2]


def test_a_tensor_may_be_called_like_a_method_of_a_module() -> None:
    model = net(
        [node("Add", ["x", "half"], ["t"]), node("Mul", ["t", "graph"], ["y"])],
        [weight("half", 3), weight("graph", 3)],
        (3,),
    )
    imported = import_model(model)
    assert sorted(imported.parameters.values()) == ["graph", "half"]
    x = drawn(imported)
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], by_runtime(model, *x)[0], rtol=1e-6)


def test_nodes_know_where_they_came_from() -> None:
    graph = import_model(small_cnn()).module.graph
    assert [n.meta["onnx_node"] for n in graph.nodes if n.target is torch.conv2d] == ["c1", "c2", "c3"]


def test_an_operator_that_is_not_claimed_is_named_with_its_node() -> None:
    model = net([helper.make_node("Fancy", ["x"], ["y"], name="odd", domain="com.example")])
    with pytest.raises(UnsupportedError, match=r"'odd': is a com\.example\.Fancy") as caught:
        import_model(model)
    assert caught.value.hint


def test_what_no_output_needs_is_not_imported() -> None:
    nodes = [helper.make_node("Fancy", ["x"], ["t"], domain="com.example"), node("Relu", ["x"], ["y"])]
    assert len(import_model(net(nodes)).module.graph.nodes) == 3


def test_an_operator_can_be_given() -> None:
    def doubled(n: Call) -> Value:
        return n.call(n.torch.mul, n[0], 2.0)

    module = import_model(net([node("Relu", ["x"], ["y"])], shape=(1,)), operators={"Relu": doubled}).module
    assert module(torch.tensor([-1.0]))[0].tolist() == [-2.0]


def branching(condition: str) -> Model:
    """If the condition, the input plus one; else minus one."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    branches = {
        f"{name}_branch": helper.make_graph([node(op, ["x", "one"], ["o"])], name, [], [out])
        for name, op in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Cast", ["m"], ["seen"], to=TensorProto.BOOL)]
    return net(
        [*nodes, node("If", [condition], ["y"], name="fork", **branches)],
        [number("one", 1.0), number("yes", True, np.bool_)],
        (2,),
    )


def test_a_branch_decided_by_a_constant_is_taken_at_import() -> None:
    assert import_model(branching("yes")).module(torch.zeros(2))[0].tolist() == [1, 1]


def test_a_branch_decided_at_run_time_is_refused_with_its_node() -> None:
    with pytest.raises(UnsupportedError, match=r"'fork'.*computed at run time"):
        import_model(branching("seen"))


def test_a_loop_of_known_length_is_unrolled() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", ["state", "x"], ["next"]), node("Identity", ["go"], ["on"]), node("Identity", ["next"], ["kept"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", TensorProto.FLOAT, None)],
        [
            info("on", TensorProto.BOOL, []),
            info("next", TensorProto.FLOAT, None),
            info("kept", TensorProto.FLOAT, None),
        ],
    )
    model = net([node("Loop", ["n", "", "x"], ["last", "y"], body=body)], [number("n", 3, np.int64)], (2,))
    with pytest.raises(UnsupportedError, match="more than 512 steps"):
        import_model(net([node("Loop", ["", "", "x"], ["last", "y"], body=body)], [], (2,)))
    assert import_model(model).module(torch.tensor([1.0, 2.0]))[0].tolist() == [[2, 4], [3, 6], [4, 8]]


def test_old_models_are_raised_to_the_opset_from_which_operators_broadcast() -> None:
    model = net([node("Relu", ["x"], ["y"])], shape=(2,), opset=6)
    assert import_model(model).module(torch.tensor([-1.0, 1.0]))[0].tolist() == [0, 1]


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 13, 17, 18, 21])
def test_softmax_of_every_opset_gives_what_onnx_runtime_gives(opset: int) -> None:
    model = net([node("Softmax", ["x"], ["y"], axis=1)], shape=(2, 3, 4), opset=opset)
    x = drawn(import_model(model))
    np.testing.assert_allclose(
        by_torch(import_model(model).module, *x)[0], by_runtime(model, *x)[0], rtol=1e-5, atol=1e-6
    )


bounds = st.integers(-9, 9)


@settings(max_examples=60, deadline=None)
@given(start=bounds, end=bounds, step=st.sampled_from([-3, -2, -1, 1, 2, 3]), known=st.booleans())
def test_slices_are_those_of_onnx_runtime(start: int, end: int, step: int, known: bool) -> None:
    numbers = [number(k, [v], np.int64) for k, v in (("a", start), ("b", end), ("axis", 1), ("step", step))]
    model = net([node("Slice", ["x", "a", "b", "axis", "step"], ["y"])], numbers, (2, 7) if known else (2, "N"))
    imported = import_model(model)
    x = drawn(imported, N=7)
    np.testing.assert_array_equal(by_torch(imported.module, *x)[0], by_runtime(model, *x)[0])


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    place=st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]),
    nearest=st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    size=st.tuples(st.integers(2, 11), st.integers(2, 11)),
)
def test_resized_pictures_are_those_of_onnx_runtime(mode: str, place: str, nearest: str, size: tuple[int, int]) -> None:
    # ONNX Runtime computes places in float32, so ties of nearest may fall otherwise: sizes that divide have none.
    height, width = (size[0] // 4 * 4 or 4, size[1] // 5 * 5 or 5) if mode == "nearest" else size
    how = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": nearest}
    numbers = [number("sizes", [1, 2, height, width], np.int64)]
    model = net([node("Resize", ["x", "", "", "sizes"], ["y"], **how)], numbers, (1, 2, 4, 5))
    x = drawn(import_model(model))
    np.testing.assert_allclose(
        by_torch(import_model(model).module, *x)[0], by_runtime(model, *x)[0], rtol=1e-4, atol=1e-4
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_windows_are_those_of_onnx_runtime(data: st.DataObject) -> None:
    kernel = data.draw(st.integers(1, 4), "kernel")
    how = {"kernel_shape": [kernel, kernel], "strides": [data.draw(st.integers(1, min(3, kernel)), "stride")] * 2}
    if data.draw(st.booleans(), "automatic"):
        how["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]), "how")
    else:
        how["pads"] = data.draw(st.lists(st.integers(0, kernel - 1), min_size=4, max_size=4), "pads")
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool", "Conv"]), "operator")
    if op == "AveragePool":
        how["count_include_pad"] = data.draw(st.integers(0, 1), "count")
    inputs = ["x", "w"] if op == "Conv" else ["x"]
    model = net([node(op, inputs, ["y"], **how)], [weight("w", 2, 3, kernel, kernel)], (1, 3, "H", "W"))
    imported = import_model(model)
    x = drawn(imported, H=data.draw(st.integers(4, 9), "height"), W=data.draw(st.integers(4, 9), "width"))
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], by_runtime(model, *x)[0], rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4),
    op=st.sampled_from(["Add", "Mul", "Max", "PRelu", "Less"]),
)
def test_operands_broadcast_as_in_onnx_runtime(sizes: list[int], op: str) -> None:
    nodes = [node(op, ["x", "k"], ["t"]), node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    model = (
        net(nodes, [weight("k", *sizes)], (3, "N", 1))
        if op != "PRelu"
        else net(nodes, [weight("k", 3, 1)], (3, 3, "N"))
    )
    imported = import_model(model)
    x = drawn(imported, N=1 if 1 in sizes[-2:-1] else (sizes[-2] if len(sizes) > 1 else 2))
    try:
        want = by_runtime(model, *x)[0]
    except Exception:  # sizes that do not broadcast
        return
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], want, rtol=1e-6)
