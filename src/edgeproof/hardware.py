"""Devices as data: what a module has, what it can compute, and why something cannot work on it.

The rows stand in ``hardware.yaml``, each with its sources. What no source says is absent, and absent refuses nothing:
only what is known not to work is refused, with the reason and what to do instead.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, UnsupportedError, did_you_mean
from .target import QuantScheme, Target

if TYPE_CHECKING:
    from .model import Model

GIB = 1 << 30
DLA_PRECISIONS = ("fp16", "int8")
"""What a DLA computes in. Source: TensorRT Developer Guide, Working with DLA."""
_DLA = re.compile(r"dla(\d+)?")
_NEEDS = {
    "fp8": "compute capability 8.9 (Ada) or later",
    "fp4": "compute capability 10.0 (Blackwell) or later",
    "bf16": "compute capability 8.0 (Ampere) or later",
    "int4": "compute capability 8.0 (Ampere) or later",
    "int8": "compute capability 7.2 or later, or 6.1",
    "2:4": "compute capability 8.0 (Ampere) or later",
}
_TYPES = {
    "FLOAT16": "fp16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "fp8",
    "FLOAT8E5M2": "fp8",
    "FLOAT4E2M1": "fp4",
    "INT4": "int4",
    "UINT4": "int4",
}
"""ONNX's types, by the precision that computes in them."""
_INSTEAD = {
    "fp8": "INT8 or FP16",
    "fp4": "INT8 or FP16",
    "bf16": "FP16",
    "int4": "INT8",
    "int8": "FP16",
    "2:4": "dense",
}


