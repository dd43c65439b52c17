"""ONNX Runtime, with every execution provider of the installed wheel.

A provider that is compiled in proves nothing: `targets` keeps those that a small session really runs on, and
`placement` reads from the runtime's own records where each node ran.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import platform
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import InputError, UnsupportedError
from ..files import ended, replacing
from ..measurement import LayerTime, Placement
from ..model import PROTO_LIMIT_BYTES, Model, save_model, weight_bytes
from ..protocols import Backend, Built, Outputs, Progress
from ..quant import schemes
from ..target import QuantScheme, Target
from ._feeds import bad_feeds

if TYPE_CHECKING:
    import onnxruntime as ort

    from ..dataset import Feeds

PROVIDERS: tuple[tuple[str, str], ...] = (
    ("tensorrt", "TensorrtExecutionProvider"),
    ("cuda", "CUDAExecutionProvider"),
    ("qnn", "QNNExecutionProvider"),
    ("openvino", "OpenVINOExecutionProvider"),
    ("cpu", "CPUExecutionProvider"),
)
"""Device name → provider, fastest first."""

SCHEMES: Mapping[str, QuantScheme] = {
    "cpu": schemes.ORT,
    "openvino": schemes.OPENVINO,
    "qnn": schemes.ORT,
    "cuda": schemes.TENSORRT,
    "tensorrt": schemes.TENSORRT,
}
"""Device → what it wants; what the CPU provider wants depends on the processor, see `cpu_scheme`."""

VNNI = frozenset({"avx512_vnni", "avx_vnni"})
"""Flags of x86 processors that sum 8-bit products in 32 bits."""

PLANNED_OUTPUTS = 32
"""A model with more outputs is being observed; planning one block for all of them costs more than it saves."""

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass(frozen=True, slots=True)
class OnnxRuntimeSettings:
    """What can be set.

    Attributes:
        threads: Intra-op threads; 0 lets the runtime take the physical cores.
        graph_optimization: How far the runtime rewrites the graph when it loads it.
        memory_arena: Keep freed memory in an arena: faster, but holds its peak.
        memory_pattern: Plan all activations in one block when shapes are fixed.
        spinning: Idle threads spin for the next piece of work: lower latency, more power.
        profile: Record the time of every node (for reports; slows inference down).
        artifact: What `OnnxRuntime.build` writes: ``ort``, ONNX Runtime's own format, which loads without the ONNX
            parser, or ``onnx``, the optimised graph.
    """

    threads: int = 0
    graph_optimization: Literal["disable", "basic", "extended", "all"] = "all"
    memory_arena: bool = True
    memory_pattern: bool = True
    spinning: bool = True
    profile: bool = False
    artifact: Literal["ort", "onnx"] = "ort"


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """The backend."""

    settings: ClassVar[type] = OnnxRuntimeSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        here = importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx_ir")
        return None if here else "pip install 'edgeproof[optimize]'"

    def targets(self) -> tuple[Target, ...]:
        """Devices on which a one-node model really runs here, fastest first."""
        import onnxruntime as ort

        available = set(ort.get_available_providers())
        return tuple(
            Target(f"onnxruntime:{device}", "onnxruntime", device, cpu_scheme() if device == "cpu" else SCHEMES[device])
            for device, provider in PROVIDERS
            if provider in available and (device == "cpu" or _runs(provider))
        )

    def compile(self, model: Model, target: Target) -> OnnxRuntimeSession:
        """Load a model into the runtime."""
        return OnnxRuntimeSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write the graph as the runtime optimises it for this target.

        Raises:
            UnsupportedError: backend.refused, backend.unknown_operator.
        """
        import onnxruntime as ort

        settings = target.settings_as(OnnxRuntimeSettings)
        kind, level = settings.artifact, settings.graph_optimization
        out = ended(out, f".{kind}")
        progress("optimising", 0.0)
        with replacing(out) as temporary:
            saving = {"session.save_model_format": kind.upper(), "optimized_model_filepath": str(temporary)}
            try:
                OnnxRuntimeSession(model, target, saving).close()
            except UnsupportedError as e:
                if temporary.name not in e.problem:
                    raise
                hint = "free some space or choose another folder with --out, then run the same command again"
                raise InputError("files.os", str(out), "could not be written by ONNX Runtime", hint) from e
            written = temporary.is_file() and temporary.stat().st_size > 0
            if not written:
                problem = f"onnxruntime {ort.__version__} wrote nothing"
                raise UnsupportedError("backend.refused", model.name, problem, "build with --set artifact=onnx")
        tied = level == "all" or (level == "extended" and kind == "onnx")
        return Built(
            path=out,
            files=(out,),
            format=kind,
            notes=(f"optimised at level {level} for processors like this one: build it where it runs",) if tied else (),
            facts={"onnxruntime": ort.__version__, "graph_optimization": level},
        )


