"""Store weights of matrix products and look-up tables in 4 or 8 bits, in blocks; everything is computed in float.

For models whose time or memory goes into reading weights. No sample is needed. In ONNX's own operators a weight is a
blocked DequantizeLinear (opset 21), which ONNX Runtime fuses with the product; ``form=nbits`` writes ONNX Runtime's
MatMulNBits itself, which needs no later opset and can round activations to 8 bits while it multiplies. Convolutions
(``ops=Conv,…``) have one scale per output channel: blocks along their input channels would cost more than they save.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..change import Change
from ..errors import InputError, did_you_mean
from ..graph.opset import raised
from ..graph.rewrite import Editor, array, label
from ..model import Model, attribute
from ..protocols import Context, Pass
from ..quant.blocks import SHRINK, Blocks, quantize_blocks
from ..quant.layers import Scope, kept
from ..quant.numerics import sqnr_db

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 21
"""First opset whose DequantizeLinear takes blocks and 4-bit codes."""

OPS = ("MatMul", "Gemm", "Gather")
KNOWN = (*OPS, "Conv")
"""A convolution is taken when it is named: runtimes compute it in float from a smaller file, and mostly no faster."""

FORMS = ("onnx", "nbits")
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class WeightOnly:
    """Weight-only quantisation.

    Attributes:
        bits: 4 or 8.
        block: Numbers that share a scale, along the axis that is summed over; 0 makes one block of it all.
        symmetric: Zero point fixed; otherwise every block has its own, which costs some bytes and gains accuracy.
        form: ``onnx`` (blocked DequantizeLinear) or ``nbits`` (ONNX Runtime's MatMulNBits; blocks of 16, 32, 64, …).
        integer: For ``nbits``: round activations to 8 bits too, which is faster and less accurate.
        ops: Operators whose weights are stored so, comma separated: MatMul, Gemm, Gather, and Conv (form ``onnx``, one
            scale per output channel).
        keep: What stays in float: node names, operators or output names, comma separated; ``*`` and ``?`` match.
        least: Weights with fewer numbers stay in float.
    """

    bits: int = 4
    block: int = 32
    symmetric: bool = False
    form: str = "onnx"
    integer: bool = False
    ops: str = ",".join(OPS)
    keep: str = ""
    least: int = 1024

    def __call__(self, model: Model, context: Context) -> Change:
        """Store weights in blocks.

        Raises:
            InputError: weight_only.bits, weight_only.block, weight_only.form, weight_only.ops.
        """
        scope = self._checked()
        graph = model.graph.clone()
        editor = Editor(graph)
        wanted = self._wanted(editor, scope)
        if not wanted:
            return Change.none(model, *(editor.declined or [(model.name, f"has none of {self.ops}")]))
        if self.form == "onnx":
            opset = editor.opset
            made = raised(graph, OPSET)
            if isinstance(made, str):
                return Change.none(model, (model.name, f"opset {opset} has no blocked Q/DQ, and {made}"))
            if made is not graph:
                # The converted graph is another: look again.
                graph, editor = made, Editor(made)
                wanted = self._wanted(editor, scope)
        writer = _Writer(self, editor)
        for node, index in wanted:
            writer.write(node, index)
        _sweep(graph)
        if self.form == "nbits":
            graph.opset_imports[MICROSOFT] = 1
        result = Model.of(graph, model.name)
        facts = {"bits": self.bits, "block": self.block, "weights": writer.facts}
        return Change(result, True, tuple(writer.applied), editor.declined, facts)

    def _checked(self) -> Scope:
        ops = tuple(part.strip() for part in self.ops.split(",") if part.strip())
        for op in ops:
            if op not in KNOWN:
                raise InputError("weight_only.ops", op, "has no weight that is stored so", did_you_mean(op, KNOWN))
        if self.form not in FORMS:
            raise InputError("weight_only.form", self.form, "is no form", did_you_mean(self.form, FORMS))
        if self.bits not in (4, 8):
            raise InputError("weight_only.bits", "bits", f"is {self.bits}; expected 4 or 8", "give 4 or 8")
        power = self.block >= 16 and self.block & (self.block - 1) == 0
        if self.block < 0 or (self.form == "nbits" and not power):
            want = "a power of two from 16" if self.form == "nbits" else "0 or more"
            raise InputError("weight_only.block", "block", f"is {self.block}; expected {want}", "try 32")
        return Scope(keep=tuple(part.strip() for part in self.keep.split(",") if part.strip()), ops=ops)

    def _wanted(self, editor: Editor, scope: Scope) -> list[tuple[ir.Node, int]]:
        """Nodes with the index of the weight that is to be stored in blocks."""
        found = []
        for node in editor.nodes(*(scope.ops or OPS)):
            inner = node.graph is not editor.model.graph
            reason = "inside the body of a control-flow operator" if inner else self._reason(node, scope)
            if reason is None:
                found.append((node, _place(node)))
            else:
                editor.decline(node, reason)
        return found

    def _reason(self, node: ir.Node, scope: Scope) -> str | None:
        """Why a node's weight stays as it is; None when it is to be stored in blocks."""
        reason = kept(node, scope)
        if reason is not None:
            return reason
        if len(node.inputs) < 2:
            return f"has {len(node.inputs)} of the two inputs that it needs"
        value = node.inputs[_place(node)]
        weight = array(value)
        if value is None or weight is None:
            return "its weight is not a constant"
        if weight.dtype != np.float32:
            return f"its weight is {weight.dtype.name}; only float32 is stored in blocks"
        if weight.size < self.least:
            return f"its weight has {weight.size} numbers; the setting least={self.least} leaves it in float"
        if not np.isfinite(weight).all():
            return "its weight holds values that are NaN or infinite"
        if node.op_type == "Conv" and self.form == "nbits":
            return "ONNX Runtime has no convolution of such weights; the form onnx has"
        if (
            weight.ndim != 2
            and node.op_type != "Conv"
            and (node.op_type != "MatMul" or weight.ndim < 2 or self.form == "nbits")
        ):
            return f"its weight has rank {weight.ndim}; expected 2"
        for use in value.uses():
            if use.node.op_type not in (scope.ops or OPS) or use.idx != _place(use.node) or kept(use.node, scope):
                return f"its weight is also read by {label(use.node)}, which stays in float"
        if node.op_type == "Gather" and attribute(node, "axis", 0) not in (0, -2):
            return f"it gathers along axis {attribute(node, 'axis', 0)}; only rows of a table are stored in blocks"
        if node.op_type != "Gather" and array(node.inputs[0]) is not None:
            return "its input is a constant; fold constants first"
        if self.form == "nbits" and node.op_type == "Gemm":
            plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
            if not plain or attribute(node, "transA", 0):
                return "has transA, alpha or beta, which MatMulNBits lacks"
        return None


class _Writer:
    """Writes weights in blocks, each once."""

    def __init__(self, settings: WeightOnly, editor: Editor) -> None:
        self.settings = settings
        self.editor = editor
        self.applied: list[str] = []
        self.facts: dict[str, Any] = {}
        self._stored: dict[tuple[str, int], ir.Value] = {}

    def write(self, node: ir.Node, index: int) -> None:
        """Store one node's weight."""
        value = node.inputs[index]
        weight = array(value)
        assert value is not None
        assert weight is not None
        settings, name = self.settings, value.name or "weight"
        gather = node.op_type == "Gather"
        axis = weight.ndim - 1 if gather or attribute(node, "transB", 0) else weight.ndim - 2
        # ONNX's Gather takes no 4-bit codes, so tables have 8 bits in its form.
        bits = 8 if gather and settings.form == "onnx" else settings.bits
        self.applied.append(f"stored the weight of {label(node)} ({node.op_type}) in {bits} bits")
        if node.op_type == "Conv":
            if (name, -1) not in self._stored:
                self._stored[name, -1] = self._channels(name, weight, bits)
            node.replace_input_with(index, self._stored[name, -1])
            return
        if settings.form == "onnx" and not gather:
            if (name, axis) not in self._stored:
                self._stored[name, axis] = self._dequantize(name, self._blocks(name, weight, axis, bits))
            node.replace_input_with(index, self._stored[name, axis])
            return
        blocks = self._blocks(name, weight, axis, bits)
        if gather:
            (self._gather if settings.form == "onnx" else self._gather_nbits)(node, name, blocks)
        else:
            self._matmul_nbits(node, name, blocks)

    def _channels(self, name: str, weight: NDArray[np.float32], bits: int) -> ir.Value:
        """A convolution's weight with a scale, and perhaps a zero point, per output channel."""
        import onnx_ir as ir

        rows = self._blocks(name, weight.reshape(len(weight), -1), 1, bits, size=0)
        shaped = replace(
            rows,
            codes=rows.codes.reshape(weight.shape),
            scale=rows.scale.reshape(-1),
            zero_point=rows.zero_point.reshape(-1),
        )
        graph = self.editor.model.graph
        like = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(weight.shape))
        return self.editor.insert(graph[0], "DequantizeLinear", self._constants(name, shaped), like, axis=0)

    def _blocks(self, name: str, weight: NDArray[np.float32], axis: int, bits: int, size: int | None = None) -> Blocks:
        s = self.settings
        shrink = SHRINK if bits < 8 else (1.0,)
        block = s.block if size is None else size
        blocks = quantize_blocks(weight, axis, block, bits, symmetric=s.symmetric, shrink=shrink)
        quality = sqnr_db(weight, blocks.dequantized())
        self.facts[name] = {
            "bits": bits,
            "block": blocks.size,
            "axis": axis,
            "numbers": int(weight.size),
            "sqnr_db": quality if np.isfinite(quality) else None,
        }
        return blocks

    def _constants(self, name: str, blocks: Blocks) -> list[ir.Value]:
        """Codes, scale and, unless symmetric, zero point as initializers."""
        import ml_dtypes

        dtype: Any = {
            (4, True): ml_dtypes.int4,
            (4, False): ml_dtypes.uint4,
            (8, True): np.int8,
            (8, False): np.uint8,
        }[blocks.bits, blocks.symmetric]
        graph = self.editor.model.graph
        kind = np.dtype(dtype).name
        made = [
            self.editor.constant(graph, f"{name}.{kind}", blocks.codes.astype(dtype)),
            self.editor.constant(graph, f"{name}.scale", blocks.scale),
        ]
        if not blocks.symmetric:
            made.append(self.editor.constant(graph, f"{name}.zero_point", blocks.zero_point.astype(dtype)))
        return made

    def _dequantize(self, name: str, blocks: Blocks) -> ir.Value:
        import onnx_ir as ir

        graph = self.editor.model.graph
        like = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(blocks.codes.shape))
        return self.editor.insert(
            graph[0],
            "DequantizeLinear",
            self._constants(name, blocks),
            like,
            axis=blocks.axis,
            block_size=blocks.size,
        )

    def _gather(self, node: ir.Node, name: str, blocks: Blocks) -> None:
        """Gather codes, scales and zero points, then dequantise the rows that were asked for."""
        import onnx_ir as ir

        inputs = []
        for part in self._constants(name, blocks):
            like = ir.Value(name=f"{name}.rows", type=part.type)
            inputs.append(self.editor.insert(node, "Gather", [part, node.inputs[1]], like, axis=0))
        out = self.editor.insert(node, "DequantizeLinear", inputs, node.outputs[0], axis=-1, block_size=blocks.size)
        self._take_over(node, out)

    def _gather_nbits(self, node: ir.Node, name: str, blocks: Blocks) -> None:
        codes, *rest = self._constants(name, blocks)
        out = self.editor.insert(
            node,
            "GatherBlockQuantized",
            [codes, node.inputs[1], *rest],
            node.outputs[0],
            gather_axis=0,
            quantize_axis=1,
            block_size=self.settings.block,
            bits=blocks.bits,
        )
        self._microsoft(out)
        self._take_over(node, out)

    def _matmul_nbits(self, node: ir.Node, name: str, blocks: Blocks) -> None:
        """One MatMulNBits, and an Add for Gemm's bias."""
        graph = self.editor.model.graph
        if blocks.axis == 0:  # MatMulNBits wants [N, K]
            blocks = Blocks(
                blocks.codes.T, blocks.scale.T, blocks.zero_point.T, 1, blocks.size, blocks.bits, blocks.symmetric
            )
        rows, length = blocks.codes.shape
        packed = nbits(blocks, self.settings.block)
        inputs: list[ir.Value | None] = [node.inputs[0]]
        inputs += [
            self.editor.constant(graph, f"{name}.{part}", value)
            for part, value in zip(("packed", "scale", "zero_point"), packed, strict=False)
            if value is not None
        ]
        out = self.editor.insert(
            node,
            "MatMulNBits",
            inputs,
            node.outputs[0],
            K=length,
            N=rows,
            bits=blocks.bits,
            block_size=self.settings.block,
            accuracy_level=4 if self.settings.integer else 1,
        )
        self._microsoft(out)
        if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
            out = self.editor.insert(node, "Add", [out, node.inputs[2]], node.outputs[0])
        self._take_over(node, out)

    def _microsoft(self, out: ir.Value) -> None:
        maker = out.producer()
        assert maker is not None
        maker.domain = MICROSOFT

    def _take_over(self, node: ir.Node, out: ir.Value) -> None:
        assert self.editor.replace(node.outputs[0], out)
        self.editor.remove(node)


