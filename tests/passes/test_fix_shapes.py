"""Open dimensions get a size wherever their symbol stands; what contradicts the model is refused by name."""

import numpy as np
import onnx_ir as ir
import pytest
from small_models import CONTEXT, build, floats, node, run

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.passes.fix_shapes import FixShapes, parse_shapes


def model():
    nodes = [node("Relu", "x", "r"), node("Concat", "r z", "y", axis=1)]
    return build(nodes, {"x": ("n", "a", 4), "z": ("n", 2, 4)}, "y")


def test_a_symbol_is_fixed_in_every_input_and_output():
    change = FixShapes("x=3,5,4")(model(), CONTEXT)
    assert [str(s) for s in change.model.inputs] == ["x float32[3, 5, 4]", "z float32[3, 2, 4]"]
    assert str(change.model.outputs[0]) == "y float32[3, 7, 4]"
    assert change.applied[0] == "x: [n,a,4] became [3,5,4]"
    feeds = {"x": floats(3, 5, 4), "z": floats(3, 2, 4)}
    np.testing.assert_array_equal(run(change.model, feeds)[0], run(model(), feeds)[0])


def test_several_inputs_are_separated_by_semicolons():
    assert parse_shapes("a:0=1,2; b=3") == {"a:0": (1, 2), "b": (3,)}


def test_the_size_of_a_reshape_that_is_computed_from_the_input_reaches_the_output():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n", axis=0),
        node("Concat", "n rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    numbers = {"first": np.int64([0]), "rest": np.int64([-1])}
    change = FixShapes("x=2,3,4")(build(nodes, {"x": ("n", "c", "d")}, "y", numbers), CONTEXT)
    assert change.model.outputs[0].shape == (2, 12)


def test_an_only_input_needs_no_name():
    only = build([node("Relu", "x", "y")], {"x": ("n", 4)}, "y")
    assert FixShapes("3,4")(only, CONTEXT).model.inputs[0].shape == (3, 4)


def test_stale_shapes_of_inner_values_are_replaced():
    graph = model().graph.clone()
    graph.graph[0].outputs[0].shape = ir.Shape([1, 9, 4])
    change = FixShapes("x=3,5,4")(Model.of(graph, "stale"), CONTEXT)
    inner = change.model.graph.graph[0].outputs[0]
    assert inner.shape is not None
    assert inner.shape.numpy() == (3, 5, 4)


def test_a_model_that_is_fixed_already_is_left_alone():
    fixed = FixShapes("x=3,5,4")(model(), CONTEXT).model
    change = FixShapes("x=3,5,4")(fixed, CONTEXT)
    assert not change.modified
    assert change.model is fixed
    assert "nothing open" in change.declined[0][1]


def test_an_anonymous_dimension_is_fixed_only_where_it_is_named():
    nodes = [node("Concat", "x z", "y", axis=0)]
    change = FixShapes("x=3,4")(build(nodes, {"x": ("?", 4), "z": ("?", 4)}, "y"), CONTEXT)
    assert [s.shape for s in change.model.inputs] == [(3, 4), ("?", 4)]
    assert change.declined[0][0] == "y"


@pytest.mark.parametrize(
    ("shapes", "code", "text"),
    [
        ("xx=1,2,4", "fix_shapes.unknown_input", "did you mean 'x'?"),
        ("x=1,2", "fix_shapes.rank", "was given 2 dimensions (1,2); the model declares 3"),
        ("x=1,2,5", "fix_shapes.contradiction", "dimension 2 was given as 5; the model fixes it to 4"),
        ("x=1,2,4;z=2,2,4", "fix_shapes.contradiction", "dimension 0 (n) was given as 2, and as 1 elsewhere"),
        ("x=1,-2,4", "fix_shapes.syntax", "is no shape"),
        ("x", "fix_shapes.syntax", "is no shape"),
        ("x=1,b,4", "fix_shapes.syntax", "is no shape"),
        ("", "fix_shapes.syntax", "is empty"),
    ],
)
def test_what_cannot_be_is_refused(shapes, code, text):
    with pytest.raises(InputError) as e:
        FixShapes(shapes)(model(), CONTEXT)
    assert e.value.code == code
    assert text in str(e.value)


def test_the_given_model_is_left_as_it_is():
    given = model()
    digest = type(given).of(given.graph, "again").digest
    FixShapes("x=3,5,4")(given, CONTEXT)
    assert type(given).of(given.graph, "again").digest == digest
