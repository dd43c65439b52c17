"""Builds against the API that the bindings of TensorRT 10.0, 10.13 and 11.4 declare."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from strict_api import VERSIONS, Api, Member

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.quant.trt_cache import from_ranges, read_cache, write_cache
from edgeproof.tensorrt import build
from edgeproof.tensorrt.build import make_engine, write_engine
from edgeproof.tensorrt.device import Device
from edgeproof.tensorrt.settings import Plan
from small_nets import small_cnn

ORIN = Device("Orin", "8.7", 16 << 30, True, "12.6")
OPEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] y) { y = Relu(x) }"""
INSPECTED = {
    "Layers": [
        {
            "Name": "c1 + r1",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [1, 3, 16, 16],
                        "Format/Datatype": "Four wide channel vectorized row major Int8 format"}],
            "Outputs": [{"Name": "r", "Location": "Device", "Dimensions": [1, 8, 16, 16],
                         "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}],
            "TacticName": "sm80_xmma_fprop_implicit_gemm",
            "Metadata": "[ONNX Layer: c1]\u001e[ONNX Layer: r1]",
        },
        {
            "Name": "Reformatting CopyNode for Output Tensor 0",
            "LayerType": "Reformat",
            "Inputs": [{"Name": "r", "Format/Datatype": "Row major linear FP16 format"}],
            "Outputs": [{"Name": "y", "Format/Datatype": "Row major linear FP32"}],
            "TacticName": "0x0000000000000000",
            "Metadata": "",
        },
    ]
}  # fmt: skip
"""As the inspector writes it; form and words from the TensorRT developer guide, *Engine Inspector*."""
OLD = [v for v in VERSIONS if v.startswith("10.")]


