"""OpenVINO on Intel processors, graphics and NPUs.

That a device was asked for proves nothing: AUTO and MULTI fall back to the CPU in silence. A device that this machine
lacks is refused by name, and `placement` reads back where the model really ran, node by node with the kernel that the
plugin chose. Models run in the precision that they are written in: without that setting the CPU plugin computes
float32 models in bfloat16 where the processor can.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UnsupportedError
from ..files import ended, replacing, write_bytes
from ..graph.naming import named
from ..measurement import LayerTime, Placement
from ..model import PROTO_LIMIT_BYTES, Model, save_model, weight_bytes
from ..protocols import Backend, Built, Outputs, Progress
from ..quant.schemes import OPENVINO
from ..target import Target
from ._feeds import bad_feeds, check_feeds

if TYPE_CHECKING:
    from ..dataset import Feeds

PLAIN = ("gpu", "npu", "cpu")
"""Kinds of devices, fastest first."""

CHOOSING = ("auto", "multi", "hetero")
"""Devices that spread the work over others: over those of the setting ``devices``, or all."""

_PRECISIONS = {
    "f32": "float",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "boolean": "bool",
}


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """What can be set.

    Attributes:
        threads: Threads of the CPU plugin; 0 lets it decide.
        hint: What the plugin arranges itself for: the time of one inference, or many at once.
        precision: What float layers are computed in; ``model`` is the precision that they are written in, ``device``
            what the plugin finds fastest (bfloat16 on processors with AMX).
        devices: For auto, multi and hetero: devices in order of preference, e.g. ``GPU,CPU``; empty means all.
        profile: Record the time of every node (for reports; slows inference down).
        artifact: What `OpenVino.build` writes: ``ir``, for every device, or ``blob``, compiled for this one.
        half: Whether an IR stores its float weights as float16; they are computed as the device likes.
    """

    threads: int = 0
    hint: Literal["latency", "throughput", "none"] = "latency"
    precision: Literal["model", "device", "f16", "bf16"] = "model"
    devices: str = ""
    profile: bool = False
    artifact: Literal["ir", "blob"] = "ir"
    half: bool = False


@dataclass(frozen=True, slots=True)
class OpenVino:
    """The backend."""

    settings: ClassVar[type] = OpenVinoSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return None if importlib.util.find_spec("openvino") else "edgeproof targets --install openvino"

    def targets(self) -> tuple[Target, ...]:
        """Devices on which a one-node model really runs here, fastest first, then those that choose among them."""
        import openvino

        core = openvino.Core()
        kinds = {name.partition(".")[0].lower() for name in core.available_devices}
        plain = [d for d in PLAIN if d in kinds and (d == "cpu" or _runs(core, d.upper()))]
        return tuple(Target(f"openvino:{d}", "openvino", d, OPENVINO) for d in (*plain, *CHOOSING))

    def compile(self, model: Model, target: Target) -> OpenVinoSession:
        """Load a model into the runtime."""
        return OpenVinoSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write an IR, or what the plugin compiled.

        Raises:
            UnsupportedError: backend.refused, backend.unknown_operator.
        """
        import openvino

        settings = target.settings_as(OpenVinoSettings)
        facts = {"openvino": openvino.__version__}
        if settings.artifact == "ir":
            progress("converting", 0.0)
            path = save_ir(model, ended(out, ".xml"), half=settings.half)
            line = f"ovc {model.name}.onnx --output_model {path.stem} --compress_to_fp16={settings.half}"
            return Built(path, (path, path.with_suffix(".bin")), "openvino-ir", line, facts=facts)
        progress("compiling", 0.0)
        session = OpenVinoSession(model, target)
        path = ended(out, ".blob")
        write_bytes(path, session.exported())
        placement = session.placement()
        session.close()
        note = "compiled for this device and this version of OpenVINO; elsewhere it is refused"
        return Built(path, (path,), "openvino-blob", "", placement, placement.fallbacks, (note,), facts)


