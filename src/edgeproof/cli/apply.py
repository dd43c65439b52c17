"""Run one pass on a model and show what it changed, what it left alone, and why.

Without --out nothing is written. A setting is a flag of its own (--tolerance 0.001) or --set tolerance=0.001.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import InputError, did_you_mean
from . import whole_number
from .show import Show

if TYPE_CHECKING:
    from ..change import Change
    from ..dataset import Feeds
    from ..model import Model
    from ..protocols import Context, Progress
    from ..target import Setting

SHOWN = 12
"""Changes, and nodes left alone, that people are shown; --all and --json give every one."""

_OWN = frozenset(
    {"pass", "model", "set", "out", "data", "target", "seed", "list", "before", "all", "json", "debug", "help"}
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes: its own flags, and one for every setting of every pass."""
    parser.usage = "edgeproof apply PASS MODEL [--out FILE] [--SETTING VALUE ...]\n       edgeproof apply --list"
    parser.add_argument("pass", metavar="PASS", nargs="?", help="name of the pass; --list shows them")
    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, help="an .onnx file")
    parser.add_argument("--list", action="store_true", help="show all passes with their settings")
    parser.add_argument("--out", metavar="FILE", type=Path, help="where the result goes; left out: nothing is written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the pass")
    parser.add_argument("--data", metavar="D", help="samples: data file (YAML), folder, .npz, or file.py:callable")
    parser.add_argument(
        "--before", metavar="MODEL", type=Path, help="for distil: the model to learn from, e.g. the float one"
    )
    parser.add_argument("--target", default="onnxruntime:cpu", metavar="T", help="default: onnxruntime:cpu")
    parser.add_argument("--seed", type=whole_number, default=0, help="of random inputs")
    parser.add_argument("--all", action="store_true", help="show every change, and every node that was left alone")
    group = parser.add_argument_group("settings of the passes")
    users: dict[str, list[str]] = defaultdict(list)
    for name in registry.names("passes"):
        for f in _settings(registry.load("passes", name)):
            users[f.name].append(f"{name} ({f.default!r})")
    for setting, names in sorted(users.items()):
        if setting not in _OWN:
            group.add_argument(
                f"--{setting.replace('_', '-')}",
                dest=f"setting_{setting}",
                metavar="VALUE",
                help=f"of {', '.join(names)}".replace("%", "%%"),
            )


def run(args: argparse.Namespace, show: Show) -> int:
    """Apply one pass."""
    name = vars(args)["pass"]
    if args.list:
        return _list(show)
    if not name or args.model is None:
        known = did_you_mean(name or "", registry.names("passes"))
        raise InputError(
            "apply.arguments",
            "edgeproof apply",
            "needs a pass and a model" if not name else f"{name}: no model was given",
            f"edgeproof apply simplify model.onnx --out small.onnx; passes {known}",
        )
    implementation = registry.load("passes", name)
    settings = _given(args, name, implementation)
    from ..model import load_model, save_model, size_bytes

    if args.out is not None:
        _refuse_input(args.model, args.out)
    model = load_model(args.model)
    before = size_bytes(args.model)
    with show.progress() as progress:
        change = implementation(**settings)(model, _context(args, model, progress))
    if args.out is not None:
        save_model(change.model, args.out)
    _show(name, model, change, before, args, show)
    show.result(_as_json(name, settings, model, change, args.out))
    return 0


def _refuse_input(model: Path, out: Path) -> None:
    """The given model is the only one that there may be: nothing is written over it, under whatever name.

    Raises:
        InputError: apply.same_file.
    """
    if out.resolve() == model.resolve() or (out.exists() and model.exists() and out.samefile(model)):
        other = model.with_name(f"{model.stem}-new{model.suffix}")
        raise InputError(
            "apply.same_file",
            f"--out {out}",
            f"is the model itself ({model}), which would be overwritten",
            f"write to another file, e.g. --out {other}",
        )


def _settings(implementation: type[Any]) -> list[Field[Any]]:
    return list(fields(implementation))


