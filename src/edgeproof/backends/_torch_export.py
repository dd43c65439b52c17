"""An imported model as torch.export has it, every node with the name of the model's node that it came from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UnsupportedError
from ..model import Model
from ..target import Target

HINT = "simplify the model with its shapes fixed (edgeproof apply fix_shapes, simplify), or use another runtime"


def fixed(model: Model, target: Target) -> None:
    """Refuse open dimensions.

    Raises:
        UnsupportedError: backend.refused.
    """
    for spec in model.inputs:
        if spec.dynamic:
            raise UnsupportedError(
                "backend.refused",
                f"{model.name} on {target.name}",
                f"input {spec} has open dimensions; a program is built for fixed ones",
                "close them: --shape NAME=1,3,224,224, or edgeproof apply fix_shapes",
            )


def exported(module: Any, model: Model, target: Target) -> Any:
    """The exported program.

    Args:
        module: What `edgeproof.fx.import_model` made, perhaps rewritten.
        model: The model, of fixed shapes.
        target: For the error.

    Returns:
        torch.export.ExportedProgram; `source` names its nodes, and those of what is made of it.

    Raises:
        UnsupportedError: backend.refused, with the node at which torch stops.
    """
    import torch
    from torch.fx.traceback import preserve_node_meta

    class Named(torch.fx.Interpreter):  # type: ignore[misc]
        at = ""

        def run_node(self, n: Any) -> Any:
            self.at = n.meta["custom"]["onnx"]
            return super().run_node(n)

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any) -> Any:
            return named.run(*args)

    for node in module.graph.nodes:
        node.meta["custom"] = {"onnx": node.meta.get("onnx_node", "")}
    named = Named(module)
    example = tuple(torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for s in model.inputs)
    try:
        with preserve_node_meta(), torch.no_grad():
            return torch.export.export(Whole().eval(), example, strict=False)
    except Exception as e:
        raise UnsupportedError(
            "backend.refused",
            f"{model.name} on {target.name}",
            f"torch.export stops at node {named.at!r}: {' '.join(str(e).split())[:300]}",
            HINT,
        ) from e


def source(node: Any) -> str:
    """Name of the model's node that a torch node came from, or its own."""
    return str((node.meta.get("custom") or {}).get("onnx") or node.name)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the deprecation warnings that torch raises against itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