class OpenVinoSession:
    """A loaded model.

    Args:
        model: The model.
        target: Where it is to run.
        graph: OpenVINO's form of it, when it exists already (another tool's quantisation, for comparison).
    """

    def __init__(self, model: Model, target: Target, graph: Any = None) -> None:
        import openvino

        settings = target.settings_as(OpenVinoSettings)
        self._model = model
        self._profile = settings.profile
        self._runs = 0
        core = openvino.Core()
        self._asked = _asked(core, target, settings.devices)
        device = target.device.upper()
        if target.device in CHOOSING:
            device += f":{','.join(self._asked)}"
        try:
            graph = graph or read(core, model)
            self._compiled: Any = core.compile_model(graph, device, properties(target.device, settings))
            self._request: Any = self._compiled.create_infer_request()
        except Exception as e:
            raise _refused(model, target, e) from e
        self._inputs = {s.name: s for s in model.inputs}
        self._outputs = [o.name for o in model.outputs]
        self._known = {name for n in model.graph.graph for name in (n.name, *(v.name for v in n.outputs)) if name}

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
        """
        check_feeds(self._model, feeds)
        try:
            # By index: an input that only a Dropout reads loses its name when OpenVINO removes that.
            values = self._request.infer({i: feeds[n] for i, n in enumerate(self._inputs)}, share_inputs=True)
        except Exception as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[-200:]) from e
        self._runs += 1
        return {name: values[i] for i, name in enumerate(self._outputs)}

    def run_all(self, batches: Iterable[Feeds], requests: int = 0) -> list[Outputs]:
        """Run many batches at once, as many as the device takes: for throughput, not for latency.

        Args:
            batches: What `run` would be given, one by one.
            requests: How many are in the air at once; 0 lets the runtime decide.

        Returns:
            What `run` would return, in the order of ``batches``.

        Raises:
            InputError: session.feeds, when arrays do not fit the inputs.
        """
        import openvino

        done: dict[int, Outputs] = {}

        def keep(request: Any, index: int) -> None:
            done[index] = {n: request.get_output_tensor(i).data.copy() for i, n in enumerate(self._outputs)}

        queue = openvino.AsyncInferQueue(self._compiled, requests)
        queue.set_callback(keep)
        for index, feeds in enumerate(batches):
            check_feeds(self._model, feeds)
            try:
                queue.start_async({i: feeds[n] for i, n in enumerate(self._inputs)}, index)
            except Exception as e:
                queue.wait_all()
                raise bad_feeds(self._model, feeds, " ".join(str(e).split())[-200:]) from e
        queue.wait_all()
        return [done[i] for i in range(len(done))]

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per executed node, the mean of all runs: the plugin counts whole microseconds and keeps only that.

        Names are those of the model where a node came from it; what the plugin added (reorders) keeps the plugin's.
        """
        if not self._profile or not self._runs:
            return ()
        where, about = self._where(), self._about()
        found = []
        for counter in self._request.profiling_info:
            if counter.status != counter.status.EXECUTED:
                continue
            name = _own(counter.node_name)
            called, op, precision = about.get(name, (name, counter.node_type, ""))
            spent = int(counter.real_time.total_seconds() * 1e9)
            found.append(LayerTime(called, op, where, precision, (spent,), counter.exec_type))
        return tuple(found)

    def placement(self) -> Placement:
        """Where the model ran: what the runtime says of its execution devices, and the graph that it executes."""
        where = self._where()
        nodes = tuple((name, op, where, precision) for name, op, precision in self._about().values() if op != "Const")
        ran = where.split(",")
        idle = [d for d in self._asked if not any(r == d or r.startswith(f"{d}.") for r in ran)]
        fallbacks = tuple((d, f"asked for, and executed nothing; the model ran on {where}") for d in idle)
        return Placement(nodes, fallbacks, "openvino runtime model and EXECUTION_DEVICES")

    def exported(self) -> bytes:
        """The compiled model, as the plugin writes it.

        Raises:
            UnsupportedError: backend.refused, for devices that cannot export.
        """
        try:
            return bytes(self._compiled.export_model().getvalue())
        except Exception as e:
            raise _refused(self._model, Target("openvino:blob", "openvino", "blob"), e) from e

    def close(self) -> None:
        """Free the model."""
        self._request = self._compiled = None

    def _where(self) -> str:
        """Devices that execute. AUTO puts one in brackets that only stands in until the better one is ready."""
        found = self._compiled.get_property("EXECUTION_DEVICES")
        return ",".join(str(d).strip("()") for d in ([found] if isinstance(found, str) else found))

    def _about(self) -> dict[str, tuple[str, str, str]]:
        """Executed node → (the model's name for it, what it does, precision), in order of execution."""
        found = {}
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            facts = {k: str(getattr(v, "value", v)) for k, v in node.get_rt_info().items()}
            name = node.get_friendly_name()
            origins = [o for o in facts.get("originalLayersNames", "").split(",") if o in self._known]
            precision = facts.get("runtimePrecision", "")
            op = facts.get("layerType", node.get_type_name())
            found[name] = (origins[0] if origins else name, op, _PRECISIONS.get(precision, precision))
        return found