def _given(args: argparse.Namespace, name: str, implementation: type[Any]) -> dict[str, Setting]:
    """The settings on the command line, typed by the pass's dataclass.

    Raises:
        InputError: settings.unknown, settings.value.
    """
    from .optimize import typed

    known = {f.name: f for f in _settings(implementation)}
    pairs: list[tuple[str, str, str]] = []
    for key, value in vars(args).items():
        if key.startswith("setting_") and value is not None:
            setting = key.removeprefix("setting_")
            pairs.append((setting, value, f"--{setting.replace('_', '-')} {value}"))
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError("settings.value", f"--set {text}", "has no '='; expected KEY=VALUE", "write KEY=VALUE")
        pairs.append((key.replace("-", "_"), value, f"--set {text}"))
    values: dict[str, Setting] = {}
    for key, value, subject in pairs:
        if key not in known:
            hint = did_you_mean(key, known) if known else f"{name} has no settings"
            raise InputError("settings.unknown", subject, f"is not a setting of {name}", hint)
        values[key] = typed(value, known[key].default, subject)
    return values


def _context(args: argparse.Namespace, model: Model, progress: Progress) -> Context:
    from ..model import load_model
    from ..protocols import Context
    from ..runtimes import compile_for, find_target, observer

    target = find_target(args.target, {}, run=False)
    place = observer(target)
    before = None if args.before is None else partial(load_model, args.before)
    if args.data is None:
        return Context(lambda m: compile_for(place, m), target=target, seed=args.seed, progress=progress, before=before)
    from ..dataset import load_spec
    from ..evaluate import open_dataset

    dataset = open_dataset(load_spec(args.data), model)

    def feeds() -> Iterator[Feeds]:
        return (dataset[i].feeds for i in range(len(dataset)))

    return Context(lambda m: compile_for(place, m), feeds, len(dataset), target, args.seed, progress, before=before)


def _show(name: str, model: Model, change: Change, size_before: int, args: argparse.Namespace, show: Show) -> None:
    before, after = _nodes(model), _nodes(change.model)
    if change.modified:
        show.text(f"{name}: {before} nodes became {after}" if before != after else f"{name}: {after} nodes, as before")
    else:
        show.text(f"{name}: nothing changed ({before} nodes)")
    most = None if args.all else SHOWN
    show.listing([f"  + {line}" for line in change.applied], most, "  + {} more; --all shows them")
    declined = [f"  - {node}: {reason}" for node, reason in change.declined]
    show.listing(declined, most, "  - {} more were left alone; --all shows them")
    if args.out is not None:
        from ..model import size_bytes

        show.text(f"  wrote {args.out} ({size_bytes(args.out):,} bytes; the original has {size_before:,})")
    else:
        show.text("  nothing was written; --out FILE keeps the result")


def _as_json(name: str, settings: dict[str, Setting], model: Model, change: Change, out: Path | None) -> dict[str, Any]:
    return {
        "pass": name,
        "settings": settings,
        "modified": change.modified,
        "digest_before": model.digest,
        "digest_after": change.model.digest,
        "nodes_before": _nodes(model),
        "nodes_after": _nodes(change.model),
        "applied": list(change.applied),
        "declined": [{"node": node, "reason": reason} for node, reason in change.declined],
        "facts": change.facts,
        "out": None if out is None else str(out),
    }


def _nodes(model: Model) -> int:
    from ..graph.rewrite import graphs

    return sum(len(g) for g in graphs(model.graph.graph))


def _list(show: Show) -> int:
    result = []
    for name in registry.names("passes"):
        implementation = registry.load("passes", name)
        doc = inspect.getdoc(sys.modules[implementation.__module__]) or inspect.getdoc(implementation) or ""
        summary = doc.splitlines()[0] if doc else ""
        settings = {f.name: f.default for f in _settings(implementation)}
        result.append({"pass": name, "summary": summary, "settings": settings})
        show.text(name)
        show.wrapped(summary, indent=2)
        if settings:
            show.wrapped(", ".join(f"{k}={v!r}" for k, v in settings.items()), indent=4)
    show.result({"passes": result})
    return 0
