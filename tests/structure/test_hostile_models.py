"""Files that were made to hurt are refused by name, at a bounded price."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest

from edgeproof.errors import EdgeproofError, InputError, TrustError
from edgeproof.structure import child, read_here, read_structure
from edgeproof.structure.recognise import recognise
from structure.models import FIXTURES, conv, external


def refused(path, kind: type[EdgeproofError] = InputError) -> str:
    with pytest.raises(kind) as e:
        read_here(path)
    return e.value.code


# Pickles, written out by hand: protocol 4, protocol 0, a PyTorch archive, a bare name.
PICKLES = {
    "m.pkl": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "m.onnx": b"\x80\x02cposix\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85q\x02Rq\x03.",
    "old.bin": b"cposix\nsystem\n(S'ls'\ntR.",
    "odd.pth": b"\x00\x01\x02\x03 nothing that anyone knows",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_refused_whatever_it_is_called(name, tmp_path):
    (tmp_path / name).write_bytes(PICKLES[name])
    assert refused(tmp_path / name) == "structure.pickle"


def test_a_pytorch_archive_is_refused_as_a_pickle(tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as z:
        z.writestr("model/data.pkl", PICKLES["m.pkl"])
    (tmp_path / "m.onnx").write_bytes(made.getvalue())
    assert refused(tmp_path / "m.onnx") == "structure.pickle"


def test_a_gguf_file_that_announces_more_tensors_than_it_can_hold_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0))
    assert refused(path) == "structure.count"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62))
    assert refused(path) == "structure.count"


def test_a_safetensors_header_with_a_key_twice_is_refused(tmp_path):
    entry = json.dumps({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]})
    header = f'{{"w": {entry}, "w": {entry}}}'.encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    assert refused(path) == "json.duplicate_key"


@pytest.mark.parametrize(("offsets", "length"), [(([0, 4], [2, 6]), 6), (([0, 4], [6, 10]), 10), (([0, 4], [4, 8]), 9)])
def test_safetensors_that_overlap_leave_a_hole_or_end_early_are_refused(offsets, length, tmp_path):
    entries = {n: {"dtype": "U8", "shape": [4], "data_offsets": o} for n, o in zip("ab", offsets, strict=True)}
    header = json.dumps(entries).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(length))
    assert refused(path) == "structure.malformed"


@pytest.mark.parametrize(("name", "padding"), [("fc_int8.tflite", 0), ("tensors.gguf", 24), ("tensors.safetensors", 0)])
def test_a_file_that_was_cut_short_anywhere_is_refused(name, padding, tmp_path):
    data = (FIXTURES / name).read_bytes()
    path = tmp_path / name
    for length in range(0, len(data) - padding, 3):
        path.write_bytes(data[:length])
        with pytest.raises(InputError):
            read_here(path)


def test_a_truncated_protobuf_is_refused_or_has_a_defect(tmp_path):
    # A message that ends between two of its fields is whole as a protobuf; here the opset imports are missing then.
    data = (FIXTURES / "conv.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    whole = []
    for length in range(len(data)):
        path.write_bytes(data[:length])
        try:
            found = read_here(path).findings
        except InputError:
            continue
        whole.append(length)
        assert any(f.kind == "defect" for f in found)
    assert len(whole) == 1


@pytest.mark.parametrize("name", ["fc_int8.tflite", "tensors.gguf", "tensors.safetensors"])
def test_a_flipped_byte_ends_in_an_error_or_in_another_digest(name, tmp_path):
    data = (FIXTURES / name).read_bytes()
    before = read_here(FIXTURES / name)
    path = tmp_path / name
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), 200, replace=False):
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        try:
            assert read_here(path).digest != before.digest
        except InputError:
            continue


def test_an_openvino_ir_whose_bin_is_shorter_than_its_constants_is_refused(tmp_path):
    (tmp_path / "m.xml").write_bytes((FIXTURES / "conv.xml").read_bytes())
    (tmp_path / "m.bin").write_bytes((FIXTURES / "conv.bin").read_bytes()[:-1])
    assert refused(tmp_path / "m.xml") == "structure.truncated"


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>',
        '<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE net SYSTEM "http://example.invalid/net.dtd">',
    ],
)
def test_xml_that_declares_anything_is_refused(head, tmp_path):
    (tmp_path / "m.xml").write_text(f'<?xml version="1.0"?>{head}<net name="n" version="11"></net>')
    assert refused(tmp_path / "m.xml") == "structure.xml_doctype"


def test_xml_that_nests_without_end_is_refused(tmp_path):
    (tmp_path / "m.xml").write_text('<?xml version="1.0"?><net>' + "<layers>" * 1000)
    assert refused(tmp_path / "m.xml") == "structure.xml_too_deep"


def test_an_ir_whose_bin_is_a_link_out_of_its_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.xml").write_bytes((FIXTURES / "conv.xml").read_bytes())
    (tmp_path / "secret").write_bytes((FIXTURES / "conv.bin").read_bytes())
    (folder / "m.bin").symlink_to(tmp_path / "secret")
    assert refused(folder / "m.xml", TrustError) == "model.external_data"
    (folder / "m.bin").unlink()
    os.link(tmp_path / "secret", folder / "m.bin")
    assert refused(folder / "m.xml", TrustError) == "model.external_data"


@pytest.mark.parametrize("how", ["parent", "absolute", "symlink", "hard link", "linked folder"])
def test_external_data_outside_the_models_folder_is_refused_in_the_child_too(how, tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(432))
    location = {"parent": "../outside/w.bin", "absolute": str(outside / "w.bin"), "linked folder": "sub/w.bin"}
    path = external(folder / "m.onnx", location.get(how, "w.bin"))
    if how == "symlink":
        (folder / "w.bin").symlink_to(outside / "w.bin")
    elif how == "hard link":
        os.link(outside / "w.bin", folder / "w.bin")
    elif how == "linked folder":
        (folder / "sub").symlink_to(outside)
    with pytest.raises(TrustError) as e:
        read_structure(path)
    assert e.value.code == "model.external_data"


def test_a_build_record_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "m.engine").write_bytes(b"ftrt" + bytes(60))
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "m.engine.json").symlink_to(tmp_path / "elsewhere")
    assert refused(tmp_path / "m.engine", TrustError) == "model.external_data"


def many_elements(path, count: int):
    path.write_text('<?xml version="1.0"?><net><layers>' + "<layer/>" * count + "</layers></net>")
    return path


def test_a_file_that_needs_more_memory_than_its_size_allows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "MEMORY_BYTES", 300 << 20)
    monkeypatch.setattr(child, "MEMORY_PER_BYTE", 1)
    with pytest.raises(InputError) as e:
        read_structure(many_elements(tmp_path / "m.xml", 1_000_000))
    assert e.value.code == "structure.memory"


def test_a_file_that_takes_more_time_than_its_size_allows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "CPU_S", 0.0)
    monkeypatch.setattr(child, "CPU_S_PER_BYTE", 0.0)
    monkeypatch.setattr(child, "WALL_S", 600.0)  # the processor time ends it, however busy the machine is
    with pytest.raises(InputError) as e:
        read_structure(many_elements(tmp_path / "m.xml", 2_500_000))
    assert e.value.code == "structure.time"


def test_a_child_that_does_not_come_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "CPU_S", 0.0)
    monkeypatch.setattr(child, "WALL_S", 0.001)
    with pytest.raises(InputError) as e:
        read_structure(FIXTURES / "fc_int8.tflite")
    assert e.value.code == "structure.stalled"


def test_an_empty_a_missing_and_an_archived_file_are_refused_by_name(tmp_path):
    (tmp_path / "empty.onnx").touch()
    assert refused(tmp_path / "empty.onnx") == "structure.empty"
    assert refused(tmp_path / "none.onnx") == "structure.missing"
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as z:
        z.write(conv(tmp_path / "m.onnx"), "m.onnx")
    assert refused(tmp_path / "m.zip") == "structure.archive"


def test_content_of_one_format_under_the_name_of_a_pickle_is_refused(tmp_path):
    (tmp_path / "m.pt").write_bytes((FIXTURES / "fc_int8.tflite").read_bytes())
    with pytest.raises(InputError) as e:
        recognise(tmp_path / "m.pt")
    assert e.value.code == "structure.extension"
