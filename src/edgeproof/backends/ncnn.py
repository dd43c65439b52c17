"""ncnn on processors, and on graphics through Vulkan.

Models are converted by ncnn's own pnnx. INT8 comes from the Q/DQ graph: its codes and scales are written into ncnn's
files, so that what runs is what was measured. A Vulkan device is listed when a small network really runs on it; a
driver in software (llvmpipe) is one too, under the name that it gives itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .. import toolchain
from ..errors import UnsupportedError
from ..files import write_bytes, write_text
from ..measurement import LayerTime, Placement
from ..model import Model
from ..ncnn import convert, integers
from ..ncnn.netfile import write_bin, write_param
from ..protocols import Backend, Built, Outputs, Progress
from ..quant.schemes import NCNN
from ..target import Target
from ._feeds import check_feeds
from ._open_shapes import OpenSession
from ._terminal import quiet

if TYPE_CHECKING:
    from ..dataset import Feeds

_NO_VULKAN = 16
"""Bit of a layer's parameter 31."""


@dataclass(frozen=True, slots=True)
class NcnnSettings:
    """What can be set.

    Attributes:
        threads: Threads of the processor; 0 lets ncnn take the large cores.
        precision: What float layers are computed in: float32; float16 in memory and float32 in sums
            (``fp16-storage``); float16 throughout; or bfloat16 in memory. Layers without such kernels stay in float32:
            x86 has none for float16, and for bfloat16 where the processor has.
        weights: How ``build`` stores float weights.
        winograd: Let 3×3 convolutions use Winograd's transform: faster, with more memory and a little more error.
        light: Free what was computed as soon as nothing reads it.
        gpu: Which Vulkan device, as the driver counts them.
        profile: Record the time of every layer (for reports; slows inference down, most of all on Vulkan, where every
            layer's result is fetched).
    """

    threads: int = 0
    precision: Literal["float32", "fp16-storage", "fp16", "bf16"] = "float32"
    weights: Literal["float32", "float16"] = "float32"
    winograd: bool = True
    light: bool = True
    gpu: int = 0
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Ncnn:
    """The backend."""

    settings: ClassVar[type] = NcnnSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return toolchain.missing("ncnn") or (None if convert.program() else "edgeproof targets --install ncnn")

    def targets(self) -> tuple[Target, ...]:
        """The processor, and Vulkan where a small network really runs on it.

        Vulkan comes first on a real graphics device, last on a driver in software.
        """
        ncnn = _ncnn()
        cpu = Target("ncnn:cpu", "ncnn", "cpu", NCNN)
        with quiet():
            if ncnn.get_gpu_count() == 0 or not _runs(ncnn):
                return (cpu,)
            software = ncnn.get_gpu_info(0).type() == _SOFTWARE
        vulkan = Target("ncnn:vulkan", "ncnn", "vulkan")
        return (cpu, vulkan) if software else (vulkan, cpu)

    def compile(self, model: Model, target: Target) -> NcnnSession | OpenSession:
        """Convert a model and load it; with open dimensions, for the sizes that it is fed."""
        if any(spec.dynamic for spec in model.inputs):
            return OpenSession(model, lambda fixed: NcnnSession(fixed, target))
        return NcnnSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write ``NAME.param`` and ``NAME.bin``, with integer weights where layers run in integers."""
        started = time.perf_counter()
        progress("pnnx converts", 0.0)
        session = NcnnSession(model, target)
        seconds = time.perf_counter() - started
        settings = target.settings_as(NcnnSettings)
        param = out if out.suffix == ".param" else out.with_name(f"{out.name}.param")
        half = settings.weights == "float16"
        write_bytes(param.with_suffix(".bin"), write_bin(session.network.layers, half=half))
        write_text(param, write_param(session.network.layers))
        placement = session.placement()
        session.close()
        progress("written", 1.0)
        blobs = {p.name: p.blob for p in (*session.network.inputs, *session.network.outputs)}
        return Built(
            param,
            (param, param.with_suffix(".bin")),
            "ncnn",
            command="" if session.integer else f"pnnx {model.name}.onnx fp16={int(half)}",
            placement=placement,
            fallbacks=placement.fallbacks,
            notes=("ncnn's names of inputs and outputs: " + ", ".join(f"{k} is {v}" for k, v in blobs.items()),),
            facts={"ncnn": _ncnn().__version__, "convert_seconds": round(seconds, 3), "blobs": blobs},
        )


class NcnnSession:
    """A loaded model.

    Attributes:
        network: What runs.
        integer: Whether layers of it have integer weights.
    """

    def __init__(self, model: Model, target: Target) -> None:
        ncnn = _ncnn()
        settings = target.settings_as(NcnnSettings)
        self._model, self._target, self._settings = model, target, settings
        floats, wanted, declined = integers.as_float(model)
        network = convert.convert(floats, target.name, lambda kind: ncnn.layer_to_index(kind) >= 0)
        self.network, more = integers.with_integers(network, wanted)
        self._declined = (*declined, *more)
        self.integer = any(map(integers.in_integers, self.network.layers))
        self._times: dict[int, list[int]] = defaultdict(list)
        self._device = "CPU"
        with quiet():
            self._net: Any = self._loaded(ncnn)

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
            UnsupportedError: backend.refused, when ncnn gives up on a layer.
        """
        import numpy as np

        check_feeds(self._model, feeds)
        ncnn = _ncnn()
        extractor = self._net.create_extractor()
        extractor.set_light_mode(self._settings.light and not self._settings.profile)
        for port in self.network.inputs:
            array = np.ascontiguousarray(feeds[port.name], port.dtype)
            extractor.input(port.blob, ncnn.Mat(array, batch_index=port.batch).clone())
        if self._settings.profile:
            self._step(extractor)
        outputs = {}
        for port in self.network.outputs:
            code, found = extractor.extract(port.blob)
            array = np.array(found.numpy(batch_index=port.batch)) if code == 0 else np.empty(0)
            if code != 0:
                raise self._refused(f"ncnn gave up ahead of the output {port.name} (code {code})")
            if port.shape is not None and array.size != np.prod(port.shape):
                raise self._refused(f"pnnx took {port.name} for {list(array.shape)}; the model says {list(port.shape)}")
            outputs[port.name] = array if port.shape is None else array.reshape(port.shape)
        return outputs

    def layers(self) -> tuple[LayerTime, ...]:
        """Time per layer: from asking for one layer's result after the other."""
        rows = self._rows()
        return tuple(LayerTime(*rows[i], tuple(times)) for i, times in self._times.items())

    def placement(self) -> Placement:
        """Where each layer runs, as ncnn says of its layers after loading."""
        rows = self._rows()
        fallbacks = list(self._declined)
        if self._target.device == "vulkan":
            fallbacks += [
                (name, f"{op} has no Vulkan form in ncnn ({precision}); it runs on the CPU, between two copies")
                for name, op, where, precision in rows.values()
                if where == "CPU"
            ]
        return Placement(tuple(rows.values()), tuple(fallbacks), "ncnn's layers after loading")

    def close(self) -> None:
        """Free the model."""
        if self._net is not None:
            self._net.clear()
        self._net = None

    def _loaded(self, ncnn: Any) -> Any:
        net = ncnn.Net()
        self._set(ncnn, net)
        with tempfile.TemporaryDirectory(prefix="edgeproof-ncnn-") as folder:
            param, weights = Path(folder, "model.param"), Path(folder, "model.bin")
            param.write_text(write_param(self.network.layers), encoding="utf-8")
            weights.write_bytes(write_bin(self.network.layers))
            if net.load_param(str(param)) != 0 or net.load_model(str(weights)) != 0:
                raise self._refused("ncnn could not load what pnnx made of it")
        return net

    def _set(self, ncnn: Any, net: Any) -> None:
        options, settings = net.opt, self._settings
        options.use_vulkan_compute = self._target.device == "vulkan"
        if settings.threads:
            options.num_threads = settings.threads
        options.lightmode = settings.light
        options.use_winograd_convolution = settings.winograd
        options.use_fp16_packed = options.use_fp16_storage = settings.precision.startswith("fp16")
        options.use_fp16_arithmetic = settings.precision == "fp16"
        options.use_bf16_packed = options.use_bf16_storage = settings.precision == "bf16"
        if self._target.device == "vulkan":
            count = ncnn.get_gpu_count()
            if settings.gpu >= count:
                raise UnsupportedError(
                    "target.not_installed",
                    self._target.name,
                    f"asks for Vulkan device {settings.gpu}; ncnn finds {count}",
                    "install the device's Vulkan driver, or set gpu to one that is there",
                )
            net.set_vulkan_device(settings.gpu)
            self._device = ncnn.get_gpu_info(settings.gpu).device_name()

    def _rows(self) -> dict[int, tuple[str, str, str, str]]:
        """Layer index → (name, type, where, precision)."""
        asked = self._settings.precision
        found = {}
        for i, (made, layer) in enumerate(zip(self._net.layers(), self.network.layers, strict=True)):
            if layer.type == "Input":
                continue
            vulkan = self._target.device == "vulkan" and made.support_vulkan
            vulkan = vulkan and not layer.number(integers.FEATURES) & _NO_VULKAN
            precision = "float"
            if integers.in_integers(layer):
                precision = "int8"
            elif asked.startswith("fp16") and (vulkan or made.support_fp16_storage):
                precision = "float16"
            elif asked == "bf16" and made.support_bf16_storage:
                precision = "bfloat16"
            name = self.network.origins.get(layer.name, layer.name)
            found[i] = (name, layer.type, self._device if vulkan else "CPU", precision)
        return found

    def _step(self, extractor: Any) -> None:
        """Compute layer by layer, and note how long each took."""
        for i, layer in enumerate(self.network.layers):
            if layer.type == "Input":
                continue
            before = time.perf_counter_ns()
            code, _ = extractor.extract(layer.outputs[0], 1)  # 1: as the layer gives it, without conversion
            self._times[i].append(time.perf_counter_ns() - before)
            if code != 0:
                raise self._refused(f"ncnn gave up on layer {layer.name} ({layer.type})")

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            "backend.refused",
            f"{self._model.name} on {self._target.name}",
            why,
            "run the passes 'fix_shapes' and 'simplify' first, or leave this model to another runtime",
        )


_SOFTWARE = 3
"""`GpuInfo.type` of a driver that computes on the processor."""

_PROBE = "7767517\n2 2\nInput in0 0 1 in0\nReLU relu 1 1 in0 out0\n"


def _ncnn() -> Any:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads of OpenMP otherwise spin against each other
    import ncnn

    return ncnn


def _runs(ncnn: Any) -> bool:
    """Whether a small network runs on the first Vulkan device and gives the right numbers."""
    import numpy as np

    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 4, 4)
    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    net.set_vulkan_device(0)
    if net.load_param_mem(_PROBE) != 0:
        return False
    net.load_model_mem(b"\0\0\0\0")
    if not net.layers()[1].support_vulkan:
        return False
    extractor = net.create_extractor()
    extractor.input("in0", ncnn.Mat(x).clone())
    code, y = extractor.extract("out0")
    del extractor  # before its network, whose memory it holds
    return code == 0 and bool(np.allclose(np.array(y), np.maximum(x, 0), atol=1e-3))


IMPL: type[Backend] = Ncnn
