"""A model repository for NVIDIA's Triton Inference Server.

    REPO/NAME/config.pbtxt
    REPO/NAME/1/model.onnx          or model.plan, or model.xml with model.bin

The files are the bytes that were given, weights beside a model included. A batch dimension is one that every input and
output leaves open in first place; Triton then batches, and ``dims`` leave it out. Where it is fixed, ``max_batch_size``
is 0 and ``dims`` are whole, as Triton demands.

Sources: Triton Inference Server, *Model Configuration*, *Optimization*, *Ensemble Models*; its schema
``model_config.proto``; READMEs of onnxruntime_backend, tensorrt_backend and openvino_backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, UnsupportedError
from ..files import write_text
from ..model import Model, TensorSpec, file_digests
from ..tensorrt.commands import command
from ..tensorrt.dialect import Dialect
from ..tensorrt.settings import Plan
from ..tensorrt.shapes import Span
from . import copied, new_folder, written
from .pbtxt import Value, Word, pbtxt

TYPES: Mapping[str, str] = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}
"""Our dtype → Triton's. Source: model_config.proto, DataType."""
BATCH = 8
"""Largest batch where a model's batch dimension is open and nothing else was asked."""
_TRTEXEC = Dialect(rtx=False, version=(10, 3))
"""What JetPack 6 and Triton's containers of TensorRT 10 have."""
_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "openvino": "model.xml"}
_SUFFIX = {"onnxruntime": ".onnx", "tensorrt": ".plan", "openvino": ".xml"}


