"""torch.export takes what was imported, with open dimensions kept open."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from conformance.onnx_suite import DATA, light
from edgeproof.errors import InputError
from edgeproof.fx import export, import_model
from edgeproof.model import Model
from small_nets import net, node, number, small_cnn, weight
from with_torch.nets import by_runtime, by_torch, drawn


def test_a_network_gives_what_onnx_runtime_gives_before_and_after_export() -> None:
    model = small_cnn()
    imported = import_model(model, fixed=True)
    x = drawn(imported)
    (want,) = by_runtime(model, *x)
    for module in (imported.module, export(imported).module()):
        np.testing.assert_allclose(by_torch(module, *x)[0], want, rtol=1e-4, atol=1e-5)


def attention(shape: tuple[int | str, ...] = ("N", "T", 8)) -> Model:
    """Two heads, split and joined by shapes that are computed as exporters do it."""
    return net(
        [
            node("MatMul", ["x", "w"], ["q"]),
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Unsqueeze", ["n", "first"], ["n1"]),
            node("Unsqueeze", ["t", "first"], ["t1"]),
            node("Concat", ["n1", "t1", "heads"], ["split"], axis=0),
            node("Reshape", ["q", "split"], ["r"]),
            node("Transpose", ["r"], ["h"], perm=[0, 2, 1, 3]),
            node("Transpose", ["r"], ["k"], perm=[0, 2, 3, 1]),
            node("MatMul", ["h", "k"], ["scores"]),
            node("Softmax", ["scores"], ["p"], axis=-1),
            node("MatMul", ["p", "h"], ["o"]),
            node("Transpose", ["o"], ["b"], perm=[0, 2, 1, 3]),
            node("Concat", ["n1", "t1", "joined"], ["join"], axis=0),
            node("Reshape", ["b", "join"], ["y"]),
        ],
        [
            weight("w", 8, 8),
            number("zero", 0, np.int64),
            number("one", 1, np.int64),
            number("first", [0], np.int64),
            number("heads", [2, 4], np.int64),
            number("joined", [-1], np.int64),
        ],
        shape,
    )


def test_shapes_computed_from_open_dimensions_stay_open_in_the_export() -> None:
    model = attention()
    imported = import_model(model)
    program = export(imported, {"x": (2, 5, 8)})
    for sizes in ({"N": 2, "T": 5}, {"N": 3, "T": 7}):
        x = drawn(imported, **sizes)
        (want,) = by_runtime(model, *x)
        for module in (imported.module, program.module()):
            np.testing.assert_allclose(by_torch(module, *x)[0], want, rtol=1e-4, atol=1e-6)


def test_minus_one_in_the_shape_of_an_expand_keeps_what_is_there() -> None:
    # PyTorch's exporter writes expand(-1, …) so, whatever is open.
    model = net(
        [
            node("Shape", ["x"], ["s"]),
            node("Concat", ["front", "s"], ["wide"], axis=0),
            node("Shape", ["wide"], ["rank"]),
            node("ConstantOfShape", ["rank"], ["ones"], value=number("v", [1], np.int64)),
            node("Mul", ["ones", "minus"], ["none"]),
            node("Equal", ["wide", "none"], ["kept"]),
            node("Where", ["kept", "ones", "wide"], ["target"]),
            node("Expand", ["x", "target"], ["y"]),
        ],
        [number("front", [3], np.int64), number("minus", -1, np.int64)],
        ("N", 2),
    )
    imported = import_model(model)
    program = export(imported, {"x": (4, 2)})
    for module in (imported.module, program.module()):
        x = drawn(imported, N=5)
        np.testing.assert_array_equal(by_torch(module, *x)[0], by_runtime(model, *x)[0])


def test_no_size_is_asked_for_at_run_time_when_shapes_are_known() -> None:
    graph = import_model(attention((2, 5, 8))).module.graph
    assert not [n for n in graph.nodes if n.target == "size"]


def test_open_inputs_are_refused_where_fixed_ones_are_asked_for() -> None:
    with pytest.raises(InputError, match="fix_shapes") as caught:
        import_model(attention(), fixed=True)
    assert caught.value.subject == "x"


@pytest.mark.parametrize("name", light())
def test_real_architectures_give_what_onnx_runtime_gives(name: str) -> None:
    model = Model.of(ir.from_proto(onnx.load(DATA / "light" / f"{name}.onnx")), name)
    imported = import_model(model, fixed=True)
    x = drawn(imported)
    (want,) = by_runtime(model, *x)
    np.testing.assert_allclose(by_torch(imported.module, *x)[0], want, rtol=1e-3, atol=1e-6)
    if "shufflenet" in name:
        np.testing.assert_allclose(by_torch(export(imported).module(), *x)[0], want, rtol=1e-3, atol=1e-6)
