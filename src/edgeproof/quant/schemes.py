"""Where each runtime wants Q/DQ, as data: operators, dtypes, granularity, and for every entry where that stands.

A scheme is a `QuantScheme`; `placement`, `parameters` and `qdq` obey it and know no runtime. "Measured" is said of what
no documentation says; the runtime's own record shows it (benchmarks/fusion.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ..target import QuantScheme

ORT = QuantScheme()
"""ONNX Runtime on x86 processors whose integer products are summed in 32 bits (VNNI)."""

ORT_NARROW = replace(ORT, narrow_weights=True)
"""ONNX Runtime on x86 processors without VNNI."""

ORT_ARM = replace(ORT, activation="int8")
"""ONNX Runtime on 64-bit ARM."""

TENSORRT = QuantScheme(
    activation="int8",
    activation_symmetric=True,
    bias="float32",
    weight_qdq=True,
    fused_output=(),
    follow=("Add", "Concat", "AveragePool", "GlobalAveragePool"),
    residual=("Add",),
    excite=True,
    attention=True,
    expand=(),
    fuse=("Relu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Gelu", "Swish"),
    fuse_constants=("Add", "Sub", "Mul", "Div"),
    gates=("Sigmoid", "HardSigmoid"),
)
"""TensorRT, and ONNX Runtime's CUDA and TensorRT providers."""

OPENVINO = QuantScheme(
    bias="float32",
    fused_output=(),
    follow=("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool"),
    absorb=(),
    expand=(),
    fuse=("Relu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Gelu", "Swish"),
    fuse_constants=("Add", "Sub", "Mul", "Div"),
    gates=("Sigmoid", "HardSigmoid"),
    spell=("HardSigmoid",),
    no_zero_point=("MatMul", "Gemm"),
    guard=False,
)
"""OpenVINO's CPU plugin."""

