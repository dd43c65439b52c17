"""Models with open dimensions on runtimes that convert for fixed ones: the arrays that they are fed tell the sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..graph.shapes import closed
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Outputs, Session
from ._feeds import check_feeds

if TYPE_CHECKING:
    from ..dataset import Feeds

HELD = 8
"""Conversions that are kept, one for each set of sizes; of more, the one that was used longest ago is made again."""


class OpenSession:
    """A session that converts a model for the sizes of the arrays that it is given.

    Args:
        model: With open dimensions.
        convert: Makes a session of a model whose inputs have fixed sizes.
    """

    def __init__(self, model: Model, convert: Callable[[Model], Session]) -> None:
        self._model, self._convert = model, convert
        self._made: OrderedDict[tuple[tuple[str, tuple[int, ...]], ...], Session] = OrderedDict()

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch; the first of its sizes is converted for.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
            UnsupportedError: what the runtime refuses.
        """
        check_feeds(self._model, feeds)
        sizes = tuple(sorted((name, tuple(array.shape)) for name, array in feeds.items()))
        if sizes not in self._made:
            self._made[sizes] = self._convert(closed(self._model, dict(sizes)))
            while len(self._made) > HELD:
                self._made.popitem(last=False)[1].close()
        self._made.move_to_end(sizes)
        return self._made[sizes].run(feeds)

    def placement(self) -> Placement:
        """That of the latest conversion; nothing before the first."""
        if not self._made:
            return Placement((), (), "nothing ran yet, and the sizes of the inputs are open")
        return next(reversed(self._made.values())).placement()

    def layers(self) -> tuple[LayerTime, ...]:
        """Those of the latest conversion."""
        return next(reversed(self._made.values())).layers() if self._made else ()

    def close(self) -> None:
        """Free all conversions."""
        for session in self._made.values():
            session.close()
        self._made.clear()
