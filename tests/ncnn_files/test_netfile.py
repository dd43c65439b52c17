"""ncnn's two files, written by hand from its documentation."""

import struct

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.ncnn.netfile import Layer, Weight, read, read_param, write_bin, write_param

PARAM = """7767517
3 3
Input         input    0 1 data 0=4 1=4 2=1
Convolution   conv     1 1 data a 0=2 1=1 5=1 6=2 -23310=2,0.0,6.0
InnerProduct  ip       1 1 a fc 0=3 1=0 2=6
"""


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


BIN = struct.pack("<I", 0) + floats(1, 2) + floats(0.5, -0.5) + struct.pack("<I", 0) + floats(1, 2, 3, 4, 5, 6)


def test_weights_go_to_the_layers_that_store_them():
    _, conv, ip = read(PARAM, BIN)
    assert [w.values.tolist() for w in conv.weights] == [[1, 2], [0.5, -0.5]]
    assert [w.values.tolist() for w in ip.weights] == [[1, 2, 3, 4, 5, 6]]
    assert [w.flagged for w in conv.weights] == [True, False]


def test_what_is_read_is_written_again():
    layers = read(PARAM, BIN)
    assert write_bin(layers) == BIN
    assert read_param(write_param(layers)) == layers
    assert read_param(PARAM)[1].params[-23310] == "2,0.0,6.0"


def test_integers_are_padded_to_four_bytes_and_carry_their_flag():
    assert Weight(np.array([1, -2, 3], np.int8), True).to_bytes() == b"\x38\x4b\x0d\x00\x01\xfe\x03\x00"


def test_only_flagged_weights_are_halved():
    data = write_bin(read(PARAM, BIN), half=True)
    assert data[:8] == struct.pack("<I", 0x01306B47) + np.array([1, 2], "<f2").tobytes()
    assert data[8:16] == floats(0.5, -0.5)


def test_scales_of_an_integer_layer_follow_its_bias():
    param = PARAM.replace("6=2 -23310=2,0.0,6.0", "6=2 8=101")
    codes = struct.pack("<I", 0x000D4B38) + b"\x01\x02\0\0"
    data = codes + floats(0.5, -0.5) + floats(10, 20) + floats(3) + floats(4) + BIN[-28:]
    assert [w.values.tolist() for w in read(param, data)[1].weights] == [[1, 2], [0.5, -0.5], [10, 20], [3], [4]]


def test_files_that_do_not_belong_together_are_refused():
    with pytest.raises(InputError, match="4 bytes more"):
        read(PARAM, BIN + b"\0" * 4)
    with pytest.raises(InputError, match="the file has"):
        read(PARAM, BIN[:-4])
    with pytest.raises(InputError, match="flag"):
        read(PARAM, b"\x01\x02\x03\x04" + BIN[4:])


@pytest.mark.parametrize(
    "text", ["", "7767518\n1 1\n", "7767517\n1 1\nInput in\n", "7767517\n1 1\nInput in 0 1 a x=1\n"]
)
def test_text_that_is_no_network_is_refused(text):
    with pytest.raises(InputError):
        read_param(text)


def test_a_layer_type_that_stores_nothing_needs_no_entry():
    assert read("7767517\n1 1\nSwish s 1 1 a b\n", b"") == (Layer("Swish", "s", ("a",), ("b",), {}),)
