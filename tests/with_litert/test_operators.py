"""Every operator that is claimed, on ONNX's own node tests: what LiteRT computes is what ONNX says."""

from collections import defaultdict

import numpy as np
import onnx_ir as ir
import pytest
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper

from conformance.onnx_suite import generated
from edgeproof.errors import EdgeproofError
from edgeproof.model import Model
from edgeproof.tflite.convert import OPS, convert
from small_nets import net, node


def cases():
    found = defaultdict(list)
    for case in generated():
        ops = {n.op_type for n in case.model.graph.node}
        arrays = [a for part in case.data_sets[:1] for side in part for a in side]
        plain = all(isinstance(a, np.ndarray) and a.dtype != object for a in arrays)
        if len(ops) == 1 and ops <= set(OPS) and arrays and plain:
            found[ops.pop()].append(case)
    return found


CASES = cases()
OWN = {"ReduceLogSumExp", "Upsample", "Swish", "Dropout", "Cast", "CumSum", "OneHot"}
"""Operators whose cases ONNX has in float64 only, or not at all; they are held against ONNX Runtime below."""


def stored(case, names):
    """The case's model with inputs as constants, and what is left to feed."""
    graph, feeds = ir.from_proto(case.model), {}
    for value, array in zip(list(graph.graph.inputs), case.data_sets[0][0], strict=False):
        if value.name in names:
            graph.graph.inputs.remove(value)
            value.const_value = ir.tensor(array, name=value.name)
            graph.graph.register_initializer(value)
        else:
            feeds[value.name] = array
    return Model.of(graph, case.name), feeds


def computed(case):
    """LiteRT's outputs; what must be a constant is made one when it is asked for."""
    names = [v.name for v in case.model.graph.input]
    try:
        model, feeds = stored(case, ())
        converted = convert(model)
    except EdgeproofError:
        model, feeds = stored(case, names[1:])
        converted = convert(model)
    interpreter = Interpreter(model_content=converted.data, num_threads=1)
    interpreter.allocate_tensors()
    return interpreter.get_signature_runner()(**feeds)


@pytest.mark.parametrize("op", sorted(CASES))
def test_what_litert_computes_is_what_onnx_says_or_the_node_is_refused_by_name(op):
    passed, refused = 0, []
    for case in CASES[op]:
        try:
            got = computed(case)
        except EdgeproofError as e:
            refused.append(e)
            continue
        for value, want in zip(case.model.graph.output, case.data_sets[0][1], strict=True):
            found = got[value.name]
            assert (found.shape, found.dtype) == (want.shape, want.dtype), case.name
            if want.dtype.kind == "f":
                tolerance = 1e-2 if want.dtype.itemsize == 2 else 1e-3
                np.testing.assert_allclose(found.astype("f8"), want.astype("f8"), tolerance, 1e-5, err_msg=case.name)
            else:
                np.testing.assert_array_equal(found, want, err_msg=case.name)
        passed += 1
    assert all(e.subject and e.hint for e in refused)
    assert passed or op in OWN


def test_all_other_operators_that_are_claimed_have_cases():
    assert set(OPS) - set(CASES) <= OWN


@pytest.mark.parametrize("axes", [[0], [1, 2]])
def test_the_logarithm_of_summed_exponentials_does_not_overflow(axes):
    axis = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
    model = net([node("ReduceLogSumExp", ["x", "axes"], ["y"])], [axis], (2, 3, 4), opset=18)
    x = np.random.default_rng(0).normal(80, 30, (2, 3, 4)).astype("f4")
    interpreter = Interpreter(model_content=convert(model).data)
    interpreter.allocate_tensors()
    want = np.logaddexp.reduce(x.astype("f8"), axis=axes[0], keepdims=True)
    for a in axes[1:]:
        want = np.logaddexp.reduce(want, axis=a, keepdims=True)
    np.testing.assert_allclose(interpreter.get_signature_runner()(x=x)["y"], want, rtol=1e-5)


def test_an_upsample_of_old_repeats_what_is_nearest():
    scales = helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, 2, 3])
    model = net([node("Upsample", ["x", "s"], ["y"], mode="nearest")], [scales], (1, 2, 3, 2), opset=9)
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 2)).astype("f4")
    interpreter = Interpreter(model_content=convert(model).data)
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(interpreter.get_signature_runner()(x=x)["y"], x.repeat(2, 2).repeat(3, 3))


def runs(model, x):
    interpreter = Interpreter(model_content=convert(model).data)
    interpreter.allocate_tensors()
    return interpreter.get_signature_runner()(x=x)["y"]


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_running_sum_equals_its_definition(exclusive, reverse):
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
    model = net([node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)], [axis], (2, 5))
    x = np.random.default_rng(0).normal(size=(2, 5)).astype("f4")
    turned = x[:, ::-1] if reverse else x
    want = np.cumsum(turned, 1) - (turned if exclusive else 0)
    np.testing.assert_allclose(runs(model, x), want[:, ::-1] if reverse else want, atol=1e-5)


def test_one_hot_of_classes_marks_each_in_its_row():
    depth = helper.make_tensor("d", TensorProto.INT64, [], [6])
    values = helper.make_tensor("v", TensorProto.FLOAT, [2], [-1, 2])
    nodes = [node("ArgMax", ["x"], ["c"], axis=1, keepdims=0), node("OneHot", ["c", "d", "v"], ["y"])]
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("f4")
    want = np.where(np.arange(6) == x.argmax(1)[:, None], 2.0, -1.0)
    np.testing.assert_array_equal(runs(net(nodes, [depth, values], (4, 6)), x), want)


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL])
def test_a_cast_there_and_back_keeps_what_the_dtype_can_hold(dtype):
    nodes = [node("Cast", ["x"], ["c"], to=dtype), node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)]
    x = np.array([-2.7, 0.0, 0.4, 3.9], np.float32)
    held = x.astype(helper.tensor_dtype_to_np_dtype(dtype))
    np.testing.assert_array_equal(runs(net(nodes, shape=(4,)), x), held.astype(np.float32))
