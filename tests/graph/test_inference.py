import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from edgeproof.graph.inference import inferred
from edgeproof.graph.inspection import inspect_model
from edgeproof.model import Model
from edgeproof.passes.simplify import Simplify
from edgeproof.protocols import Context


def ranged(limit: int):
    nodes = [helper.make_node("Range", ["zero", "limit", "one"], ["r"]), helper.make_node("Shape", ["r"], ["y"])]
    values = {"zero": 0, "limit": limit, "one": 1}
    weights = [helper.make_tensor(n, TensorProto.INT64, [], [v]) for n, v in values.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, [1])]
    graph = helper.make_graph(nodes, "g", [], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_small_constant_range_gets_its_length():
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred(ranged(7)).graph.value_info}
    assert shapes["r"] == [7]


@pytest.mark.parametrize("limit", [10**12, 2**62])
def test_a_huge_constant_range_is_not_written_out(limit):
    model = Model.of(ir.from_proto(ranged(limit)), "huge")
    inspect_model(model)
    context = Context(compile=lambda _model: pytest.fail("nothing to run"))
    assert Simplify(verify=False)(model, context).model.digest
