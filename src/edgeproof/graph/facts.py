"""What the checks look at, and what they return.

Three kinds of finding, never mixed: a *defect* is wrong whatever the target; a *caution* costs something on some target
or hints at a mistake; a *gap* is something that could not be seen. A check ends as assessed, partial or unavailable.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..model import Model, graphs, tensor_digest, tensors
from .cost import Cost
from .example_shape import example_shape
from .shapes import Shape, Shaped

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

Kind = Literal["defect", "caution", "gap"]
State = Literal["assessed", "partial", "unavailable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        kind: ``defect``, ``caution`` or ``gap``.
        check: Name of the check.
        subject: The tensor, node, input or file.
        problem: What is the matter, with the value.
        hint: The remedy.
    """

    kind: Kind
    check: str
    subject: str
    problem: str
    hint: str

    def to_json(self) -> dict[str, str]:
        """As JSON."""
        return {
            "kind": self.kind,
            "check": self.check,
            "subject": self.subject,
            "problem": self.problem,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check returns: its findings, and how much of its question it answered."""

    findings: tuple[Finding, ...] = ()
    state: State = "assessed"
    reason: str = ""


@dataclass(frozen=True)
class Facts:
    """A model as the checks see it.

    Attributes:
        model: The model.
        path: Where it lies; None when it was made in memory.
        shaped: Its shapes.
        cost: Its cost.
        shapes: Input shapes that were given for it.
        unreadable: Weights whose data could not be read, with the reason; filled by `floats`.
    """

    model: Model
    path: Path | None
    shaped: Shaped
    cost: Cost
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @cached_property
    def stored(self) -> tuple[tuple[str, ir.TensorProtocol], ...]:
        """Every stored tensor with its name."""
        return tuple(tensors(self.model.graph))

    @cached_property
    def floats(self) -> tuple[tuple[str, ir.TensorProtocol, NDArray[Any]], ...]:
        """Every readable floating-point weight as an array; small formats (bfloat16, float8) as float32.

        Weights are initializers and Constants; tensors in other attributes are settings of their operator.
        """
        import numpy as np

        weights = {v.name for g in graphs(self.model.graph) for v in g.initializers.values()}
        weights |= {n.outputs[0].name for n in self.nodes() if n.op_type == "Constant"}
        found = []
        for name, tensor in self.stored:
            if name not in weights:
                continue
            if not tensor.dtype.is_floating_point() or not tensor.size:
                continue
            try:
                array = tensor.numpy()
            except (OSError, ValueError, TypeError) as e:
                self.unreadable[name] = str(e)
                continue
            found.append((name, tensor, array if array.dtype.kind == "f" else array.astype(np.float32)))
        return tuple(found)

    @cached_property
    def digests(self) -> tuple[tuple[str, ir.TensorProtocol, str], ...]:
        """Every stored tensor with its digest."""
        return tuple((name, tensor, tensor_digest(tensor)) for name, tensor in self.stored)

    def command(self, verb: str, more: str = "") -> str:
        """A command line about this model, for hints."""
        path = shlex.quote(str(self.path if self.path is not None else self.model.name))
        return f"edgeproof {verb} {path} {more}".rstrip()

    @cached_property
    def shape_flags(self) -> str:
        """``--shape`` for every input that is open and was given no shape; empty when there is none."""
        left = [s for s in self.model.inputs if s.dynamic and s.name not in self.shapes]
        return " ".join(f"--shape {shlex.quote(s.name)}={example_shape(s, self.model.outputs)}" for s in left)

    def nodes(self) -> Iterator[ir.Node]:
        """Every node of the model: main graph, subgraphs, functions."""
        for graph in graphs(self.model.graph):
            yield from graph


def node_name(node: ir.Node) -> str:
    """A name for people: the node's own, or what it makes."""
    if node.name:
        return node.name
    return f"{node.op_type} → {node.outputs[0].name}" if node.outputs else node.op_type


def few(names: list[str], most: int = 4) -> str:
    """A list of names, cut short."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