def read(core: Any, model: Model) -> Any:
    """OpenVINO's form of a model (``openvino.Model``), its nodes called as ours are.

    Args:
        core: An ``openvino.Core``.
        model: From memory, or from a temporary file where its weights are too large for one message.
    """
    called = named(model)
    if weight_bytes(model.graph) <= PROTO_LIMIT_BYTES:
        return core.read_model(model=called.to_bytes())
    folder = Path(tempfile.mkdtemp(prefix="edgeproof-openvino-"))
    made = core.read_model(str(save_model(called, folder / "model.onnx")))
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)  # weights are mapped from the file
    return made


def save_ir(model: Model, path: str | Path, *, half: bool = False) -> Path:
    """Write a model as OpenVINO IR: ``NAME.xml`` and the weights beside it, ``NAME.bin``.

    Args:
        model: Float, or with Q/DQ: then the IR holds FakeQuantize and integer weights.
        path: Where the ``.xml`` goes.
        half: Store float weights as float16; they are computed as the device likes.

    Returns:
        The path of the ``.xml``.

    Raises:
        UnsupportedError: backend.refused.
    """
    import openvino

    path = Path(path)
    try:
        made = read(openvino.Core(), model)
    except Exception as e:
        raise _refused(model, Target("openvino:ir", "openvino", "ir"), e) from e
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder, "model.xml")
        openvino.save_model(made, str(written), compress_to_fp16=half)
        for source, goal in ((written.with_suffix(".bin"), path.with_suffix(".bin")), (written, path)):
            with replacing(goal) as temporary:
                shutil.copyfile(source, temporary)
    return path


def properties(device: str, settings: OpenVinoSettings) -> dict[str, Any]:
    """OpenVINO's properties for our settings.

    Args:
        device: As in a target's name.
        settings: The settings.
    """
    found: dict[str, Any] = {"PERF_COUNT": settings.profile}
    if settings.hint != "none":
        found["PERFORMANCE_HINT"] = settings.hint.upper()
    if settings.threads:
        found["INFERENCE_NUM_THREADS"] = settings.threads
    if settings.precision != "device":
        found["INFERENCE_PRECISION_HINT"] = "f32" if settings.precision == "model" else settings.precision
    if device == "auto":
        found["ENABLE_STARTUP_FALLBACK"] = False  # else the CPU answers until another device is ready
    return found


def _asked(core: Any, target: Target, devices: str) -> list[str]:
    """The devices that a target names, or all where it leaves the choice open.

    Raises:
        UnsupportedError: target.not_installed, for a device that is not here; the runtime may take another silently.
    """
    here = list(core.available_devices)
    listed = [d.strip().upper() for d in devices.split(",") if d.strip()]
    wanted = (listed or here) if target.device in CHOOSING else [target.device.upper()]
    for name in wanted:
        if not any(h == name or h.startswith(f"{name}.") for h in here):
            raise UnsupportedError(
                "target.not_installed",
                target.name,
                f"asks for {name}, which OpenVINO does not find on this machine; it finds {', '.join(here)}",
                "install the device's driver, or choose among what 'edgeproof targets' lists",
            )
    return wanted


def _runs(core: Any, device: str) -> bool:
    """Whether a device really starts here: compile a one-node model for it and run it."""
    import numpy as np
    from openvino import Model as Graph
    from openvino import opset13 as ops

    x = ops.parameter([1, 8], np.float32, name="x")
    try:
        compiled = core.compile_model(Graph([ops.relu(x)], [x], "probe"), device)
        compiled(np.ones((1, 8), np.float32))
    except Exception:
        return False
    return any(str(d).startswith(device) for d in compiled.get_property("EXECUTION_DEVICES"))


def _own(name: str) -> str:
    """A node's name without the part of the model that HETERO put it in."""
    return re.sub(r"^subgraph\d+: ", "", name)


def _refused(model: Model, target: Target, error: Exception) -> UnsupportedError:
    text = " ".join(str(error).split())
    unknown = re.search(r"No conversion rule found for operations: ([^ ]+(?:, [^ ]+)*)", text)
    if unknown:
        return UnsupportedError(
            "backend.unknown_operator",
            f"{model.name} on {target.name}",
            f"operator {unknown[1]} is not known to the runtime",
            "export it with standard ONNX operators, or leave this model to another runtime",
        )
    return UnsupportedError(
        "backend.refused",
        f"{model.name} on {target.name}",
        re.sub(r"Exception from \S+: ?|Check '.*?' failed at \S+ ?", "", text)[:400] or type(error).__name__,
        "run 'edgeproof inspect' on the model for its findings",
    )


IMPL: type[Backend] = OpenVino
