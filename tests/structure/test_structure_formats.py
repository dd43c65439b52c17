"""Every format is read as the library that wrote the file meant it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.errors import InputError
from edgeproof.model import load_model
from edgeproof.structure import Structure, read_here, read_structure
from edgeproof.structure.recognise import reader, recognise
from structure.models import FIXTURES, conv, quantised


def weight(structure: Structure, name: str):
    return next(w for w in structure.weights or () if w.name == name)


def test_a_tensor_has_the_same_digest_in_every_format_that_holds_it():
    files = ("conv.onnx", "conv.xml", "tensors.safetensors", "tensors.gguf")
    assert len({weight(read_here(FIXTURES / f), "w").digest for f in files}) == 1


def test_an_onnx_structure_goes_by_the_digest_that_receipts_use(tmp_path):
    path = conv(tmp_path / "m.onnx")
    assert read_here(path).digest == load_model(path).digest


def test_the_graph_of_an_onnx_model_stays_the_same_when_only_its_weights_change(tmp_path):
    a = read_here(conv(tmp_path / "a.onnx"))
    b = read_here(conv(tmp_path / "b.onnx", np.full((4, 3, 3, 3), 7, np.float32)))
    c = read_here(conv(tmp_path / "c.onnx", stride=2))
    assert a.topology == b.topology != c.topology
    assert a.digest != b.digest


def test_a_tflite_model_is_read_as_its_interpreter_reports_it():
    # The LiteRT interpreter reports these tensors, scales and operators for the file.
    s = read_here(FIXTURES / "fc_int8.tflite")
    assert [str(i) for i in s.inputs or ()] == ["x int8[1, 4]"]
    assert [str(o) for o in s.outputs or ()] == ["y int8[1, 2]"]
    assert s.operators == {"FULLY_CONNECTED": 1}
    scales = {q.tensor: (q.count, round(q.low, 6), round(q.high, 6)) for q in s.quantisation}
    assert scales == {
        "x": (1, 0.05, 0.05), "fc/weight": (2, 0.02, 0.03), "fc/bias": (2, 0.001, 0.0015), "y": (1, 0.1, 0.1),
    }  # fmt: skip


def test_codes_of_a_tflite_model_are_read_back_through_each_channels_scale():
    values = reader("tflite").values(FIXTURES / "fc_int8.tflite", ["fc/weight"])["fc/weight"]
    codes = np.array([[10, -20, 30, -40], [50, 60, -70, 127]])
    np.testing.assert_allclose(values, codes * np.array([[0.02], [0.03]]), rtol=1e-6)


def test_codes_of_an_onnx_model_are_read_back_through_their_scale(tmp_path):
    path = quantised(tmp_path / "q.onnx", 0.5)
    np.testing.assert_array_equal(reader("onnx").values(path, ["q"])["q"], [[0.5, -1.0], [1.5, 2.0]])


def test_an_openvino_ir_is_read_with_the_interface_of_the_onnx_that_it_came_from():
    a, b = read_here(FIXTURES / "conv.onnx"), read_here(FIXTURES / "conv.xml")
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)
    assert b.operators == {"Const": 2, "Parameter": 1, "Convolution": 1, "Add": 1, "ReLU": 1, "Result": 1}
    assert [p.name for p in b.files] == ["conv.xml", "conv.bin"]


def test_the_range_of_a_fake_quantize_is_found_through_its_constants():
    q = read_here(FIXTURES / "fq.xml").quantisation
    assert [(x.tensor, x.dtype) for x in q] == [("fq", "levels256")]
    assert q[0].low == pytest.approx(2 / 255)  # from -1 to 1 in 255 steps


def test_a_safetensors_file_tells_tensors_and_nothing_of_operators():
    s = read_here(FIXTURES / "tensors.safetensors")
    assert {(w.name, w.dtype, w.shape) for w in s.weights or ()} == {
        ("w", "float32", (4, 3, 3, 3)), ("b", "float32", (4,)), ("n", "int64", (3,)),
    }  # fmt: skip
    assert s.operators is None
    assert s.inputs is None
    assert {c.name: c.state for c in s.checks}["operators"] == "unavailable"


def test_a_gguf_file_tells_its_tensors_in_blocks_too():
    s = read_here(FIXTURES / "tensors.gguf")
    assert [(w.name, w.dtype, w.shape) for w in s.weights or ()] == [
        ("w", "float32", (4, 3, 3, 3)), ("b", "float16", (4,)), ("q", "q8_0", (2, 64)),
    ]  # fmt: skip
    assert s.facts["general.name"] == "tiny"


def test_an_engine_hides_its_weights_and_says_so(tmp_path):
    path = tmp_path / "m.engine"
    path.write_bytes(b"ftrt" + bytes(20) + bytes([10, 3, 0, 26]) + bytes(100))
    s = read_here(path)
    assert s.weights is None
    assert s.operators is None
    assert s.inputs is None
    assert s.facts == {"tensorrt_version": "10.3.0.26"}
    assert {f.check for f in s.findings if f.kind == "gap"} == {"build_record", "weight_digests"}
    assert all(c.state == "unavailable" for c in s.checks if c.name in ("operators", "finite_weights", "build_record"))


def test_a_build_record_beside_an_engine_names_its_interface_and_is_part_of_its_digest(tmp_path):
    path = tmp_path / "m.engine"
    path.write_bytes(b"ftrt" + bytes(124))
    alone = read_here(path)
    record = {"inputs": [{"name": "x", "dtype": "float16", "shape": [-1, 3]}], "outputs": [], "onnx": "sha256:0"}
    (tmp_path / "m.engine.json").write_text(json.dumps(record))
    s = read_here(path)
    assert [str(i) for i in s.inputs or ()] == ["x float16[?, 3]"]
    assert s.digest != alone.digest
    assert len(s.files) == 2


def test_a_structure_reads_back_from_its_json():
    for name in ("conv.onnx", "fc_int8.tflite", "fq.xml", "tensors.gguf"):
        s = read_here(FIXTURES / name)
        assert Structure.from_json(json.loads(json.dumps(s.to_json()))) == s


def test_the_child_process_reads_what_this_process_reads():
    for name in ("conv.onnx", "fc_int8.tflite"):
        assert read_structure(FIXTURES / name) == read_here(FIXTURES / name)


def test_a_nan_among_the_weights_is_a_defect_in_every_format(tmp_path):
    w = np.ones((4, 3, 3, 3), np.float32)
    w[1, 2, 0, 0] = np.nan
    spoiled = [conv(tmp_path / "m.onnx", w)]
    good = numpy_helper.to_array(onnx.load(FIXTURES / "conv.onnx").graph.initializer[0]).tobytes()
    for name, beside in (("conv.xml", "conv.bin"), ("tensors.safetensors", ""), ("tensors.gguf", "")):
        for file in filter(None, (name, beside)):
            (tmp_path / file).write_bytes((FIXTURES / file).read_bytes().replace(good, w.tobytes()))
        spoiled.append(tmp_path / name)
    for path in spoiled:
        defects = [f for f in read_here(path).findings if f.kind == "defect"]
        assert [(f.check, f.subject) for f in defects] == [("finite_weights", "w")], path
        assert "1 NaN of 108 values" in defects[0].problem


def test_a_scale_of_zero_is_a_defect(tmp_path):
    data = (FIXTURES / "fc_int8.tflite").read_bytes()
    path = tmp_path / "m.tflite"
    path.write_bytes(data.replace(np.float32(0.1).tobytes(), np.float32(0).tobytes()))
    assert [(f.kind, f.subject) for f in read_here(path).findings] == [("defect", "y")]


def test_an_operator_of_an_unknown_domain_is_a_defect(tmp_path):
    found = read_here(conv(tmp_path / "m.onnx", domain="acme.secret")).findings
    assert ("defect", "operators", "acme.secret.Mystery") in {(f.kind, f.check, f.subject) for f in found}


@pytest.mark.parametrize("name", ["conv.onnx", "fc_int8.tflite", "conv.xml", "tensors.gguf", "tensors.safetensors"])
def test_a_format_is_recognised_by_its_content(name, tmp_path):
    nameless = tmp_path / "model"
    nameless.write_bytes((FIXTURES / name).read_bytes())
    assert recognise(nameless) == recognise(FIXTURES / name)


def test_a_file_called_like_another_format_is_refused(tmp_path):
    for name, called in (("conv.onnx", "m.tflite"), ("fc_int8.tflite", "m.onnx"), ("tensors.gguf", "m.safetensors")):
        path = tmp_path / called
        path.write_bytes((FIXTURES / name).read_bytes())
        with pytest.raises(InputError) as e:
            recognise(path)
        assert e.value.code == "structure.extension"


def test_weights_beside_a_model_are_read_though_their_file_is_mapped_once_for_each(tmp_path):
    # onnx_ir maps the whole file for every tensor: 64 times 64 MiB here, far more than reading it needs.
    count, length = 64, 2**20
    (tmp_path / "w.bin").write_bytes(bytes(count * length))
    tensors = []
    for n in range(count):
        tensor = TensorProto(
            name=f"w{n}", data_type=TensorProto.UINT8, dims=[length], data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", "w.bin"), ("offset", n * length), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    nodes = [helper.make_node("Identity", [f"w{n}"], [f"y{n}"]) for n in range(count)]
    outputs = [helper.make_tensor_value_info(f"y{n}", TensorProto.UINT8, [length]) for n in range(count)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs, tensors), ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert len(read_structure(path).weights or ()) == count
