"""LiteRT (TensorFlow Lite) on the processor, with its XNNPACK delegate.

Models are converted by edgeproof itself (`edgeproof.tflite`): INT8 is that of the Q/DQ graph. The session is fed as the
ONNX model is, whatever order of axes the file has. The interpreter keeps no time per operator, so there is no profile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from .. import toolchain
from ..errors import UnsupportedError
from ..files import write_bytes
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Backend, Built, Outputs, Progress
from ..quant.schemes import LITERT
from ..target import Target
from ..tflite.convert import Converted, convert
from ._feeds import bad_feeds, check_feeds
from ._open_shapes import OpenSession
from ._terminal import quiet

if TYPE_CHECKING:
    from ..dataset import Feeds


@dataclass(frozen=True, slots=True)
class LiteRtSettings:
    """What can be set.

    Attributes:
        threads: Threads of the interpreter; 0 lets it decide.
        xnnpack: Let XNNPACK compute what it can; without it, LiteRT's own kernels do.
        half: Store float weights as float16. They are computed in float32 here, in float16 where the device does that.
        layout: Axes of four-dimensional inputs and outputs of the file: ``nchw`` as in ONNX, or ``nhwc`` as cameras
            give images, which saves the Transpose. Sessions are fed as the ONNX model is either way.
        weights: What 8-bit weights under float activations do: ``float`` turns them back into numbers as the file is
            loaded, ``dynamic`` multiplies in integers, with activations that are quantised as they come.
    """

    threads: int = 0
    xnnpack: bool = True
    half: bool = False
    layout: Literal["nchw", "nhwc"] = "nchw"
    weights: Literal["float", "dynamic"] = "float"


@dataclass(frozen=True, slots=True)
class LiteRt:
    """The backend."""

    settings: ClassVar[type] = LiteRtSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return toolchain.missing("litert")

    def targets(self) -> tuple[Target, ...]:
        """The processor."""
        return (Target("litert:cpu", "litert", "cpu", LITERT),)

    def compile(self, model: Model, target: Target) -> LiteRtSession | OpenSession:
        """Convert a model and load it; with open dimensions, for the sizes that it is fed."""
        if any(spec.dynamic for spec in model.inputs):
            return OpenSession(model, lambda fixed: LiteRtSession(fixed, target))
        return LiteRtSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write ``NAME.tflite``, once it has been loaded here."""
        from importlib.metadata import version

        progress("converting", 0.0)
        started = time.perf_counter()
        settings = target.settings_as(LiteRtSettings)
        session = LiteRtSession(model, target)
        seconds = time.perf_counter() - started
        progress("reading back what the delegate takes", 0.7)
        placement = session.placement()
        path = out.with_suffix(".tflite")
        write_bytes(path, session.converted.data)
        session.close()
        progress("written", 1.0)
        notes = []
        if settings.layout == "nhwc":
            notes.append("four-dimensional inputs and outputs are NHWC")
        if settings.half:
            notes.append("float weights are stored as float16")
        facts = {
            "ai-edge-litert": version("ai-edge-litert"),
            "convert_seconds": round(seconds, 3),
            "operators": len(session.converted.operators),
        }
        return Built(
            path, (path,), "tflite", placement=placement, fallbacks=placement.fallbacks, notes=tuple(notes), facts=facts
        )


class LiteRtSession:
    """A loaded model.

    Attributes:
        converted: The file in memory.
    """

    def __init__(self, model: Model, target: Target) -> None:
        self._model, self._target, self._settings = model, target, target.settings_as(LiteRtSettings)
        s = self._settings
        self.converted: Converted = convert(model, half=s.half, order=s.layout, weights=s.weights)
        self._interpreter: Any = self._loaded()
        by_name = {d["name"]: d["index"] for d in self._interpreter.get_input_details()}
        self._inputs = {name: by_name[name] for name in self.converted.inputs}
        by_name = {d["name"]: d["index"] for d in self._interpreter.get_output_details()}
        self._outputs = {name: by_name[name] for name in self.converted.outputs}

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
        """
        check_feeds(self._model, feeds)
        for name, index in self._inputs.items():
            self._interpreter.set_tensor(
                index, np.ascontiguousarray(feeds[name].transpose(self.converted.inputs[name]))
            )
        try:
            self._interpreter.invoke()
        except RuntimeError as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[:200]) from e
        return {name: self._output(name, index) for name, index in self._outputs.items()}

    def layers(self) -> tuple[LayerTime, ...]:
        """Nothing: the interpreter keeps no time per operator."""
        return ()

    def placement(self) -> Placement:
        """Which operators XNNPACK took: loaded once more with a delegate node for each, whose outputs tell."""
        taken = self._taken() if self._settings.xnnpack else frozenset()
        nodes, left = [], []
        for index, (node, op, dtype) in enumerate(self.converted.operators):
            where = "xnnpack" if index in taken else "builtin"
            nodes.append((node, op, where, "float" if dtype == "float32" else dtype))
            if where == "builtin" and self._settings.xnnpack:
                left.append((node, f"XNNPACK left {op} on {dtype} to LiteRT's own kernel"))
        source = (
            "LiteRT interpreter, its delegate nodes kept apart" if self._settings.xnnpack else "the file's operators"
        )
        return Placement(tuple(nodes), tuple(left), source)

    def close(self) -> None:
        """Free the model."""
        self._interpreter = None

    def _output(self, name: str, index: int) -> NDArray[Any]:
        perm = self.converted.outputs[name]
        value: NDArray[Any] = self._interpreter.get_tensor(index)
        return value if perm == tuple(range(len(perm))) else value.transpose(np.argsort(perm))

    def _loaded(self, apart: bool = False) -> Any:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            with quiet():
                made = Interpreter(
                    model_content=self.converted.data,
                    num_threads=self._settings.threads or None,
                    experimental_op_resolver_type=OpResolverType.AUTO if self._settings.xnnpack else plain,
                    experimental_disable_delegate_node_fusion=apart,
                )
                made.allocate_tensors()
        except (RuntimeError, ValueError) as e:
            raise UnsupportedError(
                "backend.refused",
                f"{self._model.name} on {self._target.name}",
                " ".join(str(e).split())[:300],
                "run 'edgeproof inspect' on the model for its findings",
            ) from e
        return made

    def _taken(self) -> frozenset[int]:
        """Which operators of the file a delegate computes, by their place in it."""
        found = self._loaded(apart=True)._get_ops_details()  # there is no public way to ask
        own = [o for o in found if o["op_name"] != "DELEGATE"]
        made = {tuple(map(int, o["outputs"])) for o in found if o["op_name"] == "DELEGATE"}
        return frozenset(i for i, o in enumerate(own) if tuple(map(int, o["outputs"])) in made)


IMPL: type[Backend] = LiteRt
