"""A model: an ONNX graph that is never mutated, its interface, and a digest that covers every weight.

External data is read only from the model's own folder: absolute paths, ``..``, symbolic links and hard links are
refused before a byte of them is read. Loading never runs code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, TrustError
from .files import os_error, replacing

if TYPE_CHECKING:
    import onnx_ir as ir

PROTO_LIMIT_BYTES = 2_000_000_000
"""Above this, weights are written beside the model: protobuf holds at most 2 GiB in one message."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: Tensor name.
        dtype: NumPy dtype name, ``string`` for text.
        shape: One entry per dimension: an int, or a str for a symbolic dimension (``?`` when it has no name).
            None when the rank itself is unknown.
        layout: ``NCHW``, ``NHWC`` or empty when unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    layout: str = ""

    @property
    def dynamic(self) -> bool:
        """Whether any dimension is open."""
        return self.shape is None or any(isinstance(d, str) for d in self.shape)

    def __str__(self) -> str:
        """E.g. ``x float32[1, 3, h, w]``."""
        dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.name} {self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a value. ``graph`` is shared and must never be changed: passes clone it.

    Attributes:
        name: Short name for people, from the file's stem.
        digest: Covers the graph's structure, interface, metadata and every tensor; not names of the tool that wrote it.
        inputs: Inputs that the user must feed (initializers listed as inputs are left out).
        outputs: Outputs.
        graph: The ONNX IR.
    """

    name: str
    digest: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    graph: ir.Model

    @staticmethod
    def of(graph: ir.Model, name: str) -> Model:
        """Wrap an IR model; hashes all its tensors."""
        inputs = tuple(_spec(v) for v in graph.graph.inputs if v.name not in graph.graph.initializers)
        outputs = tuple(_spec(v) for v in graph.graph.outputs)
        return Model(name, graph_digest(graph), inputs, outputs, graph)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The model's own metadata properties (e.g. a character set)."""
        return self.graph.metadata_props

    def to_bytes(self) -> bytes:
        """The model as one ONNX protobuf, external data included.

        Raises:
            InputError: model.too_large, when the weights do not fit one message.
        """
        import onnx_ir as ir

        if weight_bytes(self.graph) > PROTO_LIMIT_BYTES:
            raise InputError(
                "model.too_large",
                self.name,
                f"weights of {weight_bytes(self.graph):,} bytes do not fit one protobuf message",
                "save it with external data first",
            )
        proto = ir.to_proto(_embedded(self.graph))
        data: bytes = proto.SerializeToString(deterministic=True)
        return data


def load_model(path: str | Path) -> Model:
    """Read an ONNX file.

    Raises:
        InputError: model.missing, model.wrong_format, model.not_onnx, model.no_graph.
        TrustError: model.external_data, when a weight file lies outside the model's folder.
    """
    import onnx
    import onnx_ir as ir

    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError as e:
        raise InputError("model.missing", str(path), "no such file", "give the path of an .onnx file") from e
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
            f"is not a complete ONNX protobuf ({len(data):,} bytes; {_one_line(e)})",
            "the file may be truncated or of another format; download or export it again",
        ) from e
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise InputError(
            "model.no_graph",
            str(path),
            f"holds no ONNX graph ({len(data):,} bytes)",
            "the file may be empty, truncated or of another format; export it again",
        )
    del data
    _check_external_data(proto, path)
    try:
        graph = ir.from_proto(proto)
        for tensor in external_tensors(graph):
            tensor.base_dir = path.parent
        return Model.of(graph, path.stem)
    except InputError:
        raise
    except OSError as e:
        raise os_error(path, e) from e
    except Exception as e:
        raise InputError(
            "model.malformed",
            str(path),
            f"parses as ONNX but its graph is inconsistent: {_one_line(e)}",
            "run onnx.checker on it and export it again",
        ) from e


def save_model(model: Model, path: str | Path) -> Path:
    """Write a model atomically; weights beyond the protobuf limit go to one file beside it.

    Returns:
        The path written. The weight file's name carries the model's digest, so that an interrupted save never leaves
        an old graph with new weights.
    """
    import onnx_ir as ir

    path = Path(path)
    if weight_bytes(model.graph) <= PROTO_LIMIT_BYTES:
        data = model.to_bytes()
        with replacing(path) as temporary:
            temporary.write_bytes(data)
        return path
    weights = path.with_name(f"{path.stem}.{model.digest[-12:]}.data")
    with replacing(weights) as temporary_weights, replacing(path) as temporary:
        clone = ir.external_data.unload_from_model(model.graph.clone(), temporary.parent, temporary_weights.name)
        for tensor in external_tensors(clone):
            tensor.location = weights.name
        temporary.write_bytes(ir.to_proto(clone).SerializeToString(deterministic=True))
    return path


