"""From a model to an ExecuTorch program, and from the program back to what runs where in which precision."""

from __future__ import annotations

import json
import logging
import operator
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import __version__
from ..digest import digest_bytes, digest_json
from ..errors import EdgeproofError, UnsupportedError
from ..files import cache_folder, read_json, write_bytes, write_json
from ..fx import import_model
from ..measurement import Placement
from ..model import Model
from ..protocols import Progress
from ..target import Target
from . import _xnnpack
from ._torch_export import HINT, exported, fixed, quiet, source

_DTYPES = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16", "qint8": "int8", "qdint8": "int8", "int32": "int32"}
_MOVES = ("XNNConvert", "XNNStaticTranspose")
"""Nodes of XNNPACK's graph that only change precision or layout."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One thing that is executed.

    Attributes:
        name: The model's node, or the operator where none is known.
        op: What it does, as the runtime calls it.
        precision: Of its first output.
        device: ``XNNPACK`` or ``portable``.
    """

    name: str
    op: str
    precision: str
    device: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program.

    Attributes:
        program: The bytes of the ``.pte``.
        inputs: Names of its inputs, in order.
        kernels: What it executes, in order, changes of layout and precision included.
        placement: The same for people.
        facts: Versions, seconds of each stage, counts, and the kernels that a device's runtime has to have.
    """

    program: bytes
    inputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    placement: Placement
    facts: Mapping[str, Any]


def kept(model: Model, target: Target) -> Lowered:
    """The program of a model, from the cache where the same was made before.

    Lowering takes minutes, and every measuring process would do it again.

    Raises:
        UnsupportedError: as `lower`.
    """
    key = digest_json([model.digest, target.device, *(version(p) for p in ("executorch", "torch")), __version__])
    path = cache_folder("executorch") / f"{key.partition(':')[2][:32]}.json"
    with suppress(EdgeproofError, OSError, KeyError, TypeError, ValueError):
        held = read_json(path)
        program = path.with_suffix(".pte").read_bytes()
        if digest_bytes(program) == held["program"]:
            nodes = tuple((a, b, c, d) for a, b, c, d in held["nodes"])
            place = Placement(nodes, tuple((a, b) for a, b in held["fallbacks"]), held["source"])
            kernels = tuple(Kernel(*row) for row in held["kernels"])
            return Lowered(program, tuple(held["inputs"]), kernels, place, held["facts"])
    made = lower(model, target)
    with suppress(EdgeproofError, OSError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path.with_suffix(".pte"), made.program)
        write_json(
            path,
            {
                "program": digest_bytes(made.program),
                "inputs": list(made.inputs),
                "kernels": [[k.name, k.op, k.precision, k.device] for k in made.kernels],
                "nodes": [list(n) for n in made.placement.nodes],
                "fallbacks": [list(f) for f in made.placement.fallbacks],
                "source": made.placement.source,
                "facts": dict(made.facts),
            },
        )
    return made


def lower(model: Model, target: Target, progress: Progress = lambda _what, _share: None) -> Lowered:
    """Make a program of a model.

    Args:
        model: Of fixed shapes; float, or with Q/DQ.
        target: ``executorch:xnnpack`` or ``executorch:portable``.
        progress: Told about the stages.

    Raises:
        UnsupportedError: backend.refused, backend.unknown_operator, fx.*.
    """
    fixed(model, target)
    xnnpack = target.device == "xnnpack"
    seconds: dict[str, float] = {}
    with quiet(), _timed(seconds, progress) as stage:
        import torch
        from executorch.exir import to_edge_transform_and_lower

        stage("import", 0.0)
        module = import_model(model, quantised="decomposed" if xnnpack else "exact").module
        floats = _xnnpack.prepare(module) if xnnpack else []
        stage("export", 0.2)
        program = exported(module, model, target)
        stage("lower", 0.4)
        with _refusing(model, target), _reasons() as reasons:
            edge = to_edge_transform_and_lower(program, partitioner=_partitioners(xnnpack))
        whole = edge.exported_program().graph_module
        kernels = tuple(_executed(whole, torch))  # emitting changes the graph
        nodes = {_op(n).partition(".")[2]: source(n) for n in reversed(_calls(whole))}
        stage("emit", 0.8)
        with _refusing(model, target):
            import executorch.kernels.quantized  # noqa: F401 (registers what Q/DQ outside XNNPACK become)

            made = edge.to_executorch()
        data = bytes(made.buffer)
    operators = sorted(
        {f"{o.name}.{o.overload}".rstrip(".") for o in made.executorch_program.execution_plan[0].operators}
    )
    _known(operators, nodes, model, target)
    facts = {
        "executorch": version("executorch"),
        "torch": version("torch"),
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "subgraphs": len(made.executorch_program.execution_plan[0].delegates),
        "int8_kernels": sum(k.precision == "int8" and k.op not in _MOVES for k in kernels),
        "float_kernels": sum(k.precision.startswith("float") and k.op not in _MOVES for k in kernels),
        "portable_kernels": sum(k.device == "portable" for k in kernels),
        "moves": sum(k.op in _MOVES for k in kernels),
        "operators": operators,
    }
    inputs = tuple(s.name for s in model.inputs)
    return Lowered(data, inputs, kernels, _placement(kernels, reasons, floats, xnnpack), facts)


def _partitioners(xnnpack: bool) -> list[Any]:
    if not xnnpack:
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]


def _executed(whole: Any, torch: Any) -> Iterator[Kernel]:
    """Everything that the program executes, in order."""
    for node in _calls(whole):
        if node.target is operator.getitem:
            continue
        if str(node.target) == "executorch_call_delegate":
            yield from _delegated(getattr(whole, node.args[0].target))
            continue
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) else value
        precision = str(first.dtype).removeprefix("torch.") if isinstance(first, torch.Tensor) else ""
        yield Kernel(source(node), _op(node), "float" if precision == "float32" else precision, "portable")


def _calls(graph: Any) -> list[Any]:
    return [n for n in graph.graph.nodes if n.op == "call_function"]


def _op(node: Any) -> str:
    """E.g. ``aten.erf``."""
    space, _, name = str(getattr(node.target, "_name", "") or getattr(node.target, "__name__", node.target)).rpartition(
        "::"
    )
    return f"{space}.{name.partition('.')[0]}".lstrip(".")


def _delegated(lowered: Any) -> Iterator[Kernel]:
    """The nodes of XNNPACK's graph, as it stands in the program."""
    graph = _decoded(lowered.processed_bytes)
    known = {
        n.meta["debug_handle"]: source(n)
        for n in _calls(lowered.original_module.graph_module)
        if "debug_handle" in n.meta
    }
    precision = {}
    for value in graph["xvalues"]:
        held = value["xvalue_union"].get("tensor_value", value["xvalue_union"])
        kind = held["datatype"].removeprefix("xnn_datatype_")
        precision[held["id_out"]] = _DTYPES.get(kind, kind)
    for node in graph["xnodes"]:
        kind, about = node["xnode_union_type"], node["xnode_union"]
        output = about.get("output_id", next(iter(about.values())))
        name = "" if kind in _MOVES else known.get(node["debug_handle"], "")
        yield Kernel(name or kind, kind, precision.get(output, ""), "XNNPACK")