@dataclass(frozen=True, slots=True)
class Triton:
    """What can be set.

    Attributes:
        backend: Who runs the model.
        version: Name of the version's folder, from 1.
        policy: Versions that are served: ``latest:N``, ``all``, or numbers such as ``1,3``.
        max_batch: Largest batch; -1 is 8 where the batch dimension is open, else 0; 0 turns batching off.
        batching: Let the server gather requests into batches (where ``max_batch`` is above 1).
        preferred: Batch sizes that it tries to reach, e.g. ``4,8``; empty leaves it to the server.
        delay_us: How long a request may wait for others, in µs.
        device: Where instances run; empty is the GPU for TensorRT, else the CPU.
        instances: Copies of the model that run at once, on each GPU where they run on GPUs.
        gpus: Numbers of the GPUs, e.g. ``0,1``; empty means all.
        dla: DLA core for the TensorRT backend; -1 for none.
        accelerator: What runs the model inside ONNX Runtime.
        precision: What ``tensorrt`` as accelerator may compute in: ``int8`` for Q/DQ models.
        workspace_bytes: Memory that it may use while it builds; 0 leaves it to the server.
        engine_cache: Folder (on the server) where it keeps built engines; empty builds at every start.
        graph_level: Of ONNX Runtime's graph optimisation: -1 basic, 1 extended, 2 off, 0 all (the server's default).
        threads: Threads of one inference on the CPU; 0 leaves it to the backend.
        warmup: Inferences on zeros before the model counts as ready; 0 for none. Left out where dimensions other than
            the batch are open: a model whose warm-up fails does not load.
        cache: Answer repeated requests from the server's response cache.
        parameters: Further parameters of the backend: ``KEY=VALUE,KEY=VALUE``.
    """

    backend: Literal["onnxruntime", "tensorrt", "openvino"] = "onnxruntime"
    version: int = 1
    policy: str = "latest:1"
    max_batch: int = -1
    batching: bool = True
    preferred: str = ""
    delay_us: int = 100
    device: Literal["", "cpu", "gpu"] = ""
    instances: int = 1
    gpus: str = ""
    dla: int = -1
    accelerator: Literal["none", "tensorrt", "openvino"] = "none"
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    workspace_bytes: int = 0
    engine_cache: str = ""
    graph_level: int = 0
    threads: int = 0
    warmup: int = 1
    cache: bool = False
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A model and the file that is served.

    Attributes:
        name: In the repository: letters, digits and ``. _ -``.
        model: Its interface.
        source: The ONNX file.
        engine: What the backend loads instead: a TensorRT plan, or an OpenVINO ``.xml`` with its ``.bin``.
    """

    name: str
    model: Model
    source: Path
    engine: Path | None = None


def write_model(served: Served, repository: Path, settings: Triton) -> tuple[Path, ...]:
    """Add a model to a repository.

    Returns:
        The files written.

    Raises:
        InputError: serving.exists, serving.name, serving.setting, serving.batch, serving.engine, files.*.
        UnsupportedError: serving.dtype, serving.rank.
    """
    text = config(served.name, served.model, settings, loads_onnx=served.engine is None)
    files = _files(served, settings)
    out = repository / served.name
    with new_folder(out) as folder:
        write_text(folder / "config.pbtxt", text)
        (folder / str(settings.version)).mkdir()
        for name, source in files.items():
            copied(source, folder / name)
        if settings.backend == "tensorrt" and served.engine is None:
            script = folder / "build-plan.sh"
            write_text(script, plan_script(served.model, settings))
            script.chmod(0o755)
    return written(out)


def config(name: str, model: Model, settings: Triton, *, loads_onnx: bool = True) -> str:
    """The text of ``config.pbtxt``.

    Args:
        name: Of the model in the repository.
        model: Its interface.
        settings: What is wanted.
        loads_onnx: Whether the file is the ONNX one (the OpenVINO backend has to be told).

    Raises:
        InputError: serving.name, serving.setting, serving.batch.
        UnsupportedError: serving.dtype, serving.rank.
    """
    check_served_name(name)
    _check(settings)
    batch = batch_of(model, settings.max_batch)
    message: dict[str, Value] = {"name": name, "backend": settings.backend, "max_batch_size": batch}
    if settings.backend == "openvino" and loads_onnx:
        message["default_model_filename"] = "model.onnx"
    message["input"] = [tensor(s, batch) for s in model.inputs]
    message["output"] = [tensor(s, batch) for s in model.outputs]
    message["version_policy"] = _policy(settings.policy)
    message["instance_group"] = [_instances(settings)]
    if batch > 1 and settings.batching:
        preferred = _numbers(settings.preferred, "preferred")
        if beyond := next((n for n in preferred if not 1 <= n <= batch), None):
            problem = f"has {beyond}; the largest batch is {batch}"
            raise InputError("serving.setting", "preferred", problem, f"raise max_batch, or leave {beyond} out")
        message["dynamic_batching"] = {
            "preferred_batch_size": preferred,
            "max_queue_delay_microseconds": settings.delay_us,
        }
    optimization = _optimization(settings)
    if optimization:
        message["optimization"] = optimization
    if settings.warmup and not _open(model, batch):
        message["model_warmup"] = [_warmup(model, batch, settings.warmup)]
    if settings.cache:
        message["response_cache"] = {"enable": True}
    message["parameters"] = [{"key": k, "value": {"string_value": v}} for k, v in _parameters(settings).items()]
    return pbtxt(message)


def batch_of(model: Model, asked: int) -> int:
    """Triton's ``max_batch_size`` for a model: 0 unless every input and output leaves its first dimension open.

    Args:
        model: The model.
        asked: What is wanted; -1 for whatever the model allows.

    Raises:
        InputError: serving.batch, when batches are wanted of a model that takes none.
    """
    tensors = (*model.inputs, *model.outputs)
    fixed = [s for s in tensors if not s.shape or not isinstance(s.shape[0], str)]
    if not fixed:
        return BATCH if asked < 0 else asked
    if asked <= 0:
        return 0
    problem = f"has no open batch dimension: {fixed[0]}"
    hint = "export it with an open first dimension (every input and output), or leave max_batch out"
    raise InputError("serving.batch", model.name, problem, hint)


def tensor(spec: TensorSpec, batch: int) -> dict[str, Value]:
    """One entry of ``input`` or ``output``; what has no dimensions of its own is one number, reshaped.

    Raises:
        UnsupportedError: serving.dtype, serving.rank.
    """
    if spec.dtype not in TYPES:
        problem = f"is of type {spec.dtype}, which Triton does not carry"
        raise UnsupportedError("serving.dtype", spec.name, problem, f"convert it to one of {', '.join(TYPES)}")
    if spec.shape is None:
        hint = "run 'edgeproof apply infer_shapes', or fix_shapes"
        raise UnsupportedError("serving.rank", spec.name, "has no known rank, which Triton needs", hint)
    dims = [-1 if isinstance(d, str) else d for d in spec.shape[1 if batch else 0 :]]
    entry: dict[str, Value] = {"name": spec.name, "data_type": Word(TYPES[spec.dtype]), "dims": dims or [1]}
    if not dims:
        entry["reshape"] = {}
    return entry


def check_served_name(name: str) -> str:
    """A name that is a folder of its own.

    Raises:
        InputError: serving.name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        hint = "use letters, digits and . _ - with --name"
        raise InputError("serving.name", name or "the name", "cannot be a model's name in a repository", hint)
    return name


