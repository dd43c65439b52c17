"""What cannot be followed stays, and says why."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.prune.channels import Channels, channels
from edgeproof.prune.removal import remove
from passes.small_models import build, node, run
from prune.nets import HEAD, NETS, head, ints, w


def pinned(found: Channels, layer: str) -> str:
    return next(why for name, why in found.pinned if name == layer)


def between(*nodes: onnx.NodeProto, **weights: np.ndarray) -> Channels:
    """Convolution c, then what is given from c to h, then the head."""
    held = {"a": w(8, 3, 1, 1), **head(8), **weights}
    return channels(build([node("Conv", "x a", "c"), *nodes, *HEAD], {"x": (2, 3, 8, 8)}, "y", held))


def test_what_makes_an_output_stays_and_names_it() -> None:
    found = channels(build([node("Conv", "x a", "y")], {"x": (1, 3, 4, 4)}, "y", {"a": w(8, 3, 1, 1)}))
    assert found.units == 0
    assert pinned(found, "Conv_y") == "its channels stay: the output 'y' keeps its shape"


def test_what_is_added_to_the_input_stays() -> None:
    model = build(
        [node("Conv", "x a", "c"), node("Add", "c x", "s"), node("Conv", "s b", "h"), *HEAD],
        {"x": (2, 3, 8, 8)},
        "y",
        {"a": w(3, 3, 1, 1), "b": w(8, 3, 1, 1), **head(8)},
    )
    found = channels(model)
    assert "combined with a tensor that stays" in pinned(found, "Conv_c")
    assert [group.name for group in found.groups] == ["Conv_h"]


def test_what_a_softmax_over_channels_normalises_stays() -> None:
    assert "sum of one" in pinned(between(node("Softmax", "c", "h", axis=1)), "Conv_c")


def test_a_softmax_along_a_row_lets_channels_go() -> None:
    assert between(node("Softmax", "c", "h", axis=3)).units == 8


def test_an_operator_that_nobody_knows_holds_its_channels_and_is_named() -> None:
    found = between(node("Det", "c", "d"), node("Unsqueeze", "d axes", "h"), axes=ints(2, 3))
    assert "Det_d (Det): nobody knows" in pinned(found, "Conv_c")


def test_an_operator_of_another_domain_holds_its_channels() -> None:
    held = NETS["a chain"].model()
    for n in held.graph.graph:
        if n.op_type == "Relu":
            n.domain = "com.example"
    assert "nobody knows" in pinned(channels(held), "Conv_c")


def test_the_maximum_over_channels_holds_them_but_a_sum_does_not() -> None:
    held = {"a": w(8, 3, 1, 1), "b": w(4, 1, 1, 1), **head(4), "one": ints(1)}
    after = [node("Conv", "m b", "h"), *HEAD]
    for op, free in (("ReduceMax", False), ("ReduceSum", True)):
        reduced = node(op, "c one", "m") if op == "ReduceSum" else node(op, "c", "m", axes=[1])
        found = channels(build([node("Conv", "x a", "c"), reduced, *after], {"x": (2, 3, 8, 8)}, "y", held))
        assert ("Conv_c" in [group.name for group in found.groups]) == free


def test_a_mean_over_channels_lets_them_go_but_says_that_it_is_not_exact() -> None:
    model = build(
        [
            node("MatMul", "x a", "c"),
            node("LayerNormalization", "c s t", "n", axis=-1),
            node("MatMul", "n b", "y"),
        ],
        {"x": (2, 4, 6)},
        "y",
        {"a": w(6, 8), "s": w(8), "t": w(8), "b": w(8, 3)},
    )
    (group,) = channels(model).groups
    assert "mean over channels" in group.inexact


def test_channels_that_a_subgraph_captures_stay() -> None:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["c"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["c"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)],
    )
    found = between(node("If", "yes", "h", then_branch=inner, else_branch=other), yes=np.asarray(True))
    assert "If_h (If)" in pinned(found, "Conv_c")


def test_channels_cut_with_a_step_stay() -> None:
    found = between(
        node("Slice", "c zero far one two", "s"),
        node("Conv", "s b", "h"),
        zero=ints(0),
        far=ints(99),
        one=ints(1),
        two=ints(2),
        b=w(8, 4, 1, 1),
    )
    assert "step 2" in pinned(found, "Conv_c")


def test_a_layer_that_is_excluded_stays_and_an_unknown_name_is_refused() -> None:
    model = NETS["a chain"].model()
    assert "excluded" in pinned(channels(model, exclude=("Conv_c",)), "Conv_c")
    assert {group.name for group in channels(model, exclude=("Conv_c",)).groups} == {"Conv_h"}
    assert not channels(model, exclude=("Conv",)).groups
    with pytest.raises(InputError, match="matches no node"):
        channels(model, exclude=("nope*",))


def test_the_rest_of_a_concatenation_goes_while_one_part_stays() -> None:
    found = channels(NETS["a concatenation"].model())
    assert {group.name for group in found.groups} == {"Conv_c", "Conv_d", "Conv_h"}


def test_weights_that_are_listed_as_inputs_are_weights() -> None:
    proto = onnx.load_model_from_string(NETS["a chain"].model().to_bytes())
    proto.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in proto.graph.initializer
    )
    model = Model.of(ir.from_proto(proto), "listed")
    found = channels(model)
    small = remove(found, np.arange(found.units) == 0)
    assert small.inputs == model.inputs
    assert len(small.graph.graph.inputs) == 1
    assert run(small, NETS["a chain"].feeds())[0].shape == (2, 4)


def test_open_sizes_are_bound_to_ones_at_which_every_shape_follows() -> None:
    net = NETS["flattened pictures"]
    model = build(net.nodes, {"x": ("n", 3, "h", "w")}, "y", {**net.weights, "l1": w(6, 4 * 32 * 32)})
    found = channels(model)
    assert found.shapes == {"x": (1, 3, 32, 32)}
    assert found.units == 4 + 6


def test_functions_are_inlined() -> None:
    proto = onnx.load_model_from_string(NETS["a chain"].model().to_bytes())
    own = helper.make_function(
        "own", "Act", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], [helper.make_opsetid("", 17)]
    )
    proto.functions.append(own)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    for n in proto.graph.node:
        if n.op_type == "Relu":
            n.op_type, n.domain = "Act", "own"
    found = channels(Model.of(ir.from_proto(proto), "functions"))
    assert {group.name for group in found.groups} == {"Conv_c", "Conv_h"}
