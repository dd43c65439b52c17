import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeproof.digest import canonical_json, digest_array, digest_bytes, digest_file, digest_json


def test_bytes_and_files_have_the_digest_that_sha256sum_prints(tmp_path):
    # "abc" is the first test vector of FIPS 180-2.
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "f").write_bytes(b"abc")
    assert digest_bytes(b"abc") == expected
    assert digest_file(tmp_path / "f") == expected


def test_json_is_hashed_in_the_form_of_rfc_8785():
    # The example of RFC 8785, section 3.2.2, shortened.
    assert canonical_json({"numbers": [333333333.33333329, 1e30, 4.50, 2e-3], "a": None}) == (
        b'{"a":null,"numbers":[333333333.3333333,1e+30,4.5,0.002]}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53])
def test_numbers_that_json_cannot_carry_exactly_are_refused(value):
    with pytest.raises(ValueError):
        digest_json({"x": value})


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4)))
def test_strides_and_byte_order_do_not_change_an_arrays_digest(array):
    assert digest_array(array) == digest_array(np.asfortranarray(array))
    assert digest_array(array) == digest_array(array.astype(">f4"))


@given(st.integers(0, 11))
def test_any_changed_value_changes_an_arrays_digest(index):
    array = np.zeros((3, 4), np.int8)
    other = array.copy()
    other.reshape(-1)[index] = 1
    assert digest_array(array) != digest_array(other)


def test_shape_and_dtype_are_part_of_the_digest():
    array = np.zeros(4, np.int16)
    assert len({digest_array(a) for a in (array, array.reshape(2, 2), array.astype(np.uint16))}) == 3


def test_an_empty_array_has_a_digest():
    assert digest_array(np.zeros((0, 3), np.float32)) == "sha256:" + hashlib.sha256(b"float32:0,3:").hexdigest()
