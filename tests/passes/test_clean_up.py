"""Nodes that do nothing, come twice, or follow each other for nothing are removed; their look-alikes stay."""

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import FLOAT, apply, build, floats, node, ops, reasons

from edgeproof.passes.drop_dead_code import DropDeadCode
from edgeproof.passes.drop_no_ops import DropNoOps
from edgeproof.passes.fold_constants import FoldConstants
from edgeproof.passes.fold_shapes import FoldShapes
from edgeproof.passes.freeze_weights import FreezeWeights
from edgeproof.passes.merge_duplicates import MergeDuplicates
from edgeproof.passes.merge_pads import MergePads
from edgeproof.passes.merge_views import MergeViews

INT64 = onnx.TensorProto.INT64


def ints(*values):
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Identity", "r", {}),
        ("Dropout", "r", {}),
        ("Cast", "r", {"to": FLOAT}),
        ("Transpose", "r", {"perm": [0, 1, 2]}),
        ("Reshape", "r same", {}),
        ("Expand", "r same", {}),
        ("Pad", "r nothing", {}),
        ("Slice", "r zero end axis", {}),
        ("Concat", "r", {"axis": 0}),
        ("Sum", "r", {}),
        ("Add", "r zeros", {}),
        ("Add", "zeros r", {}),
        ("Sub", "r zeros", {}),
        ("Mul", "one r", {}),
        ("Div", "r one", {}),
    ],
)
def test_a_node_without_effect_is_removed(op, inputs, attributes):
    weights = {
        "same": ints(2, 3, 4),
        "nothing": ints(*[0] * 6),
        "zero": ints(0),
        "end": ints(2**40),
        "axis": ints(1),
        "zeros": np.zeros((3, 1), "f4")[:1],
        "one": np.ones((), "f4"),
    }
    model = build([node("Relu", "x", "r"), node(op, inputs, "y", **attributes)], {"x": (2, 3, 4)}, "y", weights)
    assert ops(apply(DropNoOps(), model, x=floats(2, 3, 4)).model) == {"Relu": 1}


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Cast", "r", {"to": onnx.TensorProto.DOUBLE}),
        ("Transpose", "r", {"perm": [0, 2, 1]}),
        ("Reshape", "r other", {}),
        ("Expand", "r wide", {}),
        ("Pad", "r some", {}),
        ("Slice", "r zero end axis", {}),
        ("Add", "r widening", {}),
        ("Sub", "zeros r", {}),
        ("Div", "one r", {}),
        ("Mul", "r mixed", {}),
    ],
)
def test_a_node_with_an_effect_stays(op, inputs, attributes):
    weights = {
        "other": ints(4, 3, 2),
        "wide": ints(5, 2, 3, 4),
        "some": ints(0, 0, 1, 0, 0, 0),
        "zero": ints(0),
        "end": ints(2),
        "axis": ints(1),
        "zeros": np.zeros(1, "f4"),
        "widening": np.zeros((5, 1, 1, 1), "f4"),
        "one": np.ones((), "f4"),
        "mixed": np.float32([1, 1, 1, 2]),
    }
    kinds = {"y": attributes["to"]} if op == "Cast" else {}
    model = build(
        [node("Exp", "x", "r"), node(op, inputs, "y", **attributes)], {"x": (2, 3, 4)}, "y", weights, dtypes=kinds
    )
    assert ops(apply(DropNoOps(), model, x=floats(2, 3, 4)).model) == {"Exp": 1, op: 1}


def test_an_identity_from_input_to_output_stays_since_both_names_are_the_interface():
    change = apply(DropNoOps(), build([node("Identity", "x", "y")], {"x": (2,)}, "y"), x=floats(2))
    assert not change.modified
    assert "Identity_y: it joins" in reasons(change)


def test_a_reshape_that_keeps_one_open_dimension_is_removed():
    nodes = [node("Relu", "x", "r"), node("Reshape", "r t", "y")]
    model = build(nodes, {"x": ("n", 3)}, "y", {"t": ints(-1, 3)})
    assert ops(apply(DropNoOps(), model, x=floats(5, 3)).model) == {"Relu": 1}


def test_a_dropout_whose_mask_is_read_stays():
    nodes = [node("Dropout", "x", "d m"), node("Cast", "m", "f", to=FLOAT), node("Add", "d f", "y")]
    model = build(nodes, {"x": (2, 3)}, "y")
    assert ops(apply(DropNoOps(), model, x=floats(2, 3)).model)["Dropout"] == 1


