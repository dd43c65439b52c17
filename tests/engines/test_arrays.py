"""Device pointers from other libraries: read from what they hand over, never copied, never guessed.

NumPy's arrays stand in for device arrays: the two protocols are the same but for the kind of device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.tensorrt.arrays import DeviceArray, device_array, from_capsule

CPU = (1,)  # kDLCPU


def pointer(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_a_capsule_is_read_as_numpy_made_it(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    found = from_capsule(array.__dlpack__(), "x", CPU)
    assert (found.pointer, found.shape, found.dtype, found.size) == (pointer(array), shape, dtype, array.nbytes)


def test_a_part_of_an_array_keeps_its_offset() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert from_capsule(array[2:].__dlpack__(), "x", CPU).pointer == pointer(array) + 2 * 6 * 4


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[:, :2], lambda a: a[::2]])
def test_an_array_in_another_order_is_refused(view: Any) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    with pytest.raises(InputError, match="expected C order") as e:
        from_capsule(view(array).__dlpack__(), "x", CPU)
    assert e.value.code == "session.device_array"


def test_a_dimension_of_one_element_may_have_any_stride() -> None:
    array = np.zeros((3, 8), np.float32)[:, :1]
    with pytest.raises(InputError):
        from_capsule(array.__dlpack__(), "x", CPU)
    assert from_capsule(array[:1].__dlpack__(), "x", CPU).shape == (1, 1)


def test_types_that_numpy_does_not_name_are_refused() -> None:
    with pytest.raises(InputError, match="type code 5 with 64 bits"):
        from_capsule(np.zeros(3, np.complex64).__dlpack__(), "x", CPU)


def test_memory_of_the_processor_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="device type 1 of DLPack; expected one of"):
        device_array(np.zeros(3, np.float32), "x")


class OnDevice:
    """An array as CuPy, Numba and PyTorch describe theirs."""

    def __init__(self, **told: Any) -> None:
        self._told = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, **told}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._told


def test_the_cuda_array_interface_is_taken_as_it_is() -> None:
    array = OnDevice()
    found = device_array(array, "x")
    assert (found.pointer, found.shape, found.dtype, found.size) == (4096, (2, 3), "float32", 24)
    assert found.owner is array
    assert device_array(found, "x") is found
    assert device_array(OnDevice(strides=(12, 4)), "x").shape == (2, 3)
    with pytest.raises(InputError, match="expected C order"):
        device_array(OnDevice(strides=(4, 8)), "x")


def test_what_names_no_device_memory_is_refused() -> None:
    with pytest.raises(InputError, match="is list, which names no device memory"):
        device_array([1.0], "x")


def test_what_a_session_gives_back_is_described_as_others_read_it() -> None:
    told = DeviceArray(4096, (2, 3), "float16").__cuda_array_interface__
    assert told == {"shape": (2, 3), "typestr": "<f2", "data": (4096, False), "strides": None, "version": 3}
