import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.backends.onnxruntime import IMPL, PROVIDERS
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.target import Target

CPU = Target("onnxruntime:cpu", "onnxruntime", "cpu")


def model(text: str) -> Model:
    return Model.of(ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>\n{text}'), "m")


RELU = "g (float[n, 4] x) => (float[n, 4] y) { h = Relu(x)\n y = Add(h, x) }"


def test_it_runs_a_model_and_names_its_outputs():
    session = IMPL().compile(model(RELU), CPU)
    x = np.array([[-1, 0, 1, 2]], np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], [[-1, 0, 2, 4]])
    session.close()


def test_placement_comes_from_the_runtimes_record():
    session = IMPL().compile(model(RELU), CPU)
    placement = session.placement()
    assert {(op, where) for _, op, where, _ in placement.nodes} == {
        ("Relu", "CPUExecutionProvider"),
        ("Add", "CPUExecutionProvider"),
    }
    assert placement.fallbacks == ()
    assert session.layers() == ()


def test_a_profiled_session_tells_the_time_and_the_precision_of_every_node():
    session = IMPL().compile(model(RELU), CPU.with_settings({"profile": True, "graph_optimization": "disable"}))
    for _ in range(3):
        session.run({"x": np.ones((1, 4), np.float32)})
    layers = session.layers()
    assert [(layer.op, layer.precision, len(layer.time_ns)) for layer in layers] == [
        ("Relu", "float", 3),
        ("Add", "float", 3),
    ]
    assert {precision for *_, precision in session.placement().nodes} == {"float"}
    session.close()


def test_a_provider_that_the_wheel_lacks_is_refused_with_the_way_to_it():
    import onnxruntime as ort

    absent = next(d for d, p in PROVIDERS if p not in ort.get_available_providers())
    with pytest.raises(UnsupportedError, match=f"the installed onnxruntime {ort.__version__} has no ") as caught:
        IMPL().compile(model(RELU), Target(f"onnxruntime:{absent}", "onnxruntime", absent))
    assert caught.value.hint == "run 'edgeproof targets' for the line that installs it"


def test_an_operator_that_it_does_not_know_is_named():
    with pytest.raises(UnsupportedError) as caught:
        IMPL().compile(model("g (float[4] x) => (float[4] y) { y = com.acme.Frobnicate(x) }"), CPU)
    assert str(caught.value) == (
        "m on onnxruntime:cpu: operator com.acme:Frobnicate is not known to the runtime\n"
        "  hint: export it with standard ONNX operators, or register the custom operator's library with the runtime"
        "  [backend.unknown_operator]"
    )


@pytest.mark.parametrize(
    "feeds",
    [{}, {"z": np.ones((1, 4), np.float32)}, {"x": np.ones((1, 5), np.float32)}, {"x": np.ones((1, 4), np.int64)}],
)
def test_feeds_that_do_not_fit_are_shown_beside_what_was_expected(feeds):
    session = IMPL().compile(model(RELU), CPU)
    with pytest.raises(InputError, match=r"expected x float32\[n, 4\]"):
        session.run(feeds)


def test_targets_are_devices_that_really_run():
    assert [t.name for t in IMPL().targets()][-1] == "onnxruntime:cpu"
