"""The tools of the table: peer, driver and settings. All quantise every convolution and matrix product they can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Tool:
    """A column of the table.

    Attributes:
        name: Of its files and for ``--only``.
        title: For people.
        peer: Whose environment it runs in.
        settings: For its driver.
        driver: Part of the driver's name after ``drive_``; the peer's when empty.
        labels: Whether it is given labelled samples to choose by.
        data: Data sets that it is run on; empty: all.
    """

    name: str
    title: str
    peer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    driver: str = ""
    labels: bool = False
    data: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """The driver."""
        return FOLDER / f"drive_{self.driver or self.peer}.py"


MATRIX = {"ops": ["Conv", "ConvTranspose", "Gemm", "MatMul"]}
"""By default ONNX Runtime quantises a detector's decoding too, where boxes and scores then share a range."""

TOOLS = (
    Tool("float", "FP32", "edgeproof", driver="float"),
    Tool("onnxruntime-minmax", "ONNX Runtime MinMax", "onnxruntime", {"method": "MinMax"}),
    Tool(
        "onnxruntime-minmax-matrix", "… convolutions and products only", "onnxruntime", {"method": "MinMax", **MATRIX}
    ),
    Tool("onnxruntime-percentile", "ONNX Runtime Percentile", "onnxruntime", {"method": "Percentile"}),
    Tool(
        "onnxruntime-percentile-matrix",
        "… convolutions and products only",
        "onnxruntime",
        {"method": "Percentile", **MATRIX},
    ),
    Tool("onnxruntime-entropy", "ONNX Runtime Entropy", "onnxruntime", {"method": "Entropy"}),
    Tool("nncf-fast", "NNCF", "nncf"),
    Tool("nncf-bias", "NNCF, full bias correction", "nncf", {"fast_bias_correction": False}),
    Tool(
        "nncf-control",
        "NNCF with accuracy control, 1 %",
        "nncf",
        {"max_drop": 0.01},
        labels=True,
        data=("lines_medium",),
    ),
    Tool("modelopt-max", "ModelOpt max", "modelopt", {"method": "max"}),
    Tool("modelopt-entropy", "ModelOpt entropy", "modelopt", {"method": "entropy"}),
    Tool("aimet-minmax", "AIMET min_max", "aimet", {"scheme": "min_max"}),
    Tool("aimet-enhanced", "AIMET tf_enhanced", "aimet", {"scheme": "tf_enhanced"}),
    Tool("olive-minmax", "Olive", "olive"),
    Tool("edgeproof-int8", "edgeproof int8", "edgeproof", {"passes": [("int8", {})]}),
    Tool("edgeproof-accurate", "edgeproof int8_accurate", "edgeproof", {"passes": [("int8_accurate", {})]}),
    Tool("edgeproof-choice", "edgeproof's choice, 1 %", "edgeproof", {"search": 0.01}, labels=True),
)