def plan_script(model: Model, settings: Triton) -> str:
    """A script that builds the plan on the device that is to run it: plans do not travel.

    Raises:
        UnsupportedError: serving.shapes, when dimensions other than the batch are open.
    """
    batch = batch_of(model, settings.max_batch)
    inner = _open(model, batch)
    if inner:
        problem = f"is open beyond its batch: {inner[0]}"
        hint = "fix it with 'edgeproof apply fix_shapes', or build a plan for its ranges and give it with --engine"
        raise UnsupportedError("serving.shapes", model.name, problem, hint)
    on_dla = settings.dla >= 0
    # A DLA takes no ranges: smallest, usual and largest shape are one.
    least, best = (batch, batch) if on_dla else (1, max(1, batch // 2))
    spans = {s.name: Span(*((n, *(s.shape or ())[1:]) for n in (least, best, batch))) for s in model.inputs}  # type: ignore[arg-type]
    plan = Plan(
        "tensorrt:dla" if on_dla else "tensorrt:gpu",
        precision="typed" if settings.precision == "fp32" else settings.precision,
        workspace_bytes=settings.workspace_bytes or None,
        dla_core=settings.dla if on_dla else None,
        layer_info=False,
    )
    line = command(_TRTEXEC, plan, (spans,) if batch else (), "model.onnx", f"{settings.version}/model.plan")
    return (
        "#!/bin/sh\n# Run this once on the device: a plan fits one GPU and one TensorRT version.\n"
        f'set -eu\ncd "$(dirname "$0")"\n{line}\n'
    )


def _open(model: Model, batch: int) -> list[TensorSpec]:
    """Inputs with an open dimension other than the batch."""
    return [s for s in model.inputs if s.shape is None or any(isinstance(d, str) for d in s.shape[bool(batch) :])]


def _files(served: Served, settings: Triton) -> dict[str, Path]:
    """Path in the model's folder → file to copy.

    Raises:
        InputError: serving.engine.
    """
    engine, suffix = served.engine, _SUFFIX[settings.backend]
    if engine is not None and (engine.suffix not in (suffix, ".engine") or settings.backend == "onnxruntime"):
        problem = f"is no file of the {settings.backend} backend"
        hint = "give a .plan with backend=tensorrt or an .xml with backend=openvino"
        raise InputError("serving.engine", str(engine), problem, hint)
    inside = f"{settings.version}/"
    if engine is not None:
        files = {f"{inside}{_FILES[settings.backend]}": engine}
        return files if suffix != ".xml" else {**files, f"{inside}model.bin": engine.with_suffix(".bin")}
    place = "" if settings.backend == "tensorrt" else inside
    names = list(file_digests(served.source))
    return {
        f"{place}model.onnx": served.source,
        **{f"{place}{name}": served.source.parent / name for name in names[1:]},
    }


_INT32 = 2**31 - 1
_LIMITS = {
    "version": (1, 2**63 - 1),
    "instances": (1, _INT32),
    "max_batch": (-1, _INT32),
    "delay_us": (0, 2**63 - 1),
    "threads": (0, 4096),
    "warmup": (0, 2**32 - 1),
    "workspace_bytes": (0, 2**63 - 1),
    "graph_level": (-1, 2),
    "dla": (-1, 1),
}
"""Setting → least and greatest value. Source: the types in model_config.proto; two DLA cores at most."""


def _check(settings: Triton) -> None:
    def bad(key: str, problem: str, hint: str) -> InputError:
        return InputError("serving.setting", key, problem, hint)

    for key, (least, most) in _LIMITS.items():
        if not least <= getattr(settings, key) <= most:
            raise bad(key, f"is {getattr(settings, key)}; expected {least} to {most:,}", f"{key}={max(least, 0)}")
    if settings.accelerator != "none" and settings.backend != "onnxruntime":
        raise bad("accelerator", f"is for onnxruntime, and the backend is {settings.backend}", "leave it out")
    on_gpu = _device(settings) == "gpu"
    if settings.accelerator == "tensorrt" and not on_gpu:
        raise bad("accelerator", "tensorrt needs device=gpu", "add device=gpu")
    if settings.accelerator == "openvino" and on_gpu:
        raise bad("accelerator", "openvino runs on the CPU", "leave device=gpu out")
    if settings.backend == "tensorrt" and not on_gpu:
        raise bad("device", "is cpu, where TensorRT does not run", "leave it out")
    if settings.dla >= 0 and settings.backend != "tensorrt":
        raise bad("dla", f"is for the TensorRT backend, not for {settings.backend}", "add backend=tensorrt")
    if settings.dla >= 0 and settings.precision == "fp32":
        raise bad("precision", "is fp32, which a DLA does not compute in", "add precision=fp16, or int8")
    if settings.gpus and not on_gpu:
        raise bad("gpus", f"is {settings.gpus!r}, and instances run on the CPU", "add device=gpu")
    if "specific" in _policy(settings.policy) and settings.version not in _numbers(settings.policy, "policy"):
        problem = f"is {settings.policy!r}, which leaves out version {settings.version}, the one that is written"
        raise bad("policy", problem, f"add {settings.version}, or policy=latest:1")


def _device(settings: Triton) -> str:
    return settings.device or ("gpu" if settings.backend == "tensorrt" else "cpu")


def _instances(settings: Triton) -> dict[str, Value]:
    on_gpu = _device(settings) == "gpu"
    group: dict[str, Value] = {"count": settings.instances, "kind": Word("KIND_GPU" if on_gpu else "KIND_CPU")}
    if settings.gpus:
        group["gpus"] = _numbers(settings.gpus, "gpus")
    if settings.dla >= 0:
        group["secondary_devices"] = [{"kind": Word("KIND_NVDLA"), "device_id": settings.dla}]
    return group


def _optimization(settings: Triton) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if settings.graph_level and settings.backend == "onnxruntime":
        found["graph"] = {"level": settings.graph_level}
    if settings.accelerator == "tensorrt":
        parameters = {"precision_mode": settings.precision.upper()}
        if settings.workspace_bytes:
            parameters["max_workspace_size_bytes"] = str(settings.workspace_bytes)
        if settings.engine_cache:
            parameters |= {"trt_engine_cache_enable": "true", "trt_engine_cache_path": settings.engine_cache}
        listed: list[Value] = [{"key": k, "value": v} for k, v in parameters.items()]
        accelerator: Value = {"name": "tensorrt", "parameters": listed}
        found["execution_accelerators"] = {"gpu_execution_accelerator": [accelerator]}
    if settings.accelerator == "openvino":
        found["execution_accelerators"] = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    return found


def _warmup(model: Model, batch: int, count: int) -> dict[str, Value]:
    """Zeros of the declared shapes, with 1 for every open dimension."""
    inputs: list[Value] = []
    for spec in model.inputs:
        entry = tensor(spec, batch)
        dims: list[Value] = [1 if d == -1 else d for d in entry["dims"]]  # type: ignore[union-attr]
        inputs.append({"key": spec.name, "value": {"data_type": entry["data_type"], "dims": dims, "zero_data": True}})
    return {"name": "zeros", "batch_size": 1 if batch else 0, "inputs": inputs, "count": count}


def _policy(text: str) -> dict[str, Value]:
    if text == "all":
        return {"all": {}}
    latest = re.fullmatch(r"latest:([1-9][0-9]*)", text)
    if latest:
        return {"latest": {"num_versions": int(latest[1])}}
    return {"specific": {"versions": _numbers(text, "policy")}}


def _parameters(settings: Triton) -> dict[str, str]:
    found = {}
    if settings.threads:
        name = "INFERENCE_NUM_THREADS" if settings.backend == "openvino" else "intra_op_thread_count"
        found[name] = str(settings.threads)
    for part in filter(None, settings.parameters.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InputError("serving.setting", "parameters", f"has {part!r}; expected KEY=VALUE", "write KEY=VALUE")
        if key.strip() in found:
            raise InputError("serving.setting", "parameters", f"gives {key.strip()} twice", "give each once")
        found[key.strip()] = value.strip()
    return found


def _numbers(text: str, key: str) -> list[int]:
    parts: Sequence[Any] = [p.strip() for p in text.split(",") if p.strip()]
    if not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts) or (key == "policy" and not parts):
        expected = "latest:1, all or numbers such as 1,3" if key == "policy" else "numbers such as 4,8"
        raise InputError("serving.setting", key, f"is {text!r}; expected {expected}", f"write {key}={expected}")
    if len({int(p) for p in parts}) < len(parts):
        raise InputError("serving.setting", key, f"is {text!r}, with a number twice", "give each once")
    return [int(p) for p in parts]