def test_dead_nodes_and_weights_go_and_unused_inputs_stay():
    nodes = [node("Relu", "x", "y"), node("Exp", "x", "a"), node("Mul", "a w", "b")]
    change = apply(
        DropDeadCode(), build(nodes, {"x": (2,), "unused": (3,)}, "y", {"w": floats(2)}), x=floats(2), unused=floats(3)
    )
    assert ops(change.model) == {"Relu": 1}
    assert not change.model.graph.graph.initializers
    assert [i.name for i in change.model.inputs] == ["x", "unused"]


def test_what_only_a_subgraph_reads_is_not_dead():
    branch = onnx.helper.make_graph(
        [node("Identity", "a", "o")], "b", [], [onnx.helper.make_tensor_value_info("o", FLOAT, None)]
    )
    other = onnx.helper.make_graph(
        [node("Neg", "a", "p")], "c", [], [onnx.helper.make_tensor_value_info("p", FLOAT, None)]
    )
    nodes = [node("Exp", "x", "a"), node("If", "cond", "y", then_branch=branch, else_branch=other)]
    model = build(nodes, {"cond": (), "x": (2,)}, "y", dtypes={"cond": onnx.TensorProto.BOOL})
    change = apply(DropDeadCode(), model, cond=np.asarray(True), x=floats(2))
    assert not change.modified


def test_constants_fold_in_chains():
    nodes = [node("Add", "a b", "c"), node("Transpose", "c", "d", perm=[1, 0]), node("MatMul", "x d", "y")]
    change = apply(
        FoldConstants(), build(nodes, {"x": (2, 3)}, "y", {"a": floats(4, 3), "b": floats(3)}), x=floats(2, 3)
    )
    assert ops(change.model) == {"MatMul": 1}


def test_a_constant_that_would_blow_the_model_up_stays_with_a_reason():
    nodes = [node("ConstantOfShape", "s", "c"), node("ReduceSum", "c axes", "r", keepdims=0), node("Add", "x r", "y")]
    model = build(nodes, {"x": (1,)}, "y", {"s": ints(1000, 1000), "axes": ints(0, 1)})
    change = apply(FoldConstants(), model, x=floats(1))
    assert ops(change.model)["ConstantOfShape"] == 1
    assert "make the model larger" in reasons(change)


def test_random_numbers_and_quantised_weights_are_not_folded():
    nodes = [
        node("RandomUniform", "", "r", shape=[2], dtype=FLOAT),
        node("Exp", "r", "e"),
        node("DequantizeLinear", "q s", "w"),
        node("Add", "e w", "a"),
        node("Add", "a x", "y"),
    ]
    model = build(nodes, {"x": (2,)}, "y", {"q": np.int8([1, 2]), "s": np.float32(0.5)})
    from small_models import CONTEXT

    assert ops(FoldConstants()(model, CONTEXT).model) == ops(model)


def test_a_constant_output_keeps_its_node():
    model = build([node("Add", "a b", "y")], {"x": (1,)}, "y", {"a": floats(1), "b": floats(1)})
    assert not apply(FoldConstants(), model, x=floats(1)).modified


def test_constant_nodes_become_weights_and_weights_leave_the_inputs():
    constant = onnx.helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0])
    model = build(
        [constant, node("Add", "x c", "h"), node("Mul", "h w", "y")], {"x": (2,), "w": (2,)}, "y", {"w": floats(2)}
    )
    change = apply(FreezeWeights(), model, x=floats(2))
    assert ops(change.model) == {"Add": 1, "Mul": 1}
    assert [v.name for v in change.model.graph.graph.inputs] == ["x"]


def test_shape_arithmetic_with_one_open_dimension_becomes_a_constant_target():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n", axis=0),
        node("Concat", "n rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    model = build(nodes, {"x": ("n", 3, 4)}, "y", {"first": ints(0), "rest": ints(12)})
    change = apply(FoldShapes(), model, x=floats(5, 3, 4))
    assert ops(change.model) == {"Reshape": 1}
    apply(FoldShapes(), model, x=floats(2, 3, 4))


def attention_split(shape):
    """Reshape to [0, Shape(z)[1], 3, 2], as exporters split heads; ONNX Reshape-21: a 0 copies the dimension of x."""
    nodes = [
        node("Shape", "z", "s"),
        node("Slice", "s one two", "t"),
        node("Concat", "copy t heads", "to", axis=0),
        node("Reshape", "x to", "y"),
    ]
    weights = {"one": ints(1), "two": ints(2), "copy": ints(0), "heads": ints(3, 2)}
    return build(nodes, {"x": shape, "z": ("n", "t")}, "y", weights)


def test_a_target_that_copies_one_dimension_and_leaves_one_open_becomes_constant():
    model = attention_split(("n", "k", 6))
    change = apply(FoldShapes(), model, x=floats(2, 5, 6), z=floats(2, 5))
    assert ops(change.model) == {"Reshape": 1}
    (target,) = change.model.graph.graph.initializers.values()
    assert target.const_value.numpy().tolist() == [0, -1, 3, 2]


def test_a_target_that_copies_an_empty_dimension_stays():
    model = attention_split((0, "k", 6))
    assert not apply(FoldShapes(), model, x=floats(0, 5, 6), z=floats(1, 5)).modified


def test_a_known_dimension_of_an_open_shape_is_computed():
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s one two", "c"),
        node("Cast", "c", "f", to=FLOAT),
        node("Mul", "x f", "y"),
    ]
    change = apply(
        FoldShapes(), build(nodes, {"x": ("n", 3, "w")}, "y", {"one": ints(1), "two": ints(2)}), x=floats(2, 3, 4)
    )
    assert ops(change.model) == {"Cast": 1, "Mul": 1}


