"""From a tinygrad network to ONNX, without PyTorch: run it, write down what it calls, hold the result against it.

The network runs twice, at batches that differ by one, so that every size that follows the batch is known; nothing is
computed for that but constants. Weights keep their names of `tinygrad.nn.state.get_state_dict`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedError
from ..graph.equivalence import relative_error
from ..model import Model
from ..quant.calibration import observed
from ..runtimes import compile_for, find_target
from .onnx_writer import BATCH, OPSET, Pair, Writer
from .recorder import Trace, record
from .tinygrad_functions import FUNCTIONS, known
from .tinygrad_layers import LAYERS

if TYPE_CHECKING:
    import onnx_ir as ir

TOLERANCE = 1e-5
"""Largest difference to tinygrad, as a share of the largest value."""

Network = Callable[..., Any]
Arrays = Mapping[str, NDArray[Any]]


def export(
    network: Network,
    inputs: Arrays,
    *,
    outputs: Sequence[str] = (),
    dynamic: bool = True,
    owner: Any = None,
    name: str = "network",
    tolerance: float = TOLERANCE,
) -> Model:
    """Write a tinygrad network as ONNX, opset 17.

    Args:
        network: Called with the inputs in order; gives a tensor, or several.
        inputs: Name → example. The first axis of the first is the batch; others that begin with the same size share it.
        outputs: Names; ``output``, ``output_1``, … when left out.
        dynamic: Whether the batch is open.
        owner: The object that holds the layers, where the network is a function or a method of it.
        name: Of the model.
        tolerance: Largest difference to tinygrad's own outputs, as a share of their largest value.

    Raises:
        UnsupportedError: export.function, for what ONNX has no counterpart of, with its line; export.differs, naming
            the first layer that gives other numbers.
        InputError: export.inputs, export.outputs.
    """
    if not inputs:
        raise InputError("export.inputs", name, "is given no example", "give one array per input, by name")
    holder = _owner(network, owner)
    state = _state(holder)
    moving = _moving(inputs) if dynamic else {}
    first = _traced(network, holder, inputs, state)
    second = _traced(network, holder, _one_more(inputs, moving), state) if moving else first
    _check_alike(first, second, name)
    writer = Writer(first, second, {**FUNCTIONS, **LAYERS}, state, moving)
    model = _model(writer, inputs, tuple(outputs), name, moving)
    compare(model, network, inputs, owner=owner, tolerance=tolerance)
    if moving and not _rows_stay(model, inputs, moving, tolerance):
        compare(model, network, _one_more(inputs, moving), owner=owner, tolerance=tolerance)
    return model


def compare(
    model: Model, network: Network, inputs: Arrays, *, owner: Any = None, tolerance: float = TOLERANCE
) -> float:
    """Hold a model against the network that it was exported from.

    Args:
        model: As `export` wrote it, or as a later tool left it; values that kept their names are compared.
        network: The network.
        inputs: As in `export`.
        owner: Likewise.
        tolerance: Largest difference, as a share of the largest value.

    Returns:
        The largest difference of any output.

    Raises:
        UnsupportedError: export.differs, naming the first layer that gives other numbers, and its line.
    """
    holder = _owner(network, owner)
    trace = _traced(network, holder, inputs, _state(holder))
    session = compile_for(find_target("onnxruntime:cpu", _PLAIN), model)
    got = list(session.run(inputs).values())
    session.close()
    worst = 0.0
    for item, found in zip(trace.outputs, got, strict=True):
        worst = max(worst, relative_error(item.tensor.numpy(), found))
    if not worst <= tolerance:
        raise _blame(model, trace, inputs, worst, tolerance)
    return worst


_PLAIN = {"graph_optimization": "disable", "threads": 1}


def _rows_stay(model: Model, inputs: Arrays, moving: Mapping[str, Pair], tolerance: float) -> bool:
    """Whether one sample more leaves what the others give, which saves tinygrad the work of another batch."""
    session = compile_for(find_target("onnxruntime:cpu", _PLAIN), model)
    few, many = session.run(inputs), session.run(_one_more(inputs, moving))
    session.close()
    return all(relative_error(few[n], many[n][: len(few[n])]) <= tolerance for n in few if np.ndim(few[n]))


def _blame(model: Model, trace: Trace, inputs: Arrays, worst: float, tolerance: float) -> UnsupportedError:
    """The first call, in the order of the network, whose numbers differ."""
    values = {v.name for n in model.graph.graph for v in n.outputs}
    ends = {i.call: o.name for i, o in zip(trace.outputs, model.outputs, strict=True) if i.kind == "made"}
    held = [ends.get(index, name) for index, name in enumerate(trace.names)]
    place = find_target("onnxruntime:cpu", _PLAIN)
    session = compile_for(place, observed(model, [n for n in held if n in values]))
    got = session.run(inputs)
    session.close()
    for index, (call, name) in enumerate(zip(trace.calls, trace.names, strict=True)):
        if held[index] not in got:
            continue
        off = relative_error(call.results[0].numpy(), got[held[index]])
        if not off <= tolerance:
            return UnsupportedError(
                "export.differs",
                f"{name} ({call.site})",
                f"differs by {off:.2g} of its largest value from tinygrad, {tolerance:g} is allowed; it is the first",
                "look at what this layer is given; report it with the network when that is usual",
            )
    return UnsupportedError(
        "export.differs",
        model.name,
        f"its outputs differ by {worst:.2g} of their largest value from tinygrad, {tolerance:g} is allowed",
        "raise the tolerance if every layer may add a little",
    )


def _owner(network: Network, owner: Any) -> Any:
    """What holds the layers: the network itself, or the object of a method."""
    if owner is not None:
        return owner
    return network.__self__ if inspect.ismethod(network) else network


def _state(owner: Any) -> dict[str, Any]:
    from tinygrad import Tensor
    from tinygrad.nn.state import get_state_dict

    state: dict[str, Any] = get_state_dict(owner)
    if state:
        Tensor.realize(*state.values())
    return state


def _moving(inputs: Arrays) -> dict[str, Pair]:
    first = next(iter(inputs.values()))
    if not np.ndim(first):
        raise InputError("export.inputs", next(iter(inputs)), "has no axis for a batch", "export with dynamic=False")
    n = len(first)
    return {name: (n, n + 1) for name, a in inputs.items() if np.ndim(a) and len(a) == n}


def _one_more(inputs: Arrays, moving: Mapping[str, Pair]) -> dict[str, NDArray[Any]]:
    return {n: np.concatenate([a, a[:1]]) if n in moving else a for n, a in inputs.items()}


def _traced(network: Network, owner: Any, inputs: Arrays, state: Mapping[str, Any]) -> Trace:
    from tinygrad import Tensor
    from tinygrad.helpers import Context

    with Context(TRAINING=0):
        tensors = {n: Tensor(np.ascontiguousarray(a)).realize() for n, a in inputs.items()}
        return record(network, owner, tensors, state, known())


def _check_alike(first: Trace, second: Trace, name: str) -> None:
    for one, other in zip(first.calls, second.calls, strict=False):
        if one.op != other.op:
            raise UnsupportedError(
                "export.function",
                f"{one.op} ({one.site})",
                f"is {other.op} ({other.site}) for one sample more",
                "do the same for every batch, or export with dynamic=False",
            )
    if len(first.calls) != len(second.calls):
        raise UnsupportedError(
            "export.function",
            name,
            f"calls {len(first.calls)} functions, and {len(second.calls)} for one sample more",
            "do the same for every batch, or export with dynamic=False",
        )


def _model(writer: Writer, inputs: Arrays, outputs: tuple[str, ...], name: str, moving: Mapping[str, Pair]) -> Model:
    import onnx_ir as ir

    for given, a in inputs.items():
        dims: list[int | str] = [BATCH if i == 0 and given in moving else d for i, d in enumerate(np.shape(a))]
        kind = ir.TensorType(ir.DataType.from_numpy(np.asarray(a).dtype))
        writer.inputs[given] = ir.Value(name=given, shape=ir.Shape(dims), type=kind)
    made = writer.run()
    names = outputs or tuple("output" if i == 0 else f"output_{i}" for i in range(len(made)))
    if len(names) != len(made):
        raise InputError("export.outputs", name, f"gives {len(made)} outputs, {len(names)} names are given", "name all")
    last = [_output(writer, value, named) for value, named in zip(made, names, strict=True)]
    for value, one, other in zip(last, writer.first.outputs, writer.second.outputs, strict=True):
        pairs = zip(map(int, one.tensor.shape), map(int, other.tensor.shape), strict=True)
        value.shape = ir.Shape([a if a == b else BATCH if b - a == 1 else None for a, b in pairs])
    graph = ir.Graph(
        list(writer.inputs.values()),
        last,
        nodes=writer.nodes,
        initializers=list(writer.initializers.values()),
        opset_imports={"": OPSET},
        name=name,
    )
    return Model.of(ir.Model(graph, ir_version=8, producer_name="edgeproof"), name)


def _output(writer: Writer, value: ir.Value, name: str) -> ir.Value:
    """The value under an output's name; an input, a stored tensor or another output is passed on."""
    import onnx_ir as ir

    if value.producer() is None or value.name in writer.outputs:
        made: ir.Value = writer.node("Identity", value)
        made.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        value = made
    value.name = name
    writer.outputs.add(name)
    return value