def nbits(blocks: Blocks, size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8] | None]:
    """A weight as MatMulNBits stores it.

    Args:
        blocks: Codes [N, K] in blocks along axis 1.
        size: Numbers to a block, as declared; the last block is filled up with zeros.

    Returns:
        Codes uint8 [N, blocks, size · bits / 8], two 4-bit codes to a byte, the first in the low half; scales float32
        [N · blocks]; zero points uint8 packed likewise per row, or None when they are 2^(bits - 1), the default.

    Source: ONNX Runtime, contrib operator com.microsoft.MatMulNBits.
    """
    rows, length = blocks.codes.shape
    count = blocks.scale.shape[1]
    middle = 2 ** (blocks.bits - 1) if blocks.symmetric else 0
    zero = (blocks.zero_point + middle).astype(np.uint8)
    codes = np.repeat(zero, size, axis=1)
    codes[:, :length] = blocks.codes + middle
    packed = _halves(codes.reshape(rows, count, size), blocks.bits)
    scales = np.ascontiguousarray(blocks.scale).reshape(-1)
    if blocks.symmetric:
        return packed, scales, None
    if blocks.bits == 4 and count % 2:
        zero = np.concatenate([zero, np.zeros((rows, 1), np.uint8)], axis=1)
    return packed, scales, np.ascontiguousarray(_halves(zero, blocks.bits)).reshape(-1)


def _halves(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Two 4-bit codes to a byte along the last axis, which is even; 8-bit ones as they are."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    packed: NDArray[np.uint8] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
    return packed


def _place(node: ir.Node) -> int:
    return 0 if node.op_type == "Gather" else 1


def _sweep(graph: ir.Model) -> None:
    """Remove float weights that nobody reads any more."""
    for node in list(graph.graph):
        if node.op_type == "Constant" and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.graph.remove(node, safe=True)
    for name in [n for n, v in graph.graph.initializers.items() if not v.uses() and not v.is_graph_output()]:
        del graph.graph.initializers[name]


IMPL: type[Pass] = WeightOnly
