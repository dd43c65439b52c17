"""What training makes small, as data: each engine computes it in its own arithmetic.

``mse``: mean squared difference to the teacher, over the variance of the teacher's values (of several samples together:
the two scores of one may be nearly alike), so that tensors of any size weigh alike. ``kl``:
T² · KL(softmax(teacher / T) ‖ softmax(student / T)) along the last axis, per row (Hinton et al. 2015, *Distilling the
Knowledge in a Neural Network*). ``cross_entropy``: of the student's logits and class indices.
``relation``: mean squared difference of the cosine similarities between a batch's samples (Park et al. 2019,
*Relational Knowledge Distillation*, with similarity in the place of distance).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["mse", "kl", "cross_entropy", "relation"]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a loss.

    Attributes:
        kind: See the module.
        tensor: Which tensor of the student; the teacher's has the same name in what is wanted.
        weight: Of this part in the sum.
        temperature: For ``kl``.
        variance: Of the teacher's values, for ``mse``; 0 takes that of the very step.
    """

    kind: Kind
    tensor: str
    weight: float = 1.0
    temperature: float = 1.0
    variance: float = 0.0


def distillation(logits: str, *, temperature: float = 4.0, share: float = 0.9) -> tuple[Term, ...]:
    """Hinton's loss for a classifier with labels: share · T² KL + (1 − share) · cross entropy.

    Args:
        logits: The tensor.
        temperature: T.
        share: Of the teacher; the rest is the labels'.
    """
    return Term("kl", logits, share, temperature), Term("cross_entropy", logits, 1 - share)
