"""ONNX's own reference evaluator: slow, pure Python, and the judge of what is correct."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedError
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Backend, Outputs
from ..target import Target
from ._feeds import bad_feeds

if TYPE_CHECKING:
    from ..dataset import Feeds


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """It has none."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The backend."""

    settings: ClassVar[type] = ReferenceSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        here = importlib.util.find_spec("onnx") and importlib.util.find_spec("onnx_ir")
        return None if here else "pip install 'edgeproof[optimize]'"

    def targets(self) -> tuple[Target, ...]:
        """One: Python on the CPU."""
        return (Target("reference:cpu", "reference", "cpu"),)

    def compile(self, model: Model, target: Target) -> ReferenceSession:
        """Make it ready to run."""
        return ReferenceSession(model, target)


class ReferenceSession:
    """A model under the reference evaluator."""

    def __init__(self, model: Model, target: Target) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        self._model = model
        try:
            self._evaluator: Any = ReferenceEvaluator(onnx.load_model_from_string(model.to_bytes()))
        except Exception as e:
            raise UnsupportedError(
                "backend.refused",
                f"{model.name} on {target.name}",
                " ".join(str(e).split())[:400] or type(e).__name__,
                "run 'edgeproof inspect' on the model for its findings",
            ) from e

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch."""
        names = [o.name for o in self._model.outputs]
        try:
            values = self._evaluator.run(names, dict(feeds))
        except Exception as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[:200]) from e
        return dict(zip(names, values, strict=True))

    def layers(self) -> tuple[LayerTime, ...]:
        """It keeps no times."""
        return ()

    def placement(self) -> Placement:
        """Every node runs in Python."""
        nodes = tuple((n.name or n.op_type, n.op_type, "python", "") for n in self._model.graph.graph)
        return Placement(nodes, (), "reference evaluator")

    def close(self) -> None:
        """Nothing to free."""


IMPL: type[Backend] = Reference
