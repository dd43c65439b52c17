"""Core ML: packages for Apple's devices, made anywhere and run on macOS only.

A model goes ONNX → torch.fx → ``torch.export`` → MIL → ``.mlpackage``, Q/DQ as MIL's quantize and dequantize. Where
Core ML does not run, the package that was written is read back and computed operator by operator (`_mil`) beside ONNX
Runtime: that shows what the package says, not what Apple's kernels make of it.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import registry, toolchain
from ..errors import InputError, UnsupportedError
from ..measurement import LayerTime, Placement
from ..model import Model
from ..protocols import Backend, Built, Outputs, Progress
from ..quant.schemes import COREML
from ..target import Target
from . import _mil
from ._coreml_package import UNITS, CoreMlSettings, feature, settings_of, write
from ._feeds import bad_feeds, check_feeds
from ._mil_arguments import UnknownOperatorError

if TYPE_CHECKING:
    from ..dataset import Feeds

AGREE_DB = 60.0
"""Least signal-to-noise ratio of a float32 package beside the model that it was made from."""


@dataclass(frozen=True, slots=True)
class CoreMl:
    """The backend."""

    settings: ClassVar[type] = CoreMlSettings

    def missing(self) -> str | None:
        """The line that installs it."""
        return toolchain.missing("coreml")

    def targets(self) -> tuple[Target, ...]:
        """Targets on this machine: none but on macOS."""
        return self.planned() if platform.system() == "Darwin" else ()

    def planned(self) -> tuple[Target, ...]:
        """Targets that packages can be built for, anywhere."""
        return tuple(Target(f"coreml:{d}", "coreml", d, COREML) for d in UNITS)

    def compile(self, model: Model, target: Target) -> CoreMlSession:
        """Load a model into Core ML.

        Raises:
            UnsupportedError: target.not_here, but on macOS.
        """
        if platform.system() != "Darwin":
            raise UnsupportedError(
                "target.not_here",
                target.name,
                "Core ML predicts on macOS only",
                "run 'edgeproof build' here, and scripts/on-macos on a Mac",
            )
        return CoreMlSession(model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write a ``.mlpackage``, which is a folder.

        Raises:
            UnsupportedError: backend.refused, coreml.deployment, coreml.differs, fx.*.
            InputError: coreml.setting, coreml.out.
        """
        settings = settings_of(target)
        path = out if out.suffix == ".mlpackage" else out.with_name(f"{out.name}.mlpackage")
        seconds: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix=".edgeproof-", dir=path.parent) as folder:
            package = Path(folder, "model.mlpackage")
            write(model, target, package, progress, seconds)
            start = time.perf_counter()
            progress("coreml: check", 0.7)
            program = _mil.read(package)
            facts = _facts(program, seconds)
            if settings.check:
                facts["check"] = _checked(program, model, target, settings)
            seconds["check"] = time.perf_counter() - start
            _put(package, path)
        facts["seconds"] = {k: round(v, 3) for k, v in seconds.items()}
        nodes = tuple((op.name, op.op_type, UNITS[target.device], _dtype(op)) for op in _mil.operators(program))
        source = "the package's MIL program; which unit runs an operator is for Core ML to say, on the device"
        files = tuple(sorted(p for p in path.rglob("*") if p.is_file()))
        left = _left(program, settings)
        where = Placement(nodes, left, source)
        return Built(path, files, "mlpackage", "", where, left, _notes(facts), facts)


class CoreMlSession:
    """A loaded package, on macOS.

    Args:
        model: The model.
        target: Where it is to run.
    """

    def __init__(self, model: Model, target: Target) -> None:
        import coremltools

        self._model = model
        self._folder = tempfile.TemporaryDirectory(prefix="edgeproof-coreml-")
        package = Path(self._folder.name, "model.mlpackage")
        write(model, target, package)
        self._units = coremltools.ComputeUnit[UNITS[target.device]]
        self._loaded: Any = coremltools.models.MLModel(str(package), compute_units=self._units)

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch.

        Raises:
            InputError: session.feeds, when the arrays do not fit the inputs.
        """
        check_feeds(self._model, feeds)
        given = {feature(name): _narrowed(array) for name, array in feeds.items()}
        try:
            found = self._loaded.predict(given)
        except RuntimeError as e:
            raise bad_feeds(self._model, feeds, " ".join(str(e).split())[-200:]) from e
        return {o.name: found[feature(o.name)].astype(o.dtype) for o in self._model.outputs}

    def layers(self) -> tuple[LayerTime, ...]:
        """Nothing: Core ML times no operators from Python."""
        return ()

    def placement(self) -> Placement:
        """The unit that Core ML's compute plan prefers for every operator."""
        from coremltools.models.compute_plan import MLComputePlan

        plan = MLComputePlan.load_from_path(self._loaded.get_compiled_model_path(), self._units)
        nodes = []
        for op in plan.model_structure.program.functions["main"].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
            if usage is not None:
                device = type(usage.preferred_compute_device).__name__.removeprefix("ML").removesuffix("ComputeDevice")
                nodes.append((op.outputs[0].name, op.operator_name, device, ""))
        return Placement(tuple(nodes), (), "Core ML's compute plan")

    def close(self) -> None:
        """Free the model."""
        self._loaded = None
        self._folder.cleanup()


