"""The device, through a driver library that answers as cuda.h says."""

from __future__ import annotations

import ctypes.util
from typing import Any

from edgeproof.tensorrt import device
from edgeproof.tensorrt.device import Device, find_device


class Driver:
    """The functions of libcuda that are asked, for one Orin."""

    def __init__(self, count: int = 1, code: int = 0) -> None:
        self.count, self.code = count, code

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.code

    def cuDeviceGetCount(self, out: Any) -> int:
        return give(out, self.count)

    def cuDeviceGet(self, out: Any, index: int) -> int:
        assert index < self.count
        return give(out, 3)

    def cuDeviceGetName(self, buffer: Any, size: int, handle: int) -> int:
        assert (size, handle) == (256, 3)
        buffer.value = b"Orin"
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, handle: int) -> int:
        assert handle == 3
        return give(out, 16 << 30)

    def cuDeviceGetAttribute(self, out: Any, attribute: int, handle: int) -> int:
        assert handle == 3
        return give(out, {75: 8, 76: 7, 18: 1}[attribute])

    def cuDriverGetVersion(self, out: Any) -> int:
        return give(out, 12060)


def give(out: Any, value: int) -> int:
    out._obj.value = value
    return 0


def test_name_capability_memory_and_driver_are_told(monkeypatch):
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: Driver())
    assert find_device() == Device("Orin", "8.7", 16 << 30, True, "12.6")


def test_there_is_none_without_a_driver_or_where_it_fails_or_has_no_such_device(monkeypatch):
    assert find_device(library="libnothing-of-that-name.so.1") is None
    assert find_device(library=ctypes.util.find_library("m") or "libm.so.6") is None
    for driver in (Driver(code=100), Driver(count=0)):
        monkeypatch.setattr(device.ctypes, "CDLL", lambda name, driver=driver: driver)
        assert find_device() is None
