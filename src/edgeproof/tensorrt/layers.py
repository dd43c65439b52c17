"""The layers that an engine executes: from the engine inspector's JSON, or from the log of the build.

TensorRT for RTX opens no engine without a GPU, but its log has the same table. It is the graph as compiled ahead of
time: the kernels are chosen on the device.
Source: *Engine Inspector*, TensorRT developer guide; the log of TensorRT for RTX 1.7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..measurement import Placement

_TYPES = {
    "float": "float",
    "fp32": "float",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "uint8",
    "fp8": "float8e4m3fn",
    "int4": "int4",
    "fp4": "float4e2m1",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
}
_FIELD = re.compile(r"(?:^|, )(Inputs|Constants|Outputs|TacticName|StreamId|Metadata): ?")
_HEAD = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*)")
_TYPE = re.compile(r"Datatype: (\w+)")
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\[]|$)")
MOVING = frozenset({"Cast", "Move", "Copy", "Tran", "Resh", "Repl", "Refo", "Conc"})
"""Parts of a fused kernel's name that compute nothing: they change type or place."""
CODING = frozenset({"Mul", "Div", "Min", "Max", "Roun"})
"""Parts that make codes of floats, or floats of codes, together with a cast."""
_PARTS = re.compile(r"[A-Z][a-z0-9]*")


@dataclass(frozen=True, slots=True)
class Layer:
    """One executed layer.

    Attributes:
        name: TensorRT's.
        kind: Its type, e.g. ``runtime_fusion``, ``CaskConvolution``.
        inputs: Type of each input, as ONNX calls it.
        outputs: Type of each output.
        nodes: Nodes of the model that it stands for.
        tactic: The kernel, where it is chosen already.
        constants: Type of each constant that it reads.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    tactic: str = ""
    constants: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The model's nodes that it stands for; TensorRT's name where it tells none."""
        return " + ".join(self.nodes) or self.name

    @property
    def place(self) -> str:
        """Where it runs: the inspector calls what a DLA core executes a layer of type ``DLA``."""
        return "DLA" if self.kind == "DLA" else "GPU"

    @property
    def precision(self) -> str:
        """Of its first output."""
        return self.outputs[0] if self.outputs else ""

    @property
    def multiplies(self) -> bool:
        """Whether it holds a convolution or a matrix product."""
        parts = set(_parts(self.name))
        return bool(parts & {"Corr", "Conv", "Gemm", "Fc", "Mma", "Dconv", "Deconv"}) or any(
            word in self.kind.lower() for word in ("correlation", "convolution", "gemm", "matrix_multiply", "fc")
        )

    @property
    def integers(self) -> bool:
        """Whether it multiplies 8-bit integers: a multiplying layer that reads nothing but them beside its constants.

        A fused layer may also read a float tensor for a sum behind the product, so one input is enough.
        """
        return self.multiplies and "int8" in self.inputs and ("int8" in self.constants or self.inputs.count("int8") > 1)

    @property
    def moves(self) -> bool:
        """Whether it only changes type or layout, quantisation included."""
        parts, kind = set(_parts(self.name)), self.kind.lower()
        if kind in ("reformat", "noop", "shuffle", "cast", "quantize", "dequantize"):
            return True
        coded = (self.precision == "int8") != ("int8" in self.inputs)
        return kind in ("kgen", "myelin") and bool(parts) and parts <= (MOVING | CODING if coded else MOVING)


def from_inspector(text: str) -> tuple[Layer, ...]:
    """Layers from ``IEngineInspector.get_engine_information(LayerInformationFormat.JSON)``.

    Args:
        text: The JSON. An engine without layer information has names only.
    """
    value = json.loads(text) if text.strip() else {}
    found = value.get("Layers", []) if isinstance(value, Mapping) else []
    return tuple(_of_json(item) for item in found)


def from_log(messages: Iterable[str]) -> tuple[Layer, ...]:
    """Layers from the lines of a verbose log that hold ``LayerType:``; a table that is said twice counts once.

    Args:
        messages: What the logger was given.
    """
    found: dict[str, Layer] = {}
    for message in messages:
        for line in message.splitlines():
            head = _HEAD.match(line.strip())
            if head is not None:
                layer = _of_line(line.strip(), head)
                found.setdefault(layer.name, layer)
    return tuple(found.values())


def placement(layers: Sequence[Layer], device: str, fallbacks: Sequence[tuple[str, str]], source: str) -> Placement:
    """The same as what other runtimes tell.

    Args:
        layers: In order of execution.
        device: Where.
        fallbacks: (node, why) for what does not run where it was asked to.
        source: Which record it was read from.
    """
    nodes = tuple((layer.label, layer.kind, device, layer.precision) for layer in layers)
    return Placement(nodes, tuple(fallbacks), source)


def _of_line(line: str, head: re.Match[str]) -> Layer:
    parts = _FIELD.split(line[head.end() :])
    held = dict(zip(parts[1::2], parts[2::2], strict=False))
    types = {
        key: tuple(_type(t) for t in _TYPE.findall(held.get(key, ""))) for key in ("Inputs", "Constants", "Outputs")
    }
    return Layer(
        head["name"],
        head["kind"].strip(),
        types["Inputs"],
        types["Outputs"],
        tuple(_NODE.findall(held.get("Metadata", ""))),
        held.get("TacticName", "").strip(),
        types["Constants"],
    )


def _of_json(item: Any) -> Layer:
    if not isinstance(item, Mapping):  # verbosity "layer names only"
        return Layer(str(item), "")
    tensors = {
        k: tuple(_type_of(t) for t in item.get(k, ()) if isinstance(t, Mapping))
        for k in ("Inputs", "Outputs", "Constants")
    }
    return Layer(
        str(item.get("Name", "")),
        str(item.get("LayerType", "")),
        _known(tensors["Inputs"]),
        _known(tensors["Outputs"]),
        tuple(_NODE.findall(str(item.get("Metadata", "")))),
        str(item.get("TacticName", "")),
        _known(tensors["Constants"]),
    )


def _known(types: Iterable[str]) -> tuple[str, ...]:
    """Types that are told; an engine built without layer information tells none."""
    return tuple(t for t in types if t)


def _type_of(tensor: Mapping[str, Any]) -> str:
    """``Datatype`` where the inspector has it, else a word of ``Format/Datatype``, e.g. "Row major linear FP32"."""
    text = str(tensor.get("Datatype") or tensor.get("Format/Datatype") or tensor.get("Format") or "")
    return next((_TYPES[w] for w in re.findall(r"[a-z]+\d*", text.lower()) if w in _TYPES), "")


def _type(text: str) -> str:
    return _TYPES.get(text.lower(), text.lower())


def _parts(name: str) -> list[str]:
    """``__myl_CorrMulAdd_myl0_42`` → Corr, Mul, Add; ``Conv@29_myl0_39`` → Conv."""
    core = re.sub(r"_myl\d+_\d+$", "", name.removeprefix("__myl_"))
    return _PARTS.findall(core.partition("@")[0])
