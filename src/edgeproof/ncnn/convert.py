"""ONNX → ncnn, through ``pnnx``, ncnn's own converter: a program that needs neither PyTorch nor anything else.

pnnx names everything anew and crashes on what it does not know. So the layers get the names of our nodes back, by
their weights, and after a crash every operator is tried alone, to name the one at fault.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedError
from ..graph.example_shape import example_shape
from ..graph.rewrite import array, label
from ..graph.shapes import infer
from ..model import Model, attribute, save_model
from .netfile import Layer, read, read_param

if TYPE_CHECKING:
    import onnx_ir as ir

KNOWN = ("float32", "int64", "int32")
"""Dtypes of inputs that pnnx converts; integers become int32."""

UNBATCHED = 233
"""pnnx's sign for an input or output that has no batch axis."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a network.

    Attributes:
        name: In the model.
        blob: In the network.
        batch: Axis of the batch, or `UNBATCHED`.
        dtype: What the network takes or gives.
        shape: In the model; None where it is not known.
    """

    name: str
    blob: str
    batch: int
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Network:
    """A converted model.

    Attributes:
        layers: In order of execution, with their weights.
        inputs: In the model's order.
        outputs: In the model's order.
        origins: Layer name → the model's node whose weights it has.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    origins: dict[str, str]


def program() -> Path | None:
    """Where pnnx is; None when it is not installed. Its Python package is not imported: that wants PyTorch."""
    spec = importlib.util.find_spec("pnnx")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("pnnx")
    return path if path.is_file() else None


def convert(model: Model, where: str, known: Callable[[str], bool]) -> Network:
    """Convert a float model with fixed shapes.

    Args:
        model: Float32; no Q/DQ.
        where: The target's name, for errors.
        known: Whether ncnn has a layer type; pnnx passes on what ncnn lacks.

    Raises:
        UnsupportedError: backend.dynamic_shapes, backend.dtype, backend.unknown_operator, backend.refused.
    """
    _check(model, where)
    ready, as_floats = _floats_for_flags(model)
    with tempfile.TemporaryDirectory(prefix="edgeproof-ncnn-") as name:
        folder = Path(name)
        said = _run(ready, folder)
        files = [folder / f for f in ("model.ncnn.param", "model.ncnn.bin", "model_ncnn.py")]
        if not _converted(folder, known):
            raise _crashed(model, where, said, known)
        layers = read(files[0].read_text(), files[1].read_bytes(), model.name)
        script = files[2].read_text()
    layers, origins = _renamed(model, layers)
    network = Network(layers, _inputs(model, script, as_floats), _outputs(model, layers, script, where), origins)
    _complete(network, model, where)
    return network


def _converted(folder: Path, known: Callable[[str], bool]) -> bool:
    """Whether pnnx wrote a network of layers that ncnn has."""
    param = folder / "model.ncnn.param"
    if not param.is_file() or not (folder / "model_ncnn.py").is_file():
        return False
    return all(known(layer.type) for layer in read_param(param.read_text()))