def _facts(program: Any, seconds: Mapping[str, float]) -> dict[str, Any]:
    ops = _mil.operators(program)
    stored = [op for op in ops if op.op_type.startswith("constexpr_")]
    return {
        "coremltools": version("coremltools"),
        "torch": version("torch"),
        "seconds": dict(seconds),
        "operators": dict(sorted(Counter(op.op_type for op in ops).items())),
        "compressed_weights": len(stored),
        "quantised_tensors": sum(op.op_type == "quantize" for op in ops),
    }


def _left(program: Any, settings: CoreMlSettings) -> tuple[tuple[str, str], ...]:
    """Layers whose weights were to be stored otherwise and are not, which coremltools tells only to its log."""
    if settings.weights == "model":
        return ()
    found = []
    for op in _mil.operators(program):
        weight = op.inputs.get("weight")
        stored = weight is not None and weight.op is not None and weight.op.op_type == "const"
        if stored and prod(weight.shape) >= settings.least:
            shape = "×".join(map(str, weight.shape))
            why = f"its weight ({shape}) stays as it is: {settings.weights}, block={settings.block} does not fit"
            found.append((op.name, why))
    return tuple(found)


def _dtype(op: Any) -> str:
    from coremltools.converters.mil.mil import types

    name = str(types.builtin_to_string(op.outputs[0].dtype))
    return {"fp32": "float", "fp16": "float16"}.get(name, name)


def _checked(program: Any, model: Model, target: Target, settings: CoreMlSettings) -> dict[str, Any]:
    """The package as computed here beside the model on ONNX Runtime, on two random inputs.

    Raises:
        UnsupportedError: coreml.differs, when a package that should compute the same does not.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    runtime = registry.load("backends", "onnxruntime")()
    # Node by node as ONNX defines them: its fused integer kernels round elsewhere.
    plain = {"graph_optimization": "disable"}
    session = runtime.compile(model, Target("onnxruntime:cpu", "onnxruntime", "cpu", settings=plain))
    signal = noise = largest = 0.0
    for _ in range(2):
        feeds = {}
        for spec in model.inputs:
            shape = tuple(int(d) for d in spec.shape or ())
            wide = rng.standard_normal(shape) if spec.dtype.startswith("float") else rng.integers(0, 2, shape)
            feeds[spec.name] = wide.astype(spec.dtype)
        try:
            got = _mil.evaluate(program, {feature(k): v for k, v in feeds.items()})
        except UnknownOperatorError as e:
            session.close()
            return {"unknown": str(e)}
        for name, want in session.run(feeds).items():
            gap = np.asarray(got[feature(name)], np.float64) - want
            signal, noise = signal + float((want.astype(np.float64) ** 2).sum()), noise + float((gap**2).sum())
            largest = max(largest, float(np.abs(gap).max(initial=0.0)))
    session.close()
    ratio = None if noise == 0 or signal == 0 else round(10 * float(np.log10(signal / noise)), 1)
    halves = any(_dtype(op) == "float16" for op in _mil.operators(program))
    exact = settings.weights == "model" and not halves
    if exact and ratio is not None and ratio < AGREE_DB:
        raise UnsupportedError(
            "coreml.differs",
            f"{model.name} on {target.name}",
            f"the package computes something else than the model: {ratio} dB of signal to noise, expected {AGREE_DB:g}",
            "report it with the model; --set check=false builds it all the same",
        )
    return {"against": "onnxruntime", "inputs": 2, "max_abs": largest, "sqnr_db": ratio}


def _notes(facts: Mapping[str, Any]) -> tuple[str, ...]:
    check = facts.get("check")
    if not check:
        return ("not checked; Core ML itself runs on macOS only",)
    if "unknown" in check:
        return (f"not checked: the operator {check['unknown']} has no definition here; Core ML runs on macOS only",)
    ratio = "equal" if check["sqnr_db"] is None else f"{check['sqnr_db']} dB"
    return (f"computed here operator by operator, beside ONNX Runtime: {ratio}; Core ML itself runs on macOS only",)


def _narrowed(array: Any) -> Any:
    """Core ML takes floats and 32-bit integers."""
    import numpy as np

    return array if array.dtype.kind == "f" else array.astype(np.int32)


def _put(package: Path, path: Path) -> None:
    """Move a finished package to its place, where an older one may stand."""
    if path.exists() and not (path / "Manifest.json").is_file():
        raise InputError("coreml.out", str(path), "is there and is no package", "choose another name with --out")
    shutil.rmtree(path, ignore_errors=True)
    package.rename(path)


IMPL: type[Backend] = CoreMl
