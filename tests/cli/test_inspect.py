import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.cli import main
from edgeproof.cli.inspect import parse_shapes, size
from edgeproof.errors import InputError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Conv over an open batch, with a NaN in the bias."""
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w", "b"], ["c"], name="stem", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="act"),
        ],
        "g",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 8, 8])],
        [
            numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.array([0, np.nan, 0, 0], np.float32), "b"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tester")
    onnx.save(proto, tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def test_text_is_complete_and_findings_do_not_fail(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--shape", "image=1,3,8,8"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "model tiny" in lines
    assert "opset ai.onnx 17; IR version 8" in lines
    assert "producer tester" in lines
    assert "input image float32[N, 3, 8, 8]" in lines
    assert "output y float32[N, 4, 8, 8]" in lines
    assert "for image 1×3×8×8" in lines
    assert "parameters 112" in lines
    assert "multiply-accumulates 6,912" in lines  # 8·8·4·3·3·3
    assert "peak activation memory 2.0 kB at act" in lines  # two tensors of 4·8·8 floats
    assert "Operators (2)" in lines
    assert "The 1 heaviest operators" in lines
    assert "Defects: 1" in lines
    assert "b: holds 1 NaN of 4 values" in lines
    assert any(line.startswith("hint: train or export it again") for line in lines)
    assert "Cautions: 1" in lines
    assert "Gaps: none" in lines
    assert "Checks: 20 of 20 assessed" in lines


def test_on_a_narrow_terminal_columns_are_left_out_and_no_number_loses_its_unit(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    assert main(["inspect", str(path), "--shape", "image=1,3,8,8"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "name operator output MACs share" in lines
    assert "stem Conv 1×4×8×8 6.91 k 100.0%" in lines


def test_open_dimensions_give_expressions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "multiply-accumulates 6.91 k × N" in lines
    assert "peak activation memory 2.0 kB × N at act" in lines


def test_all_layers_are_shown_in_order_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--layers", "--shape", "image=1,3,8,8"]) == 0
    out = capsys.readouterr().out
    assert "All 2 operators, in order" in out
    assert out.index(" stem ") < out.index(" act ")


def test_json_is_one_document_and_nothing_else(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--json", "--shape", "image=2,3,8,8"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["cost"]["macs"] == 2 * 6912
    assert [f["check"] for f in value["findings"] if f["kind"] == "defect"] == ["finite_weights"]
    assert value["file_bytes"] == path.stat().st_size


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("imgae=1,3,8,8", "imgae: is not an input of the model\n  hint: did you mean 'image'?  [shape.input]"),
        (
            "image=1,3,8",
            "image: has 4 dimensions, image float32[N, 3, 8, 8]; got 3: 1,3,8\n"
            "  hint: give 4 numbers: --shape image=N,3,8,8  [shape.rank]",
        ),
        (
            "image=1,3,8,wide",
            "--shape image=1,3,8,wide: 'wide' is not a dimension; expected whole numbers from 1, "
            "e.g. image=1,3,224,224\n"
            "  hint: dimensions that are left open need no --shape  [shape.number]",
        ),
        (
            "image=1,4,8,8",
            "image: dimension 1 is 3 (the model fixes it); got 4\n"
            "  hint: the model declares image float32[N, 3, 8, 8]  [shape.dimension]",
        ),
    ],
)
def test_a_bad_shape_is_explained(path: Path, capsys: pytest.CaptureFixture[str], shape: str, message: str) -> None:
    assert main(["inspect", str(path), "--shape", shape]) == 2
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize("dimension", ["0", "-1", "1.5", "²", ""])
def test_only_whole_numbers_from_one_are_dimensions(dimension: str) -> None:
    with pytest.raises(InputError, match="is not a dimension"):
        parse_shapes([f"x=1,{dimension}"])


def test_shapes_may_be_given_for_several_inputs_but_once_each() -> None:
    assert parse_shapes(["a=1,2", "b=3", "scalar="]) == {"a": (1, 2), "b": (3,), "scalar": ()}
    with pytest.raises(InputError, match="gives input 'a' a second shape"):
        parse_shapes(["a=1", "a=2"])


def test_an_unreadable_model_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert main(["inspect", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path}: is empty (0 bytes)\n  hint: export or download it again  [model.wrong_format]\n"
    )
    assert main(["inspect", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "model.wrong_format"


def test_a_model_that_reaches_outside_its_folder_ends_with_4(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(path)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    path.write_bytes(proto.SerializeToString())
    assert main(["inspect", str(path)]) == 4
    assert "outside the model's folder" in capsys.readouterr().err


def test_sizes_are_decimal() -> None:
    assert [size(n) for n in (0, 999, 1000, 13_640_000, 2_100_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "13.6 MB",
        "2.1 GB",
    ]


def open_model(path: Path, inputs: dict[str, list[int | str]], output: list[int | str]) -> str:
    """Every input goes through a Relu; the first one is the output, declared as given."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Relu", [name], ["y" if i == 0 else f"y{i}"]) for i, name in enumerate(inputs)]
    ins = [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", ins, [value("y", TensorProto.FLOAT, output)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize(
    ("inputs", "output", "flags"),
    [
        ({"x": ["n", 3, "h", "w"]}, ["n", 3, "h", "w"], "--shape x=1,3,224,224"),
        ({"x": ["n", 3, 48, "w"]}, ["n", 3, 48, "w"], "--shape x=1,3,48,WIDTH"),
        ({"x": ["n", 64, "h", "w"]}, ["n", 64, "h", "w"], "--shape x=1,64,H,W"),
        (
            {"input_ids": ["batch", "sequence"], "mask": ["batch", "sequence"]},
            ["batch", "sequence"],
            "--shape input_ids=1,SEQUENCE --shape mask=1,SEQUENCE",
        ),
        ({"v": ["a.b"]}, ["a.b"], "--shape v=SIZE"),
    ],
)
def test_the_hint_is_a_command_with_the_sizes_that_are_known(
    inputs: dict[str, list[int | str]],
    output: list[int | str],
    flags: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = open_model(tmp_path / "m.onnx", inputs, output)
    assert main(["inspect", path]) == 0
    out = capsys.readouterr().out
    assert f"hint: for numbers: edgeproof inspect {path} {flags}  [known_shapes]" in out
    assert "has open dimensions: " in out


def test_a_shape_that_was_given_is_not_asked_for_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--shape", "image=2,3,8,8"]) == 0
    out = capsys.readouterr().out
    assert "for numbers" not in out
    assert f"edgeproof apply fix_shapes {path} --shapes image=2,3,8,8 --out fixed.onnx" in out


def test_an_only_input_needs_no_name(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--shape", "1,3,8,8"]) == 0
    assert "6,912" in capsys.readouterr().out
    two = open_model(tmp_path / "two.onnx", {"a": ["n", 2], "b": ["n", 2]}, ["n", 2])
    assert main(["inspect", two, "--shape", "1,2"]) == 2
    err = capsys.readouterr().err
    assert "has no input name" in err
    assert "the inputs are a, b" in err


def test_an_expression_that_is_too_long_says_what_it_depends_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = helper.make_tensor_value_info
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[2, 2], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [conv],
        "g",
        [value("x", TensorProto.FLOAT, ["batch_size", 3, "picture_height", "picture_width"])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")],
    )
    file = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    assert main(["inspect", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = next(r for r in rows if r[:2] == ["conv", "Conv"])
    assert row[-3:] == ["depends", "on", "x"]


def test_many_gaps_of_one_kind_are_one_line_and_all_of_them_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"op{i}" for i in range(6)]
    nodes = [helper.make_node("NonZero", ["x"], ["nz"])]
    nodes += [helper.make_node(name, ["x"], [f"y{name}"], domain="my.own") for name in names]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [1, 4])], [value("nz", TensorProto.INT64, [2, "k"])]
    graph = helper.make_graph(nodes, "g", *ends)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    file = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), file)
    assert main(["inspect", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.count("no shape that can be known") == 1
    assert "likewise my.own.op1, my.own.op2, my.own.op3 and 2 more (--layers shows all)" in out
    assert main(["inspect", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert sum("no shape that can be known" in f["problem"] for f in found) == 6
