"""From a PyTorch module to ONNX by torch's own exporter, with what usually goes wrong caught.

- A module in training mode would be written with dropout and the statistics of one batch: it is exported as for
  inference, and its mode is put back.
- A batch that torch wrote down as a number: the file is run with one sample more.
- Another opset than was asked for, and outputs that differ: both are errors, the latter naming the first layer.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EdgeproofError, InputError, UnsupportedError
from ..graph.equivalence import relative_error
from ..model import Model
from ..protocols import Outputs
from ..quant.calibration import observed
from ..runtimes import compile_for, find_target

TOLERANCE = 1e-5
"""Largest difference to the module, as a share of the largest value."""

BATCH = "batch"
OLDEST = 13
"""Quantisation per channel begins here."""

Arrays = Mapping[str, NDArray[Any]]
_PLAIN = {"graph_optimization": "disable", "threads": 1}


def export_torch(
    module: Any,
    inputs: Arrays,
    *,
    outputs: Sequence[str] = (),
    dynamic: bool = True,
    opset: int = 17,
    name: str = "network",
    tolerance: float = TOLERANCE,
) -> Model:
    """Write a PyTorch module as ONNX and hold it against the module.

    Args:
        module: A `torch.nn.Module`, in any mode; it is left as it was.
        inputs: Name → example, in the order of the arguments. The first axis of the first is the batch; others that
            begin with the same size share it.
        outputs: Names; ``output``, ``output_1``, … when left out.
        dynamic: Whether the batch is open.
        opset: At least 13.
        name: Of the model.
        tolerance: Largest difference, as a share of the largest value.

    Raises:
        InputError: export.opset, export.outputs.
        UnsupportedError: export.refused, when torch cannot write it; export.opset; export.batch, when the file holds
            the batch as a number; export.differs, naming the first layer that gives other numbers.
    """
    if opset < OLDEST:
        raise InputError("export.opset", name, f"asks for opset {opset}; expected at least {OLDEST}", "leave it out")
    with _at_inference(module):
        wanted = _by_module(module, inputs)
        names = tuple(outputs) or tuple("output" if i == 0 else f"output_{i}" for i in range(len(wanted)))
        if len(names) != len(wanted):
            raise InputError("export.outputs", name, f"gives {len(wanted)} outputs, not {len(names)}", "name them all")
        model = _written(module, inputs, names, dynamic, opset, name)
        found = int(model.graph.opset_imports.get("", 0))
        if found != opset:
            raise UnsupportedError("export.opset", name, f"came out in opset {found}, not {opset}", "ask for that one")
        _check(model, module, inputs, wanted, tolerance)
        if dynamic:
            n = len(next(iter(inputs.values())))
            more = {k: np.concatenate([a, a[:1]]) if np.ndim(a) and len(a) == n else a for k, a in inputs.items()}
            _check(model, module, more, _by_module(module, more), tolerance, "with one sample more, ")
    return model


@contextmanager
def _at_inference(module: Any) -> Iterator[None]:
    """The module as for inference; every part is put back into its own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _tensors(inputs: Arrays) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(np.array(a)) for a in inputs.values())


def _by_module(module: Any, inputs: Arrays) -> list[NDArray[Any]]:
    import torch

    with torch.no_grad():
        made = module(*_tensors(inputs))
    parts = made.values() if isinstance(made, dict) else made if isinstance(made, list | tuple) else (made,)
    return [t.numpy() for t in parts]


def _written(module: Any, inputs: Arrays, names: tuple[str, ...], dynamic: bool, opset: int, name: str) -> Model:
    import onnx
    import onnx_ir as ir
    import torch

    n = len(next(iter(inputs.values())))
    moving = [k for k, a in inputs.items() if np.ndim(a) and len(a) == n]
    axes = {k: {0: BATCH} for k in (*moving, *names)} if dynamic else None
    buffer = io.BytesIO()
    modern = importlib.util.find_spec("onnxscript") is not None
    how: dict[str, Any] = {"dynamo": modern, "dynamic_axes": axes}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # that one of torch's two exporters will go, and traced numbers: checked below
            torch.onnx.export(
                module,
                _tensors(inputs),
                buffer,
                input_names=[*inputs],
                output_names=[*names],
                opset_version=opset,
                **how,
            )
    except Exception as e:
        text = " ".join(str(e).split())[:300]
        raise UnsupportedError("export.refused", name, f"torch: {text}", "export the part that torch can write") from e
    return Model.of(ir.from_proto(onnx.load_from_string(buffer.getvalue())), name)


def _run(model: Model, inputs: Arrays) -> Outputs:
    session = compile_for(find_target("onnxruntime:cpu", _PLAIN), model)
    try:
        return session.run(inputs)
    finally:
        session.close()


def _check(
    model: Model, module: Any, inputs: Arrays, wanted: Sequence[NDArray[Any]], tolerance: float, when: str = ""
) -> None:
    try:
        got = list(_run(model, inputs).values())
    except EdgeproofError as e:
        hint = "compute sizes from x.shape, not from numbers, or export with dynamic=False"
        raise UnsupportedError("export.batch", model.name, f"{when}cannot run: {e.problem[:300]}", hint) from e
    worst = max(relative_error(a, b) for a, b in zip(wanted, got, strict=True))
    if worst <= tolerance:
        return
    if when and any(a.shape != b.shape for a, b in zip(wanted, got, strict=True)):
        raise UnsupportedError(
            "export.batch",
            model.name,
            f"{when}gives outputs of {', '.join(str(b.shape) for b in got)}; the module gives "
            f"{', '.join(str(a.shape) for a in wanted)}",
            "compute sizes from x.shape, not from numbers, or export with dynamic=False",
        )
    raise _blame(model, module, inputs, worst, tolerance, when)


def _blame(model: Model, module: Any, inputs: Arrays, worst: float, tolerance: float, when: str) -> UnsupportedError:
    """The first layer, in the order in which they ran, whose last node gives other numbers."""
    seen: list[tuple[str, NDArray[Any]]] = []
    hooks = [
        part.register_forward_hook(lambda _m, _i, out, path=path: seen.append((path, out.detach().numpy())))
        for path, part in module.named_modules()
        if path and not list(part.children())
    ]
    _by_module(module, inputs)
    for hook in hooks:
        hook.remove()
    last = {}
    for node in model.graph.graph:
        last["/".join((node.name or "").split("/")[1:-1]).replace("/", ".")] = node.outputs[0].name or ""
    names = [last[p] for p, _ in seen if p in last]
    got = _run(observed(model, names), inputs)
    for path, want in seen:
        off = relative_error(want, got[last[path]]) if path in last else 0.0
        if not off <= tolerance:
            return UnsupportedError(
                "export.differs",
                path,
                f"{when}differs by {off:.2g} of its largest value from the module, {tolerance:g} is allowed: the first",
                "look at what this layer does; report it with the module when that is usual",
            )
    return UnsupportedError(
        "export.differs",
        model.name,
        f"{when}outputs differ by {worst:.2g} of their largest value from the module, {tolerance:g} is allowed",
        "what stands between the layers gives other numbers, or random ones",
    )
