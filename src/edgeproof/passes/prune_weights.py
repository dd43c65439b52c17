"""Set the smallest weights to zero: of the whole model, of each layer, or two of every four (2:4).

Zeros make a model no faster by themselves: 2:4 is what NVIDIA's sparse tensor cores use, other patterns serve smaller
downloads and further training. Shapes stay. See docs/pruning.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..change import Change
from ..model import Model
from ..protocols import Context, Pass
from ..prune.magnitude import masks, zeroed


@dataclass(frozen=True, slots=True)
class PruneWeights:
    """Unstructured and 2:4 magnitude pruning.

    Attributes:
        pattern: ``global``, ``layer`` or ``2:4``.
        sparsity: Share of zeros; with ``2:4`` it is one half.
        exclude: Layers left alone: node names, operators or patterns, comma separated; ``*`` and ``?`` match.
    """

    pattern: str = "global"
    sparsity: float = 0.5
    exclude: str = ""

    def __call__(self, model: Model, context: Context) -> Change:
        """Zero weights.

        Raises:
            InputError: prune.pattern, prune.sparsity, prune.exclude.
        """
        exclude = tuple(p.strip() for p in self.exclude.split(",") if p.strip())
        stays, declined = masks(model, self.pattern, self.sparsity, exclude=exclude)
        if not stays:
            return Change.none(model, *(declined or ((model.name, "has no layer with constant weights"),)))
        result = zeroed(model, stays)
        if result.digest == model.digest:
            return Change.none(model, *declined, (model.name, "has those zeros already"))
        total = sum(m.size for m in stays.values())
        zeros = {name: int(np.count_nonzero(~m)) for name, m in stays.items()}
        applied = tuple(f"{name}: {zeros[name]} of {m.size} weights became zero" for name, m in stays.items())
        facts = {
            "weights": total,
            "zeros": sum(zeros.values()),
            "by_weight": {n: [stays[n].size, z] for n, z in zeros.items()},
        }
        return Change(result, True, applied, declined, facts)


IMPL: type[Pass] = PruneWeights
