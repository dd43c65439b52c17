"""Build an engine, and write it with what a later reader wants to know of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_bytes, write_json
from ..model import Model
from ..protocols import Built, Progress
from . import demands, dla
from .commands import command
from .device import Device, find_device
from .dialect import Dialect, dialect_of
from .layers import Layer, from_inspector, from_log, placement
from .log import recorder
from .network import network_of, prepared
from .options import options
from .refusals import of_build, refused
from .settings import Plan
from .shapes import Profile, profiles
from .timing import attach, cache_path, keep


@dataclass(frozen=True, slots=True)
class Engine:
    """A built engine.

    Attributes:
        data: The serialised engine.
        dialect: What built it.
        plan: What was asked for.
        profiles: Sizes of open dimensions that it takes.
        layers: What it executes, in order; empty where that was not told.
        source: Where the layers are from.
        fallbacks: (layer, why) for what a DLA leaves to the GPU.
        device: What it was built on; None for none.
        timing: File of the timing cache, or None.
        warnings: Of the builder.
        facts: Seconds of processor time of each stage, and what the timing cache gave.
    """

    data: bytes
    dialect: Dialect
    plan: Plan
    profiles: tuple[Profile, ...]
    layers: tuple[Layer, ...]
    source: str
    fallbacks: tuple[tuple[str, str], ...]
    device: Device | None
    timing: Path | None
    warnings: tuple[str, ...]
    facts: dict[str, Any]


def make_engine(
    trt: Any, model: Model, plan: Plan, progress: Progress = lambda _what, _share: None, wanted: str | None = None
) -> Engine:
    """Build an engine.

    Args:
        trt: ``tensorrt`` or ``tensorrt_rtx``.
        model: Float, or with Q/DQ as scheme ``TENSORRT`` wants it.
        plan: What is asked for.
        progress: Told about the stages.
        wanted: Compute capability of the device that the engine is for, where it is known and may not be this one.

    Raises:
        UnsupportedError: backend.refused, backend.unknown_operator, tensorrt.…, each naming what is at fault.
        InputError: tensorrt.shapes, trt_cache.….
    """
    dialect = dialect_of(trt)
    device = find_device()
    ranges = profiles(plan.shapes, model.inputs)
    line = command(dialect, plan, ranges, f"{model.name}.onnx", f"{model.name}.engine")
    demands.check(dialect, plan, model, device, wanted, line)
    model = prepared(model)
    logger, said = recorder(trt)
    trt.init_libnvinfer_plugins(logger, "")
    builder = trt.Builder(logger)
    dla.check(dialect, plan, builder.num_DLA_cores if plan.dla_core is not None and dialect.dla else 0, ranges)
    progress("parsing", 0.0)
    start = time.process_time()
    network, parser = network_of(trt, dialect, builder, logger, model, plan)
    parsed = time.process_time()
    config = options(trt, dialect, builder, network, plan, ranges)
    timing = cache_path(plan.timing_cache, dialect, device)
    cached = attach(config, timing)
    left = dla.fallbacks(network, config, plan)
    progress("building", 0.1)
    serialized = builder.build_serialized_network(network, config)
    del parser  # it owns the weights that the network reads
    if serialized is None:
        raise refused(model, plan.target, of_build(said.errors, model), "build")
    data = bytes(serialized)
    built = time.process_time()
    progress("reading the layers", 0.95)
    layers, source = _layers(trt, dialect, logger, data, said.layers, plan)
    facts = {
        "parse_cpu_s": round(parsed - start, 3),
        "build_cpu_s": round(built - parsed, 3),
        "timing_cache": cached,
        "timing_cache_bytes": keep(config, timing),
    }
    return Engine(data, dialect, plan, ranges, layers, source, left, device, timing, tuple(said.warnings), facts)


def write_engine(engine: Engine, model: Model, out: Path) -> Built:
    """Write an engine, and beside it the record of how it was built (``OUT.json``).

    Args:
        engine: The engine.
        model: What it was built from.
        out: Where it goes.

    Raises:
        InputError: files.….
    """
    write_bytes(out, engine.data)
    line = command(engine.dialect, engine.plan, engine.profiles, f"{model.name}.onnx", str(out), engine.timing)
    facts = {
        **engine.facts,
        engine.dialect.name: engine.dialect.text,
        "device": None if engine.device is None else f"{engine.device.name}, {engine.device.capability}",
        "capabilities": list(engine.plan.capabilities) or ([engine.device.capability] if engine.device else []),
        "layers": len(engine.layers),
        "layers_in_integers": sum(layer.integers for layer in engine.layers),
        "layers_that_only_move": sum(layer.moves for layer in engine.layers),
        "profiles": [
            {name: [list(s.least), list(s.best), list(s.most)] for name, s in profile.items()}
            for profile in engine.profiles
        ],
    }
    record = out.with_name(f"{out.name}.json")
    specs = {
        key: [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape or ())} for s in found]
        for key, found in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    write_json(record, {**specs, "model": model.digest, "command": line, "facts": facts})
    return Built(
        out,
        (out, record),
        "tensorrt-rtx-engine" if engine.dialect.rtx else "tensorrt-engine",
        line,
        placement(engine.layers, engine.plan.target, engine.fallbacks, engine.source) if engine.layers else None,
        engine.fallbacks,
        _notes(engine, model),
        facts,
    )


def _layers(
    trt: Any, dialect: Dialect, logger: Any, data: bytes, log: list[str], plan: Plan
) -> tuple[tuple[Layer, ...], str]:
    """From the engine itself where it can be opened here."""
    if not plan.layer_info:
        return (), ""
    if dialect.rtx:
        return from_log(log), "build log: layers as compiled ahead of time; kernels are chosen on the device"
    opened = trt.Runtime(logger).deserialize_cuda_engine(data)
    if opened is None:
        return from_log(log), "build log"
    text = opened.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return from_inspector(text), "engine inspector"


def _notes(engine: Engine, model: Model) -> tuple[str, ...]:
    notes = []
    if engine.dialect.rtx:
        notes.append("kernels are chosen on the device when the engine is first loaded: keep a runtime cache there")
    elif engine.plan.compatible == "none" and engine.device is not None:
        notes.append(f"loads on compute capability {engine.device.capability} only, with this TensorRT version")
    quantised = any(n.op_type == "QuantizeLinear" for n in model.graph.graph)
    if quantised and engine.layers and not any(layer.integers for layer in engine.layers):
        notes.append("the graph has Q/DQ, and no layer of the engine multiplies integers")
    return tuple(notes)
