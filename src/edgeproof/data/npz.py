"""Arrays: a .npz file with one array per model input and the labels, or a .npy file for a model with one input.

The first dimension counts the samples. Uncompressed files are memory-mapped, so that only the sample that is asked for
is read; a compressed member is unpacked into memory on first use. Pickled objects are refused, since opening one runs
code.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..dataset import DataSpec, Example, settings_from
from ..digest import digest_array
from ..errors import InputError, did_you_mean
from ..model import TensorSpec
from ..protocols import DataFormat, Dataset
from ._samples import Samples, bad_label, called, converter, existing, fitted

LABEL_KEYS = ("labels", "label", "y")


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set.

    Attributes:
        labels: Name of the array of labels; empty looks for ``labels``, ``label`` and ``y``.
    """

    labels: str = ""


@dataclass(frozen=True, slots=True)
class Npz:
    """The format."""

    options: ClassVar[type] = Options

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """Map the arrays; the first sample is checked against the model.

        With ``preprocess`` declared, samples are uint8 pictures ([N, H, W], [N, H, W, 1] or [N, H, W, 3], or with
        channels first where the shape leaves no doubt).
        """
        options = settings_from(Options, spec.options, spec.place("options"))
        arrays = _arrays(existing(spec))
        names, key = _assigned(arrays, inputs, options.labels, spec.path)
        count = _count(arrays, spec.path)
        by_input = {tensor: arrays[own] for tensor, own in names.items()}
        labels = arrays[key] if key else None
        source = {tensor: f"{spec.path}: array {own!r}" if own else spec.path for tensor, own in names.items()}
        tensors = {t.name: t for t in inputs}
        convert, settings = converter(spec, inputs)

        def read(i: int) -> Example:
            name = str(i)
            feeds: dict[str, NDArray[Any]] = {}
            meta: dict[str, Any] = {}
            for tensor, array in by_input.items():
                sample, meta = convert(array[i], called(name, source[tensor]))
                feeds[tensor] = fitted(sample, tensors[tensor], name, source[tensor])
            return Example(
                name, feeds, None if labels is None else _label(labels[i], name, f"{spec.path}: array {key!r}"), meta
            )

        def fingerprint(i: int) -> Any:
            parts = {tensor: digest_array(array[i]) for tensor, array in by_input.items()}
            return [parts, None if labels is None else _label_print(labels[i])]

        samples = Samples([str(i) for i in range(count)], read, fingerprint, settings, spec.path)
        samples[0]
        return samples


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name; a .npy file has one without a name.

    Raises:
        InputError: data.pickle, data.not_arrays.
    """
    try:
        if path.suffix.lower() == ".npy":
            return {"": np.lib.format.open_memmap(path, mode="r")}
        with zipfile.ZipFile(path) as archive:
            return {
                info.filename.removesuffix(".npy"): _member(path, archive, info)
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
    except (OSError, ValueError, OverflowError, EOFError, SyntaxError, zipfile.BadZipFile, struct.error) as e:
        if "object" in str(e).lower():
            raise InputError(
                "data.pickle",
                str(path),
                "holds Python objects (a pickle), which can run code when opened; expected plain arrays",
                "save numeric or fixed-width string arrays with numpy.savez",
            ) from e
        raise InputError(
            "data.not_arrays",
            str(path),
            f"is not a complete NumPy file: {' '.join(str(e).split())}",
            "save it with numpy.savez or numpy.save",
        ) from e


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array of a .npz: a memory map where it is stored uncompressed."""
    with archive.open(info) as stream:
        if info.compress_type != zipfile.ZIP_STORED:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        header = stream.tell()
    if dtype.hasobject:
        raise ValueError("object arrays need pickle")
    if 0 in shape:
        return np.empty(shape, dtype)
    with path.open("rb") as f:  # the local header's own name and extra field lie before the data
        f.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", f.read(4))
    offset = info.header_offset + 30 + name_length + extra_length + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _assigned(
    arrays: Mapping[str, NDArray[Any]], inputs: Sequence[TensorSpec], label_key: str, subject: str
) -> tuple[dict[str, str], str]:
    """Input → name of its array, and the name of the array of labels; that is empty when there are none."""
    names = [t.name for t in inputs]
    key = label_key or next((k for k in LABEL_KEYS if k in arrays and k not in names), "")
    if label_key and label_key not in arrays:
        raise InputError(
            "data.mismatch", subject, f"has no array {label_key!r} for the labels", did_you_mean(label_key, arrays)
        )
    rest = {k: a for k, a in arrays.items() if k != key or not key}
    if len(names) == 1 and len(rest) == 1:
        return {names[0]: next(iter(rest))}, key
    for name in names:
        if name not in rest:
            raise InputError(
                "data.mismatch",
                subject,
                f"has no array for input {name!r}; it has {', '.join(sorted(rest)) or 'none'}",
                f"name the arrays like the model's inputs: {', '.join(names)}",
            )
    extra = sorted(set(rest) - set(names))
    if extra:
        raise InputError(
            "data.mismatch",
            subject,
            f"has an array {extra[0]!r} that is neither an input nor the labels",
            did_you_mean(extra[0], [*names, *LABEL_KEYS]),
        )
    return {name: name for name in names}, key


def _count(arrays: Mapping[str, NDArray[Any]], subject: str) -> int:
    """How many samples there are; every array must agree."""
    flat = [k for k, a in arrays.items() if a.ndim == 0]
    if flat:
        raise InputError(
            "data.mismatch", subject, f"array {flat[0]!r} has no dimensions", "stack samples along the first"
        )
    counts = {k: len(a) for k, a in arrays.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{k} {n}" for k, n in counts.items())
        raise InputError(
            "data.mismatch", subject, f"arrays have different lengths: {shown}", "one entry per sample each"
        )
    return next(iter(counts.values()), 0)


def _label(value: Any, sample: str, source: str) -> Any:
    """A class index, a string, or an array as it is."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind == "f":
        return array
    if array.dtype.kind in "US":
        return str(array) if array.dtype.kind == "U" else bytes(array).decode()
    label = int(array)
    if label < 0:
        raise bad_label(sample, f"has label {label}; expected 0 or above", "remove samples without a class", source)
    return label


def _label_print(value: Any) -> Any:
    array = np.asarray(value)
    return str(array) if array.dtype.kind in "US" and not array.ndim else digest_array(array)


IMPL: type[DataFormat] = Npz
