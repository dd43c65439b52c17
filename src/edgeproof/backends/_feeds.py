"""Whether arrays fit a model's inputs, for runtimes that convert, broadcast or crash instead of saying so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError
from ..model import Model

if TYPE_CHECKING:
    from ..dataset import Feeds


def check_feeds(model: Model, feeds: Feeds) -> None:
    """Refuse arrays with another name, dtype or shape than the inputs declare.

    Raises:
        InputError: session.feeds.
    """
    specs = {s.name: s for s in model.inputs}
    for name in (*specs, *feeds):
        if (name in specs) != (name in feeds):
            raise bad_feeds(model, feeds, f"{name} is {'missing' if name in specs else 'no input'}")
    for name, found in feeds.items():
        spec = specs[name]
        if str(found.dtype) != spec.dtype:
            raise bad_feeds(model, feeds, f"{name} is {found.dtype}")
        sizes = found.shape if spec.shape is None else spec.shape
        if len(sizes) != found.ndim or any(
            isinstance(w, int) and w != g for w, g in zip(sizes, found.shape, strict=True)
        ):
            raise bad_feeds(model, feeds, f"{name} has the shape {list(found.shape)}")


def bad_feeds(model: Model, feeds: Feeds, why: str) -> InputError:
    """The error for arrays that a runtime could not run on.

    Args:
        model: The model.
        feeds: What was given.
        why: What did not fit, in a few words.
    """
    expected = ", ".join(map(str, model.inputs))
    got = ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in feeds.items())
    return InputError(
        "session.feeds",
        model.name,
        f"could not run on {got or 'nothing'}; expected {expected} ({why})",
        "check the data's shape, dtype and preprocessing",
    )
