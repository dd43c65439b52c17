"""Packages against ONNX Runtime, through what they say when they are read back; Core ML itself runs on macOS only."""

import json
import platform
from dataclasses import replace

import numpy as np
import pytest

from edgeproof.backends import _mil
from edgeproof.backends.coreml import IMPL, feature
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.int8 import Int8
from edgeproof.runtimes import find_target
from small_nets import context, net, node, number, ran, samples, small_cnn, weight

ALL = find_target("coreml:all", {}, run=False)


def built(tmp_path, model, **settings):
    return IMPL().build(model, ALL.with_settings(settings), tmp_path / "net", lambda *_: None)


def computed(made, model):
    feeds = samples(model, 1)[0]
    return _mil.evaluate(_mil.read(made.path), {feature(k): v for k, v in feeds.items()})["y"]


def quantised(model):
    return Int8()(model, replace(context(model), target=ALL)).model


def test_a_package_says_what_onnxruntime_computes(tmp_path):
    model = small_cnn()
    made = built(tmp_path, model)
    np.testing.assert_allclose(computed(made, model), ran(model, samples(model, 1)[0]), atol=1e-5)
    assert made.path == tmp_path / "net.mlpackage"
    assert made.format == "mlpackage"
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlpackage"]
    assert {p.name for p in made.files} == {"Manifest.json", "model.mlmodel", "weight.bin"}
    assert made.facts["check"]["sqnr_db"] > 100
    assert {op for _, op, _, _ in made.placement.nodes} >= {"conv", "linear"}


def test_our_int8_keeps_its_quantise_operators_and_its_integer_weights(tmp_path):
    model = quantised(small_cnn())
    made = built(tmp_path, model)
    np.testing.assert_allclose(computed(made, model), ran(model, samples(model, 1)[0]), atol=1e-5)
    assert made.facts["operators"]["constexpr_affine_dequantize"] == 4
    assert made.facts["quantised_tensors"] >= 4


def test_half_precision_is_the_precision_of_every_layer(tmp_path):
    model = small_cnn()
    made = built(tmp_path, model, precision="float16")
    want = ran(model, samples(model, 1)[0])
    np.testing.assert_allclose(computed(made, model), want, atol=0.02 * np.abs(want).max())
    assert {p for _, op, _, p in made.placement.nodes if op in ("conv", "linear")} == {"float16"}


# Half a step of the largest weight per channel, or half a gap between the tables' values, summed over a dot product.
@pytest.mark.parametrize(
    ("settings", "operator", "share"),
    [
        ({"weights": "int8"}, "constexpr_affine_dequantize", 0.03),
        ({"weights": "palette8"}, "constexpr_lut_to_dense", 0.03),
        ({"weights": "palette4"}, "constexpr_lut_to_dense", 0.3),
        ({"weights": "int4", "block": 8, "deployment": "iOS18"}, "constexpr_blockwise_shift_scale", 0.3),
        ({"weights": "palette4", "block": 8, "deployment": "iOS18"}, "constexpr_lut_to_dense", 0.3),
    ],
)
def test_compressed_weights_stay_near_the_weights(tmp_path, settings, operator, share):
    model = small_cnn()
    made = built(tmp_path, model, least=256, **settings)
    want = ran(model, samples(model, 1)[0])
    np.testing.assert_allclose(computed(made, model), want, atol=share * np.abs(want).max())
    assert made.facts["operators"][operator] == made.facts["compressed_weights"] > 0


def test_pruned_weights_are_the_large_ones_and_zeros(tmp_path):
    model = net([node("Conv", ["x", "w"], ["y"])], [weight("w", 8, 3, 3, 3)])
    made = built(tmp_path, model, weights="sparse", sparsity=0.5, least=8)
    w = np.asarray(model.graph.graph.initializers["w"].const_value.numpy())
    kept = np.where(np.abs(w) >= np.median(np.abs(w)), w, 0)
    pruned = net([node("Conv", ["x", "w"], ["y"])], [number("w", kept)])
    np.testing.assert_allclose(computed(made, model), ran(pruned, samples(model, 1)[0]), atol=1e-5)


def test_weights_that_do_not_take_the_form_are_told_by_name(tmp_path):
    made = built(tmp_path, small_cnn(), weights="int4", deployment="iOS18", least=256)
    assert len(made.fallbacks) == 2
    assert all("stays as it is" in why for _, why in made.fallbacks)


@pytest.mark.parametrize(
    ("model", "settings", "need"),
    [
        (quantised(small_cnn()), {"deployment": "iOS16"}, "iOS17"),
        (small_cnn(), {"deployment": "iOS15", "weights": "int8"}, "iOS16"),
        (small_cnn(), {"deployment": "iOS17", "weights": "int4"}, "iOS18"),
    ],
)
def test_what_a_system_cannot_load_is_refused_before_anything_is_made(tmp_path, model, settings, need):
    with pytest.raises(UnsupportedError) as caught:
        built(tmp_path, model, **settings)
    assert caught.value.code == "coreml.deployment"
    assert caught.value.hint == f"--set deployment={need}"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_system_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="iOS71"):
        built(tmp_path, small_cnn(), deployment="iOS71")


def test_open_dimensions_are_refused_with_the_remedy(tmp_path):
    model = net([node("Relu", ["x"], ["y"])], (), ("n", 3, 16, 16))
    with pytest.raises(UnsupportedError, match="open dimensions"):
        built(tmp_path, model)


def test_an_older_package_is_replaced_and_another_folder_is_not(tmp_path):
    first = built(tmp_path, small_cnn())
    again = built(tmp_path, small_cnn(), precision="float16")
    assert first.path == again.path
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlpackage"]
    other = tmp_path / "other.mlpackage"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is no package"):
        IMPL().build(small_cnn(), ALL, other, lambda *_: None)
    assert (other / "mine.txt").read_text() == "mine"


def test_names_of_the_model_are_kept_and_written_down(tmp_path):
    import coremltools

    model = _renamed([node("Relu", ["in/put.0"], ["out/put.0"])])
    made = IMPL().build(model, ALL, tmp_path / "net", lambda *_: None)
    spec = coremltools.utils.load_spec(str(made.path))
    assert [f.name for f in spec.description.input] == ["in_put_0"]
    assert [f.name for f in spec.description.output] == ["out_put_0"]
    names = json.loads(spec.description.metadata.userDefined["edgeproof.names"])
    assert names == {"in_put_0": "in/put.0", "out_put_0": "out/put.0"}


def _renamed(nodes):
    import onnx_ir as ir
    from onnx import TensorProto, helper

    from edgeproof.model import Model

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("in/put.0", "out/put.0")]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    return Model.of(ir.from_proto(proto), "net")


def test_running_elsewhere_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(UnsupportedError) as caught:
        IMPL().compile(small_cnn(), ALL)
    assert caught.value.code == "target.not_here"
    assert "\n" not in caught.value.problem
    assert IMPL().targets() == ()
    assert {t.device for t in IMPL().planned()} == {"all", "cpu", "gpu", "ane"}
