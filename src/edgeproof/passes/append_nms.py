"""Append non-maximum suppression to a detector, so that boxes leave the device ready for use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..change import Change
from ..model import Model
from ..protocols import Context, Pass
from ..tensorrt.nms import OUTPUTS, Suppression, append_nms


@dataclass(frozen=True, slots=True)
class AppendNms:
    """Append it; see `tensorrt.nms`.

    Attributes:
        boxes: Tensor [N, B, 4]; the same as ``scores`` where one tensor [N, 4 + C, B] or [N, B, 4 + C] has both.
        scores: Tensor [N, B, C].
        form: ``plugin`` is TensorRT's EfficientNMS_TRT, ``onnx`` standard operators.
        max_boxes: Detections per image, at most.
        iou: Boxes that overlap a better one by more are dropped.
        score: Boxes with less are dropped.
        centre: Boxes are centre, width and height instead of two corners.
        agnostic: Boxes of different classes suppress each other.
        sigmoid: Scores are logits.
    """

    boxes: str = ""
    scores: str = ""
    form: Literal["plugin", "onnx"] = "plugin"
    max_boxes: int = 100
    iou: float = 0.5
    score: float = 0.25
    centre: bool = False
    agnostic: bool = False
    sigmoid: bool = False

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is.

        Raises:
            InputError: append_nms.tensor, append_nms.value. UnsupportedError: append_nms.opset.
        """
        del context
        if not self.boxes or not self.scores:
            return Change.none(model, ("outputs", "the settings boxes and scores name no tensors"))
        graph = model.graph.clone()
        wanted = Suppression(
            self.boxes, self.scores, self.max_boxes, self.iou, self.score, self.centre, self.agnostic, self.sigmoid
        )
        append_nms(graph, wanted, self.form)
        made = "EfficientNMS_TRT" if self.form == "plugin" else "NonMaxSuppression and what sorts its result"
        lines = (f"{made} behind {self.boxes} and {self.scores}", f"outputs are now {', '.join(OUTPUTS)}")
        return Change(Model.of(graph, model.name), True, lines)


IMPL: type[Pass] = AppendNms