@pytest.fixture(autouse=True)
def orin(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find_device", lambda: ORIN)


def api(version: str, outputs: tuple[str, ...] = ("y",)) -> Api:
    made = Api(version)
    network = "INetworkDefinition"
    tensors = {name: made._value("ITensor") for name in ("x", *outputs)}
    made.answers.update(
        {
            (network, "num_inputs"): 1,
            (network, "num_outputs"): len(outputs),
            (network, "get_output"): lambda i: named(tensors[outputs[i]], outputs[i]),
            ("ITensor", "is_shape_tensor"): False,
            ("Builder", "build_serialized_network"): lambda network, config: b"ftrt" + bytes(40),
            ("EngineInspector", "get_engine_information"): json.dumps(INSPECTED),
            ("ITimingCache", "serialize"): b"measured",
        }
    )

    def named(tensor: Any, name: str) -> Any:
        made.answers["ITensor", "name"] = name
        return tensor

    return made


def flags(made: Api) -> set[str]:
    return {args[0].name for kind, key, args in made.calls if (kind, key) == ("IBuilderConfig", "set_flag")}


def plan(**changes: Any) -> Plan:
    return replace(Plan("tensorrt:gpu", optimization_level=3, timing_cache="auto"), **changes)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_strongly_typed_engine_with_its_layers_and_record(version, tmp_path):
    made = api(version)
    engine = make_engine(made.module(), small_cnn(), plan())
    (created,) = [args for kind, key, args in made.calls if (kind, key) == ("Builder", "create_network")]
    strong = made.module().NetworkDefinitionCreationFlag.STRONGLY_TYPED
    assert created == (1 << int(strong),)
    assert flags(made) == set()
    assert [(x.nodes, x.precision, x.integers, x.moves) for x in engine.layers] == [
        (("c1", "r1"), "int8", False, False),
        ((), "float", False, True),
    ]
    built = write_engine(engine, small_cnn(), tmp_path / "net.engine")
    record = json.loads((tmp_path / "net.engine.json").read_text())
    assert record["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 3, 16, 16]}]
    assert built.placement is not None
    assert built.placement.nodes[0] == ("c1 + r1", "CaskConvolution", "tensorrt:gpu", "int8")
    assert "8.7 only" in built.notes[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_option_is_one_that_the_version_has(version):
    made = api(version)
    chosen = plan(
        tf32=True, sparse=True, workspace_bytes=1 << 30, compatible="same_capability", version_compatible=True
    )
    if version.startswith("10.0."):
        chosen = replace(chosen, compatible="ampere+")
    make_engine(made.module(), small_cnn(), chosen)
    assert flags(made) == {"TF32", "SPARSE_WEIGHTS", "VERSION_COMPATIBLE"}
    pool = [args for kind, key, args in made.calls if key == "set_memory_pool_limit"]
    assert [(a[0].name, a[1]) for a in pool] == [("WORKSPACE", 1 << 30)]
    assert made.set["IBuilderConfig", "builder_optimization_level"] == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_profiles_go_in_with_least_best_and_largest(version):
    made = api(version)
    model = Model.of(ir.from_onnx_text(OPEN), "open")
    make_engine(made.module(), model, plan(shapes="x=1x3x8x8:4x3x8x8:16x3x8x8"))
    (set_shape,) = [args for kind, key, args in made.calls if key == "set_shape"]
    assert set_shape == ("x", (1, 3, 8, 8), (4, 3, 8, 8), (16, 3, 8, 8))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_timing_cache_is_kept_and_given_back(version, tmp_path):
    for expected in (b"", b"measured"):
        made = api(version)
        engine = make_engine(made.module(), small_cnn(), plan())
        (given,) = [args for kind, key, args in made.calls if key == "create_timing_cache"]
        assert given == (expected,)
    assert engine.facts["timing_cache"].startswith("reused")
    (kept,) = (tmp_path / "cache" / "tensorrt").iterdir()
    assert kept.name == f"{'.'.join(version.split('.')[:4])}-orin-sm8.7.timing"


def test_a_cache_of_another_version_is_begun_anew():
    made = api(VERSIONS[0])
    answers = iter([False, True])
    made.answers["IBuilderConfig", "set_timing_cache"] = lambda cache, ignore: next(answers)
    engine = make_engine(made.module(), small_cnn(), plan())
    assert engine.facts["timing_cache"] == "of another version or device, begun anew"


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    ("precision", "want"),
    [
        ("fp16", {"FP16"}),
        ("bf16", {"BF16"}),
        ("int8", {"INT8", "FP16"}),
        ("best", {"FP16", "BF16", "INT8"}),
    ],
)
def test_tensorrt_10_may_choose_precisions_itself(version, precision, want):
    made = api(version)
    make_engine(made.module(), small_cnn(), plan(precision=precision))
    assert flags(made) == want
    assert [args for kind, key, args in made.calls if key == "create_network"] == [(0,)]


@pytest.mark.parametrize("version", OLD)
def test_implicit_int8_reads_our_calibration_cache(version, tmp_path):
    path = tmp_path / "net.cache"
    write_cache(path, from_ranges({"x": (-2.0, 2.0), "r": (0.0, 6.0)}))
    made = api(version)
    make_engine(made.module(), small_cnn(), plan(precision="int8", calibration_cache=path))
    calibrator = made.set["IBuilderConfig", "int8_calibrator"]
    text = calibrator.read_calibration_cache().decode()
    major, minor, patch = version.split(".")[:3]
    assert text.startswith(f"TRT-{int(major) * 10000 + int(minor) * 100 + int(patch)}-EntropyCalibration2\n")
    (tmp_path / "again.cache").write_text(text)
    assert read_cache(tmp_path / "again.cache").scales == read_cache(path).scales
    assert calibrator.get_batch(["x"]) is None


def test_tensorrt_11_takes_types_from_the_graph_only():
    made = api(VERSIONS[-1])
    with pytest.raises(UnsupportedError, match=r"precision: is fp16; TensorRT 11\.") as caught:
        make_engine(made.module(), small_cnn(), plan(precision="fp16"))
    assert "pass fp16" in caught.value.hint


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_dla_cannot_run_is_told_layer_by_layer(version):
    made = dla(version)
    engine = make_engine(made.module(), small_cnn(), plan(target="tensorrt:dla1", dla_core=1))
    assert engine.fallbacks == (("shuffle", "shuffle does not run on the DLA; the GPU runs it"),)
    assert flags(made) == {"GPU_FALLBACK"}
    assert made.set["IBuilderConfig", "DLA_core"] == 1
    assert made.set["IBuilderConfig", "default_device_type"].name == "DLA"


@pytest.mark.parametrize("version", VERSIONS)
def test_without_fallback_the_layers_are_a_refusal(version):
    with pytest.raises(UnsupportedError, match=r"1 of 3 layers cannot run there \(shuffle\)"):
        make_engine(dla(version).module(), small_cnn(), plan(target="tensorrt:dla0", dla_core=0, gpu_fallback=False))


def dla(version: str) -> Api:
    made = api(version)
    layers = [("weights", "CONSTANT"), ("conv", "CONVOLUTION"), ("shuffle", "SHUFFLE")]
    made.answers["Builder", "num_DLA_cores"] = 2
    made.answers["INetworkDefinition", "num_layers"] = len(layers)

    def layer(index: int) -> Any:
        made.answers["ILayer", "name"], kind = layers[index]
        made.answers["ILayer", "type"] = Member("LayerType", kind, 0)
        return Layered(*layers[index])

    made.answers["INetworkDefinition", "get_layer"] = layer
    made.answers["IBuilderConfig", "can_run_on_DLA"] = lambda asked: asked.name == "conv"
    return made


class Layered:
    """An ILayer by its name and type."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.type = name, Member("LayerType", kind, 0)


@pytest.mark.parametrize(
    ("cores", "core", "match"),
    [(0, 0, "has 0 DLA cores, core 0 is asked for"), (1, 1, "has 1 DLA core, core 1 is asked for")],
)
def test_a_core_that_is_not_here_is_refused(cores, core, match):
    made = dla(VERSIONS[0])
    made.answers["Builder", "num_DLA_cores"] = cores
    with pytest.raises(UnsupportedError, match=match):
        make_engine(made.module(), small_cnn(), plan(target="tensorrt:dla0", dla_core=core))


def test_a_dla_takes_no_open_dimensions():
    with pytest.raises(UnsupportedError, match="no open dimensions, and input x has"):
        make_engine(
            dla(VERSIONS[0]).module(),
            Model.of(ir.from_onnx_text(OPEN), "open"),
            plan(target="tensorrt:dla0", dla_core=0),
        )


def test_a_parser_refusal_names_node_operator_and_remedy():
    made = api(VERSIONS[-1])
    made.answers["OnnxParser", "parse"] = lambda model: False
    made.answers["OnnxParser", "num_errors"] = 1
    errors = {"node_name": "strange", "node_operator": "Foo", "desc": "No importer registered for op: Foo"}
    made.answers.update({("ParserError", k): (lambda v=v: v) for k, v in errors.items()})
    made.answers["OnnxParser", "get_error"] = lambda index: made._value("ParserError")
    with pytest.raises(UnsupportedError, match=r"node strange \(Foo\): Foo is an operator that neither") as caught:
        make_engine(made.module(), small_cnn(), plan())
    assert caught.value.code == "backend.unknown_operator"
    assert "plugin" in caught.value.hint


def test_a_builder_that_gives_nothing_is_a_refusal_with_what_it_logged():
    made = api(VERSIONS[-1])
    module = made.module()

    def fails(network: Any, config: Any) -> None:
        made.logger.log(
            Member("Severity", "ERROR", 1), "IBuilder::buildSerializedNetwork: Error Code 10: no kernel for c2"
        )

    made.answers["Builder", "build_serialized_network"] = fails
    builder = module.Builder

    def keep(logger: Any) -> Any:
        made.logger = logger
        return builder(logger)

    module.Builder = keep
    with pytest.raises(UnsupportedError, match=r"node c2 \(Conv\): no kernel for c2"):
        make_engine(module, small_cnn(), plan())


def test_an_input_that_holds_sizes_is_refused_before_the_build():
    made = api(VERSIONS[-1])
    made.answers["ITensor", "is_shape_tensor"] = True
    with pytest.raises(UnsupportedError, match="holds sizes"):
        make_engine(made.module(), small_cnn(), plan())


def test_tensorrt_8_is_too_old():
    module = api(VERSIONS[0]).module()
    module.__version__ = "8.6.1"
    with pytest.raises(UnsupportedError, match="older than 10"):
        make_engine(module, small_cnn(), plan())


@pytest.mark.parametrize(
    ("dtype", "capability", "refused"),
    [
        (ir.DataType.BFLOAT16, "7.5", True),
        (ir.DataType.BFLOAT16, "8.0", False),
        (ir.DataType.FLOAT8E4M3FN, "8.7", True),
        (ir.DataType.FLOAT8E4M3FN, "8.9", False),
    ],
)
def test_types_that_the_device_lacks_are_refused_before_the_build(monkeypatch, dtype, capability, refused):
    monkeypatch.setattr(build, "find_device", lambda: replace(ORIN, capability=capability))
    model = small_cnn()
    graph = model.graph.clone()
    tensor = ir.Tensor(np.zeros(2, dtype.numpy()), dtype=dtype, name="extra")
    graph.graph.register_initializer(
        ir.Value(name="extra", type=ir.TensorType(dtype), shape=ir.Shape([2]), const_value=tensor)
    )
    made = api(VERSIONS[-1]).module()
    if refused:
        with pytest.raises(UnsupportedError, match=f"needs compute capability .* or later; this is {capability}"):
            make_engine(made, Model.of(graph, "net"), plan())
    else:
        make_engine(made, Model.of(graph, "net"), plan())


def test_a_gpu_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(build, "find_device", lambda: replace(ORIN, capability="7.2"))
    with pytest.raises(UnsupportedError, match=r"has compute capability 7.2; TensorRT 11\.\S+ needs 7.5"):
        make_engine(api(VERSIONS[-1]).module(), small_cnn(), plan())


@pytest.mark.parametrize(
    ("wanted", "compatible", "good"),
    [("8.7", "none", True), ("8.9", "none", False), ("8.9", "ampere+", True), ("7.5", "ampere+", False)],
)
def test_an_engine_for_another_capability_is_refused_unless_it_is_made_to_travel(wanted, compatible, good):
    made = api(VERSIONS[-1]).module()
    if good:
        make_engine(made, small_cnn(), plan(compatible=compatible), wanted=wanted)
        return
    with pytest.raises(UnsupportedError, match=f"is for compute capability {wanted}"):
        make_engine(made, small_cnn(), plan(compatible=compatible), wanted=wanted)


def test_without_a_device_the_refusal_says_the_line_that_builds_there(monkeypatch):
    monkeypatch.setattr(build, "find_device", lambda: None)
    with pytest.raises(UnsupportedError) as caught:
        make_engine(api(VERSIONS[-1]).module(), small_cnn(), plan(sparse=True))
    assert "trtexec --onnx=net.onnx --saveEngine=net.engine" in caught.value.hint
    assert "--sparsity=enable" in caught.value.hint


def test_open_sizes_are_asked_for_before_anything_is_built():
    text = OPEN.replace("float[n, 3, 8, 8]", "float[n, 3, h, w]")
    with pytest.raises(InputError, match="for which sizes"):
        make_engine(api(VERSIONS[-1]).module(), Model.of(ir.from_onnx_text(text), "open"), plan())
