"""Write what a runtime loads on the device: an engine, an IR, a flatbuffer, a library.

Precision is made on the ONNX graph before (edgeproof apply fp16 or int8, with the same --target), so that every runtime
is given the same numbers. Settings of the runtime are given with --set KEY=VALUE.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..digest import digest_file
from ..errors import InputError, UnsupportedError
from .show import Show

if TYPE_CHECKING:
    from ..model import Model
    from ..protocols import Built

SHOWN = 10
"""Fallbacks listed in full; --all and --json give the rest."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("model", metavar="MODEL", help="ONNX file")
    parser.add_argument("--target", required=True, help="e.g. openvino:cpu; 'edgeproof targets' lists what there is")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the runtime")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="close open dimensions"
    )
    parser.add_argument("--out", metavar="FILE", help="default: the model's name with the runtime's ending, here")
    parser.add_argument("--all", action="store_true", help="list every fallback")


def run(args: argparse.Namespace, show: Show) -> int:
    """Build, show."""
    from ..hardware import check_model
    from ..model import load_model
    from ..protocols import Builder
    from ..runtimes import backend, find_target
    from .inspect import parse_shapes
    from .optimize import runtime_settings

    target = find_target(args.target, runtime_settings(args.target, args.set), run=False)
    builder = backend(target.backend)
    line = builder.missing()
    if line is not None:
        raise UnsupportedError("target.not_installed", target.name, "its runtime is not installed", f"run '{line}'")
    if not isinstance(builder, Builder):
        raise UnsupportedError(
            "build.nothing",
            target.name,
            "loads ONNX itself; there is no file of its own to build",
            "ship the ONNX file, e.g. with 'edgeproof pack'",
        )
    model = load_model(args.model)
    if args.shape:
        model = _fixed(model, parse_shapes(args.shape, [i.name for i in model.inputs]))
    check_model(model, target)
    out = Path(args.out) if args.out else Path(Path(args.model).stem)
    if out.resolve() == Path(args.model).resolve():
        raise InputError("build.same_file", str(out), "is the model itself", "write to another file")
    start = time.perf_counter()
    with show.progress() as progress:
        made = builder.build(model, target, out, progress)
    _show(made, target.name, time.perf_counter() - start, args, show)
    return 0


def _fixed(model: Model, shapes: Mapping[str, Sequence[int]]) -> Model:
    from ..passes.fix_shapes import FixShapes
    from ..protocols import Context
    from ..runtimes import compile_for, find_target

    text = ";".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
    judge = find_target("reference:cpu", {})
    return FixShapes(text)(model, Context(lambda m: compile_for(judge, m))).model


def _show(made: Built, target: str, seconds: float, args: argparse.Namespace, show: Show) -> None:
    size = sum(p.stat().st_size for p in made.files)
    show.text(f"built {made.path} for {target}: {made.format}, {size:,} bytes, {seconds:.1f} s")
    for note in made.notes:
        show.text(f"  {note}")
    fallbacks = [f"  falls back: {node}: {why}" for node, why in made.fallbacks]
    show.listing(fallbacks, None if args.all else SHOWN, "  {} more fall back; --all lists them")
    if made.command:
        show.text(f"  the same with the runtime's own tool: {made.command}")
    show.result(
        {
            "path": str(made.path),
            "files": {str(p): {"bytes": p.stat().st_size, "sha256": digest_file(p)} for p in made.files},
            "format": made.format,
            "target": target,
            "seconds": round(seconds, 3),
            "command": made.command,
            "nodes": [] if made.placement is None else [list(n) for n in made.placement.nodes],
            "source": "" if made.placement is None else made.placement.source,
            "fallbacks": [list(f) for f in made.fallbacks],
            "notes": list(made.notes),
            "facts": dict(made.facts),
        }
    )