def _decoded(blob: bytes) -> dict[str, Any]:
    """XNNPACK's graph as JSON, by the schema that ExecuTorch ships."""
    import executorch.backends.xnnpack.serialization as package
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    header = XNNHeader.from_bytes(blob[: XNNHeader.EXPECTED_LENGTH])
    with tempfile.TemporaryDirectory(prefix="edgeproof-executorch-") as folder:
        data, schema = Path(folder, "graph.bin"), Path(folder, "schema.fbs")
        data.write_bytes(blob[header.flatbuffer_offset : header.flatbuffer_offset + header.flatbuffer_size])
        schema.write_bytes((resources.files(package) / "schema.fbs").read_bytes())
        _flatc_decompile(folder, str(schema), str(data))
        text = Path(folder, "graph.json").read_text()
    found: dict[str, Any] = json.loads(re.sub(r": (-?)inf\b", r": \1Infinity", text))
    return found


def _placement(
    kernels: Sequence[Kernel], reasons: Mapping[str, str], floats: Sequence[tuple[str, str]], xnnpack: bool
) -> Placement:
    nodes = dict.fromkeys((k.name, k.op, k.device, k.precision) for k in kernels if k.op not in _MOVES)
    fallbacks = dict(floats)
    if xnnpack:
        for k in kernels:
            if k.device == "portable":
                why = reasons.get(f"{k.name}/{k.op}", f"XNNPACK has no {k.op}")
                fallbacks.setdefault(k.name, f"{k.op} runs in the portable kernels: {why}")
    return Placement(tuple(nodes), tuple(fallbacks.items()), "XNNPACK's graph in the program, and its other operators")


def _known(operators: Sequence[str], nodes: Mapping[str, str], model: Model, target: Target) -> None:
    """See that the runtime has every kernel.

    Raises:
        UnsupportedError: backend.unknown_operator.
    """
    with quiet():
        from executorch.runtime import Runtime

    there = {n.replace(".default", "") for n in Runtime.get().operator_registry.operator_names}
    lacking = [o for o in operators if o not in there]
    if lacking:
        first = nodes.get(lacking[0].partition("::")[2].partition(".")[0], "?")
        raise UnsupportedError(
            "backend.unknown_operator",
            f"{model.name} on {target.name}",
            f"the runtime has no kernel for {', '.join(lacking)} (first at node {first!r})",
            "simplify the model with its shapes fixed, or leave it to another runtime",
        )


@contextmanager
def _refusing(model: Model, target: Target) -> Iterator[None]:
    try:
        yield
    except EdgeproofError:
        raise
    except Exception as e:
        raise UnsupportedError(
            "backend.refused",
            f"{model.name} on {target.name}",
            f"ExecuTorch does not lower it: {' '.join(str(e).split())[:400] or type(e).__name__}",
            HINT,
        ) from e


@contextmanager
def _timed(seconds: dict[str, float], progress: Progress) -> Iterator[Callable[[str, float], None]]:
    """A function that ends one stage and begins the next."""
    began: list[tuple[str, float]] = []

    def stage(name: str, share: float) -> None:
        now = time.perf_counter()
        for earlier, start in began:
            seconds[earlier] = now - start
        began[:] = [(name, now)]
        if share < 1:
            progress(f"executorch: {name}", share)

    yield stage
    stage("", 1.0)


@contextmanager
def _reasons() -> Iterator[dict[str, str]]:
    """Why XNNPACK's partitioner leaves nodes alone, as it logs: ``node/operator`` → reason."""
    found: dict[str, str] = {}

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            node, reason = getattr(record.msg, "node", None), getattr(record.msg, "reason", "")
            if node is not None and reason:
                found[f"{source(node)}/{_op(node)}"] = str(reason)

    logger = logging.getLogger("executorch.backends.xnnpack.partition.config")
    handler, level, up = Keep(), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = up
