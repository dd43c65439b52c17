"""Fold inference BatchNormalization into the layer before it, or into the convolutions or Gemms after it.

``y = γ·(x − μ)/√(σ² + ε) + β`` is a scale and a shift per channel; the algebra stands in ``graph/absorb.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..graph.absorb import COPY_LIMIT_BYTES, absorb
from ..graph.rewrite import Editor
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import rewrite as infer_shapes


@dataclass(frozen=True, slots=True)
class FoldBatchNorm:
    """Fold batch normalisation.

    Attributes:
        copy_limit_bytes: A weight that other nodes use too is copied only up to this size.
    """

    copy_limit_bytes: int = COPY_LIMIT_BYTES

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""

        def fold(editor: Editor) -> None:
            absorb(editor, "BatchNormalization", copy_limit_bytes=self.copy_limit_bytes)

        return run_rules(model, (freeze_weights, infer_shapes, fold, drop_dead_code))


IMPL: type[Pass] = FoldBatchNorm
