"""What was measured: raw runs, numbers with their intervals, and the machine they came from.

Raw samples are never thrown away: every derived number can be computed again from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower"]
Score = Any
"""Raw score of one example or run: a JSON number, or JSON numbers in lists and objects. Only its metric reads it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which node ran where, from the runtime's own records.

    Attributes:
        nodes: (node name, op, provider or device, precision) per executed node.
        fallbacks: (node or provider, reason) for everything that did not run where it was asked to.
        source: Which record it was read from.
    """

    nodes: tuple[tuple[str, str, str, str], ...]
    fallbacks: tuple[tuple[str, str], ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One executed node and how long it took.

    Attributes:
        name: Node name in the graph that the runtime executed (after its own fusions).
        op: Operator that ran.
        device: Provider or device.
        precision: Dtype of its first output.
        time_ns: One entry per profiled inference, or one, their mean, where the runtime keeps no more.
        kernel: What computed it, in the runtime's own words; empty where it does not say.
    """

    name: str
    op: str
    device: str
    precision: str
    time_ns: tuple[int, ...]
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class LayerFact:
    """What is known of one layer that could run in INT8.

    Attributes:
        name: First output of its node, unique in the graph.
        label: What to call it for people.
        op: Operator.
        error: Noise-to-signal ratio at the model's outputs with it alone in INT8.
        float_ms: Time of it, and of what follows it up to the next layers, in the float model.
        int8_ms: The same in the model with all layers in INT8, changes of precision included.
        verified: The error of a true INT8 model of this layer alone, where one was made.
    """

    name: str
    label: str
    op: str
    error: float
    float_ms: float
    int8_ms: float
    verified: float | None = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor between layers, which must change precision when they differ in it.

    Attributes:
        maker: Layer that makes it.
        readers: Layers that read it.
        ms: What a change of precision costs.
    """

    maker: str
    readers: tuple[str, ...]
    ms: float


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a search for mixed precision knows beforehand.

    Attributes:
        layers: Every layer that could run in INT8, in graph order.
        crossings: Tensors between them.
        timed: Whether there are times; without a profile of the runtime all are 0.
        inferences: How many inferences it took to find out.
        samples: On how many samples the errors were measured.
    """

    layers: tuple[LayerFact, ...]
    crossings: tuple[Crossing, ...]
    timed: bool
    inferences: int = 0
    samples: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> LayerFacts:
        """Inverse of `to_json`."""
        crossings = tuple(Crossing(c["maker"], tuple(c["readers"]), c["ms"]) for c in value["crossings"])
        layers = tuple(LayerFact(**v) for v in value["layers"])
        return LayerFacts(layers, crossings, value["timed"], value["inferences"], value["samples"])


@dataclass(frozen=True, slots=True)
class LegRun:
    """One leg (baseline, control or candidate) within one fresh process.

    Attributes:
        leg: Name of the leg.
        round: Index of the process, from 0. Legs of one round ran interleaved in the same process.
        latency_ns: Wall time of every timed inference, in order.
        cold_start_ns: From a loaded file to the first output, in a process of its own.
        peak_rss_bytes: Peak resident memory of a process of its own that only loads and runs this model.
        base_rss_bytes: Peak resident memory of that process before the model was loaded.
        sensors: Sensor name → readings in the sensor's unit.
        environment: How the machine did in this process: ``before`` and ``after`` (load, clocks, temperatures, throttle
            counter), ``others_share`` (processor share of other processes), ``no_sensor`` (sensor → why).
    """

    leg: str
    round: int
    latency_ns: tuple[int, ...]
    cold_start_ns: int | None = None
    peak_rss_bytes: int | None = None
    base_rss_bytes: int | None = None
    sensors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **asdict(self),
            "latency_ns": list(self.latency_ns),
            "sensors": {k: list(v) for k, v in self.sensors.items()},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> LegRun:
        """Inverse of `to_json`."""
        rest = {k: v for k, v in value.items() if k not in ("latency_ns", "sensors")}
        sensors = {k: tuple(v) for k, v in value.get("sensors", {}).items()}
        return LegRun(**rest, latency_ns=tuple(value["latency_ns"]), sensors=sensors)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number with the raw samples behind it.

    Attributes:
        metric: Name of the metric.
        value: The point value.
        unit: Its unit, ``1`` for shares.
        better: Which direction is better.
        low: Lower end of the 95 % interval; None for exact values.
        high: Upper end.
        samples: Raw scores, one per independent replicate (process or example).
        model: Digest of the model measured.
        dataset: Digest of the samples used; empty when none were.
        evaluator: Digest of preprocessing, decoding and metric; empty when none.
        target: Name of the target with its settings.
        machine: Digest of the environment record.
    """

    metric: str
    value: float
    unit: str
    better: Better
    low: float | None
    high: float | None
    samples: Sequence[Score]
    model: str
    dataset: str = ""
    evaluator: str = ""
    target: str = ""
    machine: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "samples": list(self.samples)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_json`."""
        return Measurement(**value)
