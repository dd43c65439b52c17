"""What fuzzing found in the readers of models, each as the kind of fault that it was."""

import struct
from pathlib import Path

import pytest

from edgeproof.errors import InputError
from edgeproof.strictjson import canonical
from edgeproof.structure import read_here
from structure.models import FIXTURES


def test_an_empty_tensor_with_dimensions_beyond_any_memory_is_read_without_an_array(tmp_path: Path) -> None:
    name = b"w"
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<IQQQIQ", 3, 0, 2**62, 2**62, 0, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes((b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor).ljust(128, b"\0"))
    weights = read_here(path).weights
    assert weights is not None
    assert weights[0].shape == (2**62, 2**62, 0)


def with_fake_quantize(tmp_path: Path, old: str, new: str) -> Path:
    (tmp_path / "m.bin").write_bytes((FIXTURES / "fq.bin").read_bytes())
    text = (FIXTURES / "fq.xml").read_text()
    assert old in text
    (tmp_path / "m.xml").write_text(text.replace(old, new))
    return tmp_path / "m.xml"


@pytest.mark.parametrize("levels", ["25TFL36", "-1", "1e3", "9" * 400])
def test_levels_of_a_fake_quantize_that_are_no_count_are_refused(tmp_path: Path, levels: str) -> None:
    path = with_fake_quantize(tmp_path, 'levels="256"', f'levels="{levels}"')
    with pytest.raises(InputError) as e:
        read_here(path)
    assert e.value.code == "structure.malformed"


def test_a_range_whose_width_is_beyond_a_double_still_has_a_json_form(tmp_path: Path) -> None:
    scalar = 'element_type="{}" shape="" offset="{}" size="{}"'
    path = with_fake_quantize(tmp_path, scalar.format("f32", 432, 4), scalar.format("f64", 440, 8))
    text = path.read_text()
    assert scalar.format("f32", 436, 4) in text
    path.write_text(text.replace(scalar.format("f32", 436, 4), scalar.format("f64", 448, 8)))
    (tmp_path / "m.bin").write_bytes((FIXTURES / "fq.bin").read_bytes() + struct.pack("<2d", -1.7e308, 1.7e308))
    found = read_here(path)
    canonical(found.to_json())
    assert len(found.quantisation) == 1


def test_a_tflite_buffer_that_claims_more_bytes_than_memory_is_not_cut_out(tmp_path: Path) -> None:
    """A buffer may name a place beyond the flatbuffer; place 1 stands for none, whatever size is claimed."""
    data = bytearray((FIXTURES / "fc_int8.tflite").read_bytes())
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    field = root + struct.unpack_from("<H", data, vtable + 4 + 2 * 4)[0]
    vector = field + struct.unpack_from("<I", data, field)[0]
    # A table of a buffer whose offset is 1 and whose size is 2^62, behind everything else.
    at = len(data)
    data += struct.pack("<5H", 10, 20, 0, 4, 12) + b"\0\0" + struct.pack("<iQQ", 12, 1, 2**62)
    entry = vector + 4
    struct.pack_into("<I", data, entry, at + 12 - entry)
    path = tmp_path / "m.tflite"
    path.write_bytes(bytes(data))
    assert read_here(path).topology
