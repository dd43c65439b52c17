"""What each runtime wants stands in data with a source, in the docs as it stands in the data, and is obeyed."""

from __future__ import annotations

import platform
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from edgeproof.backends.onnxruntime import cpu_scheme
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.quant import schemes
from edgeproof.quant.layers import Scope, constant, label
from edgeproof.quant.parameters import parameters
from edgeproof.quant.placement import Plan, plan
from edgeproof.quant.schemes import LITERT, OPENVINO, ORT, ORT_ARM, ORT_NARROW, SCHEMES, table
from edgeproof.target import QuantScheme, Target
from small_nets import CPU, context, net, node, number, small_cnn, weight

PAGE = Path(__file__).parents[2] / "docs/schemes.md"


def placed(model: Model, scheme: QuantScheme) -> Plan:
    return plan(model.graph.clone().graph, scheme, Scope())


def quantised(model: Model, scheme: QuantScheme) -> Model:
    target = Target("t:cpu", "t", "cpu", scheme)
    return Int8()(model, replace(context(model), target=target)).model


def weight_codes(model: Model) -> list[np.ndarray]:
    arrays = (constant(n.inputs[0]) for n in model.graph.graph if n.op_type == "DequantizeLinear")
    return [a for a in arrays if a is not None and a.dtype == np.int8]


@pytest.mark.parametrize("name", SCHEMES)
def test_every_entry_of_a_scheme_has_a_source(name: str) -> None:
    assert {f.name for f in fields(QuantScheme)} == set(SCHEMES[name].sources)
    assert all(SCHEMES[name].sources.values())


@pytest.mark.parametrize("name", SCHEMES)
def test_the_docs_show_the_scheme_as_it_is(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"## {SCHEMES[name].title}\n" in page
    assert table(name) in page


@pytest.mark.parametrize(
    ("machine", "flags", "want"),
    [
        ("x86_64", "flags : fpu sse2 avx512f avx512_vnni", ORT),
        ("x86_64", "flags : fpu sse2 avx2 avx_vnni", ORT),
        ("x86_64", "flags : fpu sse2 avx2 avx512f", ORT_NARROW),
        ("aarch64", "Features : fp asimd", ORT_ARM),
        ("arm64", "", ORT_ARM),
        ("riscv64", "isa : rv64imafdc", ORT),
    ],
)
def test_the_processor_decides_what_the_cpu_provider_wants(tmp_path, machine, flags, want) -> None:
    (tmp_path / "cpuinfo").write_text(flags)
    assert cpu_scheme(machine, tmp_path / "cpuinfo") == want


def test_a_processor_that_nothing_is_known_of_counts_as_able(tmp_path) -> None:
    assert cpu_scheme("x86_64", tmp_path / "none") == ORT
    assert platform.machine()


def test_weights_of_a_narrow_processor_use_seven_bits() -> None:
    wide, narrow = (weight_codes(quantised(small_cnn(), s)) for s in (ORT, ORT_NARROW))
    assert max(int(np.abs(a.astype(int)).max()) for a in wide) == 127
    assert max(int(np.abs(a.astype(int)).max()) for a in narrow) <= 64


def chain(*nodes: object, extra: tuple[object, ...] = (), opset: int = 17) -> Model:
    """conv c1, then nodes from ``a`` to ``b``, then conv c2 to ``y``."""
    return net(
        [node("Conv", ["x", "w1"], ["a"], name="c1"), *nodes, node("Conv", ["b", "w2"], ["y"], name="c2")],
        [weight("w1", 4, 3, 3, 3), weight("w2", 2, 4, 3, 3), *extra],
        opset=opset,
    )


@pytest.mark.parametrize(
    "model",
    [
        chain(node("HardSwish", ["a"], ["b"])),
        chain(node("LeakyRelu", ["a"], ["b"], alpha=0.1)),
        chain(node("Sigmoid", ["a"], ["s"]), node("Mul", ["a", "s"], ["b"])),
        chain(node("HardSigmoid", ["a"], ["s"]), node("Mul", ["s", "a"], ["b"])),
        chain(node("Relu", ["a"], ["r"]), node("Mul", ["r", "k"], ["m"]), node("Add", ["m", "k"], ["b"]),
              extra=(number("k", 0.5),)),
    ],
    ids=["hard-swish", "leaky", "swish", "gated", "scaled and shifted"],
)  # fmt: skip
def test_openvino_computes_what_lies_between_two_layers_in_float_within_the_first(model: Model) -> None:
    result = placed(model, OPENVINO)
    assert set(result.tensors) == {"x", "b"}
    assert {label(n) for n in result.roles} == {"c1", "c2"}


def test_a_gate_with_another_reader_is_not_within_the_kernel() -> None:
    model = chain(node("Sigmoid", ["a"], ["s"]), node("Mul", ["a", "s"], ["m"]), node("Add", ["m", "s"], ["b"]))
    assert "a" in placed(model, OPENVINO).tensors


def test_openvino_reads_products_without_a_zero_point_and_convolutions_with_one() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Reshape", ["a", "s"], ["f"]),
            node("MatMul", ["f", "w2"], ["y"], name="m"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 784, 5), number("s", [1, 784], np.int64)],
    )
    result = placed(model, OPENVINO)
    found = parameters(result, OPENVINO, {"x": (-1.0, 3.0), "a": (-1.0, 3.0)})
    # Affine, 8 bits unsigned: step 4/255, zero at 64. Symmetric: step 3/127, zero at 0 (white paper, eq. 4 to 8).
    assert (found["x"].dtype, int(found["x"].zero_point)) == (np.uint8, 64)
    for name in ("a", "f"):
        assert (found[name].dtype, int(found[name].zero_point)) == (np.int8, 0)
        np.testing.assert_allclose(found[name].scale, 3 / 127, rtol=1e-6)


