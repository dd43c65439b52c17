"""State dicts of PyTorch's legacy ``.pth`` format, read without PyTorch and without running what the file says.

Layout (torch.serialization ``_legacy_load``): four pickles (magic number, protocol version, system, the state dict),
then a pickled list of storage keys, then for each storage its length in elements (int64) and its elements. The
unpickler knows four names; any other is refused.
"""

from __future__ import annotations

import collections
import io
import pickle  # noqa: TID251  (restricted to the names in `_Reader.find_class`)
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeproof.errors import TrustError

_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


@dataclass(slots=True)
class _Storage:
    dtype: str
    size: int
    data: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class _View:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Dtype:
    name: str


def _view(
    storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], _grad: bool, _hooks: Any
) -> _View:
    return _View(storage, offset, tuple(shape), tuple(stride))


class _StateDict(collections.OrderedDict[str, _View]):
    """What is built for an OrderedDict; takes the attribute ``_metadata`` and nothing is done with it."""


@dataclass(slots=True)
class _Storages:
    by_key: dict[str, _Storage] = field(default_factory=dict)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: _Storages) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _StateDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if module == "torch" and name in _DTYPES:
            return _Dtype(_DTYPES[name])
        raise TrustError("zoo.pickle", f"{module}.{name}", "is not a part of a state dict", "do not use this file")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _device, size, _view_metadata = pid
        assert kind == "storage", kind
        assert isinstance(dtype, _Dtype), dtype
        return self._storages.by_key.setdefault(key, _Storage(dtype.name, int(size)))


def read_state_dict(data: bytes) -> dict[str, NDArray[Any]]:
    """Tensors by name.

    Args:
        data: A legacy ``.pth`` file that holds one state dict of float32 and int64 tensors.

    Raises:
        TrustError: zoo.pickle, when the file names anything else.
    """
    file, storages = io.BytesIO(data), _Storages()
    magic, _protocol, _system = (_Reader(file, storages).load() for _ in range(3))
    if magic != _MAGIC:
        raise TrustError("zoo.pickle", "state dict", "does not start with PyTorch's magic number", "")
    views: dict[str, _View] = _Reader(file, storages).load()
    for key in _Reader(file, storages).load():
        storage = storages.by_key[key]
        (size,) = np.frombuffer(file.read(8), "<i8")
        assert size == storage.size, key
        storage.data = np.frombuffer(file.read(int(size) * np.dtype(storage.dtype).itemsize), storage.dtype)
    return {name: _tensor(view) for name, view in views.items()}


def _tensor(view: _View) -> NDArray[Any]:
    data = view.storage.data
    assert data is not None
    assert view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True)) < data.size
    strides = [s * data.itemsize for s in view.stride]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(data[view.offset :], view.shape, strides))
