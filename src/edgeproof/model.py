"""A model: an ONNX graph that is never mutated, its interface, and a digest that covers every weight."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .digest import digest_file
from .errors import InputError, UnsupportedError
from .files import os_error, replacing, write_bytes
from .onnxfile import external_files, read_proto

if TYPE_CHECKING:
    import onnx_ir as ir

PROTO_LIMIT_BYTES = 2_000_000_000
"""Above this, weights are written beside the model: protobuf holds at most 2 GiB in one message."""
EXTERNAL_FROM_BYTES = 1024
"""Smaller tensors stay in the graph, where shape inference can read them."""


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
        inputs = tuple(spec(v) for v in graph.graph.inputs if v.name not in graph.graph.initializers)
        outputs = tuple(spec(v) for v in graph.graph.outputs)
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
        InputError: model.missing, model.wrong_format, model.not_onnx, model.no_graph, model.malformed,
            model.external_missing, model.external_short.
        TrustError: model.external_data, when a weight file lies outside the model's folder.
        UnsupportedError: model.sparse, for sparse initializers.
    """
    import onnx_ir as ir

    path = Path(path)
    proto = read_proto(path)
    if proto.graph.sparse_initializer:
        raise UnsupportedError(
            "model.sparse",
            f"{path}: tensor {proto.graph.sparse_initializer[0].values.name!r}",
            "is a sparse initializer, which the graph library cannot hold",
            "export the model with dense weights",
        )
    try:
        graph = ir.from_proto(proto)
        if not all(_in_order(g) for g in graphs(graph)):
            graph.graph.sort()  # stable; runtimes do the same
        for tensor in external_tensors(graph):
            tensor.base_dir = path.parent
        return Model.of(graph, path.stem)
    except OSError as e:
        raise os_error(path, e) from e
    except Exception as e:
        raise InputError(
            "model.malformed",
            str(path),
            f"parses as ONNX but its graph is inconsistent: {_one_line(e)}",
            "run onnx.checker on it and export it again",
        ) from e


def _in_order(graph: ir.Graph) -> bool:
    """Whether every node comes after those that it reads from."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True


def save_model(model: Model, path: str | Path) -> Path:
    """Write a model atomically; weights beyond the protobuf limit go to one file beside it.

    Returns:
        The path written. The weight file's name carries the model's digest and it is in place before the graph is, so
        that an interrupted save never leaves a graph with the weights of another.
    """
    import onnx_ir as ir

    path = Path(path)
    if weight_bytes(model.graph) <= PROTO_LIMIT_BYTES:
        write_bytes(path, model.to_bytes())
        return path
    weights = path.with_name(f"{path.stem}.{model.digest.removeprefix('sha256:')[:16]}.data")
    existed = weights.exists()
    with replacing(weights) as temporary:
        graph = _unloaded(model.graph, temporary, weights.name)
    try:
        write_bytes(path, ir.to_proto(graph).SerializeToString(deterministic=True))
    except BaseException:
        if not existed:
            weights.unlink(missing_ok=True)
        raise
    return path


def _unloaded(graph: ir.Model, file: Path, location: str) -> ir.Model:
    """A clone whose large tensors are written to ``file`` and referred to as ``location``."""
    import onnx_ir as ir

    clone = graph.clone()
    with file.open("wb") as out:

        def unload(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
            if tensor.dtype == ir.DataType.STRING:
                return tensor
            data = tensor.tobytes()
            if len(data) < EXTERNAL_FROM_BYTES:
                return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
            # Runtimes map the file into memory, page by page.
            out.write(b"\0" * (-out.tell() % 4096))
            offset = out.tell()
            out.write(data)
            shape = ir.Shape(tensor.shape.numpy())
            return ir.ExternalTensor(location, offset, len(data), tensor.dtype, shape=shape, name=tensor.name or "")

        replace_tensors(clone, unload)
    return clone


def replace_tensors(graph: ir.Model, change: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Put ``change(tensor)`` in the place of every stored tensor of a graph that the caller owns."""
    import onnx_ir as ir

    for g in graphs(graph):
        for value in g.initializers.values():
            if value.const_value is not None:
                value.const_value = change(value.const_value)
        for node in g:
            for name, attr in list(node.attributes.items()):
                if attr.is_ref():
                    continue
                if attr.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, change(attr.value))
                elif attr.type == ir.AttributeType.TENSORS:
                    node.attributes[name] = ir.AttrTensors(name, [change(t) for t in attr.value])


def size_bytes(path: str | Path) -> int:
    """Size on disk of a model file and of the weight files that belong to it, in bytes."""
    path = Path(path)
    try:
        return path.stat().st_size + sum(p.stat().st_size for p in external_files(read_proto(path), path.parent))
    except OSError as e:
        raise os_error(path, e) from e


