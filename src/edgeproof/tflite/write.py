"""The flatbuffer: tensors, operators and constants, written with the schema that LiteRT ships.

Source: the TensorFlow Lite schema, version 3; operator versions as in LiteRT's ``op_version.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 3
ALIGNMENT = 16
"""Bytes to which the schema aligns the data of a buffer."""
SIGNATURE = "serving_default"

_OPTIONS = {
    "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D", "FULLY_CONNECTED": "FullyConnected", "AVERAGE_POOL_2D": "Pool2D",
    "MAX_POOL_2D": "Pool2D", "CONCATENATION": "Concatenation", "RESHAPE": "Reshape", "SOFTMAX": "Softmax",
    "REDUCE_ALL": "Reducer",
    "MEAN": "Reducer", "SUM": "Reducer", "REDUCE_MAX": "Reducer", "REDUCE_MIN": "Reducer", "REDUCE_PROD": "Reducer",
    "REDUCE_ANY": "Reducer", "RESIZE_BILINEAR": "ResizeBilinear", "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor",
    "GATHER": "Gather", "STRIDED_SLICE": "StridedSlice",
    "TRANSPOSE_CONV": "TransposeConv", "BATCH_MATMUL": "BatchMatMul", "CAST": "Cast", "LEAKY_RELU": "LeakyRelu",
    "GELU": "Gelu", "ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin", "CUMSUM": "Cumsum", "DEPTH_TO_SPACE": "DepthToSpace",
    "SPACE_TO_DEPTH": "SpaceToDepth", "MIRROR_PAD": "MirrorPad", "ONE_HOT": "OneHot",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalization",
}  # fmt: skip

_VERSIONS_INT8 = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "RESHAPE": 1,
    "QUANTIZE": 1,
    "PRELU": 1,
    "HARD_SWISH": 1,
}
"""Version of an operator on int8 where it is not 2."""


@dataclass(frozen=True, slots=True)
class Quant:
    """What codes mean: ``real = scale · (code - zero)``.

    Attributes:
        scale: One, or one per channel.
        zero: As many.
        axis: Of the channels, in the stored tensor.
    """

    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 0


@dataclass(slots=True)
class Tensor:
    """A tensor of the file.

    Attributes:
        name: Unique in the file.
        dtype: NumPy's name.
        shape: As stored.
        quant: For codes; None for plain numbers.
        data: For constants.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    quant: Quant | None = None
    data: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the file.

    Attributes:
        code: Its builtin name.
        inputs: Tensors; -1 for one that is left out.
        outputs: Tensors.
        options: Fields of its options table, by the schema's Python names.
        node: The ONNX node that it came from.
    """

    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    node: str


@dataclass(slots=True)
class File:
    """What goes into the file, in order."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def serialise(file: File, names: tuple[Sequence[str], Sequence[str]], description: str) -> bytes:
    """The flatbuffer.

    Args:
        file: The content; tensors that nothing refers to are left out.
        names: Names of the inputs and outputs in the signature.
        description: For people.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    class Builder(flatbuffers.Builder):  # type: ignore[misc]
        """Puts the data of buffers where the schema wants them."""

        def CreateNumpyVector(self, x: NDArray[Any]) -> int:  # noqa: N802
            if x.dtype == np.uint8:
                self.Prep(ALIGNMENT, x.nbytes)
            return int(super().CreateNumpyVector(x))

    used = {i for op in file.operators for i in (*op.inputs, *op.outputs)} | {*file.inputs, *file.outputs}
    place = {old: new for new, old in enumerate(sorted(used - {-1}))} | {-1: -1}
    model: Any = schema.ModelT()
    model.version, model.description = SCHEMA_VERSION, description
    graph: Any = schema.SubGraphT()
    graph.name = "main"
    model.subgraphs, model.buffers = [graph], [schema.BufferT()]
    graph.tensors = [_tensor(schema, model, file.tensors[i]) for i in sorted(used - {-1})]
    graph.inputs = [place[i] for i in file.inputs]
    graph.outputs = [place[i] for i in file.outputs]
    codes: dict[tuple[str, int], int] = {}
    graph.operators = [_operator(schema, codes, place, op, _version(file, op)) for op in file.operators]
    model.operatorCodes = [_code(schema, name, version) for name, version in codes]
    signature: Any = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE
    signature.inputs = [_named(schema, n, i) for n, i in zip(names[0], graph.inputs, strict=True)]
    signature.outputs = [_named(schema, n, i) for n, i in zip(names[1], graph.outputs, strict=True)]
    model.signatureDefs = [signature]
    builder = Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(schema: Any, model: Any, tensor: Tensor) -> Any:
    made = schema.TensorT()
    made.name, made.shape, made.hasRank = tensor.name, list(tensor.shape), True
    made.type = getattr(schema.TensorType, tensor.dtype.upper())
    if tensor.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(tensor.data).tobytes(), np.uint8)
        made.buffer = len(model.buffers)
        model.buffers.append(buffer)
    if tensor.quant is not None:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale = list(tensor.quant.scale)
        made.quantization.zeroPoint = list(tensor.quant.zero)
        made.quantization.quantizedDimension = tensor.quant.axis
    return made


def _operator(
    schema: Any, codes: dict[tuple[str, int], int], place: Mapping[int, int], op: Operator, version: int
) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex = codes.setdefault((op.code, version), len(codes))
    made.inputs, made.outputs = [place[i] for i in op.inputs], [place[i] for i in op.outputs]
    if op.code in _OPTIONS:
        name = f"{_OPTIONS[op.code]}Options"
        made.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        made.builtinOptions = getattr(schema, f"{name}T")(**op.options)
    return made


def _code(schema: Any, name: str, version: int) -> Any:
    made = schema.OperatorCodeT()
    made.builtinCode = getattr(schema.BuiltinOperator, name)
    made.deprecatedBuiltinCode = min(made.builtinCode, 127)
    made.version = version
    return made


def _named(schema: Any, name: str, tensor: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name, tensor
    return made


def _version(file: File, op: Operator) -> int:
    """The oldest version of an operator that does what is asked of it."""
    tensors = [file.tensors[i] for i in op.inputs if i >= 0]
    first = tensors[0].dtype if tensors else "float32"
    if op.code in ("DEPTHWISE_CONV_2D", "CONV_2D", "FULLY_CONNECTED") and first == "float32":
        if tensors[1].dtype == "int8":
            return {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 12}[op.code]
        if op.code == "DEPTHWISE_CONV_2D" and max(op.options["dilationHFactor"], op.options["dilationWFactor"]) > 1:
            return 2
    if op.code == "CONV_2D" and tensors[0].shape[-1] != tensors[1].shape[-1]:
        return 6
    if op.code == "FULLY_CONNECTED":
        channels = tensors[1].quant is not None and len(tensors[1].quant.scale) > 1
        return 12 if channels else 6 if len(tensors) < 3 else 5
    if op.code == "TRANSPOSE_CONV":
        return (
            4 if op.options.get("fusedActivationFunction") else 3 if len(op.inputs) > 3 else 2 if first == "int8" else 1
        )
    if op.code in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR") and op.options["halfPixelCenters"]:
        return 3
    if op.code == "BROADCAST_TO":
        return 2
    if op.code == "DEQUANTIZE" and first == "float16":
        return 3
    if op.code == "QUANTIZE" and first != "float32":
        return 2
    return _VERSIONS_INT8.get(op.code, 2) if first == "int8" else 1
