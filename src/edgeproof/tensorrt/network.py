"""An ONNX model as a TensorRT network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..graph.naming import named
from ..model import PROTO_LIMIT_BYTES, Model, save_model, weight_bytes
from .dialect import Dialect
from .refusals import Refusal, of_parser, refused
from .settings import Plan


def prepared(model: Model) -> Model:
    """The model as the parser wants it: every node named, and nothing called ``?``.

    Dimensions of one name must be equal for TensorRT, and some exporters call all that they do not know ``?``.

    Args:
        model: Left as it is.
    """
    import onnx_ir as ir

    made = named(model)
    for value in (*made.graph.graph.inputs, *made.graph.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                [None if isinstance(d, ir.SymbolicDim) and d.value == "?" else d for d in value.shape]
            )
    return made


def network_of(trt: Any, dialect: Dialect, builder: Any, logger: Any, model: Model, plan: Plan) -> tuple[Any, Any]:
    """Parse a model.

    Args:
        trt: The module.
        dialect: Its version.
        builder: Its ``Builder``.
        logger: Its logger.
        model: As `prepared`.
        plan: What is to be built.

    Returns:
        The ``INetworkDefinition``, and the parser, which owns the weights and must live as long.

    Raises:
        UnsupportedError: backend.unknown_operator, backend.refused, naming the node; tensorrt.shape_input.
    """
    typed = plan.precision == "typed" or not dialect.weak_types
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if typed else 0)
    parser = trt.OnnxParser(network, logger)
    if not _parse(parser, model):
        raise refused(model, plan.target, of_parser(parser), "parse")
    _ensure_outputs(network, model, plan)
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if tensor.is_shape_tensor:
            raise UnsupportedError(
                "tensorrt.shape_input",
                f"{model.name} on {plan.target}: input {tensor.name}",
                "holds sizes that the shapes of other tensors are computed from; TensorRT wants to know them before",
                "export the model with this value as a constant",
            )
    return network, parser


def refusals(trt: Any, model: Model) -> tuple[Refusal, ...]:
    """All that the parser refuses in a model, node by node; empty where it takes the whole.

    Args:
        trt: The module.
        model: As `prepared`.
    """
    from .log import recorder

    logger, _ = recorder(trt)
    builder = trt.Builder(logger)
    # A parser that has parsed, or been asked before, answers for the sum of both.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    with tempfile.TemporaryDirectory(prefix="edgeproof-tensorrt-") as folder:
        path = save_model(model, Path(folder, "model.onnx"))
        if parser.supports_model_v2(path.read_bytes(), str(path)):
            return ()
    found = of_parser(parser)
    if found:
        return found
    nodes = list(model.graph.graph)
    parts = [i for i in range(parser.num_subgraphs) if not parser.is_subgraph_supported(i)]
    at = sorted({n for i in parts for n in parser.get_subgraph_nodes(i)})
    return tuple(Refusal(nodes[n].name or "", nodes[n].op_type, "is not supported") for n in at if n < len(nodes))


def _parse(parser: Any, model: Model) -> bool:
    if weight_bytes(model.graph) <= PROTO_LIMIT_BYTES:
        return bool(parser.parse(model.to_bytes()))
    with tempfile.TemporaryDirectory(prefix="edgeproof-tensorrt-") as folder:
        return bool(parser.parse_from_file(str(save_model(model, Path(folder, "model.onnx")))))


def _ensure_outputs(network: Any, model: Model, plan: Plan) -> None:
    """TensorRT drops outputs that are inputs or constants in some versions; an engine without them is no such model."""
    made = {network.get_output(i).name for i in range(network.num_outputs)}
    lost = [o.name for o in model.outputs if o.name not in made]
    if lost:
        raise UnsupportedError(
            "backend.refused",
            f"{model.name} on {plan.target}: output {lost[0]}",
            f"is not among the outputs that TensorRT made: {', '.join(sorted(made)) or 'none'}",
            "compute it from an input, or remove it from the model's outputs",
        )
