"""Everything that can be said about a model without running it, as one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model import Model, TensorSpec, graphs, size_bytes, weight_bytes
from .cost import Cost, cost, cost_of
from .dims import UNNAMED, dims
from .facts import Facts, Finding
from .findings import Check, find
from .shapes import Shape, shaped

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `edgeproof inspect` shows.

    Attributes:
        name: Name of the model.
        digest: Its digest.
        inputs: Inputs as the model declares them.
        outputs: Outputs as the model declares them.
        shapes: Input shapes that the costs hold for; symbols where they are open.
        opsets: Domain → version; ONNX's own domain is ``ai.onnx``.
        ir_version: Version of the file format.
        producer: Tool that wrote it, with its version; may be empty.
        file_bytes: Size on disk, weight files included; None for a model that was not read from a file.
        weight_bytes: Bytes of all stored tensors.
        ops: Operator → how often, most frequent first; subgraphs and functions included.
        cost: Parameters, multiply-accumulates and activation memory.
        findings: Defects, then cautions, then gaps.
        checks: How each declared check ended.
        tensors: (name, dtype, shape, digest) of every stored tensor.
    """

    name: str
    digest: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: Mapping[str, Shape | None]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    file_bytes: int | None
    weight_bytes: int
    ops: Mapping[str, int]
    cost: Cost
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    tensors: tuple[tuple[str, str, tuple[int, ...], str], ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON; amounts with open dimensions are text."""
        return {
            "name": self.name,
            "digest": self.digest,
            "inputs": [_spec_json(s) for s in self.inputs],
            "outputs": [_spec_json(s) for s in self.outputs],
            "shapes": {k: None if v is None else list(v) for k, v in self.shapes.items()},
            "opsets": dict(self.opsets),
            "ir_version": self.ir_version,
            "producer": self.producer,
            "file_bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "ops": dict(self.ops),
            "cost": self.cost.to_json(),
            "layers": [layer.to_json() for layer in self.cost.layers],
            "findings": [f.to_json() for f in self.findings],
            "checks": [c.to_json() for c in self.checks],
            "tensors": [
                {"name": name, "dtype": dtype, "shape": list(shape), "digest": digest}
                for name, dtype, shape, digest in self.tensors
            ],
        }


def inspect_model(model: Model, path: Path | None = None, shapes: Mapping[str, Shape] | None = None) -> Inspection:
    """Look at a model without running it.

    Args:
        model: The model.
        path: The file that it was read from, for its size on disk.
        shapes: Input shapes that override the declared ones.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    what = shaped(model, shapes)
    facts = Facts(model, path, what, cost_of(what), shapes or {})
    findings, checks = find(facts)
    graph = model.graph
    return Inspection(
        name=model.name,
        digest=model.digest,
        inputs=model.inputs,
        outputs=model.outputs,
        shapes={v.name or "": _declared(v) for v in what.graph.graph.inputs},
        opsets={d or "ai.onnx": v for d, v in sorted(graph.opset_imports.items())},
        ir_version=graph.ir_version or 0,
        producer=" ".join(p for p in (graph.producer_name, graph.producer_version) if p),
        file_bytes=None if path is None else size_bytes(path),
        weight_bytes=weight_bytes(graph),
        ops=operators(graph),
        cost=facts.cost,
        findings=findings,
        checks=checks,
        tensors=tuple((n, t.dtype.name.lower(), tuple(t.shape.numpy()), digest) for n, t, digest in facts.digests),
    )


def summary(model: Model, shapes: Mapping[str, Shape] | None = None) -> dict[str, Any]:
    """The numbers that tell two versions of a model apart, as JSON; no checks are run.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    spent = cost(model, shapes).to_json()
    ops = operators(model.graph)
    return {
        "nodes": sum(n for op, n in ops.items() if op != "Constant"),
        "ops": ops,
        "weight_bytes": weight_bytes(model.graph),
        "parameters": spent["parameters"],
        "macs": spent["macs"],
        "peak_activation_bytes": spent["peak_activation_bytes"],
    }


def operators(graph: ir.Model) -> dict[str, int]:
    """Operator → how often, most frequent first; subgraphs and functions included."""
    names = (n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}.{n.op_type}" for g in graphs(graph) for n in g)
    return dict(sorted(Counter(names).items(), key=lambda kv: (-kv[1], kv[0])))


def _declared(value: ir.Value) -> Shape | None:
    shape = dims(value)
    return None if shape is None else tuple(UNNAMED if d is None else d for d in shape)


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape}