@dataclass(frozen=True, slots=True)
class JetPack:
    """One release of NVIDIA's software for Jetson modules.

    Attributes:
        version: E.g. ``6.2.1``.
        l4t: Versions of Jetson Linux that it comes with, e.g. ``36.4.4``.
        cuda: CUDA; empty where unknown, as the next two.
        tensorrt: TensorRT.
        cudnn: cuDNN.
        source: Where that stands.
    """

    version: str
    l4t: tuple[str, ...]
    cuda: str = ""
    tensorrt: str = ""
    cudnn: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device, as far as published sources describe it.

    Attributes:
        name: What a target calls it, e.g. ``orin-nx-16gb``.
        title: What people call it.
        kind: ``jetson``, ``board``, ``x86``, ``phone``, ``gpu`` or ``generic``.
        parts: What can be named after a colon (``gpu``, ``dla0``, ``cpu``) → (backend, its device, scheme or empty);
            the first is meant when none is named.
        aliases: Other names.
        soc: System on chip.
        cpu: Processor cores.
        npu: A neural accelerator other than a DLA.
        architecture: Of the GPU, e.g. ``Ampere``; empty without an NVIDIA GPU.
        compute_capability: CUDA's, e.g. ``8.7``; empty likewise.
        memory_bytes: All memory; None when it varies or is unknown.
        shared_memory: Whether GPU and CPU use the same memory; None when unknown.
        bandwidth: Memory bandwidth in GB/s.
        dla: How many deep-learning accelerators; None when unknown.
        dla_version: Their generation.
        power: Power modes in W.
        has: Precisions that it computes natively (``fp32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``, ``int8``, ``int4``:
            weights of matrix products), ``int8-dot`` (dot products of bytes) and ``2:4`` (structured sparsity).
        lacks: Those that it is known not to compute natively.
        jetpacks: Releases that support it, oldest first.
        match: What identifies it; see ``hardware.yaml``.
        notes: What else a user should know.
        sources: Titles of the documents behind this row.
    """

    name: str
    title: str
    kind: str
    parts: Mapping[str, tuple[str, str, str]]
    aliases: tuple[str, ...] = ()
    soc: str = ""
    cpu: str = ""
    npu: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_bytes: int | None = None
    shared_memory: bool | None = None
    bandwidth: float | None = None
    dla: int | None = None
    dla_version: str = ""
    power: tuple[float, ...] = ()
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    jetpacks: tuple[JetPack, ...] = ()
    match: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """What a target or an engine asks of a device; what is empty asks nothing.

    Attributes:
        device: Part of it, e.g. ``dla0``.
        precisions: Among those of `Hardware.has`.
        compute_capability: That an engine was built for.
        memory_bytes: That a model needs, weights and activations.
        tensorrt: Version that an engine was built with.
    """

    device: str = ""
    precisions: Sequence[str] = ()
    compute_capability: str = ""
    memory_bytes: int = 0
    tensorrt: str = ""


@functools.cache
def catalogue() -> Mapping[str, Hardware]:
    """Every device, by name, in the order of the file."""
    rows = _rows()
    gpus = {c: _gpu(c, g, rows["sources"]) for c, g in rows["gpus"].items()}
    packs = {v: _pack(v, p, rows["sources"]) for v, p in rows["jetpacks"].items()}
    devices = {name: _device(name, row, rows, packs) for name, row in rows["devices"].items()}
    return {**devices, **{h.name: h for h in gpus.values()}}


@functools.cache
def jetpacks() -> tuple[JetPack, ...]:
    """Every JetPack release, oldest first."""
    rows = _rows()
    return tuple(_pack(v, p, rows["sources"]) for v, p in rows["jetpacks"].items())


def names() -> tuple[str, ...]:
    """Names of all devices; an alias such as ``orin-nx`` is not among them."""
    return tuple(catalogue())


def called() -> tuple[str, ...]:
    """Every name that `find` takes: those of all devices, each with its aliases behind it."""
    return tuple(n for row in catalogue().values() for n in (row.name, *row.aliases))


def find(name: str) -> Hardware:
    """The device called ``name``, by its name or an alias; what follows a colon does not count.

    Raises:
        InputError: hardware.unknown.

    >>> find("orin-nx").title, find("orin-nano").dla
    ('Jetson Orin NX 16GB', 0)
    """
    wanted = name.partition(":")[0]
    for row in catalogue().values():
        if wanted == row.name or wanted in row.aliases:
            return row
    like = [n for n in called() if wanted and wanted.lower() in n]
    hint = f"known with {wanted!r} in the name: {', '.join(like)}" if like else did_you_mean(wanted, called())
    raise InputError("hardware.unknown", name or "the empty name", "no such device", hint)


def knows(name: str) -> bool:
    """Whether `find` finds it."""
    wanted = name.partition(":")[0]
    return any(wanted == row.name or wanted in row.aliases for row in catalogue().values())


def plan(name: str) -> Target:
    """The target that a device's name means, such as ``orin-nx`` or ``orin-nx:dla0``.

    Returns:
        Backend, device and quantisation for that part; the memory limit is all that the device has, of which the
        system takes its share.

    Raises:
        InputError: hardware.unknown.
        UnsupportedError: hardware.refused, for a part that the device lacks.
    """
    row = find(name)
    part = name.partition(":")[2] or next(iter(row.parts))
    if part not in row.parts:
        problem = next(iter(refusals(row, Demand(device=part))), f"has no {part}; it has {', '.join(row.parts)}")
        raise UnsupportedError("hardware.refused", name, problem, f"name one of: {', '.join(row.parts)}")
    backend, device, scheme = row.parts[part]
    label = f"{row.name}:{part}"
    return Target(label, backend, device, _scheme(scheme), row.memory_bytes, hardware=row)


def refusals(hardware: Hardware, demand: Demand) -> tuple[str, ...]:
    """Why something cannot work on a device, one sentence each; nothing when no source speaks against it.

    >>> from edgeproof.hardware import Demand, find, refusals
    >>> refusals(find("orin-nx"), Demand(precisions=("fp8",)))[0].partition(":")[0]
    'Jetson Orin NX 16GB does not compute FP8'
    """
    title, found = hardware.title, []
    dla = _DLA.fullmatch(demand.device)
    if dla:
        found += _dla_refusals(hardware, int(dla[1] or 0), demand)
    built, here = demand.compute_capability, hardware.compute_capability
    # A processor computes what it lacks in another way, slower; a GPU's runtime does not build it.
    for precision in demand.precisions if here and demand.device != "cpu" else ():
        if precision in hardware.lacks:
            what = "2:4 sparse weights" if precision == "2:4" else precision.upper()
            why = f"needs {_NEEDS[precision]}; this is {here} ({hardware.architecture})"
            found.append(f"{title} does not compute {what}: {why}. Use {_INSTEAD[precision]}")
    if built and here and built != here:
        found.append(
            f"the engine is for compute capability {built}, and {title} has {here}: engines run only on what they were "
            f"built for. Build it on the device, or for {here}"
        )
    if hardware.memory_bytes is not None and demand.memory_bytes > hardware.memory_bytes:
        found.append(
            f"the model needs {demand.memory_bytes / GIB:.1f} GiB, and {title} has {hardware.memory_bytes / GIB:.0f} "
            "GiB for everything. Take a smaller model or precision"
        )
    known = {p.tensorrt for p in hardware.jetpacks if p.tensorrt}
    if demand.tensorrt and known and not any(same_version(demand.tensorrt, v) for v in known):
        packs = ", ".join(f"{p.version} ({p.tensorrt})" for p in hardware.jetpacks if p.tensorrt)
        found.append(
            f"TensorRT {demand.tensorrt} comes with no JetPack for {title}; those are {packs}. Build with the TensorRT "
            "of the JetPack that the device runs"
        )
    return tuple(found)


def check(hardware: Hardware, demand: Demand) -> None:
    """Refuse what cannot work.

    Raises:
        UnsupportedError: hardware.refused, with every reason.
    """
    reasons = refusals(hardware, demand)
    if reasons:
        hint = f"'edgeproof targets --hardware {hardware.name}' shows what it can do"
        raise UnsupportedError("hardware.refused", hardware.title, "; ".join(reasons), hint)


def precisions_of(model: Model) -> tuple[str, ...]:
    """What a model's types ask of a device, among the precisions of `Hardware.has`."""
    from .model import graphs, tensors

    used = {tensor.dtype.name for _, tensor in tensors(model.graph)}
    asked = []
    for graph in graphs(model.graph):
        used |= {v.dtype.name for v in (*graph.inputs, *(o for n in graph for o in n.outputs)) if v.dtype is not None}
        if any(n.op_type == "DequantizeLinear" for n in graph) and used & {"INT8", "UINT8"}:
            asked.append("int8")
    asked += [_TYPES[name] for name in sorted(used & set(_TYPES))]
    return tuple(dict.fromkeys(asked))


