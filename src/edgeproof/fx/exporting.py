"""Hand an imported model to torch.export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model import TensorSpec
from .graph import Imported

OPEN = 2
"""Size given to an open dimension in an example; torch.export takes 0 and 1 for special."""


def example_inputs(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Any, ...]:
    """Tensors of zeros and ones that fit the inputs; a symbol gets one size everywhere.

    Args:
        inputs: The inputs.
        shapes: Shape per input name, for those with open dimensions.
    """
    import torch

    made = []
    for spec in inputs:
        shape = (shapes or {}).get(spec.name) or tuple(d if isinstance(d, int) else OPEN for d in spec.shape or ())
        made.append(torch.ones(shape, dtype=getattr(torch, spec.dtype)))
    return tuple(made)


def export(imported: Imported, shapes: Mapping[str, tuple[int, ...]] | None = None, *, dynamic: bool = True) -> Any:
    """torch.export of an imported model.

    Args:
        imported: The import.
        shapes: Example shape per input name, for open dimensions that not every size fits.
        dynamic: Keep open dimensions open where the graph allows it.

    Returns:
        torch.export.ExportedProgram.
    """
    import torch

    examples = example_inputs(imported.inputs, shapes)
    open_dims = tuple(
        {i: torch.export.Dim.AUTO for i, d in enumerate(s.shape or ()) if isinstance(d, str)} or None
        for s in imported.inputs
    )
    wanted = open_dims if dynamic and any(open_dims) else None
    return torch.export.export(imported.module, examples, dynamic_shapes=wanted)
