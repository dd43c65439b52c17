"""Fold constant scales and offsets around convolutions and matrix products into their weights.

The algebra, and what is left alone, stand in ``graph/absorb.py``. Run it after ``fuse_activation``: it would move the
+ 3 or the / 6 of a spelled-out hard-swish into neighbouring weights and leave no pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..graph.absorb import COPY_LIMIT_BYTES, absorb
from ..graph.affine import MIN_OPSET
from ..graph.rewrite import Editor
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .infer_shapes import rewrite as infer_shapes

OPS = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True, slots=True)
class FoldAffine:
    """Fold constant scales and offsets around convolutions and matrix products into their weights.

    Attributes:
        before: Also fold what comes before a convolution or Gemm, into all that read it.
        copy_limit_bytes: A weight that other nodes use too is copied only up to this size.
    """

    before: bool = True
    copy_limit_bytes: int = COPY_LIMIT_BYTES

    def __call__(self, model: Model, context: Context) -> Change:
        """Fold until nothing folds any more; the given model is left as it is."""

        def fold(editor: Editor) -> None:
            absorb(editor, *OPS, before=self.before, copy_limit_bytes=self.copy_limit_bytes)

        opset = model.graph.opset_imports.get("", MIN_OPSET)
        if opset < MIN_OPSET:
            return Change.none(model, ("model", f"opset {opset} is below {MIN_OPSET}; convert it first"))
        return run_rules(model, (infer_shapes, fold), rounds=1)


def rewrite(editor: Editor) -> None:
    """Batch norms too, so that a chain of them and of scales is rounded once."""
    absorb(editor, *OPS, "BatchNormalization")


IMPL: type[Pass] = FoldAffine
