"""The shapes that plug-ins have. A plug-in is one file whose ``IMPL`` satisfies one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .change import Change
from .dataset import DataSpec, Example, Feeds
from .measurement import Better, LayerFacts, LayerTime, Placement, Score
from .model import Model, TensorSpec
from .recipe import Recipe
from .target import Target

Needs = Literal["labels", "examples", "reference", "runs", "file"]
"""What a metric is scored on; see `Metric`."""
Kind = Literal["proportion", "mean", "pooled", "run", "max", "exact"]
"""Which bound holds for a metric; see `Metric`."""
Outputs = dict[str, NDArray[Any]]
Progress = Callable[[str, float], None]
"""Called with (what is happening, share done 0..1)."""


class Session(Protocol):
    """A model compiled for a target, ready to run."""

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch; output name → array."""

    def placement(self) -> Placement:
        """Which node ran where, from the runtime's own records."""

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per executed node over all runs so far; empty unless compiled with the setting ``profile``."""

    def close(self) -> None:
        """Free what the session holds."""


class Backend(Protocol):
    """A runtime."""

    settings: ClassVar[type]
    """Frozen dataclass of what can be set; its fields are flags, recipe keys and search space."""

    def missing(self) -> str | None:
        """The command that installs it, or None when it is installed. Imports nothing heavy."""

    def targets(self) -> tuple[Target, ...]:
        """Targets on this machine, fastest first."""

    def compile(self, model: Model, target: Target) -> Session:
        """Make a model ready to run.

        Raises:
            UnsupportedError: backend.refused, naming the node or operator and the remedy.
        """


@dataclass(frozen=True, slots=True)
class Built:
    """What a backend wrote for a device to load.

    Attributes:
        path: The file, or the folder, to ship.
        files: Everything that was written.
        format: ``onnx``, ``openvino-ir``, ``tensorrt-engine``, ``tflite``, ``pte``, ``ncnn``, …
        command: The line of the runtime's own tool that does the same; empty when there is none.
        placement: Which node goes where, where the build tells.
        fallbacks: (node, why) for what will not run where it was asked to.
        notes: What people should know of it.
        facts: More, as JSON: versions, seconds of each stage, what a cache gave.
    """

    path: Path
    files: tuple[Path, ...]
    format: str
    command: str = ""
    placement: Placement | None = None
    fallbacks: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Builder(Protocol):
    """A backend that writes files for devices."""

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write what the runtime loads on the device.

        Args:
            model: Float, or with Q/DQ.
            target: One of `Backend.targets` or `Planning.planned`.
            out: Where; the runtime's ending (``.tflite``) is added to a name that lacks it. Written to a temporary
                name first.
            progress: Told about long work.

        Raises:
            UnsupportedError: backend.refused, backend.unknown_operator, naming the node or operator and the remedy.
        """


@runtime_checkable
class Planning(Protocol):
    """A backend that builds for devices which this machine lacks."""

    def planned(self) -> tuple[Target, ...]:
        """Targets that files can be built for here."""


@runtime_checkable
class Timed(Protocol):
    """A session that times itself, since it lives in another process."""

    def timed(self, feeds: Sequence[Feeds], first: int, count: int) -> list[int]:
        """Nanoseconds of each of ``count`` inferences, cycling through ``feeds`` from index ``first``."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass may use beside the model.

    Attributes:
        compile: Makes a runnable session of any model (chosen by the caller; passes never see a backend).
        feeds: Fresh iterator over calibration inputs; None when there are none.
        samples: How many of them there are.
        target: What the model is made for; None for a pass that does not care.
        seed: For random choices.
        progress: Told about long work.
        calibration: Keeps what was seen of these very feeds, so that passes which calibrate on them stream them once;
            None keeps nothing. Share one dict among contexts with the same feeds, and no others.
        before: Gives the model as it was before the last pass: what training teaches the model to do again.
    """

    compile: Callable[[Model], Session]
    feeds: Callable[[], Iterator[Feeds]] | None = None
    samples: int = 0
    target: Target | None = None
    seed: int = 0
    progress: Progress = lambda _what, _share: None
    calibration: dict[str, Any] | None = None
    before: Callable[[], Model] | None = None


class Pass(Protocol):
    """A pure transform: Model → Change. Implementations are frozen dataclasses; their fields are the settings."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""


class Dataset(Protocol):
    """Samples that can be read in any order, one at a time."""

    @property
    def digest(self) -> str:
        """Covers every sample, label and preprocessing setting."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def take(self, indices: Sequence[int]) -> Dataset:
        """The samples at these indices, in this order, with a digest of their own."""