class OnnxRuntimeSession:
    """A loaded model. Close it to end the profile and remove what it wrote.

    Args:
        model: The model.
        target: Where it is to run.
        saving: How and where the optimised graph is written meanwhile; see `OnnxRuntime.build`.
    """

    def __init__(self, model: Model, target: Target, saving: Mapping[str, str] | None = None) -> None:
        import onnxruntime as ort

        provider = dict(PROVIDERS).get(target.device)
        if provider is None or provider not in ort.get_available_providers():
            raise UnsupportedError(
                "target.not_installed",
                target.name,
                f"the installed onnxruntime {ort.__version__} has no {provider or target.device}; "
                f"it has {', '.join(ort.get_available_providers())}",
                "run 'edgeproof targets' for the line that installs it",
            )
        settings = target.settings_as(OnnxRuntimeSettings)
        self._model = model
        self._wanted = provider
        self._profile = settings.profile
        self._folder: Path | None = None
        self._clean: Callable[[], object] = lambda: None
        self._layers: tuple[LayerTime, ...] | None = None
        options = session_options(settings)
        if len(model.outputs) > PLANNED_OUTPUTS:
            options.enable_mem_pattern = False
        if saving is not None:
            options.optimized_model_filepath = saving["optimized_model_filepath"]
            options.add_session_config_entry("session.save_model_format", saving["session.save_model_format"])
        if settings.profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(self._scratch() / "profile")
        source: bytes | str
        if weight_bytes(model.graph) > PROTO_LIMIT_BYTES:
            source = str(save_model(model, self._scratch() / "model.onnx"))
        else:
            source = model.to_bytes()
        providers = [provider] if provider == "CPUExecutionProvider" else [provider, "CPUExecutionProvider"]
        try:
            self._session: Any = ort.InferenceSession(source, options, providers=providers)
        except Exception as e:
            self._clean()
            raise _refused(model, target, e) from e
        self._outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
        """
        try:
            values = self._session.run(self._outputs, dict(feeds))
        except Exception as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[:200]) from e
        return dict(zip(self._outputs, values, strict=True))

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per executed node, from the runtime's profile. Ends the profile."""
        if self._layers is None:
            self._layers = _read_profile(Path(self._session.end_profiling())) if self._profile else ()
        return self._layers

    def placement(self) -> Placement:
        """Where each node ran: from the profile when there is one, else from the runtime's assignment record."""
        if self._profile and self.layers():
            nodes = tuple((layer.name, layer.op, layer.device, layer.precision) for layer in self.layers())
            source = "onnxruntime profile"
        else:
            nodes = tuple(
                (node.name, node.op_type, group.ep_name, "")
                for group in _assignment(self._session)
                for node in group.get_nodes()
            )
            source = "onnxruntime graph assignment"
        fallbacks: list[tuple[str, str]] = []
        if self._wanted not in self._session.get_providers():
            fallbacks.append((self._wanted, "the provider could not start on this machine; all nodes ran on the CPU"))
        elif self._wanted != "CPUExecutionProvider":
            fallbacks += [(n, f"{op} ran on {where}") for n, op, where, _ in nodes if where != self._wanted]
        return Placement(nodes, tuple(fallbacks), source)

    def close(self) -> None:
        """Free the session and its temporary files."""
        if self._profile and self._layers is None:
            with contextlib.suppress(Exception):
                self._session.end_profiling()
        self._session = None
        self._clean()

    def _scratch(self) -> Path:
        """A folder of its own, made when it is needed and removed with the session."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="edgeproof-ort-"))
            self._clean = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def cpu_scheme(machine: str = "", cpuinfo: str | Path = "/proc/cpuinfo") -> QuantScheme:
    """What the CPU provider wants on a processor; one whose abilities are not known counts as able.

    Args:
        machine: As ``platform.machine`` says; empty means this one.
        cpuinfo: Linux's file about the processor.
    """
    if (machine or platform.machine()).lower() in ("aarch64", "arm64"):
        return schemes.ORT_ARM
    try:
        flags = set(re.findall(r"\w+", Path(cpuinfo).read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return schemes.ORT
    return schemes.ORT if flags & VNNI or "sse2" not in flags else schemes.ORT_NARROW


def session_options(settings: OnnxRuntimeSettings) -> ort.SessionOptions:
    """ONNX Runtime's options for our settings."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[settings.graph_optimization])
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spinning else "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _assignment(session: Any) -> list[Any]:
    try:
        return list(session.get_provider_graph_assignment_info())
    except Exception:  # an older runtime keeps no such record
        return []


def _read_profile(path: Path) -> tuple[LayerTime, ...]:
    """Executed nodes in order, from ONNX Runtime's trace file."""
    events = json.loads(path.read_text(encoding="utf-8"))
    times: dict[str, list[int]] = defaultdict(list)
    about: dict[str, tuple[str, str, str]] = {}
    for event in events:
        name = event.get("name", "")
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        name = name.removesuffix("_kernel_time")
        args = event["args"]
        out = args.get("output_type_shape") or [{}]
        precision = next(iter(out[0]), "") if out else ""
        about.setdefault(name, (args.get("op_name", ""), args.get("provider", ""), precision))
        times[name].append(int(event["dur"]) * 1000)
    return tuple(LayerTime(n, *about[n], tuple(t)) for n, t in times.items())


def _runs(provider: str) -> bool:
    """Whether a provider really starts here: compile a one-node model and ask where it was put."""
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "probe",
        [value("x", TensorProto.FLOAT, [1, 8])],
        [value("y", TensorProto.FLOAT, [1, 8])],
    )
    probe: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    try:
        session = ort.InferenceSession(
            probe.SerializeToString(), session_options(OnnxRuntimeSettings()), providers=[provider]
        )
    except Exception:
        return False
    return provider in session.get_providers()


def _refused(model: Model, target: Target, error: Exception) -> UnsupportedError:
    text = " ".join(str(error).split())
    unknown = re.search(
        r"(?:No Op registered for |Fatal error: )?([\w.:]+?)(?:\(-?\d+\) is not a registered function/op)", text
    )
    unknown = unknown or re.search(r"No Op registered for (\w+)", text)
    if unknown:
        op = unknown[1].lstrip(":")
        return UnsupportedError(
            "backend.unknown_operator",
            f"{model.name} on {target.name}",
            f"operator {op} is not known to the runtime",
            "export it with standard ONNX operators, or register the custom operator's library with the runtime",
        )
    return UnsupportedError(
        "backend.refused",
        f"{model.name} on {target.name}",
        text[:400],
        "run 'edgeproof inspect' on the model for its findings",
    )


IMPL: type[Backend] = OnnxRuntime
