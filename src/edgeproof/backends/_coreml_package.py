"""Convert a model to a Core ML package, and store its weights as asked."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, UnsupportedError, did_you_mean
from ..fx import import_model
from ..model import Model
from ..protocols import Progress
from ..target import Target
from ._torch_export import HINT, exported, fixed, quiet

UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE"}
"""Device → Core ML's compute units."""

DEPLOYMENTS = ("iOS15", "iOS16", "iOS17", "iOS18", "macOS12", "macOS13", "macOS14", "macOS15")
FIRST_QUANTISED = ("iOS17", "iOS18", "macOS14", "macOS15")
"""Systems whose MIL has quantize and dequantize."""


@dataclass(frozen=True, slots=True)
class CoreMlSettings:
    """What can be set.

    Attributes:
        deployment: Oldest system that has to load the package.
        precision: What floats are computed in: ``model`` (as they are written) or ``float16``, which the Neural Engine
            needs.
        weights: How weights are stored: ``model`` (as they are), ``int8``, ``int4``, ``palette8``, ``palette6``,
            ``palette4``, ``palette2`` (look-up tables by k-means) or ``sparse`` (the smallest are zero).
        block: Numbers of a weight that share a scale (int4) or channels that share a table; 0 means 32 for int4, else
            one scale per channel and one table per weight. Needs iOS18.
        sparsity: Share of zeros, for ``sparse``.
        least: Weights with fewer numbers stay as they are.
        check: Compute the package beside ONNX Runtime after building.
    """

    deployment: str = "iOS17"
    precision: Literal["model", "float16"] = "model"
    weights: Literal["model", "int8", "int4", "palette8", "palette6", "palette4", "palette2", "sparse"] = "model"
    block: int = 0
    sparsity: float = 0.5
    least: int = 2048
    check: bool = True


def write(
    model: Model,
    target: Target,
    package: Path,
    progress: Progress = lambda _what, _share: None,
    seconds: dict[str, float] | None = None,
) -> None:
    """Convert, compress and save.

    Args:
        model: Of fixed shapes; float, or with Q/DQ.
        target: Its settings say how.
        package: Where the folder goes.
        progress: Told about the stages.
        seconds: Gets the time of each stage.

    Raises:
        UnsupportedError: backend.refused, coreml.deployment, fx.*.
        InputError: coreml.setting.
    """
    settings = settings_of(target)
    _possible(model, target, settings)
    fixed(model, target)
    marks = [time.perf_counter()]
    with quiet():
        import coremltools as ct

        progress("coreml: import", 0.0)
        program = exported(import_model(model, quantised="decomposed").module, model, target)
        marks.append(time.perf_counter())
        progress("coreml: convert", 0.3)
        half = settings.precision == "float16"
        try:
            made = ct.convert(
                program.run_decompositions({}),
                convert_to="mlprogram",
                minimum_deployment_target=ct.target[settings.deployment],
                compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
                compute_units=ct.ComputeUnit[UNITS[target.device]],
                skip_model_load=True,
            )
        except Exception as e:
            raise UnsupportedError(
                "backend.refused",
                f"{model.name} on {target.name}",
                f"coremltools does not convert it: {' '.join(str(e).split())[:400] or type(e).__name__}",
                HINT,
            ) from e
        marks.append(time.perf_counter())
        progress("coreml: compress", 0.6)
        made = _compressed(made, settings, target)
        _named(made, model)
        made.save(str(package))
        (package / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)
        marks.append(time.perf_counter())
    if seconds is not None:
        for name, a, b in zip(("import", "convert", "compress"), marks, marks[1:], strict=False):
            seconds[name] = b - a


def feature(name: str) -> str:
    """The name of an input or output in the package: letters, digits and underscores."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{plain}" if plain[:1].isdigit() else plain


def settings_of(target: Target) -> CoreMlSettings:
    """A target's settings, held against what packages can be made for.

    Raises:
        InputError: coreml.setting.
    """
    settings = target.settings_as(CoreMlSettings)
    if settings.deployment not in DEPLOYMENTS:
        hint = did_you_mean(settings.deployment, DEPLOYMENTS)
        raise InputError(
            "coreml.setting", f"deployment={settings.deployment}", "is no system that packages are made for", hint
        )
    if not 0 < settings.sparsity < 1:
        raise InputError("coreml.setting", f"sparsity={settings.sparsity}", "is no share; expected 0 to 1", "e.g. 0.5")
    return settings


def _possible(model: Model, target: Target, settings: CoreMlSettings) -> None:
    """Refuse what the chosen system cannot load, before anything is converted."""
    system, late = settings.deployment, ("iOS18", "macOS15")
    quantised = next((n for n in model.graph.graph if n.op_type == "QuantizeLinear"), None)
    problem, need = "", ""
    if quantised is not None and system not in FIRST_QUANTISED:
        problem, need = (
            f"node {quantised.name or quantised.outputs[0].name!r} quantises, which {system} does not know",
            "iOS17",
        )
    elif settings.weights != "model" and system in ("iOS15", "macOS12"):
        problem, need = f"weights={settings.weights} is more than {system} knows", "iOS16"
    elif (settings.weights == "int4" or settings.block) and system not in late:
        problem, need = f"weights={settings.weights} with block={settings.block} is more than {system} knows", "iOS18"
    if problem:
        raise UnsupportedError(
            "coreml.deployment", f"{model.name} on {target.name}", problem, f"--set deployment={need}"
        )


def _compressed(made: Any, settings: CoreMlSettings, target: Target) -> Any:
    """The weights as the settings want them stored."""
    if settings.weights == "model":
        return made
    import coremltools.optimize.coreml as cto

    kind, least = settings.weights, settings.least
    if kind.startswith("palette") and importlib.util.find_spec("sklearn") is None:
        raise UnsupportedError(
            "target.not_installed", target.name, f"weights={kind} needs scikit-learn", "run 'pip install scikit-learn'"
        )
    if kind == "sparse":
        how = cto.OpMagnitudePrunerConfig(target_sparsity=settings.sparsity, weight_threshold=least)
        return cto.prune_weights(made, cto.OptimizationConfig(how))
    if kind.startswith("palette"):
        groups = {"granularity": "per_grouped_channel", "group_size": settings.block} if settings.block else {}
        bits = int(kind.removeprefix("palette"))
        how = cto.OpPalettizerConfig(mode="kmeans", nbits=bits, weight_threshold=least, **groups)
        return cto.palettize_weights(made, cto.OptimizationConfig(how))
    block = settings.block or (32 if kind == "int4" else 0)
    blocks = {"granularity": "per_block", "block_size": block} if block else {}
    how = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype=kind, weight_threshold=least, **blocks)
    return cto.linear_quantize_weights(made, cto.OptimizationConfig(how))


def _named(made: Any, model: Model) -> None:
    """Give inputs and outputs the model's names, as far as Core ML takes them."""
    import coremltools as ct

    spec = made._spec
    for kind, specs in (("input", model.inputs), ("output", model.outputs)):
        found = [f.name for f in getattr(spec.description, kind)]
        for old, new in zip(found, (feature(s.name) for s in specs), strict=True):
            if old != new:
                ct.utils.rename_feature(spec, old, new, rename_inputs=kind == "input", rename_outputs=kind == "output")
    names = {feature(s.name): s.name for s in (*model.inputs, *model.outputs)}
    spec.description.metadata.userDefined["edgeproof.names"] = json.dumps(names)
    spec.description.metadata.userDefined["edgeproof.model"] = model.digest