class DataFormat(Protocol):
    """A way to read samples."""

    options: ClassVar[type]
    """Frozen dataclass of what ``DataSpec.options`` may hold."""

    def open(self, spec: DataSpec, inputs: Sequence[TensorSpec]) -> Dataset:
        """Open a data set for a model with these inputs.

        Raises:
            InputError: data.missing, data.empty, data.mismatch (a sample does not fit the inputs), data.label.
        """


class Metric(Protocol):
    """One number.

    ``needs`` says what `score` is given as (got, want):

    * ``labels``: a decoded prediction and the example's truth, once per example;
    * ``examples``: the raw outputs and the `Example`, once per example;
    * ``reference``: the outputs of the model and of the original, once per example;
    * ``runs``: a `LegRun` and None, once per process;
    * ``file``: the size in bytes of the model on disk and None, once.

    ``kind`` says which bound holds: ``proportion`` (scores 0 or 1), ``mean`` (mean of numbers), ``pooled`` (any
    function of the scores: bootstrap over examples), ``run`` (t-bound over processes), ``max`` (largest of the runs),
    ``exact``.
    """

    unit: ClassVar[str]
    better: ClassVar[Better]
    needs: ClassVar[Needs]
    kind: ClassVar[Kind]

    def score(self, got: Any, want: Any) -> Score | None:
        """Raw score of one example or run; None when there is nothing to measure it with (a missing sensor)."""

    def value(self, scores: Sequence[Score]) -> float:
        """The number, from raw scores."""


@runtime_checkable
class Resampled(Protocol):
    """A metric whose value on a resample is much cheaper once all scores have been prepared together."""

    def resampled(self, scores: Sequence[Score]) -> Callable[[NDArray[np.intp]], float]:
        """A function from indices into ``scores`` (repeats allowed) to the value on those examples."""

    def cost(self, scores: Sequence[Score]) -> int:
        """Numbers that one resample of these scores looks at."""


class Sensor(Protocol):
    """A source of readings."""

    unit: ClassVar[str]

    def missing(self) -> str | None:
        """Why there is no reading here, or None."""

    def read(self) -> float:
        """One reading in `unit`."""


class Strategy(Protocol):
    """Proposes recipes and learns from results (ask/tell)."""

    @property
    def expected(self) -> int:
        """About how many recipes it will propose, for progress."""

    def ask(self) -> Recipe | None:
        """The next recipe to try, or None when done."""

    def tell(self, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """The result of a recipe that was asked for."""


class Probe(Protocol):
    """Answers what a strategy may want to know before it proposes. Answers are kept: asking again costs nothing."""

    def output_error(self, recipe: Recipe) -> float | None:
        """Output error of what a recipe makes, on a few samples that calibrated nothing.

        Returns:
            Noise-to-signal ratio against the float model; None when it cannot be made.
        """

    def layers(self, recipe: Recipe) -> LayerFacts | None:
        """Error and time of every layer that a recipe's last step, ``int8``, quantises.

        Returns:
            None, when it quantises none or cannot be made.
        """


@runtime_checkable
class Probing(Protocol):
    """A strategy that wants to know more than results."""

    def attach(self, probe: Probe) -> None:
        """Called once, before the first `Strategy.ask`."""


class Learner(Protocol):
    """A graph that is being trained."""

    def outputs(self, feeds: Feeds) -> Outputs:
        """Run forward: what the graph gives now, quantised as its export will be."""

    def loss(self, feeds: Feeds, wanted: Outputs) -> float:
        """Loss on one batch."""

    def gradients(self, feeds: Feeds, wanted: Outputs) -> tuple[float, Outputs]:
        """Loss on one batch, and its gradient for every trained tensor of the ONNX graph, by name."""

    def step(self, batches: Sequence[tuple[Feeds, Outputs]], rate: float) -> float:
        """Take one step down the mean gradient of batches.

        Args:
            batches: (inputs, what is wanted of each tensor in the loss).
            rate: Learning rate.

        Returns:
            Mean loss before the step.
        """

    def state(self) -> Outputs:
        """All that a later `restore` needs to go on exactly here: name → array."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state`."""

    def model(self) -> Model:
        """The graph with what was learned, as ONNX."""

    def close(self) -> None:
        """Free what it holds."""


class Engine(Protocol):
    """Computes gradients of ONNX graphs."""

    def missing(self) -> str | None:
        """The command that installs it, or None when it is installed. Imports nothing heavy."""

    def learner(self, model: Model, original: Model | None, training: Any) -> Learner:
        """Make a graph trainable.

        Args:
            model: Float, or with Q/DQ.
            original: The float model that a Q/DQ graph was made from.
            training: A `edgeproof.train.fit.Training`.

        Raises:
            UnsupportedError: fx.operator and others, for what the engine cannot differentiate.
        """
