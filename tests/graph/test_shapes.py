from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.errors import InputError
from edgeproof.graph.dims import static
from edgeproof.graph.shapes import closed, infer, shaped
from edgeproof.model import Model

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str | None]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))
    return Model.of(ir.from_proto(proto), "m")


def conv_chain() -> Model:
    """Two convolutions of stride 2 over an image of any size."""
    return model(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w2"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        ],
        {"x": ["N", 3, "h", "w"]},
        ["c"],
        {"w1": np.zeros((8, 3, 3, 3), np.float32), "w2": np.zeros((16, 8, 3, 3), np.float32)},
    )


def test_given_shapes_reach_every_value() -> None:
    found = infer(conv_chain(), {"x": (2, 3, 33, 64)})
    # (33 + 2 - 3) // 2 + 1 = 17, then (17 + 2 - 3) // 2 + 1 = 9
    assert found["a"] == ("float32", (2, 8, 17, 32))
    assert found["c"] == ("float32", (2, 16, 9, 16))
    assert found["w1"] == ("float32", (8, 3, 3, 3))


def test_a_closed_model_has_the_shapes_that_follow_and_its_weights() -> None:
    made = closed(conv_chain(), {"x": (2, 3, 33, 64)})
    assert [s.shape for s in (*made.inputs, *made.outputs)] == [(2, 3, 33, 64), (2, 16, 9, 16)]
    typed = [v for n in made.graph.graph for v in n.outputs if v.type is not None]
    assert all(static(v) == infer(made)[v.name or ""][1] for v in typed)
    assert infer(made)["a"] == ("float32", (2, 8, 17, 32))
    assert made.graph.graph.initializers["w1"].const_value is not None
    with pytest.raises(InputError, match="dimension 1"):
        closed(conv_chain(), {"x": (2, 4, 33, 64)})


def test_open_dimensions_stay_symbols_through_windows() -> None:
    found = infer(conv_chain())
    assert found["x"][1] == ("N", 3, "h", "w")
    assert found["c"][1] == ("N", 16, "ceil(h/4)", "ceil(w/4)")


@pytest.mark.parametrize("size", [1, 7, 32, 33, 100])
def test_symbolic_sizes_are_what_the_runtime_makes(size: int) -> None:
    # floor((size + 2 - 3) / 2) + 1, twice, against the expression ceil(size / 4)
    once = (size - 1) // 2 + 1
    assert (once - 1) // 2 + 1 == -(-size // 4)


def test_the_model_is_not_changed() -> None:
    m = conv_chain()
    infer(m, {"x": (1, 3, 8, 8)})
    assert m.graph.graph.outputs[0].shape is None
    assert m.digest == Model.of(m.graph, "m").digest


def test_a_symbol_given_once_holds_everywhere() -> None:
    m = model([helper.make_node("Add", ["x", "y"], ["z"])], {"x": ["N", 4], "y": ["N", 4]}, ["z"])
    assert infer(m, {"x": (3, 4)})["z"][1] == (3, 4)
    assert infer(m, {"x": (3, 4)})["y"][1] == (3, 4)


