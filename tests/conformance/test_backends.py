"""Every backend of the registry is put through the same rules."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof import registry
from edgeproof.errors import EdgeproofError, InputError
from edgeproof.model import Model

NAMES = registry.names("backends")


def cases():
    for name in NAMES:
        backend = registry.load("backends", name)()
        if backend.missing() is None:
            yield from (pytest.param(backend, target, id=target.name) for target in backend.targets())


CASES = list(cases())
CONV = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 2, 5, 5] x, float[3, 2, 3, 3] w) => (float[1, 3, 3, 3] y, float[1, 3, 3, 3] r)
{ y = Conv(x, w)  r = Relu(y) }"""


def test_the_judge_and_the_runtime_are_both_here():
    assert {c.id for c in CASES} >= {"onnxruntime:cpu", "reference:cpu"}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_is_missing_as_a_line_that_installs_it(name):
    line = registry.load("backends", name)().missing()
    assert line is None or "install" in line


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_a_target_is_named_backend_colon_device(backend, target):
    assert target.name == f"{target.backend}:{target.device}"


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_a_convolution_equals_its_sum(backend, target):
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(1, 2, 5, 5)).astype("f4"), rng.normal(size=(3, 2, 3, 3)).astype("f4")
    want = np.zeros((1, 3, 3, 3))
    for o, i, r, c in np.ndindex(3, 2, 3, 3):
        want[0, o] += w[o, i, r, c] * x[0, i, r : r + 3, c : c + 3]
    session = backend.compile(Model.of(ir.from_onnx_text(CONV), "conv"), target)
    got = session.run({"x": x, "w": w})
    session.close()
    assert list(got) == ["y", "r"]
    np.testing.assert_allclose(got["y"], want, atol=1e-5)
    np.testing.assert_array_equal(got["r"], np.maximum(got["y"], 0))


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_it_tells_where_every_node_ran(backend, target):
    session = backend.compile(Model.of(ir.from_onnx_text(CONV), "conv"), target)
    placement = session.placement()
    session.close()
    assert placement.nodes
    assert placement.source
    assert all(where for _, _, where, _ in placement.nodes)


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_missing_inputs_are_an_input_error(backend, target):
    session = backend.compile(Model.of(ir.from_onnx_text(CONV), "conv"), target)
    with pytest.raises(InputError):
        session.run({})
    session.close()


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_the_model_is_left_as_it_was(backend, target):
    model = Model.of(ir.from_onnx_text(CONV), "conv")
    session = backend.compile(model, target)
    session.run({"x": np.ones((1, 2, 5, 5), "f4"), "w": np.ones((3, 2, 3, 3), "f4")})
    session.close()
    assert Model.of(model.graph, "conv").digest == model.digest


@pytest.mark.parametrize(("backend", "target"), CASES)
def test_an_unknown_operator_is_an_edgeproof_error(backend, target):
    header = '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>'
    text = f"{header}\ng (float[4] x) => (float[4] y) {{ y = com.acme.Foo(x) }}"
    with pytest.raises(EdgeproofError):
        backend.compile(Model.of(ir.from_onnx_text(text), "m"), target).run({"x": np.ones(4, "f4")})