LITERT = QuantScheme(
    activation="int8",
    per_channel=("Conv", "ConvTranspose"),
    ops=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    fused_output=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    follow=("Add", "Sub", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid", "Tanh", "Softmax"),
    expand=("HardSigmoid", "HardSwish"),
    fixed_output={"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Tanh": (1 / 128, 0)},
    one_scale=("Concat", "AveragePool"),
    guard=False,
)
"""LiteRT (TensorFlow Lite), and what reads its 8-bit files."""

NCNN = QuantScheme(
    activation="int8",
    activation_symmetric=True,
    per_channel=("Conv", "Gemm", "MatMul"),
    bias="float32",
    fused_output=(),
    follow=(),
    share=(),
    absorb=(),
    expand=(),
    fuse=("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSwish"),
    guard=False,
)
"""ncnn on processors."""

EXECUTORCH = QuantScheme(
    activation="int8",
    ops=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    bias="float32",
    fused_output=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    follow=("Add", "Sub", "Mul", "Concat", "GlobalAveragePool"),
    share=("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split"),
    expand=(),
    fuse_constants=("Add",),
    one_scale=("Concat",),
    guard=False,
)
"""ExecuTorch with XNNPACK."""

COREML = QuantScheme(
    activation="int8",
    ops=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    bias="float32",
    fused_output=(),
    follow=("Add", "Concat", "AveragePool", "GlobalAveragePool"),
    expand=(),
    guard=False,
)
"""Core ML from iOS 17 on."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A scheme with where each of its entries stands.

    Attributes:
        title: The runtime.
        scheme: The scheme.
        sources: Field of the scheme → the document, and what it says.
    """

    title: str
    scheme: QuantScheme
    sources: Mapping[str, str]


_ORT_GUIDE = "ONNX Runtime, *Quantize ONNX Models*"
_ORT_QDQ = "ONNX Runtime, QDQ selectors (`qdq_selector_action_transformer`)"
_LPT = "OpenVINO, *Low Precision Transformations*"
_NCNN = "ncnn, `ncnn2int8`"
_NCNN_LOAD = "ncnn, `load_model` of Convolution, ConvolutionDepthWise and InnerProduct"
_LITERT = "*LiteRT 8-bit quantization specification*"
_MIL = "coremltools, MIL operators"
_CT = "coremltools, *Training-Time Quantization*"
_XNN = "ExecuTorch, XNNPACK partitioner"
_TRT = "TensorRT Developer Guide, *Working with Quantized Types*"
_NONE = "needs none"

_ORT_SOURCES: Mapping[str, str] = {
    "activation": f"{_ORT_GUIDE}: U8S8 runs on every x86 kernel",
    "weight": f"{_ORT_GUIDE}, data type selection",
    "activation_symmetric": "ONNX, QuantizeLinear: any zero point; an asymmetric range wastes no codes",
    "weight_symmetric": f"{_ORT_GUIDE}: symmetric weights need no correction for the zero point",
    "per_channel": "ONNX Runtime, operators QLinearConv and MatMulIntegerToFloat: a scale per output channel",
    "ops": f"{_ORT_QDQ}: Conv, Gemm and MatMul",
    "bias": "ONNX, QLinearConv: int32, scale of input times scale of weight",
    "weight_qdq": f"{_ORT_QDQ}: weights are constants behind a DequantizeLinear",
    "fused_output": f"{_ORT_QDQ}: a Conv without a quantised output stays float; Gemm and MatMul may give floats",
    "follow": "ONNX Runtime, contributed operators QLinearAdd, -Mul, -Concat, -AveragePool, -GlobalAveragePool, "
    "-Sigmoid, -LeakyRelu",
    "residual": "contributed operator QLinearAdd takes both operands in 8 bits",
    "excite": "as any product (`follow`)",
    "attention": _NONE,
    "share": f"{_ORT_QDQ}, DropQDQNodes: operators that only move values lose their Q/DQ when both agree",
    "absorb": "ONNX Runtime, ClipQuantFusion and ReluQuantFusion: vanish where the zero point is the lowest code",
    "expand": "measured: integer sums and products take a third of the time of leaving integers for the float kernel",
    "fuse": "measured: an activation behind a DequantizeLinear keeps a Conv from becoming QLinearConv",
    "fuse_constants": "as for activations",
    "gates": "as for activations",
    "spell": _NONE,
    "no_zero_point": _NONE,
    "fixed_output": f"{_NONE}: QLinearSigmoid takes any output scale",
    "one_scale": f"{_NONE}: QLinearConcat takes a scale per input",
    "narrow_weights": f"{_ORT_GUIDE}: no reduce_range on machines with VNNI",
    "guard": "ONNX Runtime, WeightBiasQuantization: quantises float layers between Q/DQ by itself",
}

SCHEMES: Mapping[str, Documented] = {
    "onnxruntime-x86": Documented("ONNX Runtime, x86 with VNNI", ORT, _ORT_SOURCES),
    "onnxruntime-x86-narrow": Documented(
        "ONNX Runtime, x86 without VNNI",
        ORT_NARROW,
        {**_ORT_SOURCES, "narrow_weights": f"{_ORT_GUIDE}: VPMADDUBSW saturates in 16 bits on AVX2 and AVX512"},
    ),
    "onnxruntime-arm": Documented(
        "ONNX Runtime, 64-bit ARM",
        ORT_ARM,
        {
            **_ORT_SOURCES,
            "activation": f"{_ORT_GUIDE}: S8S8 is the first choice; ARM has signed dot products",
            "narrow_weights": f"{_ORT_GUIDE}: saturation is a matter of x86; SDOT sums in 32 bits",
        },
    ),
    "tensorrt": Documented(
        "TensorRT",
        TENSORRT,
        {
            "activation": f"{_TRT}: INT8 is signed; unsigned Q/DQ is refused by the parser",
            "weight": f"{_TRT}: INT8",
            "activation_symmetric": f"{_TRT}: symmetric quantisation only, zero point 0",
            "weight_symmetric": f"{_TRT}: symmetric quantisation only, zero point 0",
            "per_channel": f"{_TRT}: per-channel for weights of convolutions and fully connected layers",
            "ops": f"{_TRT}, quantisable layers: convolution and matrix product",
            "bias": f"{_TRT}: biases are float; an int32 DequantizeLinear is refused by the parser",
            "weight_qdq": f"{_TRT}: float weights with a Q/DQ pair, which is folded",
            "fused_output": f"{_TRT}, layer placement: quantise the inputs; an output may be float",
            "follow": f"{_TRT}, layer placement: residual additions, concatenation, pooling",
            "residual": f"{_TRT}, layer placement: quantise the residual input of a skip connection; the output of the "
            "convolution that it is added to stays float, and its kernel computes the sum as well",
            "excite": "measured: read in 8 bits, the map is stored once, by the kernel that makes it",
            "attention": "measured: in 8 bits both products and the Softmax are one kernel; in float32 they are four",
            "share": f"{_TRT}: Q/DQ moves across layers that commute with it, e.g. max pooling",
            "absorb": f"{_TRT}: convolution with ReLU or Clip is one kernel",
            "expand": _NONE,
            "fuse": "measured: an activation and the quantisation behind it are one kernel",
            "fuse_constants": "as for activations",
            "gates": "as for activations",
            "spell": _NONE,
            "no_zero_point": "all are symmetric already",
            "fixed_output": _NONE,
            "one_scale": f"{_TRT}: concatenation takes a scale per input",
            "narrow_weights": _NONE,
            "guard": "kept: the same file may run on ONNX Runtime's CPU provider",
        },
    ),
    "openvino": Documented(
        "OpenVINO, CPU plugin",
        OPENVINO,
        {
            "activation": f"{_LPT}: unsigned or signed int8, as the quantiser gives it",
            "weight": f"{_LPT}, ConvolutionTransformation: signed int8",
            "activation_symmetric": f"{_LPT}, ConvolutionTransformation: a zero point is carried into the convolution; "
            "measured: about 10 % more time, and 15 points more of PP-OCRv4's line accuracy",
            "weight_symmetric": f"{_LPT}: a zero point of the weights is one more Subtract",
            "per_channel": f"{_LPT}, ConvolutionTransformation and MatMulTransformation: activations per "
            "tensor, weights per output channel",
            "ops": f"{_LPT}: Convolution, GroupConvolution, MatMul",
            "bias": f"{_LPT}, quantisation scheme: the bias is added to the dequantised sum",
            "weight_qdq": f"{_LPT}: quantised weights in low precision with dequantisation",
            "fused_output": f"{_LPT}: a convolution may give floats",
            "follow": f"{_LPT}, AddTransformation, MultiplyTransformation, ConcatTransformation, "
            "AvgPoolTransformation, ReduceMeanTransformation; a residual addition is fused into the convolution",
            "excite": "as any product (`follow`)",
            "attention": _NONE,
            "share": f"{_LPT}: operations that keep precision (MaxPool, Reshape, Transpose, …)",
            "residual": "both operands are quantised: AddTransformation",
            "absorb": "float activations are fused as they are (`fuse`)",
            "expand": "float activations are fused as they are (`fuse`)",
            "fuse": "OpenVINO, *CPU Device*: convolution and simple layers are fused; measured: one executed node",
            "fuse_constants": "as for activations: sums and products with constants are appended to the kernel",
            "gates": "SwishFusion and HSwishFusion; x · HardSigmoid(x) is written as HardSwish for it (opset 14)",
            "spell": "measured: HardSigmoid is a reference kernel between two changes of layout; its parts fuse",
            "no_zero_point": "measured: with a zero point the product runs as FullyConnected, which takes at least "
            "twice as long as FullyConnectedQuantizedLegacy",
            "fixed_output": _NONE,
            "one_scale": f"{_NONE}: {_LPT} aligns concatenated intervals by itself",
            "narrow_weights": f"{_NONE} with VNNI or AMX; without them, the setting `reduce_range`",
            "guard": "not needed: a float weight without FakeQuantize stays float",
        },
    ),
    "litert": Documented(
        "LiteRT",
        LITERT,
        {
            "activation": f"{_LITERT}: int8 in [-128, 127]",
            "weight": f"{_LITERT}: int8 in [-127, 127]",
            "activation_symmetric": f"{_LITERT}, symmetric vs asymmetric: activations are asymmetric",
            "weight_symmetric": f"{_LITERT}, symmetric vs asymmetric: weights have zero point 0",
            "per_channel": f"{_LITERT}: CONV_2D, DEPTHWISE_CONV_2D per axis; FULLY_CONNECTED per tensor in its older "
            "versions, which every interpreter runs (per axis in the newer ones)",
            "ops": f"{_LITERT}: CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, FULLY_CONNECTED",
            "bias": f"{_LITERT}: int32, (scale, zero point) = (input scale · weight scale, 0)",
            "weight_qdq": "weights are stored as integers",
            "fused_output": f"{_LITERT}: every quantised operator has int8 outputs",
            "follow": f"{_LITERT}: ADD, SUB, MUL, CONCATENATION, AVERAGE_POOL_2D, MEAN, LOGISTIC, TANH, SOFTMAX",
            "residual": f"{_LITERT}: ADD: inputs are int8",
            "excite": "as any product (`follow`)",
            "attention": _NONE,
            "share": f"{_LITERT}: MAX_POOL_2D, RESHAPE, TRANSPOSE, SLICE, …: input and outputs have the same scale and "
            "zero point",
            "absorb": "LiteRT, fused_activation_function: RELU and RELU6",
            "expand": "hard activations are spelled out, as ADD, MUL and a fused RELU6",
            "fuse": "only what `absorb` names",
            "fuse_constants": "only what `absorb` names",
            "gates": "only what `absorb` names",
            "spell": _NONE,
            "no_zero_point": _NONE,
            "fixed_output": f"{_LITERT}: LOGISTIC and SOFTMAX (1/256, -128), TANH (1/128, 0)",
            "one_scale": f"{_LITERT}: CONCATENATION, AVERAGE_POOL_2D: inputs and outputs have the same parameters",
            "narrow_weights": f"{_NONE}: sums are 32 bits wide",
            "guard": _NONE,
        },
    ),
    "ncnn": Documented(
        "ncnn",
        NCNN,
        {
            "activation": f"{_NCNN_LOAD}: int8 in [-127, 127]",
            "weight": f"{_NCNN_LOAD}: int8 in [-127, 127]",
            "activation_symmetric": f"{_NCNN_LOAD}: one scale for what a layer reads, no zero point",
            "weight_symmetric": f"{_NCNN_LOAD}: scales, no zero points",
            "per_channel": f"{_NCNN_LOAD}: a scale per output, of depthwise convolutions per group",
            "ops": f"{_NCNN}: convolution, depthwise convolution, inner product",
            "bias": f"{_NCNN_LOAD}: float, added to the dequantised sum",
            "weight_qdq": "weights are stored as integers",
            "fused_output": f"{_NCNN}: a layer gives floats unless the next ones read codes (`fuse_requantize`)",
            "follow": f"{_NCNN}: nothing but layers runs in integers",
            "residual": f"{_NONE}: both operands are quantised, or neither",
            "excite": _NONE,
            "attention": _NONE,
            "share": f"{_NCNN}: nothing but layers runs in integers; their inputs are quantised as they read them",
            "absorb": "activations are computed in the kernel, in float (`fuse`)",
            "expand": _NONE,
            "fuse": "ncnn, *Operation param weight table*, activation_type: computed on the dequantised sum",
            "fuse_constants": "not claimed: ncnn appends no sums or products to a kernel",
            "gates": "as for constants",
            "spell": _NONE,
            "no_zero_point": "all are symmetric already",
            "fixed_output": _NONE,
            "one_scale": _NONE,
            "narrow_weights": "not needed: 3×3 convolutions in integers are written without Winograd's transform "
            "(*layer feature mask*), whose sums of 8-bit weights overflow",
            "guard": _NONE,
        },
    ),
    "executorch-xnnpack": Documented(
        "ExecuTorch, XNNPACK",
        EXECUTORCH,
        {
            "activation": f"{_XNN}, QuantParams: unsigned quantisation is not supported",
            "weight": "XNNPACK, datatypes: qint8 and qcint8",
            "activation_symmetric": "XNNPACK, datatypes: qint8 has any zero point",
            "weight_symmetric": "XNNPACK, datatypes: qcint8 has no zero point",
            "per_channel": f"{_XNN}, ConvolutionConfig and LinearConfig: a scale per output channel, for transposed "
            "convolutions of one group as well",
            "ops": f"{_XNN}, gemm_configs: convolution, linear, addmm, mm",
            "bias": f"{_XNN}, QuantParams.from_bias: a float constant, which it makes int32 itself",
            "weight_qdq": f"{_XNN}, GEMMConfig: codes behind a dequantise",
            "fused_output": f"{_XNN}, GEMMConfig: a layer without a quantised output is not taken at all",
            "follow": f"{_XNN}, generic_node_configs: add, sub, mul, cat, mean over height and width are quantised; "
            "avg_pool2d is not",
            "residual": f"{_XNN}, generic_node_configs: add has both operands quantised",
            "excite": "as any product (`follow`)",
            "attention": _NONE,
            "share": f"{_XNN}, generic_node_configs, and XNNPACK's check of equal parameters: max_pool2d, view_copy, "
            "permute_copy, slice_copy",
            "absorb": f"{_XNN}, fused_acts: relu and hardtanh",
            "expand": "measured: XNNPACK makes one table of an activation between codes",
            "fuse": "only what `absorb` names",
            "fuse_constants": "an addition behind a layer becomes its bias when the program is built",
            "gates": "only what `absorb` names",
            "spell": _NONE,
            "no_zero_point": _NONE,
            "fixed_output": f"{_NONE}: sigmoid, tanh and softmax are float kernels",
            "one_scale": "XNNPACK, concatenate: inputs and output have the same parameters",
            "narrow_weights": f"{_NONE}: sums are 32 bits wide",
            "guard": _NONE,
        },
    ),
    "coreml": Documented(
        "Core ML, from iOS 17",
        COREML,
        {
            "activation": f"{_MIL}, quantize: int8 or uint8",
            "weight": f"{_MIL}, constexpr_affine_dequantize: int8 or uint8",
            "activation_symmetric": f"{_MIL}, quantize: any zero point",
            "weight_symmetric": f"{_MIL}, constexpr_affine_dequantize: a zero point of 0 needs none stored",
            "per_channel": f"{_MIL}, constexpr_affine_dequantize: one scale along an axis",
            "ops": f"{_CT}: convolutions and linear layers",
            "bias": f"{_MIL}, conv and linear: bias in the dtype of the output",
            "weight_qdq": f"{_MIL}: codes behind a constexpr_affine_dequantize",
            "fused_output": f"{_NONE}: quantize and dequantize stand anywhere",
            "follow": f"{_CT}: additions, concatenation and pooling between quantised layers",
            "residual": f"{_NONE}: both operands are quantised, or neither",
            "excite": _NONE,
            "attention": _NONE,
            "share": f"{_CT}: max pooling and shape operators take the parameters of their input",
            "absorb": f"{_CT}: activations are fused with the layer before them",
            "expand": _NONE,
            "fuse": "not claimed: nothing was measured on a device",
            "fuse_constants": "not claimed: nothing was measured on a device",
            "gates": "not claimed: nothing was measured on a device",
            "spell": _NONE,
            "no_zero_point": _NONE,
            "fixed_output": _NONE,
            "one_scale": _NONE,
            "narrow_weights": _NONE,
            "guard": _NONE,
        },
    ),
}
"""Every scheme, by name."""

_PROSE: Mapping[str, str] = {
    "activation": "activations",
    "weight": "weights",
    "activation_symmetric": "activations symmetric",
    "weight_symmetric": "weights symmetric",
    "per_channel": "weights per output channel",
    "ops": "layers in integers",
    "bias": "bias",
    "weight_qdq": "float weights with a Q/DQ pair",
    "fused_output": "output must be quantised",
    "follow": "followers, a range each",
    "residual": "one operand in float, of the layer's kernel",
    "excite": "products with a factor per channel",
    "attention": "products around a softmax",
    "share": "take the input's parameters",
    "absorb": "activations that vanish into the range",
    "expand": "spelled out, in integers",
    "fuse": "activations in the kernel, in float",
    "fuse_constants": "likewise with a constant",
    "gates": "gates g of x · g(x) likewise",
    "spell": "spelled out, in float",
    "no_zero_point": "inputs without zero point",
    "fixed_output": "fixed output (scale, zero point)",
    "one_scale": "one scale for inputs and output",
    "narrow_weights": "weights in 7 bits",
    "guard": "Clip ahead of float layers",
}


def table(name: str) -> str:
    """A scheme as a Markdown table: what, the value, and where that stands.

    Args:
        name: One of `SCHEMES`.
    """
    held = SCHEMES[name]
    rows = ["| | | source |", "|---|---|---|"]
    for field in fields(QuantScheme):
        value = _words(getattr(held.scheme, field.name))
        rows.append(f"| {_PROSE[field.name]} | {value} | {held.sources[field.name]} |")
    return "\n".join(rows)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{op} ({1 / scale:g}⁻¹, {zero})" for op, (scale, zero) in value.items()) or "–"
    if isinstance(value, tuple):
        return ", ".join(value) or "–"
    return str(value)
