"""Find the fastest variant of a model that meets a policy, and prove it.

The original and every candidate are measured on the target; the finalists are confirmed in fresh, interleaved processes
on samples that the search never saw. Ctrl-C or a killed process loses nothing: the same command goes on.

exit codes: 0 accept, 1 reject, 5 hold
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import InputError, did_you_mean
from ..target import Setting
from . import whole_number
from ._outcome import finish
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the main job."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX file")
    parser.add_argument(
        "--data", required=True, metavar="D", help="data file (YAML), folder, .npz, or file.py:callable"
    )
    parser.add_argument("--policy", metavar="P", help="policy file (YAML); left out: the default policy")
    run_flags(parser)
    parser.add_argument("--evaluator", metavar="FILE.py:NAME", help="score examples with this callable")


def run_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that the demo shares."""
    parser.add_argument("--target", default="onnxruntime:cpu", metavar="T", help="default: onnxruntime:cpu")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="fix a setting of the runtime, e.g. threads=1"
    )
    parser.add_argument("--out", metavar="RUN", help="folder of the run (default: runs/ and the model's name)")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the sample split and all random choices")


def run(args: argparse.Namespace, show: Show) -> int:
    """Parse, optimise, show."""
    from ..dataset import load_spec
    from ..evaluate import metric_units
    from ..optimize import optimize
    from ..policy import default_policy, load_policy
    from ..runtimes import find_target

    spec = load_spec(args.data)
    if args.evaluator:
        spec = replace(spec, evaluator=seen_from(spec.root, args.evaluator))
    policy = load_policy(args.policy, metric_units()) if args.policy else default_policy()
    target = find_target(args.target, runtime_settings(args.target, args.set))
    out = Path(args.out) if args.out else Path("runs") / Path(args.model).stem
    with show.progress() as progress:
        result = optimize(args.model, spec, policy, target, out, seed=args.seed, progress=progress, tell=show.note)
    return finish(result, out, show)


def seen_from(root: str, evaluator: str) -> str:
    """``file.py:callable`` as typed, seen from the folder that a data file's own paths start at."""
    file, colon, name = evaluator.rpartition(":")
    return f"{os.path.relpath(file, root)}:{name}" if root and colon and file.endswith(".py") else evaluator


def runtime_settings(target: str, pairs: list[str]) -> dict[str, Setting]:
    """``--set`` values, typed by the backend's settings dataclass.

    Raises:
        InputError: settings.unknown, settings.value.
    """
    backend = target.partition(":")[0]
    if backend not in registry.names("backends"):
        raise InputError("target.unknown", target, "no such runtime", did_you_mean(backend, registry.names("backends")))
    kinds = {f.name: f for f in fields(registry.load("backends", backend).settings)}
    values: dict[str, Setting] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in kinds:
            raise InputError("settings.unknown", f"--set {pair}", "is not a setting", did_you_mean(key, kinds))
        values[key] = typed(text, kinds[key].default, f"--set {pair}")
    return values


def typed(text: str, like: Any, subject: str) -> Setting:
    """Text as a value of the same type as ``like``.

    Raises:
        InputError: settings.value.
    """
    if isinstance(like, bool):
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise InputError("settings.value", subject, f"{text!r} is not true or false", "write true or false")
    try:
        value: Setting = type(like)(text)
    except (TypeError, ValueError) as e:
        kind = type(like).__name__
        raise InputError("settings.value", subject, f"{text!r} is no {kind}", f"the default is {like!r}") from e
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError("settings.value", subject, f"{text!r} is not finite", f"the default is {like!r}")
    return value