def test_values_that_are_never_negative_need_no_zero_point_and_keep_eight_bits() -> None:
    model = net([node("MatMul", ["x", "w"], ["y"])], [weight("w", 16, 5)])
    found = parameters(placed(model, OPENVINO), OPENVINO, {"x": (0.0, 2.55)})
    assert (found["x"].dtype, int(found["x"].zero_point)) == (np.uint8, 0)


def test_litert_fixes_the_scale_of_a_sigmoid() -> None:
    result = placed(chain(node("Sigmoid", ["a"], ["b"])), LITERT)
    found = parameters(result, LITERT, {"x": (-1.0, 1.0), "a": (-4.0, 4.0), "b": (0.02, 0.98), "y": (0.0, 1.0)})
    assert (float(found["b"].scale), int(found["b"].zero_point)) == (1 / 256, -128)  # LOGISTIC of its specification


def test_litert_gives_inputs_and_output_of_a_concatenation_one_scale() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["x", "w2"], ["b"], name="c2"),
            node("Concat", ["a", "b"], ["j"], axis=1),
            node("Conv", ["j", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 3, 3, 3), weight("w3", 2, 8, 3, 3)],
    )
    ranges = {"x": (-1.0, 1.0), "a": (-2.0, 1.0), "b": (-1.0, 3.0), "j": (-2.0, 3.0), "y": (-1.0, 1.0)}
    found = parameters(placed(model, LITERT), LITERT, ranges)
    assert len({(float(found[n].scale), int(found[n].zero_point)) for n in ("a", "b", "j")}) == 1
    np.testing.assert_allclose(found["a"].scale, 5 / 255, rtol=1e-6)
    free = parameters(placed(model, ORT), ORT, ranges)
    assert len({float(free[n].scale) for n in ("a", "b", "j")}) == 3


def test_a_gate_is_spelled_out_for_openvino_and_the_values_stay() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("HardSigmoid", ["a"], ["g"]),
            node("GlobalAveragePool", ["g"], ["p"]),
            node("Mul", ["a", "p"], ["y"]),
        ],
        [weight("w1", 4, 3, 3, 3)],
    )
    made = quantised(model, OPENVINO)
    assert "HardSigmoid" not in {n.op_type for n in made.graph.graph}
    feeds = next(iter(context(model).feeds()))
    got, want = (on_cpu(m, feeds) for m in (made, model))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def on_cpu(model: Model, feeds: object) -> np.ndarray:
    session = context(model).compile(model)
    try:
        return session.run(feeds)["y"]
    finally:
        session.close()


def test_every_scheme_is_named_once() -> None:
    assert len({id(d.scheme) for d in SCHEMES.values()}) == len(SCHEMES)
    assert schemes.TENSORRT is SCHEMES["tensorrt"].scheme
    assert CPU.scheme == ORT
