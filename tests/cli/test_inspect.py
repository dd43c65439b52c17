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


def test_open_dimensions_give_expressions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "multiply-accumulates 6912*N" in lines
    assert "peak activation memory 2048*N B at act" in lines


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
            "1,3,8,8",
            "--shape 1,3,8,8: has no input name; expected name=1,3,224,224\n  hint: name the input  [shape.syntax]",
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
