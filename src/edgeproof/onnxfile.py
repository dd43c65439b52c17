"""Read an ONNX file as a protobuf, and nothing but an ONNX file.

Other formats are refused by their first bytes. External data is read only from the model's own folder: absolute paths,
``..``, symbolic links and hard links are refused before a byte of them is read. Reading never runs code.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InputError, TrustError
from .files import os_error


def read_proto(path: Path) -> Any:
    """The file as an ``onnx.ModelProto`` whose external data, if any, is in place and contained.

    Raises:
        InputError: model.missing, model.wrong_format, model.not_onnx, model.no_graph, model.external_missing,
            model.external_short, model.malformed.
        TrustError: model.external_data, when a weight file lies outside the model's folder.
    """
    import onnx

    try:
        data = path.read_bytes()
    except FileNotFoundError as e:
        raise InputError("model.missing", str(path), "no such file", "give the path of an .onnx file") from e
    except IsADirectoryError as e:
        raise InputError(
            "model.missing", str(path), "is a folder; expected a file", "give the path of an .onnx file"
        ) from e
    except OSError as e:
        raise os_error(path, e) from e
    _refuse_other_formats(path, data)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as e:  # the exception class depends on the protobuf implementation
        raise InputError(
            "model.not_onnx",
            str(path),
            f"is not a complete ONNX protobuf ({len(data):,} bytes)",
            "the file may be truncated or of another format; download or export it again",
        ) from e
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise InputError(
            "model.no_graph",
            str(path),
            f"holds no ONNX graph ({len(data):,} bytes)",
            "the file may be empty, truncated or of another format; export it again",
        )
    _check_text(proto, path)
    _check_names(proto.graph, frozenset(), path)
    for function in proto.functions:
        _check_nodes(function, function.output, set(function.input), path)
    for tensor in stored_tensors(proto):
        if tensor.data_location == tensor.EXTERNAL:
            _check_external(tensor, path)
        else:
            _check_stored(tensor, path)
    return proto


def external_files(proto: Any, folder: Path) -> set[Path]:
    """The weight files that a checked proto refers to."""
    entries = (e for t in stored_tensors(proto) if t.data_location == t.EXTERNAL for e in t.external_data)
    return {folder / e.value for e in entries if e.key == "location"}


def stored_tensors(proto: Any) -> Iterator[Any]:
    """Every ``TensorProto`` in a ``ModelProto``: all graphs, functions and training graphs, sparse parts included."""
    graphs = [proto.graph]
    nodes = [n for f in proto.functions for n in f.node]
    attributes = [a for f in proto.functions for a in f.attribute_proto]
    for training in proto.training_info:
        graphs += [training.initialization, training.algorithm]
    while graphs or nodes or attributes:
        while graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
        while nodes:
            attributes.extend(nodes.pop().attribute)
        while attributes:
            attribute = attributes.pop()
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()),):
                yield from (sparse.values, sparse.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


_PICKLE = "a Python pickle, which can run code when opened"
_FORMATS: tuple[tuple[bytes, int, str, str], ...] = (
    (b"PK\x03\x04", 0, "a ZIP archive (a PyTorch checkpoint or TorchScript file?)", "export it with torch.onnx.export"),
    (b"\x80\x02", 0, _PICKLE, "export the model to ONNX where it was trained"),
    (b"\x80\x03", 0, _PICKLE, "export the model to ONNX where it was trained"),
    (b"\x80\x04", 0, _PICKLE, "export the model to ONNX where it was trained"),
    (b"\x80\x05", 0, _PICKLE, "export the model to ONNX where it was trained"),
    (b"TFL3", 4, "a TensorFlow Lite model", "convert it to ONNX first, e.g. with tf2onnx"),
    (b"GGUF", 0, "a GGUF model", "edgeproof reads ONNX"),
    (b"\x89HDF", 0, "an HDF5 (Keras) file", "convert it to ONNX first, e.g. with tf2onnx"),
    (b"ORTM", 4, "an ORT-format model", "give the .onnx file that it was made from"),
    (b"<?xml", 0, "an XML file (OpenVINO IR?)", "give the .onnx file that it was made from"),
    (b"\x89PNG", 0, "a PNG picture", "give the path of an .onnx file"),
    (b"\xff\xd8\xff", 0, "a JPEG picture", "give the path of an .onnx file"),
    (b"\x1f\x8b", 0, "a gzip archive", "unpack it first"),
)


def _refuse_other_formats(path: Path, data: bytes) -> None:
    if not data:
        raise InputError("model.wrong_format", str(path), "is empty (0 bytes)", "export or download it again")
    for magic, offset, what, hint in _FORMATS:
        if data[offset : offset + len(magic)] == magic:
            raise InputError("model.wrong_format", str(path), f"is {what}; expected ONNX", hint)
    if data[:60].lstrip().startswith(b"version https://git-lfs"):
        raise InputError("model.wrong_format", str(path), "is a Git LFS pointer, not the model", "run git lfs pull")


def _malformed(path: Path, problem: str) -> InputError:
    return InputError("model.malformed", str(path), problem, "run onnx.checker on it and export it again")


def _check_text(message: Any, path: Path) -> None:
    """Every text field is text: protobuf hands out bytes where it is not UTF-8."""
    from google.protobuf.message import Message

    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise _malformed(path, f"{field.full_name} is not UTF-8: {text[:40]!r}")
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                _check_text(inner, path)


def _check_names(graph: Any, outer: frozenset[str], path: Path) -> None:
    """Inputs and weights have names, and every value that is read is made somewhere in sight."""
    for i, tensor in enumerate(graph.initializer):
        if not tensor.name:
            raise _malformed(path, f"initializer {i} of graph {graph.name!r} has no name")
    for i, value in enumerate(graph.input):
        if not value.name:
            raise _malformed(path, f"input {i} of graph {graph.name!r} has no name")
    made = {v.name for v in graph.input} | {t.name for t in graph.initializer} | outer
    made |= {s.values.name for s in graph.sparse_initializer}
    _check_nodes(graph, [v.name for v in graph.output], made, path)


def _check_nodes(graph: Any, outputs: Any, made: set[str], path: Path) -> None:
    names = [name for node in graph.node for name in node.output if name]
    scope = frozenset(made.union(names))
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise _malformed(path, f"value {twice!r} is made by two nodes")
    for node in graph.node:
        for name in node.input:
            if name and name not in scope:
                raise _malformed(path, f"node {node.name or node.op_type!r} reads {name!r}, which nothing makes")
        for attribute in node.attribute:
            if not attribute.type:
                owner = node.name or node.op_type
                raise _malformed(path, f"attribute {attribute.name!r} of node {owner!r} has no type")
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                _check_names(inner, scope, path)
    for name in outputs:
        if name not in scope:
            raise _malformed(path, f"output {name!r} of graph {graph.name!r} is made by no node")


def _check_external(tensor: Any, path: Path) -> None:
    """Refuse external data outside the model's folder, before anything of it is opened."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    subject = f"{path}: tensor {tensor.name!r}"
    info = contained(path, location, subject)
    _check_extent(tensor, entries, subject, info.st_size)