def test_a_target_with_two_open_dimensions_stays():
    nodes = [node("Shape", "z", "s"), node("Reshape", "x s", "y")]
    model = build(nodes, {"x": ("k",), "z": ("n", "m")}, "y")
    change = apply(FoldShapes(), model, x=floats(6), z=floats(2, 3))
    assert not change.modified
    assert "2 dimensions of its target depend on the input" in reasons(change)


def test_two_question_marks_are_not_the_same_dimension():
    nodes = [node("Shape", "x", "s"), node("Gather", "s order", "t", axis=0), node("Reshape", "x t", "y")]
    model = build(nodes, {"x": ("?", "?")}, "y", {"order": ints(1, 0)})
    assert not apply(FoldShapes(), model, x=floats(2, 3)).modified


def test_equal_nodes_and_equal_weights_are_merged():
    nodes = [node("Add", "x a", "p"), node("Add", "x b", "q"), node("Mul", "p q", "y")]
    w = floats(3)
    change = apply(MergeDuplicates(), build(nodes, {"x": (3,)}, "y", {"a": w, "b": w.copy()}), x=floats(3))
    assert ops(change.model) == {"Add": 1, "Mul": 1}
    assert len(change.model.graph.graph.initializers) == 1


@pytest.mark.parametrize("second", [node("Add", "x b", "q"), node("Sub", "x a", "q"), node("Add", "z a", "q")])
def test_nodes_that_differ_are_not_merged(second):
    nodes = [node("Add", "x a", "p"), second, node("Mul", "p q", "y")]
    model = build(nodes, {"x": (3,), "z": (3,)}, "y", {"a": floats(3), "b": floats(3)})
    assert ops(apply(MergeDuplicates(), model, x=floats(3), z=floats(3)).model).total() == 3


def test_random_nodes_are_not_merged():
    nodes = [node("RandomUniformLike", "x", "p"), node("RandomUniformLike", "x", "q"), node("Mul", "p q", "y")]
    from small_models import CONTEXT

    assert not MergeDuplicates()(build(nodes, {"x": (3,)}, "y"), CONTEXT).modified


def padded(consumer, pads, fill=None, mode="constant", weights=None):
    inputs = "x p" if fill is None else "x p f"
    held = {"p": ints(*pads), **({} if fill is None else {"f": np.float32(fill)}), **(weights or {})}
    model = build([node("Pad", inputs, "h", mode=mode), consumer], {"x": (1, 2, 6, 6)}, "y", held)
    return apply(MergePads(), model, x=floats(1, 2, 6, 6))


CONV = node("Conv", "h w", "y", pads=[1, 0, 1, 0])
SPATIAL = (0, 0, 1, 2, 0, 0, 1, 0)


def test_zero_padding_before_conv_is_merged():
    assert ops(padded(CONV, SPATIAL, weights={"w": floats(3, 2, 3, 3)}).model) == {"Conv": 1}


def test_zero_padding_before_a_pooling_that_counts_it_is_merged():
    pool = node("AveragePool", "h", "y", kernel_shape=[3, 3], count_include_pad=1)
    assert ops(padded(pool, SPATIAL).model) == {"AveragePool": 1}


@pytest.mark.parametrize(
    ("pads", "fill", "mode", "reason"),
    [
        (SPATIAL, 1.0, "constant", "not with zeros"),
        (SPATIAL, None, "reflect", "by reflect"),
        ((0, 1, 0, 0, 0, 1, 0, 0), None, "constant", "the channels"),
        ((0, 0, -1, 0, 0, 0, 0, 0), None, "constant", "it crops"),
    ],
)
def test_other_padding_stays(pads, fill, mode, reason):
    channels = 4 if pads[1] else 2
    change = padded(CONV, pads, fill, mode, {"w": floats(3, channels, 3, 3)})
    assert ops(change.model) == {"Pad": 1, "Conv": 1}
    assert reason in reasons(change)


