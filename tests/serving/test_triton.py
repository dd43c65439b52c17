"""A repository for Triton: what Triton's own schema reads back, and what the parts of an ensemble compute together."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproof import preprocess
from edgeproof.cli import main
from edgeproof.dataset import Preprocess
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model, TensorSpec, load_model, save_model
from edgeproof.serving.ensemble import write_ensemble
from edgeproof.serving.pbtxt import pbtxt
from edgeproof.serving.pictures import picture_model
from edgeproof.serving.triton import Served, Triton, config, plan_script, write_model

NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[{n}, 3, 8, 8] x) => (float[{n}, 4, 8, 8] y)
<float[4, 3, 1, 1] w = {{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}}> {{ y = Conv(x, w) }}"""
POST = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4, 8, 8] scores) => (int64[n, 1, 8, 8] best) { best = ArgMax<axis = 1>(scores) }"""


def schema() -> ModuleType:
    """Triton's compiled ``model_config.proto``, without the gRPC client around it."""
    found = importlib.util.find_spec("tritonclient")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PB = schema()


def read(text: str) -> Any:
    return text_format.Parse(text, PB.ModelConfig())


def net(n: str = "n") -> Model:
    return Model.of(ir.from_onnx_text(NET.format(n=n)), "net")


def served(tmp_path: Path, model: Model, name: str = "net") -> Served:
    return Served(name, model, save_model(model, tmp_path / f"{name}-source.onnx"))


def test_tritons_schema_reads_what_was_asked_for():
    asked = Triton(
        preferred="4,8",
        delay_us=250,
        device="gpu",
        instances=2,
        gpus="0,1",
        accelerator="tensorrt",
        precision="int8",
        workspace_bytes=2**30,
        engine_cache="/cache",
        graph_level=1,
        threads=3,
        cache=True,
        policy="1,3",
        parameters="session.use_device_allocator_for_initializers=1",
    )
    got = read(config("net", net(), asked))
    assert (got.name, got.backend, got.max_batch_size) == ("net", "onnxruntime", 8)
    assert [(i.name, i.data_type, list(i.dims)) for i in got.input] == [("x", PB.TYPE_FP32, [3, 8, 8])]
    assert [(o.name, list(o.dims)) for o in got.output] == [("y", [4, 8, 8])]
    assert list(got.dynamic_batching.preferred_batch_size) == [4, 8]
    assert got.dynamic_batching.max_queue_delay_microseconds == 250
    (group,) = got.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (PB.ModelInstanceGroup.KIND_GPU, 2, [0, 1])
    (accelerator,) = got.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert dict(accelerator.parameters) == {
        "precision_mode": "INT8",
        "max_workspace_size_bytes": "1073741824",
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": "/cache",
    }
    assert got.optimization.graph.level == 1
    assert {k: v.string_value for k, v in got.parameters.items()} == {
        "intra_op_thread_count": "3",
        "session.use_device_allocator_for_initializers": "1",
    }
    assert got.response_cache.enable
    assert list(got.version_policy.specific.versions) == [1, 3]
    (warmup,) = got.model_warmup
    assert (warmup.batch_size, warmup.count, list(warmup.inputs["x"].dims)) == (1, 1, [3, 8, 8])


def test_a_fixed_batch_is_part_of_the_dims_and_nothing_is_gathered():
    got = read(config("net", net("2"), Triton()))
    assert got.max_batch_size == 0
    assert list(got.input[0].dims) == [2, 3, 8, 8]
    assert not got.HasField("dynamic_batching")
    assert got.instance_group[0].kind == PB.ModelInstanceGroup.KIND_CPU


def test_batches_of_a_model_with_a_fixed_batch_are_refused():
    with pytest.raises(InputError, match="no open batch dimension"):
        config("net", net("2"), Triton(max_batch=4))


def test_what_has_only_a_batch_dimension_is_one_number_reshaped():
    text = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }'
    got = read(config("sum", Model.of(ir.from_onnx_text(text), "sum"), Triton()))
    assert [list(i.dims) for i in got.input] == [[1], [1]]
    assert all(i.HasField("reshape") and not i.reshape.shape for i in (*got.input, *got.output))


