"""An If whose condition is constant becomes its branch; the interface and every other name stay sound."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_models import FLOAT, apply, build, floats, node, ops

from edgeproof.passes.fold_branches import FoldBranches
from edgeproof.passes.simplify import Simplify


def branch(nodes, outputs, weights=None):
    return helper.make_graph(
        nodes,
        "branch",
        [],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )


def decided(condition):
    """y = relu(exp(x) · w) or y = relu(neg(x)); both branches use the name h."""
    yes = branch([node("Exp", "x", "h"), node("Mul", "h w", "r")], "r", {"w": floats(3)})
    no = branch([node("Neg", "x", "h")], "h")
    nodes = [node("If", "c", "z", then_branch=yes, else_branch=no), node("Relu", "z", "y")]
    return build(nodes, {"x": (3,)}, "y", {"c": np.array(condition)})


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        (True, {"Exp": 1, "Mul": 1, "Relu": 1}),
        (False, {"Neg": 1, "Relu": 1}),
        ([True], {"Exp": 1, "Mul": 1, "Relu": 1}),
    ],
)
def test_the_branch_that_always_runs_takes_the_place_of_its_if(condition, left):
    change = apply(Simplify(), decided(condition), x=floats(3))
    assert ops(change.model) == left


def test_an_open_condition_leaves_the_if_alone():
    yes, no = branch([node("Exp", "x", "a")], "a"), branch([node("Neg", "x", "b")], "b")
    nodes = [node("If", "c", "y", then_branch=yes, else_branch=no)]
    model = build(nodes, {"x": (3,), "c": ()}, "y", dtypes={"c": onnx.TensorProto.BOOL})
    assert not apply(FoldBranches(), model, x=floats(3), c=np.array(True)).modified


def test_branches_of_two_ifs_that_use_the_same_names_do_not_clash():
    def one(scale):
        return branch([node("Mul", "x w", "h"), node("Exp", "h", "r")], "r", {"w": np.float32(scale)})

    nodes = [
        node("If", "c", "a", then_branch=one(2), else_branch=one(3)),
        node("If", "d", "b", then_branch=one(4), else_branch=one(5)),
        node("Add", "a b", "y"),
    ]
    model = build(nodes, {"x": (3,)}, "y", {"c": np.array(True), "d": np.array(False)})
    change = apply(FoldBranches(), model, x=floats(3))
    assert ops(change.model) == {"Mul": 2, "Exp": 2, "Identity": 2, "Add": 1}


def test_an_if_inside_a_branch_is_folded_too():
    inner = node(
        "If",
        "d",
        "i",
        then_branch=branch([node("Neg", "h", "a")], "a"),
        else_branch=branch([node("Abs", "h", "a")], "a"),
    )
    outer = branch([node("Exp", "x", "h"), inner], "i", {"d": np.array(False)})
    nodes = [node("If", "c", "y", then_branch=outer, else_branch=branch([node("Sin", "x", "s")], "s"))]
    model = build(nodes, {"x": (3,)}, "y", {"c": np.array(True)})
    assert ops(apply(FoldBranches(), model, x=floats(3)).model) == {"Exp": 1, "Abs": 1, "Identity": 2}


def test_results_that_are_graph_outputs_weights_or_the_same_value_twice_keep_the_interface():
    yes = branch([node("Exp", "x", "e"), node("Identity", "e", "f")], "e f w", {"w": floats(2)})
    no = branch([node("Neg", "x", "n"), node("Neg", "n", "m"), node("Abs", "x", "v")], "n m v")
    nodes = [node("If", "c", "p q s", then_branch=yes, else_branch=no)]
    model = build(nodes, {"x": (2,)}, "p q s", {"c": np.array(True)})
    assert "If" not in ops(apply(FoldBranches(), model, x=floats(2)).model)
    apply(Simplify(), model, x=floats(2))


def test_an_if_whose_result_is_a_sequence_stays_with_a_reason():
    def sequence(op):
        kind = helper.make_tensor_sequence_value_info("s", FLOAT, None)
        return helper.make_graph([node(op, "x", "t"), node("SequenceConstruct", "t", "s")], "branch", [], [kind])

    nodes = [
        node("If", "c", "z", then_branch=sequence("Exp"), else_branch=sequence("Neg")),
        node("SequenceAt", "z first", "y"),
    ]
    model = build(nodes, {"x": (3,)}, "y", {"c": np.array(True), "first": np.int64(0)})
    change = apply(FoldBranches(), model, x=floats(3))
    assert change.declined == (("If_z", "its condition is constant, but an output is no tensor"),)