def test_padding_before_a_pooling_that_does_not_count_it_stays():
    pool = node("AveragePool", "h", "y", kernel_shape=[3, 3])
    assert "does not count" in reasons(padded(pool, SPATIAL))


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ([node("Transpose", "x", "h", perm=[1, 2, 0]), node("Transpose", "h", "y", perm=[1, 0, 2])], {"Transpose": 1}),
        ([node("Reshape", "x six", "h"), node("Reshape", "h back", "y")], {"Reshape": 1}),
        ([node("Unsqueeze", "x zero", "h"), node("Reshape", "h back", "y")], {"Reshape": 1}),
        ([node("Flatten", "x", "h"), node("Unsqueeze", "h zero", "y")], {"Reshape": 1}),
        ([node("Concat", "x x", "h", axis=0), node("Concat", "h x", "y", axis=0)], {"Concat": 1}),
    ],
)
def test_chains_become_one(nodes, left):
    weights = {"six": ints(6, 4), "back": ints(4, 3, 2), "zero": ints(0)}
    assert ops(apply(MergeViews(), build(nodes, {"x": (2, 3, 4)}, "y", weights), x=floats(2, 3, 4)).model) == left


def test_a_transpose_of_size_one_joins_a_reshape():
    nodes = [node("Transpose", "x", "h", perm=[1, 0, 2]), node("Reshape", "h t", "y")]
    change = apply(MergeViews(), build(nodes, {"x": (1, 3, 4)}, "y", {"t": ints(2, 6)}), x=floats(1, 3, 4))
    assert ops(change.model) == {"Reshape": 1}


def test_a_transpose_that_moves_data_does_not_join_a_reshape():
    nodes = [node("Transpose", "x", "h", perm=[1, 0, 2]), node("Reshape", "h t", "y")]
    model = build(nodes, {"x": (2, 3, 4)}, "y", {"t": ints(4, 6)})
    assert ops(apply(MergeViews(), model, x=floats(2, 3, 4)).model) == {"Transpose": 1, "Reshape": 1}


def test_concats_on_different_axes_stay():
    nodes = [node("Concat", "x x", "h", axis=1), node("Concat", "h h", "y", axis=0)]
    assert not apply(MergeViews(), build(nodes, {"x": (2, 3)}, "y"), x=floats(2, 3)).modified


def test_a_cast_that_rounds_is_kept():
    nodes = [node("Cast", "x", "h", to=onnx.TensorProto.FLOAT16), node("Cast", "h", "y", to=FLOAT)]
    change = apply(MergeViews(), build(nodes, {"x": (3,)}, "y"), x=floats(3))
    assert ops(change.model) == {"Cast": 2}
    assert "may round" in reasons(change)


def test_a_cast_that_loses_nothing_goes():
    nodes = [node("Cast", "x", "h", to=onnx.TensorProto.DOUBLE), node("Cast", "h", "y", to=INT64)]
    model = build(nodes, {"x": (3,)}, "y", dtypes={"y": INT64})
    assert ops(apply(MergeViews(), model, x=floats(3) * 10).model) == {"Cast": 1}


def test_what_is_empty_along_the_axis_leaves_a_concat():
    nodes = [
        node("Concat", "x none z none", "c", axis=-1),
        node("Concat", "none z", "d", axis=1),
        node("Sum", "c d d", "y"),
    ]
    model = build(nodes, {"x": (2, 0), "z": (2, 3)}, "y", {"none": np.zeros((2, 0), np.float32)})
    change = apply(DropNoOps(), model, x=np.zeros((2, 0), np.float32), z=floats(2, 3))
    assert ops(change.model) == {"Sum": 1}


def test_a_concat_of_nothing_but_empty_parts_and_an_open_part_stay():
    nodes = [node("Concat", "x none", "y", axis=1), node("Concat", "none none", "z", axis=1)]
    model = build(nodes, {"x": (2, "n")}, "y z", {"none": np.zeros((2, 0), np.float32)})
    assert ops(apply(DropNoOps(), model, x=floats(2, 3)).model)["Concat"] == 2


def test_a_cast_to_the_type_that_a_value_has_goes_inside_a_loop_too():
    turn = helper.make_graph(
        [
            node("Cast", "s", "t", to=FLOAT),
            node("CastLike", "t v", "u"),
            node("Add", "u v", "w"),
            node("Exp", "w", "o"),
        ],
        "turn",
        [onnx.ValueInfoProto(name="s"), onnx.ValueInfoProto(name="v")],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in ("w", "o")],
    )
    nodes = [node("Scan", "x z", "y p", body=turn, num_scan_inputs=1)]
    change = apply(DropNoOps(), build(nodes, {"x": (3,), "z": (4, 3)}, "y p"), x=floats(3), z=floats(4, 3))
    (scan,) = change.model.graph.graph
    assert [n.op_type for n in scan.attributes["body"].as_graph()] == ["Add", "Exp"]