def test_a_reshape_target_computed_from_a_shape_is_resolved() -> None:
    """As Paddle exports it: Shape, Slice, Cast and arithmetic in between."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["s32"], to=TensorProto.INT32),
        helper.make_node("Slice", ["s32", "two", "three"], ["h"]),
        helper.make_node("Mul", ["h", "half"], ["h2"]),
        helper.make_node("Cast", ["h2"], ["h64"], to=TensorProto.INT64),
        helper.make_node("Concat", ["h64", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    weights = {
        "two": np.array([2], np.int64),
        "three": np.array([3], np.int64),
        "half": np.array([2], np.int32),
        "rest": np.array([-1, 6], np.int64),
        "w": np.zeros((6, 5), np.float32),
    }
    m = model(nodes, {"x": ["N", 3, "h", 8]}, ["z"], weights)
    found = infer(m, {"x": (1, 3, 12, 8)})
    assert found["y"][1] == (24, 2, 6)  # 1·3·12·8 = 288 = 24·2·6
    assert found["z"][1] == (24, 2, 5)


def test_a_reshape_with_open_dimensions_keeps_their_symbols() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"zero": np.array([0], np.int64), "rest": np.array([-1, 4], np.int64)}
    assert infer(model(nodes, {"x": ["N", 8, 3]}, ["y"], weights))["y"][1] == ("N", 6, 4)


def test_unnamed_dimensions_of_different_inputs_are_not_the_same() -> None:
    m = model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["y"], ["b"])],
        {"x": [None, 2], "y": [None, 2]},
        ["a", "b"],
    )
    found = infer(m)
    assert found["a"][1] == ("x[0]", 2)
    assert found["b"][1] == ("y[0]", 2)


def test_what_depends_on_the_data_stays_unknown() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)]
    m = model(nodes, {"x": [4, 4]}, ["y"])
    assert infer(m)["i"] == ("int64", (2, "?"))


def test_values_inside_branches_and_functions_are_found() -> None:
    body = helper.make_function(
        "own",
        "F",
        ["p"],
        ["q"],
        [helper.make_node("Transpose", ["p"], ["q"], perm=[1, 0])],
        [helper.make_opsetid("", 17)],
    )
    m = model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": [2, 3]}, ["y"], functions=(body,))
    assert infer(m)["y"] == ("float32", (3, 2))

    def branch(op: str, name: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [out])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("Relu", "a"), else_branch=branch("Neg", "b"))
    m = model([node], {"x": [2, 3]}, ["y"], {"flag": np.array(True)})
    assert infer(m)["a"] == infer(m)["b"] == infer(m)["y"] == ("float32", (2, 3))


def test_an_unknown_operator_leaves_its_output_open_and_crashes_nothing() -> None:
    m = model(
        [helper.make_node("Strange", ["x"], ["a"], domain="own"), helper.make_node("Relu", ["a"], ["y"])],
        {"x": [2, 3]},
        ["y"],
    )
    assert infer(m)["a"][1] is None
    assert infer(m)["y"][1] is None


def test_contradictory_graphs_do_not_raise() -> None:
    m = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], {"w": np.zeros((5, 4), np.float32)}
    )
    assert infer(m)["x"][1] == (2, 3)


@pytest.mark.parametrize("name", ["resnet50", "squeezenet", "vgg19", "shufflenet", "densenet121"])
def test_every_read_value_of_a_real_architecture_has_numbers(name: str) -> None:
    m = Model.of(ir.from_proto(onnx.load(DATA / f"light_{name}.onnx")), name)
    graph = shaped(m).graph.graph
    missing = [v.name for n in graph for v in n.outputs if v.uses() and static(v) is None]
    assert missing == []


def test_an_unknown_input_asks_what_was_meant() -> None:
    with pytest.raises(InputError) as e:
        infer(model([helper.make_node("Relu", ["image"], ["y"])], {"image": ["N"]}, ["y"]), {"imgae": (1,)})
    assert str(e.value) == "imgae: is not an input of the model\n  hint: did you mean 'image'?  [shape.input]"


def test_a_wrong_rank_shows_what_the_model_takes() -> None:
    with pytest.raises(InputError) as e:
        infer(conv_chain(), {"x": (1, 3, 8)})
    assert str(e.value) == (
        "x: has 4 dimensions, x float32[N, 3, h, w]; got 3: 1,3,8\n"
        "  hint: give 4 numbers: --shape x=N,3,h,w  [shape.rank]"
    )


def test_a_fixed_dimension_cannot_be_changed() -> None:
    with pytest.raises(InputError) as e:
        infer(conv_chain(), {"x": (1, 4, 8, 8)})
    assert str(e.value) == (
        "x: dimension 1 is 3 (the model fixes it); got 4\n"
        "  hint: the model declares x float32[N, 3, h, w]  [shape.dimension]"
    )


def test_one_symbol_cannot_have_two_values() -> None:
    m = model([helper.make_node("Add", ["x", "y"], ["z"])], {"x": ["N"], "y": ["N"]}, ["z"])
    with pytest.raises(InputError) as e:
        infer(m, {"x": (2,), "y": (3,)})
    assert e.value.problem == "dimension 0 is 2 ('N' was given so before); got 3"
