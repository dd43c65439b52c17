"""Compute what a Core ML package says, operator by operator, where Core ML itself does not run.

The program is read back from the package on disk, weights and their compression included, and computed with torch by
the definitions in coremltools' operator reference. Half precision is rounded after every operator, as a float16 tensor
holds it; Core ML's own kernels may sum otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._mil_arguments import UnknownOperatorError
from ._mil_operators import OPERATORS

WEIGHTS = "Data/com.apple.CoreML/weights"


def read(package: Path) -> Any:
    """The MIL program of a ``.mlpackage``."""
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = coremltools.utils.load_spec(str(package))
    return load(spec, spec.specificationVersion, str(package / WEIGHTS))


def operators(program: Any) -> list[Any]:
    """Its operators but for plain constants, in order."""
    return [op for op in program.functions["main"].operations if op.op_type != "const"]


def evaluate(program: Any, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run a program.

    Args:
        program: As `read` gives it.
        feeds: Input name → array.

    Returns:
        Output name → array.

    Raises:
        UnknownOperatorError: for an operator that has no definition here.
    """
    import torch

    held: dict[str, Any] = {name: _tensor(torch, np.array(array)) for name, array in feeds.items()}
    function = program.functions["main"]
    for op in operators(program):
        define = OPERATORS.get(op.op_type)
        if define is None:
            raise UnknownOperatorError(op.op_type)
        arguments = {k: _argument(torch, held, v) for k, v in op.inputs.items() if v is not None}
        with torch.no_grad():
            made = define(torch, arguments)
        values = made if isinstance(made, list | tuple) else [made]
        for output, value in zip(op.outputs, values, strict=True):
            held[output.name] = _rounded(torch, value, output.dtype)
    return {o.name: held[o.name].numpy() for o in function.outputs}


def _argument(torch: Any, held: Mapping[str, Any], value: Any) -> Any:
    """A tensor where there is one, else a constant as Python or NumPy holds it."""
    if isinstance(value, tuple | list):
        return [_argument(torch, held, v) for v in value]
    if value.name in held:
        return held[value.name]
    known = value.val
    if isinstance(known, np.ndarray) and known.dtype.kind in "fiub":
        return _tensor(torch, known)
    return known


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.kind == "f":
        return torch.from_numpy(array.astype(np.float32))
    if array.dtype.kind == "b":
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.astype(np.int64))


def _rounded(torch: Any, value: Any, dtype: Any) -> Any:
    """What a tensor of a dtype holds: float16 is rounded, integers are whole."""
    from coremltools.converters.mil.mil import types

    if dtype == types.fp16:
        return value.to(torch.float16).to(torch.float32)
    if dtype == types.fp32:
        return value.to(torch.float32)
    return value.to(torch.bool) if dtype == types.bool else value.to(torch.int64)