def demand_of(model: Model, target: Target) -> Demand:
    """What a model on a target asks of a device.

    Args:
        model: Its types are asked for, and at least its weights have to fit.
        target: Its part of the device, and settings of TensorRT that ask for a precision or for sparsity.
    """
    from .model import weight_bytes

    asked = [*precisions_of(model)]
    asked += [p for p in (target.settings.get("precision"),) if isinstance(p, str) and p in _NEEDS]
    asked += ["2:4"] if target.settings.get("sparse") else []
    return Demand(target.device, tuple(dict.fromkeys(asked)), memory_bytes=weight_bytes(model.graph))


def check_model(model: Model, target: Target) -> None:
    """Refuse a model that a target's device cannot run; without a device of the catalogue nothing is known.

    Raises:
        UnsupportedError: hardware.refused, with every reason.
    """
    if target.hardware is not None:
        check(target.hardware, demand_of(model, target))


def same_version(one: str, other: str) -> bool:
    """Whether two versions agree in all the numbers that both state.

    >>> same_version("10.3.0.30", "10.3.0"), same_version("10.4", "10.3.0")
    (True, False)
    """
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


def _dla_refusals(hardware: Hardware, core: int, demand: Demand) -> list[str]:
    title, count = hardware.title, hardware.dla
    if count is None and hardware.kind != "jetson":
        return [f"{title} has no DLA: only Jetson modules have. Use {next(iter(hardware.parts))}"]
    if count == 0:
        return [f"{title} has no DLA; Xavier, Orin NX and AGX Orin have. Use the GPU: {hardware.name}:gpu"]
    if count is not None and core >= count:
        cores = " and ".join(f"dla{i}" for i in range(count))
        return [f"{title} has no dla{core}, only {cores}"]
    wrong = [p.upper() for p in demand.precisions if p not in (*DLA_PRECISIONS, "2:4")]
    return [f"a DLA computes FP16 and INT8, not {', '.join(wrong)}. Use FP16 or INT8"] if wrong else []


def _scheme(name: str) -> QuantScheme | None:
    """Schemes stand in a layer above, and are found by name as plug-ins are."""
    if not name:
        return None
    found: QuantScheme = importlib.import_module("edgeproof.quant.schemes").SCHEMES[name].scheme
    return found


@functools.cache
def _rows() -> Any:
    import yaml

    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _pack(version: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> JetPack:
    values = {k: row[k] for k in ("cuda", "tensorrt", "cudnn") if k in row}
    return JetPack(version, tuple(row["l4t"]), **values, source=sources[row["source"]])


def _gpu(capability: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> Hardware:
    """Any NVIDIA GPU of a compute capability, as ``sm86``."""
    return Hardware(
        f"sm{capability.replace('.', '')}",
        f"NVIDIA GPU of compute capability {capability}",
        "gpu",
        {"gpu": ("tensorrt", "gpu", "tensorrt")},
        architecture=row["architecture"],
        compute_capability=capability,
        has=tuple(row["has"]),
        lacks=tuple(row["lacks"]),
        sources=tuple(sources[s] for s in row["sources"]),
    )


def _device(name: str, row: Mapping[str, Any], rows: Any, packs: Mapping[str, JetPack]) -> Hardware:
    family = rows["families"][row["family"]]
    gpu = rows["gpus"].get(row.get("compute_capability", ""), {})
    parts = {p: (v["backend"], v["device"], v.get("scheme", "")) for p, v in family["parts"].items()}
    dlas = {f"dla{i}": ("tensorrt", f"dla{i}", "tensorrt") for i in range(row.get("dla", 0))}
    first = dict(list(parts.items())[:1])
    sources = dict.fromkeys((*row["sources"], *gpu.get("sources", ())))
    return Hardware(
        name,
        row["title"],
        family["kind"],
        {**first, **dlas, **parts},
        aliases=tuple(row.get("aliases", ())),
        soc=row.get("soc", ""),
        cpu=row.get("cpu", ""),
        npu=row.get("npu", ""),
        architecture=gpu.get("architecture", ""),
        compute_capability=row.get("compute_capability", ""),
        memory_bytes=row["memory_gib"] * GIB if "memory_gib" in row else None,
        shared_memory=family.get("shared_memory"),
        bandwidth=row.get("bandwidth"),
        dla=row.get("dla"),
        dla_version=row.get("dla_version", ""),
        power=tuple(row.get("power", ())),
        has=tuple(row.get("has", gpu.get("has", ()))),
        lacks=tuple(row.get("lacks", gpu.get("lacks", ()))),
        jetpacks=tuple(packs[v] for v in row.get("jetpacks", ())),
        match=tuple(row.get("match", ())),
        notes=tuple(row.get("notes", ())),
        sources=tuple(rows["sources"][s] for s in sources),
    )
