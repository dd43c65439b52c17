"""Find the fastest variant of a model that meets a policy, and prove it.

The original and every candidate are measured on the target; the finalists are confirmed in fresh, interleaved processes
on samples that the search never saw. Ctrl-C or a killed process loses nothing: the same command goes on.

exit codes: 0 accept, 1 reject, 5 hold
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from .. import registry
from ..errors import InputError, did_you_mean
from ..runtimes import backend_of
from ..target import Setting, Target
from . import whole_number
from ._outcome import finish
from .show import Show

if TYPE_CHECKING:
    from ..dataset import DataSpec
    from ..policy import Policy


TARGET = "onnxruntime:cpu"
"""Where a model is to run, when nobody says."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the main job."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX file")
    parser.add_argument(
        "--data", required=True, metavar="D", help="data file (YAML), folder, .npz, or file.py:callable"
    )
    parser.add_argument("--policy", metavar="P", help="policy file (YAML); left out: the default policy")
    run_flags(parser)
    parser.add_argument(
        "--training",
        type=whole_number,
        metavar="SECONDS",
        help="longest time to train where post-training means do not suffice (default: 900; 0: never)",
    )
    parser.add_argument("--targets", metavar="A,B,C", help="optimise for several runtimes and compare them in one run")
    parser.add_argument("--evaluator", metavar="FILE.py:NAME", help="score examples with this callable")


def run_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that the demo shares."""
    parser.add_argument("--target", metavar="T", help=f"default: {TARGET}")
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
    if args.targets is not None:
        return _across(args, spec, policy, show)
    name = args.target or TARGET
    target = find_target(name, runtime_settings(name, args.set))
    out = Path(args.out) if args.out else Path("runs") / Path(args.model).stem
    with show.progress() as progress:
        result = optimize(
            args.model,
            spec,
            policy,
            target,
            out,
            seed=args.seed,
            training_s=_training_s(args),
            progress=progress,
            tell=show.note,
        )
    return finish(result, out, show)


def _training_s(args: argparse.Namespace) -> float:
    from ..optimize import TRAINING_S

    return TRAINING_S if args.training is None else float(args.training)


def _across(args: argparse.Namespace, spec: DataSpec, policy: Policy, show: Show) -> int:
    from ..across import across
    from ._across import finish as finish_across

    if args.target is not None:
        every = ",".join(dict.fromkeys([args.target, *filter(None, args.targets.split(","))]))
        hint = f"name all of them in one flag: --targets {every}"
        raise InputError("usage.arguments", f"--target {args.target}", "does not go with --targets", hint)
    targets = named_targets(args.targets, args.set)
    out = Path(args.out) if args.out else Path("runs") / f"{Path(args.model).stem}-targets"
    with show.progress() as progress:
        result = across(
            args.model,
            spec,
            policy,
            targets,
            out,
            seed=args.seed,
            training_s=_training_s(args),
            progress=progress,
            tell=show.note,
        )
    return finish_across(result, out, show)


def seen_from(root: str, evaluator: str) -> str:
    """``file.py:callable`` as typed, seen from the folder that a data file's own paths start at."""
    file, colon, name = evaluator.rpartition(":")
    return f"{os.path.relpath(file, root)}:{name}" if root and colon and file.endswith(".py") else evaluator


THREADS = 4096
"""Most threads that a setting may ask for: runtimes start them all at once."""


def runtime_settings(target: str, pairs: list[str]) -> dict[str, Setting]:
    """``--set`` values, typed by the backend's settings dataclass.

    Raises:
        InputError: settings.unknown, settings.value.
    """
    kinds = _settings_of(target)
    values: dict[str, Setting] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in kinds:
            raise InputError("settings.unknown", f"--set {pair}", "is not a setting", did_you_mean(key, kinds))
        values[key] = typed(text, kinds[key].default, f"--set {pair}")
        if key == "threads" and not 0 <= int(values[key] or 0) <= THREADS:
            problem = f"is {text[:40]}; expected 0 to {THREADS}"
            raise InputError("settings.value", f"--set {key}", problem, f"the default is {kinds[key].default!r}")
        allowed = _choices(target, key)
        if allowed and values[key] not in allowed:
            problem = f"{text!r} is not one of {', '.join(map(str, allowed))}"
            raise InputError("settings.value", f"--set {pair}", problem, f"the default is {kinds[key].default!r}")
    return values


def _choices(target: str, key: str) -> tuple[Any, ...]:
    """What a setting may be, where it is one of a few words."""
    kind = get_type_hints(registry.load("backends", backend_of(target)).settings)[key]
    return get_args(kind) if get_origin(kind) is Literal else ()


def named_targets(names: str, pairs: list[str]) -> tuple[Target, ...]:
    """Targets by their names with commas between. A ``--set`` goes to those that have the setting, or to the only one.

    Raises:
        InputError: target.none, target.twice, settings.unknown, settings.value, target.unknown.
        UnsupportedError: target.not_installed.
    """
    from ..runtimes import find_target

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise InputError(
            "target.none", repr(names), "names no target", "name at least one; 'edgeproof targets' lists them"
        )
    if len(wanted) == 1:
        return (find_target(wanted[0], runtime_settings(wanted[0], pairs)),)
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise InputError("target.twice", names, f"names {twice} twice", "name every target once: a,b,c")
    known = {name: _settings_of(name) for name in wanted}
    for pair in pairs:
        key = pair.partition("=")[0]
        if not any(key in settings for settings in known.values()):
            every = {k for settings in known.values() for k in settings}
            raise InputError("settings.unknown", f"--set {pair}", "is a setting of none", did_you_mean(key, every))
    own = {name: [p for p in pairs if p.partition("=")[0] in known[name]] for name in wanted}
    return tuple(find_target(name, runtime_settings(name, own[name])) for name in wanted)


def _settings_of(target: str) -> dict[str, Field[Any]]:
    """Settings of a target's runtime.

    Raises:
        InputError: target.unknown.
    """
    return {f.name: f for f in fields(registry.load("backends", backend_of(target)).settings)}


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