def size_bytes(path: str | Path) -> int:
    """Size on disk of a model file and of the weight files that belong to it, in bytes."""
    path = Path(path)
    try:
        total = path.stat().st_size
    except OSError as e:
        raise os_error(path, e) from e
    extra = {(path.parent / t.location).resolve() for t in external_tensors(load_model(path).graph)}
    return total + sum(p.stat().st_size for p in extra)


def weight_bytes(graph: ir.Model) -> int:
    """Bytes of all tensors stored in the graph."""
    total: int = sum(t.nbytes for _, t in tensors(graph))
    return total


def tensors(graph: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """All stored tensors with a name each: initializers of every subgraph, then tensor attributes."""
    import onnx_ir as ir

    for g in graphs(graph):
        for name, value in g.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
        for node in g:
            for attr in node.attributes.values():
                if isinstance(attr, ir.Attr) and attr.type == ir.AttributeType.TENSOR and attr.value is not None:
                    yield f"{node.name or node.op_type}.{attr.name}", attr.value
                elif isinstance(attr, ir.Attr) and attr.type == ir.AttributeType.TENSORS:
                    for i, t in enumerate(attr.value):
                        yield f"{node.name or node.op_type}.{attr.name}[{i}]", t


def graphs(graph: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, its functions, and every subgraph, outer first."""
    import onnx_ir as ir

    todo: list[ir.Graph] = [graph.graph, *(f.graph for f in graph.functions.values())]
    while todo:
        g = todo.pop(0)
        yield g
        for node in g:
            for attr in node.attributes.values():
                if not isinstance(attr, ir.Attr):
                    continue
                if attr.type == ir.AttributeType.GRAPH:
                    todo.append(attr.value)
                elif attr.type == ir.AttributeType.GRAPHS:
                    todo.extend(attr.value)


def external_tensors(graph: ir.Model) -> Iterator[Any]:
    """Every tensor whose bytes lie in another file."""
    import onnx_ir as ir

    for _, tensor in tensors(graph):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor


def tensor_digest(tensor: ir.TensorProtocol) -> str:
    """Digest of one tensor: dtype, shape and bytes."""
    import onnx_ir as ir

    h = hashlib.sha256(f"{tensor.dtype.name}:{','.join(str(d) for d in tensor.shape)}:".encode())
    if tensor.dtype == ir.DataType.STRING:
        for item in tensor.numpy().reshape(-1):
            text = item if isinstance(item, bytes) else str(item).encode()
            h.update(len(text).to_bytes(8, "little") + text)
    else:
        h.update(tensor.tobytes())
    return "sha256:" + h.hexdigest()


def graph_digest(graph: ir.Model) -> str:
    """Digest of a whole model: opsets, metadata, functions, every node with its attributes, every tensor."""
    form = {
        "opsets": dict(sorted(graph.opset_imports.items())),
        "metadata": dict(sorted(graph.metadata_props.items())),
        "graph": _graph_form(graph.graph),
        "functions": [
            [list(map(str, key)), list(f.attributes), _graph_form(f.graph)]
            for key, f in sorted(graph.functions.items(), key=lambda kf: str(kf[0]))
        ],
    }
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _graph_form(g: ir.Graph) -> dict[str, Any]:
    return {
        "inputs": [[v.name, str(v.type), str(v.shape)] for v in g.inputs],
        "outputs": [[v.name, str(v.type), str(v.shape)] for v in g.outputs],
        "weights": [
            [name, tensor_digest(v.const_value) if v.const_value is not None else "input"]
            for name, v in sorted(g.initializers.items())
        ],
        "nodes": [
            [
                n.domain,
                n.op_type,
                n.overload,
                [None if v is None else v.name for v in n.inputs],
                [v.name for v in n.outputs],
                [_attr_form(a) for _, a in sorted(n.attributes.items())],
            ]
            for n in g
        ],
    }


def _attr_form(attr: Any) -> list[Any]:
    import onnx_ir as ir

    if not isinstance(attr, ir.Attr) or attr.is_ref():
        return [attr.name, "ref", attr.ref_attr_name]
    kind, value = attr.type, attr.value
    if kind == ir.AttributeType.GRAPH:
        form: Any = _graph_form(value)
    elif kind == ir.AttributeType.GRAPHS:
        form = [_graph_form(g) for g in value]
    elif kind == ir.AttributeType.TENSOR:
        form = tensor_digest(value)
    elif kind == ir.AttributeType.TENSORS:
        form = [tensor_digest(t) for t in value]
    else:
        form = repr(list(value)) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else repr(value)
    return [attr.name, kind.name, form]


def _spec(value: ir.Value) -> TensorSpec:
    import onnx_ir as ir

    if value.dtype is None:
        dtype = "unknown" if value.type is None else str(value.type).lower()
    elif value.dtype == ir.DataType.STRING:
        dtype = "string"
    else:
        dtype = value.dtype.numpy().name if value.dtype != ir.DataType.UNDEFINED else "unknown"
    if value.shape is None:
        return TensorSpec(value.name or "", dtype, None)
    shape = tuple(
        d if isinstance(d, int) and d >= 0 else ("?" if isinstance(d, int) or d.value is None else str(d.value))
        for d in value.shape
    )
    return TensorSpec(value.name or "", dtype, shape)


def _embedded(graph: ir.Model) -> ir.Model:
    """The same model with external tensors as in-memory ones."""
    import onnx_ir as ir

    if not any(True for _ in external_tensors(graph)):
        return graph
    return ir.external_data.load_to_model(graph.clone())


_FORMATS: tuple[tuple[bytes, int, str, str], ...] = (
    (
        b"PK\x03\x04",
        0,
        "a ZIP archive (a PyTorch checkpoint or TorchScript file?)",
        "export it with torch.onnx.export",
    ),
    (
        b"\x80\x02",
        0,
        "a Python pickle, which can run code when opened",
        "export the model to ONNX where it was trained",
    ),
    (
        b"\x80\x04",
        0,
        "a Python pickle, which can run code when opened",
        "export the model to ONNX where it was trained",
    ),
    (b"TFL3", 4, "a TensorFlow Lite model", "convert it to ONNX first, e.g. with tf2onnx"),
    (b"GGUF", 0, "a GGUF model", "edgeproof reads ONNX"),
    (b"\x89HDF", 0, "an HDF5 (Keras) file", "convert it to ONNX first, e.g. with tf2onnx"),
    (b"ORTM", 4, "an ORT-format model", "give the .onnx file that it was made from"),
    (b"<?xml", 0, "an XML file (OpenVINO IR?)", "give the .onnx file that it was made from"),
    (b"\x89PNG", 0, "a PNG picture", "give the path of an .onnx file"),
    (b"\xff\xd8\xff", 0, "a JPEG picture", "give the path of an .onnx file"),
)


def _refuse_other_formats(path: Path, data: bytes) -> None:
    if not data:
        raise InputError("model.wrong_format", str(path), "is empty (0 bytes)", "export or download it again")
    for magic, offset, what, hint in _FORMATS:
        if data[offset : offset + len(magic)] == magic:
            raise InputError("model.wrong_format", str(path), f"is {what}; expected ONNX", hint)
    if data[:60].lstrip().startswith((b"version https://git-lfs",)):
        raise InputError("model.wrong_format", str(path), "is a Git LFS pointer, not the model", "run git lfs pull")


def _check_external_data(proto: Any, path: Path) -> None:
    """Refuse external data outside the model's folder, before anything of it is opened."""
    from onnx.external_data_helper import _get_all_tensors

    folder = path.parent.resolve()
    for tensor in _get_all_tensors(proto):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        subject = f"{path}: tensor {tensor.name!r}"
        where = Path(location)
        if not location or where.is_absolute() or ".." in where.parts or "\\" in location or "\0" in location:
            raise TrustError(
                "model.external_data",
                subject,
                f"keeps its data at {location!r}, outside the model's folder",
                "put the weight file beside the model and save it with a plain relative name",
            )
        at = folder
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
        if info.st_nlink > 1:
            raise TrustError(
                "model.external_data",
                subject,
                f"keeps its data in {location!r}, which has {info.st_nlink} hard links",
                "copy the file, so that it belongs to this folder alone",
            )
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
        except ValueError:
            offset, length = -1, -1
        if offset < 0 or length < 0 or offset + length > info.st_size:
            raise InputError(
                "model.external_short",
                subject,
                f"reads bytes {entries.get('offset', 0)}+{entries.get('length', 0)} of {location!r}, "
                f"which has {info.st_size:,}",
                "the weight file is truncated; download or export it again",
            )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
