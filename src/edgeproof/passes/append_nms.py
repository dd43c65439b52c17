"""Append non-maximum suppression to a detector, so that boxes leave the device ready for use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..change import Change
from ..model import Model
from ..protocols import Context, Pass
from ..tensorrt.nms import OUTPUTS, Suppression, append_nms


@dataclass(frozen=True, slots=True)
class AppendNms(Suppression):
    """Append it; what it keeps is said by the settings of `tensorrt.nms.Suppression`.

    Attributes:
        form: ``plugin`` is TensorRT's EfficientNMS_TRT, ``onnx`` standard operators.
    """

    form: Literal["plugin", "onnx"] = "plugin"

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is.

        Raises:
            InputError: append_nms.tensor, append_nms.value. UnsupportedError: append_nms.opset.
        """
        del context
        if not self.boxes or not self.scores:
            return Change.none(model, ("outputs", "the settings boxes and scores name no tensors"))
        graph = model.graph.clone()
        append_nms(graph, self, self.form)
        made = "EfficientNMS_TRT" if self.form == "plugin" else "NonMaxSuppression and what sorts its result"
        lines = (f"{made} behind {self.boxes} and {self.scores}", f"outputs are now {', '.join(OUTPUTS)}")
        return Change(Model.of(graph, model.name), True, lines)


IMPL: type[Pass] = AppendNms
