"""Two models side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import edgeproof
from edgeproof.cli import main
from edgeproof.compare import compare, compare_files, declaration, structural_checks
from edgeproof.errors import InputError
from edgeproof.graph.facts import Finding
from edgeproof.model import TensorSpec
from edgeproof.policy import policy_from
from edgeproof.structure import Part, Structure, Weight, read_here
from structure.models import FIXTURES, conv, quantised

RULES = {"rules": [{"metric": "size", "op": "<=", "limit": "1"}]}
METRICS = {"size": "bytes"}


def policy(inputs=(), outputs=()):
    value = {**RULES, "interface": {"inputs": list(inputs), "outputs": list(outputs)}}
    return policy_from(value, "p", METRICS)


def made(inputs, outputs=()) -> Structure:
    return Structure("onnx", "m", "sha256:x", (Part("m", 1, "d"),), tuple(inputs), tuple(outputs), {}, ())


def spec(name, dtype, *shape):
    return TensorSpec(name, dtype, shape)


def test_a_model_beside_itself_differs_in_nothing(tmp_path):
    path = conv(tmp_path / "m.onnx")
    _, _, found = compare_files(path, path)
    assert found.identical
    assert found.graph == "equal"
    assert (found.operators, found.new, found.gone) == ({}, (), ())
    assert {t.state for t in found.tensors or ()} == {"equal"}


def test_changed_weights_in_the_same_graph_are_shown_tensor_by_tensor_with_their_distance(tmp_path):
    w = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3) / 100
    a, b = conv(tmp_path / "a.onnx", w), conv(tmp_path / "b.onnx", w * np.float32(1.25))
    _, _, found = compare_files(a, b)
    assert not found.identical
    assert found.graph == "equal"
    states = {t.name: (t.state, t.distance) for t in found.tensors or ()}
    assert states["b"] == ("equal", None)
    assert states["w"][0] == "changed"
    assert states["w"][1] == pytest.approx(0.25, rel=1e-5)  # ‖1.25 w − w‖ / ‖w‖


def test_another_stride_changes_the_graph_and_no_tensor(tmp_path):
    _, _, found = compare_files(conv(tmp_path / "a.onnx"), conv(tmp_path / "b.onnx", stride=2))
    assert found.graph == "changed"
    assert {t.state for t in found.tensors or ()} == {"equal"}


@pytest.mark.parametrize(
    ("a", "b", "tensor"),
    [("fc_int8.tflite", "fc_int8_rescaled.tflite", "fc/weight"), ("fq.xml", "fq_rescaled.xml", "fq")],
)
def test_a_requantised_pair_of_one_graph_is_shown_as_changed(a, b, tensor):
    _, _, found = compare_files(FIXTURES / a, FIXTURES / b)
    assert found.graph == "equal"
    assert not found.identical
    assert tensor in {q.tensor for q in found.quantisation if q.state == "changed"}


def test_a_requantised_onnx_pair_is_changed_in_its_scale_and_in_its_real_values(tmp_path):
    a, b = quantised(tmp_path / "a.onnx", 0.5), quantised(tmp_path / "b.onnx", 0.75)
    _, _, found = compare_files(a, b)
    assert {t.name: t.state for t in found.tensors or ()} == {"q": "equal", "s": "changed", "z": "equal"}
    change = next(q for q in found.quantisation if q.tensor == "q")
    assert change.state == "changed"
    assert change.distance == pytest.approx(0.5)  # every real value grew by half


def test_one_code_of_a_quantised_weight_moves_its_tensor_alone():
    _, _, found = compare_files(FIXTURES / "fc_int8.tflite", FIXTURES / "fc_int8_weights.tflite")
    assert {t.name: t.state for t in found.tensors or ()} == {"fc/weight": "changed", "fc/bias": "equal"}
    assert {q.state for q in found.quantisation} == {"equal"}


def test_a_tensor_without_a_digest_is_unknown_and_never_equal():
    w = Weight("w", "type_99", (4,), None)
    s = replace(made([]), weights=None)
    one = replace(s, weights=(w,))
    assert [t.state for t in compare(one, one).tensors or ()] == ["unknown"]
    assert compare(s, one).tensors is None


def test_a_tensor_that_goes_by_another_name_is_found_by_its_digest():
    _, _, found = compare_files(FIXTURES / "conv.onnx", FIXTURES / "tensors.safetensors")
    states = {t.name: t.state for t in found.tensors or ()}
    assert states["w"] == "equal"
    a = read_here(FIXTURES / "conv.onnx")
    b = replace(a, weights=tuple(replace(w, name=f"new/{w.name}") for w in a.weights or ()))
    assert [(t.name, t.state) for t in compare(a, b).tensors or ()] == [("w", "renamed"), ("b", "renamed")]


def test_findings_are_told_as_new_gone_and_kept(tmp_path):
    w = np.ones((4, 3, 3, 3), np.float32)
    sick = w.copy()
    sick[0, 0, 0, 0] = np.inf
    a, b = conv(tmp_path / "a.onnx", w), conv(tmp_path / "b.onnx", sick)
    _, there, found = compare_files(a, b)
    assert ("defect", "finite_weights") in {(f.kind, f.check) for f in found.new}
    checks = structural_checks(found, there)
    assert [c.state for c in checks] == ["pass", "fail"]
    _, back, found = compare_files(b, a)
    assert ("defect", "finite_weights") in {(f.kind, f.check) for f in found.gone}
    assert [c.state for c in structural_checks(found, back)] == ["pass", "pass"]


def test_what_is_said_of_the_whole_model_is_the_same_whatever_the_files_are_called():
    a, b = (
        replace(made([]), name=name, findings=(Finding("defect", "onnx_checker", name, "is odd", ""),))
        for name in ("net", "net_int8")
    )
    found = compare(a, b)
    assert (len(found.new), len(found.gone), len(found.kept)) == (0, 0, 1)


def interface_state(a: Structure, b: Structure, p=None) -> str:
    found = compare(a, b, None if p is None else p.interface)
    return structural_checks(found, b)[0].state


def test_a_change_of_the_interface_fails_unless_the_policy_declares_it():
    a = made([spec("x", "float32", 1, 3, 8, 8)], [spec("y", "float32", 1, 10)])
    b = made([spec("x:0", "int8", 1, 8, 8, 3)], [spec("y", "float32", 1, 10)])
    port = {"baseline": "x", "candidate": "x:0", "dtype": "int8", "transpose": [0, 2, 3, 1]}
    assert interface_state(a, b) == "fail"
    assert interface_state(a, b, policy([port])) == "pass"
    for missing in ("candidate", "dtype", "transpose"):
        assert interface_state(a, b, policy([{k: v for k, v in port.items() if k != missing}])) == "fail"


def test_an_input_that_came_or_went_fails_even_beside_a_declared_one():
    a = made([spec("x", "float32", 1)])
    b = made([spec("x", "float32", 1), spec("extra", "float32", 1)])
    assert interface_state(a, b) == "fail"
    assert interface_state(b, a) == "fail"


def test_open_dimensions_may_go_by_other_names_and_may_be_fixed_where_declared():
    a, b = made([spec("x", "float32", "N", 3)]), made([spec("x", "float32", "batch", 3)])
    fixed = made([spec("x", "float32", 1, 3)])
    assert interface_state(a, b) == "pass"
    assert interface_state(a, fixed) == "fail"
    assert interface_state(a, fixed, policy([{"baseline": "x", "shape": [1, 3]}])) == "pass"


def test_the_mapping_that_is_proposed_declares_the_change():
    a, b = made([spec("x", "float32", "N", 3)]), made([spec("x", "int8", 1, 3)])
    proposed = declaration(a, b, compare(a, b)).to_json()
    assert proposed["inputs"] == [{"baseline": "x", "candidate": "x", "dtype": "int8", "shape": [1, 3]}]
    assert interface_state(a, b, policy(proposed["inputs"])) == "pass"


def test_an_interface_that_is_not_known_holds():
    a = made([spec("x", "float32", 1)])
    assert interface_state(a, replace(a, inputs=None)) == "missing"


def test_a_policy_without_a_mapping_keeps_the_digest_it_always_had():
    plain = policy_from(RULES, "p", METRICS)
    assert "interface" not in plain.to_json()
    assert plain.digest != policy([{"baseline": "x", "dtype": "int8"}]).digest


def test_a_policy_reads_back_from_its_json_with_its_mapping():
    p = policy([{"baseline": "x", "candidate": "z", "transpose": ["0", "2", "1"], "shape": ["N", "3", "4"]}])
    assert policy_from(p.to_json(), "again", METRICS) == p
    schema = json.loads((Path(edgeproof.__file__).parent / "policy.schema.json").read_text())
    jsonschema.validate(p.to_json(), schema)


@pytest.mark.parametrize(
    ("port", "code"),
    [
        ({"candidate": "x"}, "policy.value"),
        ({"baseline": "x", "scale": 2}, "policy.key"),
        ({"baseline": "x", "transpose": [0, 2]}, "policy.value"),
        ({"baseline": "x", "shape": 4}, "policy.value"),
    ],
)
def test_a_mapping_that_says_something_else_is_refused(port, code):
    with pytest.raises(InputError) as e:
        policy([port])
    assert e.value.code == code
    with pytest.raises(InputError):
        policy([{"baseline": "x"}, {"baseline": "x"}])


def test_the_command_shows_what_changed_and_says_it_as_json(tmp_path, capsys):
    a, b = FIXTURES / "fc_int8.tflite", FIXTURES / "fc_int8_rescaled.tflite"
    assert main(["compare", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert "2 tensors equal, 2 changed" in text
    assert "fc/weight" in text
    assert main(["compare", str(a), str(b), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {q["tensor"] for q in told["comparison"]["quantisation"]} == {"fc/weight", "fc/bias"}
    assert told["baseline"]["format"] == "tflite"


def test_models_of_different_formats_are_compared_and_what_cannot_be_told_is_unknown(capsys):
    assert main(["compare", str(FIXTURES / "conv.onnx"), str(FIXTURES / "conv.xml")]) == 0
    text = capsys.readouterr().out
    assert "Graph: unknown" in text
    assert "Interface: 2 equal" in text