def test_open_inner_dimensions_are_minus_one_and_are_not_warmed_up():
    text = NET.format(n="n").replace("3, 8, 8", "3, h, w").replace("4, 8, 8", "4, h, w")
    got = read(config("net", Model.of(ir.from_onnx_text(text), "net"), Triton()))
    assert list(got.input[0].dims) == [3, -1, -1]
    assert not got.model_warmup


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Triton(accelerator="tensorrt"), "device=gpu"),
        (Triton(backend="openvino", accelerator="openvino"), "leave it out"),
        (Triton(backend="tensorrt", device="cpu"), "leave it out"),
        (Triton(dla=0), "backend=tensorrt"),
        (Triton(backend="tensorrt", dla=0), "precision=fp16"),
        (Triton(gpus="0"), "device=gpu"),
        (Triton(policy="newest"), "latest:1"),
        (Triton(preferred="four"), "4,8"),
        (Triton(parameters="x"), "KEY=VALUE"),
        (Triton(instances=0), "instances=1"),
        (Triton(max_batch=-7), "max_batch=0"),
        (Triton(max_batch=10**20), "max_batch=0"),
        (Triton(version=10**30), "version=1"),
        (Triton(graph_level=77), "graph_level=0"),
        (Triton(policy="7"), "latest:1"),
        (Triton(policy="0"), "latest:1"),
        (Triton(preferred="16"), "max_batch"),
        (Triton(preferred="4,4"), "give each once"),
        (Triton(parameters="a=b,a=c"), "give each once"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_the_remedy(asked, says):
    with pytest.raises(InputError) as e:
        config("net", net(), asked)
    assert says in e.value.hint


def test_a_type_that_triton_does_not_carry_is_refused_by_name():
    text = '<ir_version: 10, opset_import: ["" : 19]>\ng (float8e5m2[n] x) => (float8e5m2[n] y) { y = Identity(x) }'
    with pytest.raises(UnsupportedError, match="float8_e5m2"):
        config("m", Model.of(ir.from_onnx_text(text), "m"), Triton())


def test_the_files_are_the_bytes_that_were_given_and_the_backend_is_told_their_name(tmp_path):
    given = served(tmp_path, net())
    files = write_model(given, tmp_path / "repo", Triton(backend="openvino", version=3))
    assert [f.relative_to(tmp_path).as_posix() for f in files] == ["repo/net/3/model.onnx", "repo/net/config.pbtxt"]
    assert files[0].read_bytes() == given.source.read_bytes()
    assert read(files[1].read_text()).default_model_filename == "model.onnx"


def test_weights_beside_a_model_come_along_under_the_name_that_it_knows(tmp_path):
    import onnx

    proto = onnx.load(save_model(net(), tmp_path / "inside.onnx"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    write_model(Served("m", load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx"), tmp_path / "repo", Triton())
    session = ort.InferenceSession(tmp_path / "repo/m/1/model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 3, 8, 8), "f4")})[0][0, 3, 0, 0] == 3


def test_an_openvino_model_comes_as_its_two_files(tmp_path):
    (tmp_path / "a.xml").write_text("<net/>")
    (tmp_path / "a.bin").write_bytes(b"weights")
    given = served(tmp_path, net())
    with_engine = Served("ir", given.model, given.source, tmp_path / "a.xml")
    files = write_model(with_engine, tmp_path / "repo", Triton(backend="openvino"))
    assert {f.name for f in files} == {"config.pbtxt", "model.xml", "model.bin"}
    with pytest.raises(InputError, match=r"no file of the tensorrt backend"):
        write_model(with_engine, tmp_path / "other", Triton(backend="tensorrt"))


def test_without_a_plan_a_script_builds_it_on_the_device(tmp_path):
    write_model(served(tmp_path, net()), tmp_path / "repo", Triton(backend="tensorrt", precision="fp16"))
    script = (tmp_path / "repo/net/build-plan.sh").read_text()
    assert "--saveEngine=1/model.plan" in script
    assert "--minShapes=x:1x3x8x8" in script
    assert "--maxShapes=x:8x3x8x8" in script
    assert "--fp16" in script
    assert (tmp_path / "repo/net/model.onnx").is_file()


def test_a_dla_is_given_one_shape_since_it_takes_no_ranges():
    script = plan_script(net(), Triton(backend="tensorrt", dla=1, precision="int8", max_batch=4))
    assert {part for part in script.split() if "Shapes" in part} == {
        f"--{w}Shapes=x:4x3x8x8" for w in ("min", "opt", "max")
    }
    assert "--useDLACore=1" in script
    got = read(config("net", net(), Triton(backend="tensorrt", dla=1, precision="int8")))
    (second,) = got.instance_group[0].secondary_devices
    assert (second.kind, second.device_id) == (PB.ModelInstanceGroup.SecondaryDevice.KIND_NVDLA, 1)


def test_nothing_is_written_over_what_is_there(tmp_path):
    given = served(tmp_path, net())
    write_model(given, tmp_path / "repo", Triton())
    with pytest.raises(InputError, match="there already"):
        write_model(given, tmp_path / "repo", Triton())
    assert [p.name for p in (tmp_path / "repo").iterdir()] == ["net"]


def test_a_refusal_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError):
        write_model(served(tmp_path, net("2")), tmp_path / "repo", Triton(max_batch=2))
    assert not (tmp_path / "repo").exists()


def run_like_triton(repository: Path, name: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """Walk an ensemble's steps as the server does: by the maps of its configuration alone."""
    ensemble = read((repository / name / "config.pbtxt").read_text())
    pool = dict(feeds)
    assert set(pool) == {i.name for i in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        part = read((repository / step.model_name / "config.pbtxt").read_text())
        assert part.max_batch_size == ensemble.max_batch_size
        assert set(step.input_map) == {i.name for i in part.input}
        assert set(step.output_map) <= {o.name for o in part.output}
        path = repository / step.model_name / "1" / (part.default_model_filename or "model.onnx")
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = list(step.output_map)
        values = session.run(names, {k: pool[v] for k, v in step.input_map.items()})
        pool |= {step.output_map[n]: v for n, v in zip(names, values, strict=True)}
    return {o.name: pool[o.name] for o in ensemble.output}


def test_an_ensemble_computes_what_its_parts_compute_one_after_the_other(tmp_path):
    spec = Preprocess(size=(8, 8), resize="letterbox", scale=1 / 255, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    model = net()
    pre = picture_model(spec, model.inputs[0])
    post = Model.of(ir.from_onnx_text(POST), "post")
    parts = [(p, served(tmp_path, m, p)) for p, m in (("pre", pre), ("net", model), ("post", post))]
    write_ensemble(parts, "plates", tmp_path / "repo", Triton())
    assert {p.name for p in (tmp_path / "repo").iterdir()} == {"plates", "plates-pre", "plates-net", "plates-post"}
    rng = np.random.default_rng(5)
    pictures = rng.integers(0, 256, (2, 11, 17, 3), np.uint8)
    got = run_like_triton(tmp_path / "repo", "plates", {"picture": pictures})
    inputs = np.stack([preprocess.apply(p, spec)[0] for p in pictures])
    scores = np.concatenate([inputs, inputs.sum(1, keepdims=True)], axis=1)
    assert (got["best"] == scores.argmax(1)[:, None]).mean() > 0.98  # one grey level may decide a close call


def test_parts_that_do_not_fit_are_refused(tmp_path):
    other = Model.of(ir.from_onnx_text(POST.replace("4, 8, 8", "5, 8, 8")), "post")
    parts = [("net", served(tmp_path, net())), ("post", served(tmp_path, other, "post"))]
    with pytest.raises(InputError, match="the part before makes"):
        write_ensemble(parts, "e", tmp_path / "repo", Triton())
    assert not (tmp_path / "repo").exists()


def test_a_part_without_batches_in_an_ensemble_with_them_is_named(tmp_path):
    parts = [
        ("net", served(tmp_path, net("1"))),
        ("post", served(tmp_path, Model.of(ir.from_onnx_text(POST), "p"), "post")),
    ]
    with pytest.raises(InputError, match="e-net"):
        write_ensemble(parts, "e", tmp_path / "repo", Triton())


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop", "pad_right", "none"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize(("height", "width"), [(23, 40), (41, 17), (5, 7)])
def test_pictures_become_inputs_as_pillow_makes_them(resize, interpolation, height, width):
    spec = Preprocess(size=(12, 20), resize=resize, interpolation=interpolation, crop_fraction=0.8)
    picture = np.random.default_rng(height).integers(60, 200, (height, width, 3), np.uint8)
    want, _ = preprocess.apply(picture, spec)
    model = picture_model(spec, TensorSpec("x", "float32", ("n", 3, "h", "w")))
    session = ort.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"picture": picture[None]})
    assert got.shape == (1, *want.shape)
    difference = np.abs(got[0] - want)
    assert difference.max() <= (0 if interpolation == "nearest" or resize == "none" else 2)
    assert difference.mean() < 0.3


@pytest.mark.parametrize("colour", ["bgr", "gray", "rgb"])
@pytest.mark.parametrize(("dtype", "mean"), [("uint8", 0.0), ("int8", 128.0), ("float16", 3.0)])
def test_colours_types_and_layouts_are_exact(colour, dtype, mean):
    spec = Preprocess(colour=colour, dtype=dtype, mean=(mean,), layout="nhwc", resize="none")
    picture = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
    want, _ = preprocess.apply(picture, spec)
    model = picture_model(spec, TensorSpec("x", dtype, (1, "h", "w", "c")))
    (got,) = ort.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"]).run(
        None, {"picture": picture[None]}
    )
    np.testing.assert_array_equal(got[0], want)


def test_area_has_no_operator_and_says_what_to_do():
    with pytest.raises(UnsupportedError) as e:
        picture_model(Preprocess(size=(4, 4), interpolation="area"), TensorSpec("x", "float32", (1, 3, 4, 4)))
    assert "bilinear" in e.value.hint


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_survives_the_text_form(text):
    text = text.encode("utf-8", "ignore").decode()
    assert read(pbtxt({"name": text})).name == text


def test_the_command_takes_a_model_and_a_runs_folder(tmp_path, capsys):
    save_model(net(), tmp_path / "run" / "best.onnx")
    (tmp_path / "run" / "data.json").write_text('{"preprocess": {"size": [8, 8], "scale": 0.5}}')
    where = ["--out", str(tmp_path / "repo")]
    assert main(["export", str(tmp_path / "run"), "--as", "triton", "--pre", "auto", "--json", *where]) == 0
    assert {p.name for p in (tmp_path / "repo").iterdir()} == {"run", "run-pre", "run-net"}
    bad = ["export", str(tmp_path / "run" / "best.onnx"), "--as", "triton", "--set", "backend=torch", *where]
    assert main(bad) == 2
    assert "onnxruntime" in capsys.readouterr().err
