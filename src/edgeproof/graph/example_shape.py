"""An example of sizes for an open input, for hints: what the model declares, and nothing made up."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import TensorSpec

PICTURE = 224
"""Height and width of the example for classifiers of pictures, the most common size there is."""


def example_shape(spec: TensorSpec, outputs: Sequence[TensorSpec] = ()) -> str:
    """Sizes for ``--shape``: the declared ones, 1 for an open batch, and words in capitals for what only a user knows.

    Height and width of a picture ([N, C, H, W] with 1 or 3 channels) are numbers where the model gives one row of
    scores or a map for it: most sizes then do. A model that gives a sequence may read lines of text of its own height.

    >>> example_shape(TensorSpec("x", "float32", ("n", 3, "h", "w")), [TensorSpec("y", "float32", ("n", 1000))])
    '1,3,224,224'
    >>> example_shape(TensorSpec("input_ids", "int64", ("batch", "sequence")))
    '1,SEQUENCE'
    """
    if spec.shape is None:
        return "SIZES"
    shape = spec.shape
    ranks = {len(o.shape) for o in outputs if o.shape is not None}
    picture = len(shape) == 4 and shape[1] in (1, 3) and bool(ranks) and ranks <= {2, 4}
    whole = picture and all(isinstance(d, str) for d in shape[2:])
    sizes = []
    for i, dim in enumerate(shape):
        if isinstance(dim, int):
            sizes.append(str(dim))
        elif i == 0 and len(shape) > 1:
            sizes.append("1")
        elif whole:
            sizes.append(str(PICTURE))
        elif len(shape) == 4 and shape[1] in (1, 3) and i >= 2:
            sizes.append(("HEIGHT", "WIDTH")[i - 2])
        else:
            sizes.append(dim.upper() if dim.isidentifier() and dim.isascii() and len(dim) <= 20 else "SIZE")
    return ",".join(sizes)