def _run(model: Model, folder: Path) -> str:
    """Everything that pnnx said."""
    path = program()
    assert path is not None
    save_model(model, folder / "model.onnx")
    line = [str(path), "model.onnx", "fp16=0"]
    done = subprocess.run(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace")


def _check(model: Model, where: str) -> None:
    for spec in model.inputs:
        if spec.dynamic:
            raise UnsupportedError(
                "backend.dynamic_shapes",
                f"{model.name} on {where}",
                f"the input {spec} has open dimensions; ncnn is converted for fixed ones",
                f"close them: --shape {shlex.quote(spec.name)}={example_shape(spec, model.outputs)}, "
                "or pass fix_shapes",
            )
        if spec.dtype not in KNOWN:
            remedy = "give the float32 model and set precision=fp16" if spec.dtype == "float16" else "change its type"
            raise UnsupportedError(
                "backend.dtype",
                f"{model.name} on {where}",
                f"the input {spec} has a type that ncnn does not take ({', '.join(KNOWN)})",
                remedy,
            )
    for node in model.graph.graph:
        if node.domain not in ("", "ai.onnx"):
            raise _unknown(model, where, node.op_type, label(node), f"domain {node.domain}")


def _floats_for_flags(model: Model) -> tuple[Model, set[str]]:
    """Integer inputs that are only cast to floats become float inputs: ncnn has no such cast."""
    import onnx_ir as ir

    graph = model.graph.clone()
    found = set()
    for value in graph.graph.inputs:
        readers = [use.node for use in value.uses()]
        if not readers or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            continue
        if all(n.op_type == "Cast" and attribute(n, "to", 0) == ir.DataType.FLOAT.value for n in readers):
            for node in readers:
                ir.convenience.replace_all_uses_with(node.outputs[0], value)
                graph.graph.remove(node, safe=True)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            found.add(value.name or "")
    return (Model.of(graph, model.name), found) if found else (model, found)


def _inputs(model: Model, script: str, as_floats: set[str]) -> tuple[Port, ...]:
    ports = []
    for i, spec in enumerate(model.inputs):
        axis = re.search(rf'ex\.input\("in{i}".*batch_index=(\d+)', script)
        dtype = "float32" if spec.dtype == "float32" or spec.name in as_floats else "int32"
        shape = tuple(int(d) for d in spec.shape or ())
        ports.append(Port(spec.name, f"in{i}", int(axis[1]) if axis else UNBATCHED, dtype, shape))
    return tuple(ports)


def _outputs(model: Model, layers: Sequence[Layer], script: str, where: str) -> tuple[Port, ...]:
    ports = []
    for i, (spec, shape) in enumerate(zip(model.outputs, _output_shapes(model), strict=True)):
        if spec.dtype != "float32":
            raise UnsupportedError(
                "backend.dtype",
                f"{model.name} on {where}",
                f"the output {spec} is no float32; ncnn computes in floats",
                "end the model before the operator that makes it",
            )
        axis = re.search(rf"out{i}\.numpy\(.*batch_index=(\d+)", script)
        ports.append(Port(spec.name, f"out{i}", int(axis[1]) if axis else UNBATCHED, "float32", shape))
    return tuple(ports)


def _output_shapes(model: Model) -> list[tuple[int, ...] | None]:
    known = infer(model)
    return [_fixed(known.get(spec.name, ("", None))[1]) for spec in model.outputs]


def _fixed(shape: Sequence[object] | None) -> tuple[int, ...] | None:
    """A shape of numbers only, or None."""
    if shape is None:
        return None
    numbers = tuple(d for d in shape if isinstance(d, int))
    return numbers if len(numbers) == len(shape) else None


def _renamed(model: Model, layers: tuple[Layer, ...]) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """Layers called as the nodes whose weights they have."""
    by_weight: dict[bytes, list[str]] = defaultdict(list)
    for node in model.graph.graph:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather"):
            for form in _forms(node):
                by_weight[form].append(label(node))
    taken = {layer.name for layer in layers}
    made, origins, used = [], {}, set()
    for layer in layers:
        names = by_weight.get(layer.weights[0].values.tobytes(), []) if layer.weights else []
        name = next((n for n in names if n not in used), None)
        if name is None:
            made.append(layer)
            continue
        used.add(name)
        plain = re.sub(r"\s", "_", name)[:200]
        new = plain if plain not in taken else layer.name
        taken.add(new)
        origins[new] = name
        made.append(replace(layer, name=new))
    return tuple(made), origins


def _forms(node: ir.Node) -> Iterator[bytes]:
    """A node's weight as bytes, as it is and the other way round: ncnn keeps the outputs of a product first."""
    for value in node.inputs[:2]:
        numbers = array(value)
        if numbers is None or numbers.dtype != np.float32:
            continue
        yield numbers.tobytes()
        if numbers.ndim == 2:
            yield np.ascontiguousarray(numbers.T).tobytes()
        elif node.op_type == "ConvTranspose":
            yield np.ascontiguousarray(numbers.swapaxes(0, 1)).tobytes()


def _complete(network: Network, model: Model, where: str) -> None:
    """Every input must be read, every output made."""
    made = {blob for layer in network.layers for blob in layer.outputs}
    for port in (*network.inputs, *network.outputs):
        if port.blob not in made:
            raise UnsupportedError(
                "backend.refused",
                f"{model.name} on {where}",
                f"pnnx dropped {port.name}: it does not depend on the inputs, or nothing reads it",
                "run the pass 'simplify' first, and take out what is not used",
            )


def _crashed(model: Model, where: str, said: str, known: Callable[[str], bool]) -> UnsupportedError:
    """The error for a conversion that gave no network, naming the first operator that cannot be converted alone."""
    for node, single in _singles(model):
        with tempfile.TemporaryDirectory(prefix="edgeproof-ncnn-") as name:
            _run(single, Path(name))
            if not _converted(Path(name), known):
                return _unknown(model, where, node.op_type, label(node), "pnnx cannot convert it")
    lines = [line for line in said.splitlines() if re.search(r"fail|error|what\(\)|not ", line)]
    return UnsupportedError(
        "backend.refused",
        f"{model.name} on {where}",
        f"pnnx could not convert it: {lines[-1].strip()[:300] if lines else 'it wrote no files'}",
        "run the passes 'fix_shapes' and 'simplify' first; each operator alone converts, so the cause is how they meet",
    )


def _singles(model: Model) -> Iterator[tuple[ir.Node, Model]]:
    """A model of one node for every operator with other attributes, in order."""
    known = infer(model)
    seen = set()
    for node in model.graph.graph:
        kind = (node.op_type, str(sorted((k, str(a.value)[:80]) for k, a in node.attributes.items())))
        if kind in seen or node.op_type == "Constant":
            continue
        seen.add(kind)
        made = _single(node, model.graph, known)
        if made is not None:
            yield node, made


def _single(node: ir.Node, graph: ir.Model, known: Mapping[str, tuple[str, Any]]) -> Model | None:
    import onnx_ir as ir

    inputs: list[ir.Value] = []
    constants: list[ir.Value] = []
    mapped: list[ir.Value | None] = []
    for i, value in enumerate(node.inputs):
        numbers = array(value)
        if value is None:
            mapped.append(None)
        elif numbers is not None:
            constants.append(ir.Value(name=f"c{i}", const_value=ir.tensor(numbers, name=f"c{i}")))
            mapped.append(constants[-1])
        else:
            dtype, shape = known.get(value.name or "", ("", None))
            sizes = _fixed(shape)
            if sizes is None or not dtype:
                return None
            kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
            inputs.append(ir.Value(name=f"x{i}", type=kind, shape=ir.Shape(sizes)))
            mapped.append(inputs[-1])
    if not inputs:
        return None
    copy = ir.Node(node.domain, node.op_type, mapped, node.attributes.values(), num_outputs=len(node.outputs))
    for i, (made, real) in enumerate(zip(copy.outputs, node.outputs, strict=True)):
        dtype, _ = known.get(real.name or "", ("float32", None))
        made.name, made.type = f"y{i}", ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype or "float32")))
    alone = ir.Graph(
        inputs, list(copy.outputs), nodes=[copy], initializers=constants, opset_imports=graph.opset_imports
    )
    return Model.of(ir.Model(alone, ir_version=min(graph.ir_version or 8, 10)), "node")


def _unknown(model: Model, where: str, op: str, node: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        "backend.unknown_operator",
        f"{model.name} on {where}",
        f"operator {op} (node {node}) has no form in ncnn: {why}",
        "end the model before it, write it in other operators, or leave this model to another runtime",
    )
