"""The backend against ONNX Runtime, and against what the program and ExecuTorch's own profile say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeproof.backends._executorch_lowering import kept
from edgeproof.backends.executorch import IMPL
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.fp16 import Fp16
from edgeproof.passes.int8 import Int8
from edgeproof.runtimes import find_target
from small_nets import CPU, context, net, node, number, ran, samples, small_cnn, weight

XNNPACK = find_target("executorch:xnnpack", {"threads": 1})
PORTABLE = find_target("executorch:portable", {"threads": 1})

SIDES = [
    weight("w1", 8, 3, 3, 3),
    weight("w2", 8, 8, 3, 3),
    weight("dw", 8, 1, 3, 3),
    weight("t1", 3, 8, 2, 2),
    number("half", 0.5),
    number("zero", 0.0),
    number("six", 6.0),
]
LAST = node("Conv", ["b", "w2"], ["y"], name="last")
FIRST = node("Conv", ["x", "w1"], ["a"], name="first")
BETWEEN = {
    "hard-swish": [FIRST, node("HardSwish", ["a"], ["b"], name="hs")],
    "sigmoid gate": [FIRST, node("Sigmoid", ["a"], ["g"]), node("Mul", ["a", "g"], ["b"])],
    "scale by a constant": [FIRST, node("Relu", ["a"], ["r"]), node("Mul", ["r", "half"], ["b"], name="half_of")],
    "transposed convolution": [node("ConvTranspose", ["x", "t1"], ["a"], strides=[2, 2]), node("Relu", ["a"], ["b"])],
    "depthwise, clips, residual": [
        FIRST,
        node("Clip", ["a", "zero", "six"], ["c"]),
        node("Conv", ["c", "dw"], ["d"], group=8, pads=[1] * 4, name="depthwise"),
        node("Clip", ["d", "zero", "six"], ["e"]),
        node("Add", ["e", "c"], ["b"], name="sum"),
    ],
    "pool, split, concatenation": [
        FIRST,
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", ["p"], ["s", "t"], axis=1),
        node("Concat", ["t", "s"], ["b"], axis=1),
    ],
}


def session(model, target=XNNPACK, **settings):
    return IMPL().compile(model, target.with_settings(settings))


def output(model, target=XNNPACK, **settings):
    made = session(model, target, **settings)
    try:
        return made.run(samples(model, 1)[0])["y"], made.placement(), made.layers()
    finally:
        made.close()


def quantised(model, target=XNNPACK):
    return Int8()(model, replace(context(model), target=target)).model


@pytest.mark.parametrize("target", [XNNPACK, PORTABLE], ids=lambda t: t.device)
def test_it_gives_what_onnxruntime_gives(target):
    model = small_cnn()
    got, placement, _ = output(model, target)
    np.testing.assert_allclose(got, ran(model, samples(model, 1)[0]), atol=1e-4)
    where = "XNNPACK" if target is XNNPACK else "portable"
    assert {device for _, _, device, _ in placement.nodes} == {where}
    assert {"c1", "c2", "add", "c3", "fc"} <= {name for name, *_ in placement.nodes}


def test_our_int8_runs_in_integers_by_the_program_and_by_the_profile():
    model = quantised(small_cnn())
    got, placement, layers = output(model, profile=True)
    np.testing.assert_allclose(got, ran(model, samples(model, 1)[0]), atol=1e-5)
    assert {precision for *_, precision in placement.nodes} == {"int8"}
    assert placement.fallbacks == ()
    kernels = {x.name: x.kernel for x in layers if x.op in ("XNNConv2d", "XNNFullyConnected")}
    assert set(kernels) == {"c1", "c2", "c3", "fc"}
    assert all("QC8" in kernel for kernel in kernels.values())
    assert all(len(x.time_ns) == 1 for x in layers)


@pytest.mark.parametrize("name", BETWEEN)
def test_int8_gives_what_onnxruntime_gives_for_the_same_graph(name):
    model = quantised(net([*BETWEEN[name], LAST], SIDES))
    feeds = samples(model, 1)[0]
    got, placement, _ = output(model)
    want = ran(model, feeds)
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
    layers = {n: precision for n, op, _, precision in placement.nodes if "Conv" in op and "2d" in op}
    assert set(layers.values()) == {"int8"}
    assert placement.fallbacks == ()


def test_an_activation_between_codes_is_one_table_of_codes():
    model = quantised(net([*BETWEEN["hard-swish"], LAST], SIDES))
    _, _, layers = output(model, profile=True)
    names = [x.name for x in layers]
    assert names.index("last") - names.index("first") == 2  # no change of precision or layout on either side
    assert [x.precision for x in layers if x.name in ("first", "hs", "last")] == ["int8"] * 3


def test_matrix_products_of_three_dimensions_run_in_integers():
    model = quantised(
        net(
            [
                node("MatMul", ["x", "m1"], ["a"], name="one"),
                node("Relu", ["a"], ["b"]),
                node("MatMul", ["b", "m2"], ["y"], name="two"),
            ],
            [weight("m1", 24, 32), weight("m2", 32, 8)],
            (1, 10, 24),
        )
    )
    got, placement, _ = output(model)
    np.testing.assert_allclose(got, ran(model, samples(model, 1)[0]), atol=1e-5)
    assert [(op, p) for _, op, _, p in placement.nodes] == [("XNNFullyConnected", "int8")] * 2


def test_unsigned_codes_meant_for_onnxruntime_run_in_integers_too():
    model = quantised(small_cnn(), CPU)
    got, placement, _ = output(model)
    np.testing.assert_allclose(got, ran(model, samples(model, 1)[0]), atol=0.2)
    assert {"c1", "c2", "c3"} <= {name for name, _, _, precision in placement.nodes if precision == "int8"}


def test_activations_with_a_scale_per_channel_compute_the_same():
    pair = [
        node("QuantizeLinear", ["a", "s", "z"], ["q"], axis=1),
        node("DequantizeLinear", ["q", "s", "z"], ["b"], axis=1),
    ]
    steps = [number("s", np.linspace(0.01, 0.05, 8)), number("z", range(8), np.int8)]
    model = net([FIRST, *pair, LAST], [*SIDES, *steps])
    got, placement, _ = output(model)
    want = ran(model, samples(model, 1)[0])
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
    assert {p for n, _, _, p in placement.nodes if n == "last"} == {"float"}


def test_a_layer_that_does_not_fit_runs_on_floats_and_is_told_with_the_reason():
    model = net([FIRST, node("Sigmoid", ["a"], ["b"]), LAST], SIDES)
    target = replace(XNNPACK, scheme=replace(XNNPACK.scheme, fused_output=()))
    made = quantised(model, target)
    got, placement, _ = output(made)
    np.testing.assert_allclose(got, ran(made, samples(made, 1)[0]), atol=1e-3)
    assert ("first", "runs in float: its output is not quantised, or is read in float as well") in placement.fallbacks
    assert {p for n, _, _, p in placement.nodes if n == "first"} == {"float"}


def test_what_xnnpack_lacks_is_a_fallback_by_the_name_of_the_node():
    model = net([FIRST, node("Erf", ["a"], ["y"], name="erf")], SIDES)
    got, placement, _ = output(model)
    np.testing.assert_allclose(got, ran(model, samples(model, 1)[0]), atol=1e-5)
    assert ("erf", "aten.erf", "portable", "float") in placement.nodes
    assert [name for name, _ in placement.fallbacks] == ["erf"]


def test_half_precision_runs_in_half_precision():
    model = Fp16()(small_cnn(), context(small_cnn())).model
    got, placement, _ = output(model)
    want = ran(small_cnn(), samples(model, 1)[0])
    np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())
    assert {p for n, _, device, p in placement.nodes if n in ("c1", "c2", "c3")} == {"float16"}


def test_without_the_setting_there_are_no_times():
    _, _, layers = output(small_cnn())
    assert layers == ()


def test_open_dimensions_are_refused_with_the_remedy():
    with pytest.raises(UnsupportedError, match="open dimensions") as caught:
        session(net([FIRST, node("Relu", ["a"], ["y"])], SIDES, ("n", 3, 16, 16)))
    assert "fix_shapes" in caught.value.hint


def test_arrays_of_another_shape_are_an_input_error():
    made = session(small_cnn())
    with pytest.raises(InputError, match="shape"):
        made.run({"x": np.zeros((1, 3, 8, 8), "f4")})
    made.close()


def test_another_number_of_threads_is_refused_while_a_session_is_open():
    made = session(small_cnn())
    with pytest.raises(UnsupportedError, match="threads=2"):
        session(small_cnn(), threads=2)
    made.close()
    session(small_cnn(), threads=2).close()
    session(small_cnn()).close()


def test_build_writes_a_program_that_executorch_loads(tmp_path: Path):
    import torch
    from executorch.runtime import Runtime

    model = quantised(small_cnn())
    told = []
    made = IMPL().build(model, XNNPACK, tmp_path / "net", lambda what, share: told.append((what, share)))
    assert made.path == tmp_path / "net.pte"
    assert made.format == "pte"
    assert [p.name for p in tmp_path.iterdir()] == ["net.pte"]
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert made.facts["int8_kernels"] == 7
    assert made.facts["float_kernels"] == made.facts["portable_kernels"] == 0
    feeds = samples(model, 1)[0]
    program = Runtime.get().load_program(made.path.read_bytes())
    found = program.load_method("forward").execute([torch.from_numpy(feeds["x"])])
    np.testing.assert_allclose(found[0].numpy(), ran(model, feeds), atol=1e-5)


def test_int8_weights_take_a_byte_each(tmp_path: Path):
    model = net([node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])],
                [weight("w", 64, 3, 3, 3), weight("v", 64, 64, 3, 3)])  # fmt: skip
    sizes = [
        len(IMPL().build(m, XNNPACK, tmp_path / n, lambda *_: None).path.read_bytes())
        for n, m in (("f", model), ("q", quantised(model)))
    ]
    assert sizes[1] < 0.4 * sizes[0]


def test_a_program_is_lowered_once_and_a_damaged_one_again(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEPROOF_CACHE", str(tmp_path))
    model, target = small_cnn(), find_target("executorch:xnnpack", {"threads": 1})
    first = kept(model, target)
    (program,) = (tmp_path / "executorch").glob("*.pte")
    stamp = program.stat().st_mtime_ns
    again = kept(model, target)
    assert again.program == first.program
    assert again.placement == first.placement
    assert again.kernels == first.kernels
    assert program.stat().st_mtime_ns == stamp
    program.write_bytes(b"spoilt")
    assert kept(model, target).placement == first.placement
    assert program.read_bytes() != b"spoilt"