def contained(path: Path, location: str, subject: str) -> os.stat_result:
    """Refuse a file beside a model that is not the model's own, before anything of it is opened.

    Args:
        path: The model file.
        location: Where the other file lies, as the model tells, relative to the model's folder.
        subject: What needs it, for errors.

    Returns:
        The file's status.

    Raises:
        TrustError: model.external_data, for a location outside the model's folder, a link, or no plain file.
        InputError: model.external_missing.
    """
    where = Path(location)
    if not location or where.is_absolute() or ".." in where.parts or "\\" in location or "\0" in location:
        raise TrustError(
            "model.external_data",
            subject,
            f"keeps its data at {location!r}, outside the model's folder",
            "put the weight file beside the model and save it with a plain relative name",
        )
    at = path.parent.resolve()
    for part in where.parts:
        at = at / part
        if at.is_symlink():
            raise TrustError(
                "model.external_data",
                subject,
                f"keeps its data behind the symbolic link {part!r}",
                "replace the link by the file itself",
            )
    try:
        info = at.stat()
    except OSError as e:
        raise InputError(
            "model.external_missing",
            subject,
            f"needs the weight file {location!r}, which is not there",
            "copy the weight file beside the model",
        ) from e
    if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
        raise TrustError(
            "model.external_data",
            subject,
            f"keeps its data in {location!r}, which has {info.st_nlink} hard links",
            "copy the file, so that it belongs to this folder alone",
        )
    if not stat.S_ISREG(info.st_mode):
        raise TrustError(
            "model.external_data",
            subject,
            f"keeps its data in {location!r}, which is no plain file",
            "put a file there",
        )
    return info


def _check_extent(tensor: Any, entries: dict[str, str], subject: str, size: int) -> None:
    """Refuse a byte range that the file does not have, or that is not what dtype and shape need."""
    from onnx_ir import DataType

    unsized = (tensor.UNDEFINED, tensor.STRING)
    if tensor.data_type in unsized or tensor.data_type not in {d.value for d in DataType}:
        raise InputError(
            "model.external_short",
            subject,
            f"has data type {tensor.data_type}, which has no fixed size",
            "export it again",
        )
    need = _bytes_needed(tensor)
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else need
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0 or offset + length > size:
        raise InputError(
            "model.external_short",
            subject,
            f"reads {length:,} bytes at {offset:,} of {entries['location']!r}, which has {size:,}",
            "the weight file is truncated; download or export it again",
        )
    if length != need:
        raise InputError(
            "model.external_short",
            subject,
            f"reads {length:,} bytes of {entries['location']!r}; its dtype and shape need {need:,}",
            "the model and its weight file do not belong together; export them again",
        )


def _check_stored(tensor: Any, path: Path) -> None:
    """The data is as much as dtype and shape need."""
    if tensor.data_type not in tensor.DataType.values() or tensor.data_type == tensor.UNDEFINED:
        raise _malformed(path, f"tensor {tensor.name!r} has no data type that ONNX knows: {tensor.data_type}")
    if tensor.data_type == tensor.STRING:
        got, need, unit = len(tensor.string_data), math.prod(tensor.dims), "strings"
    elif tensor.HasField("raw_data"):
        got, need, unit = len(tensor.raw_data), _bytes_needed(tensor), "bytes"
    else:
        # Types below 8 bits are packed into entries of one byte each, complex numbers take two entries.
        parts = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
        got, need, unit = sum(map(len, parts)), math.prod(tensor.dims), "values"
        if tensor.data_type in (tensor.COMPLEX64, tensor.COMPLEX128):
            need *= 2
        elif _bytes_needed(tensor) < need:
            need = _bytes_needed(tensor)
    if got != need or any(d < 0 for d in tensor.dims):
        shape = ",".join(map(str, tensor.dims))
        raise _malformed(path, f"tensor {tensor.name!r} holds {got:,} {unit}; its shape [{shape}] needs {need:,}")


def _bytes_needed(tensor: Any) -> int:
    import onnx_ir as ir

    elements: int = math.prod(tensor.dims)
    return (elements * int(ir.DataType(tensor.data_type).bitwidth) + 7) // 8
