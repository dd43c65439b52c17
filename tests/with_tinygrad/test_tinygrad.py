"""The backend against ONNX Runtime. The networks are tiny: tinygrad compiles each of their kernels."""

import numpy as np
import pytest

from edgeproof import toolchain
from edgeproof.backends.tinygrad import IMPL
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.int8 import Int8
from edgeproof.target import Target
from small_nets import context, net, node, number, ran, samples, small_cnn, weight

CPU = Target("tinygrad:cpu", "tinygrad", "cpu", settings={"threads": 1})


def small(*shape):
    return net(
        [node("Gemm", ["x", "w"], ["h"], name="first"), node("Relu", ["h"], ["y"], name="last")],
        [weight("w", 6, 4)],
        shape or (2, 6),
    )


def test_it_gives_what_onnxruntime_gives_every_time():
    model = small_cnn()
    session = IMPL().compile(model, CPU)
    many = samples(model, 3)
    got = [session.run(feeds)["y"] for feeds in many]
    session.close()
    for feeds, found in zip(many, got, strict=True):  # earlier results are not overwritten by later runs
        np.testing.assert_allclose(found, ran(model, feeds), atol=1e-4)


def test_a_quantised_graph_gives_the_numbers_of_its_codes():
    model = small()
    model = Int8()(model, context(model)).model
    session = IMPL().compile(model, CPU)
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    step = 0.02 * np.abs(want).max()
    np.testing.assert_allclose(session.run(feeds)["y"], want, atol=step)
    precisions = {precision for *_, precision in session.placement().nodes}
    session.close()
    assert "uint8" in precisions


def test_open_shapes_are_compiled_as_they_come():
    model = small("n", 6)
    session = IMPL().compile(model, CPU)
    assert session.placement().nodes == ()
    for rows in (1, 3, 1):
        feeds = {"x": np.random.default_rng(rows).normal(size=(rows, 6)).astype(np.float32)}
        np.testing.assert_allclose(session.run(feeds)["y"], ran(model, feeds), atol=1e-5)
    session.close()


def test_placement_and_profile_speak_of_the_same_kernels():
    model = small()
    session = IMPL().compile(model, CPU.with_settings({"profile": True}))
    for feeds in samples(model, 3):
        session.run(feeds)
    layers, placement = session.layers(), session.placement()
    session.close()
    assert [x.kernel for x in layers] == [name for name, *_ in placement.nodes]
    assert all(len(x.time_ns) == 3 and min(x.time_ns) > 0 for x in layers)
    assert {where for _, _, where, _ in placement.nodes} == {"CPU"}


def test_a_profiled_session_gives_the_same_numbers():
    model = small()
    feeds = samples(model, 1)[0]
    session = IMPL().compile(model, CPU.with_settings({"profile": True}))
    np.testing.assert_allclose(session.run(feeds)["y"], ran(model, feeds), atol=1e-5)
    session.close()


def test_a_search_over_variants_keeps_the_numbers():
    model = small()
    feeds = samples(model, 1)[0]
    session = IMPL().compile(model, CPU.with_settings({"beam": 1}))
    np.testing.assert_allclose(session.run(feeds)["y"], ran(model, feeds), atol=1e-5)
    session.close()


def test_empty_constants_of_resize_are_taken_as_absent():
    resize = node("Resize", ["x", "roi", "scales"], ["y"], name="up", mode="nearest")
    model = net([resize], [number("roi", [], np.float32), number("scales", [1, 1, 2, 2], np.float32)], (1, 1, 2, 2))
    session = IMPL().compile(model, CPU)
    feeds = samples(model, 1)[0]
    np.testing.assert_array_equal(session.run(feeds)["y"], ran(model, feeds))
    session.close()


def test_the_node_that_cannot_run_is_named():
    model = net([node("Relu", ["x"], ["r"], name="fine"), node("Det", ["r"], ["y"], name="culprit")], shape=(3, 3))
    with pytest.raises(UnsupportedError, match=r"Det \(node culprit\)") as caught:
        IMPL().compile(model, CPU)
    assert caught.value.code == "backend.unknown_operator"


def test_arrays_of_another_type_are_refused():
    session = IMPL().compile(small(), CPU)
    with pytest.raises(InputError, match="float64"):
        session.run({"x": np.zeros((2, 6))})
    session.close()


def test_without_a_compiler_it_says_which_one_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert IMPL().missing() == toolchain.CLANG
    assert toolchain.TOOLCHAINS["tinygrad"].note.endswith(toolchain.CLANG)