def file_digests(path: str | Path) -> dict[str, str]:
    """Digests of a model file and of the weight files that belong to it, by name relative to its folder.

    Raises:
        InputError: files.*; and as `load_model`.
    """
    path = Path(path)
    try:
        beside = external_files(read_proto(path), path.parent)
        return {str(p.relative_to(path.parent)): digest_file(p) for p in (path, *sorted(beside))}
    except OSError as e:
        raise os_error(path, e) from e


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
                if attr.is_ref():
                    continue
                if attr.type == ir.AttributeType.TENSOR:
                    yield _constant_name(node, attr), attr.value
                elif attr.type == ir.AttributeType.TENSORS:
                    for i, t in enumerate(attr.value):
                        yield f"{_constant_name(node, attr)}[{i}]", t


def graphs(graph: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, its functions, and every subgraph, outer first."""
    import onnx_ir as ir

    todo: list[ir.Graph] = [graph.graph, *(f.graph for f in graph.functions.values())]
    while todo:
        g = todo.pop(0)
        yield g
        for node in g:
            for attr in node.attributes.values():
                if attr.is_ref():
                    continue
                if attr.type == ir.AttributeType.GRAPH:
                    todo.append(attr.as_graph())
                elif attr.type == ir.AttributeType.GRAPHS:
                    todo.extend(attr.as_graphs())


def _constant_name(node: ir.Node, attr: ir.Attr) -> str:
    """A Constant's tensor goes by the name of the value that it makes, any other by node and attribute."""
    if node.op_type == "Constant" and node.outputs[0].name:
        return node.outputs[0].name
    return f"{node.name or node.op_type}.{attr.name}"


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Value of a node's attribute, or ``default``; text as str, lists as tuples."""
    attr = node.attributes.get(name)
    if attr is None or attr.is_ref():
        return default
    return attr.value


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


def topology_digest(graph: ir.Model) -> str:
    """Digest of a whole model but its tensors' values: it stays when weights change and nothing else."""
    return graph_digest(graph, of=lambda tensor: f"{tensor.dtype.name}:{','.join(map(str, tensor.shape))}")


def graph_digest(graph: ir.Model, *, of: Callable[[ir.TensorProtocol], str] = tensor_digest) -> str:
    """Digest of a whole model: opsets, metadata, functions, every node with its attributes, every tensor.

    Args:
        graph: The model.
        of: What stands for a tensor.
    """
    form = {
        "opsets": dict(sorted(graph.opset_imports.items())),
        "metadata": dict(sorted(graph.metadata_props.items())),
        "graph": _graph_form(graph.graph, of),
        "functions": [
            [
                list(map(str, key)),
                [_attr_form(a, of) for _, a in sorted(f.attributes.items())],
                dict(sorted(f.opset_imports.items())),
                _graph_form(f.graph, of),
            ]
            for key, f in sorted(graph.functions.items(), key=lambda kf: str(kf[0]))
        ],
    }
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _graph_form(g: ir.Graph, of: Callable[[ir.TensorProtocol], str]) -> dict[str, Any]:
    return {
        "inputs": [[v.name, str(v.type), str(v.shape)] for v in g.inputs],
        "outputs": [[v.name, str(v.type), str(v.shape)] for v in g.outputs],
        "weights": [
            [name, of(v.const_value) if v.const_value is not None else "input"]
            for name, v in sorted(g.initializers.items())
        ],
        "nodes": [
            [
                n.domain,
                n.op_type,
                n.overload,
                [None if v is None else v.name for v in n.inputs],
                [v.name for v in n.outputs],
                [_attr_form(a, of) for _, a in sorted(n.attributes.items())],
            ]
            for n in g
        ],
    }


def _attr_form(attr: ir.Attr, of: Callable[[ir.TensorProtocol], str]) -> list[Any]:
    import numpy as np
    import onnx_ir as ir

    if attr.is_ref():
        return [attr.name, "ref", attr.ref_attr_name]
    kind, value = attr.type, attr.value
    if value is None:  # a function's parameter without default
        form: Any = None
    elif kind == ir.AttributeType.GRAPH:
        form = _graph_form(value, of)
    elif kind == ir.AttributeType.GRAPHS:
        form = [_graph_form(g, of) for g in value]
    elif kind == ir.AttributeType.TENSOR:
        form = of(value)
    elif kind == ir.AttributeType.TENSORS:
        form = [of(t) for t in value]
    elif kind in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        # The file holds 32-bit floats, so 0.1 set in memory and 0.1 read back are the same attribute.
        form = [float(v).hex() for v in np.asarray(value, np.float32).reshape(-1)]
    elif kind in (ir.AttributeType.INT, ir.AttributeType.INTS):
        form = [int(v) for v in (value if isinstance(value, Iterable) else [value])]
    else:
        form = repr(list(value)) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else repr(value)
    return [attr.name, kind.name, form]


def spec(value: ir.Value) -> TensorSpec:
    """Name, dtype and shape of a value."""
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
    """The same model with external tensors in memory; the originals stay mapped and usable."""
    import onnx_ir as ir

    if not any(True for _ in external_tensors(graph)):
        return graph

    def embed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)

    clone = graph.clone()
    replace_tensors(clone, embed)
    return clone


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
