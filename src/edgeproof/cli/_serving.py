"""`edgeproof export --as triton` and `--as dockerfile`: what others serve a model with."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..errors import InputError, did_you_mean
from .show import Show

if TYPE_CHECKING:
    from ..dataset import Preprocess
    from ..model import Model
    from ..serving.triton import Served, Triton

FORMATS = ("dockerfile", "triton")
"""Names for --as that take a model or a bundle, and write a folder."""
T = TypeVar("T")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the two."""
    group = parser.add_argument_group("triton and dockerfile")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="see docs/serving.md")
    group.add_argument("--name", default="", help="triton: the model's name in the repository")
    group.add_argument("--engine", metavar="FILE", help="triton: a .plan, or an OpenVINO .xml, that is loaded instead")
    group.add_argument(
        "--pre", metavar="FILE", help="triton: an ONNX model that comes before; 'auto' makes one of data"
    )
    group.add_argument("--post", metavar="FILE", help="triton: an ONNX model that comes after")
    group.add_argument("--data", metavar="D", help="triton: data file whose preprocessing --pre auto takes")
    group.add_argument("--wheel", action="append", default=[], metavar="FILE", help="dockerfile: a wheel to install")


def run(args: argparse.Namespace, show: Show) -> int:
    """Write one of them."""
    return _triton(args, show) if args.name_as == "triton" else _dockerfile(args, show)


@dataclass(frozen=True, slots=True)
class _Given:
    """What FILE turned out to be.

    Attributes:
        path: The model file.
        name: What to call it.
        preprocess: How its inputs are made, where a run or a bundle says so.
    """

    path: Path
    name: str
    preprocess: Preprocess | None = None


def _triton(args: argparse.Namespace, show: Show) -> int:
    from ..model import load_model
    from ..serving.triton import Served, Triton, write_model

    settings = _settings(Triton, args.set)
    repository = Path(args.out or "model_repository")
    with _model_of(Path(args.file), args.key) as given:
        name = args.name or re.sub(r"[^A-Za-z0-9._-]+", "-", given.name).strip(".-_") or "model"
        model = load_model(given.path)
        served = Served(name, model, given.path, Path(args.engine) if args.engine else None)
        with tempfile.TemporaryDirectory() as scratch:
            parts = _parts(args, given, served, Path(scratch))
            if len(parts) == 1:
                files: Sequence[Path] = write_model(served, repository, settings)
            else:
                from ..serving.ensemble import write_ensemble

                files = write_ensemble(parts, name, repository, settings)
    for file in files:
        show.text(f"  {file}")
    for note in _notes(settings, served, parts):
        show.note(note)
    show.result({"as": "triton", "name": name, "repository": str(repository), "files": [str(f) for f in files]})
    return 0


def _parts(args: argparse.Namespace, given: _Given, served: Served, scratch: Path) -> list[tuple[str, Served]]:
    from ..model import load_model
    from ..serving.triton import Served

    parts = [("net", served)]
    if args.pre == "auto":
        made = _pictures(args, given, served.model, scratch / "pictures.onnx")
        parts.insert(0, ("pre", Served("pre", load_model(made), made)))
    elif args.pre:
        parts.insert(0, ("pre", Served("pre", load_model(args.pre), Path(args.pre))))
    if args.post:
        parts.append(("post", Served("post", load_model(args.post), Path(args.post))))
    return parts


def _pictures(args: argparse.Namespace, given: _Given, model: Model, to: Path) -> Path:
    """Write the preprocessing as a model.

    Raises:
        InputError: serving.preprocess.
    """
    from ..model import save_model
    from ..serving.pictures import picture_model

    spec = given.preprocess
    if args.data:
        from ..dataset import load_spec
        from ..preprocess import guess

        declared = load_spec(args.data)
        spec = guess(declared.preprocess, model.inputs[0], left_out=declared.left_out)
    if spec is None or len(model.inputs) != 1:
        problem = f"takes {len(model.inputs)} inputs" if spec else "says nothing of how its inputs are made"
        hint = "give --data with a 'preprocess:', a run's folder, a bundle, or the ONNX model itself with --pre FILE"
        raise InputError("serving.preprocess", str(args.file), f"{problem}; --pre auto needs pictures", hint)
    return save_model(picture_model(spec, model.inputs[0]), to)


def _notes(settings: Triton, served: Served, parts: Sequence[Any]) -> Iterator[str]:
    if settings.backend == "tensorrt" and served.engine is None:
        where = f"{served.name}-net" if len(parts) > 1 else served.name
        yield f"no plan was given: run {where}/build-plan.sh on the device, which writes model.plan"
    elif settings.backend == "tensorrt":
        yield "a plan runs on the GPU and the TensorRT version that it was built with, and on no other"


def _dockerfile(args: argparse.Namespace, show: Show) -> int:
    from ..bundle.keys import load_public
    from ..bundle.opening import open_bundle
    from ..serving.containers import Cargo, Container, write_container

    settings = _settings(Container, args.set)
    keys = [Path(k) for k in args.key]
    with open_bundle(Path(args.file)) as bundle:
        if keys:
            bundle.check_signature([load_public(k) for k in keys])
        bundle.check_files()
        manifest = bundle.manifest
    out = Path(args.out or f"{manifest.name}-{manifest.bundle_version}-container")
    cargo = Cargo(manifest, Path(args.file), keys, [Path(w) for w in args.wheel])
    files = write_container(cargo, out, settings)
    for file in files:
        show.text(f"  {file}")
    show.note(f"build and run it with: docker compose --project-directory {out} up --build")
    if settings.base == "jetson" and not any("onnxruntime" in w for w in args.wheel):
        show.note("PyPI has no ONNX Runtime for Jetson's GPU: without --wheel of NVIDIA's build it runs on the CPU")
    show.result({"as": "dockerfile", "out": str(out), "base": settings.base, "files": [str(f) for f in files]})
    return 0


@contextmanager
def _model_of(path: Path, keys: Sequence[str]) -> Iterator[_Given]:
    """The model in a file, a run's folder, or a bundle (whose bytes are hashed; with keys, its signature too).

    Raises:
        InputError: serving.no_model, files.*.
        TrustError: bundle.*, archive.*.
    """
    from ..dataset import Preprocess, settings_from
    from ..files import read_json

    if path.is_dir():
        best = path / "best.onnx"
        if not best.is_file():
            hint = "give a run that accepted something, an .onnx file, or a bundle"
            raise InputError("serving.no_model", str(path), "has no best.onnx: nothing was accepted", hint)
        data = read_json(path / "data.json") if (path / "data.json").is_file() else {}
        said = data.get("preprocess")
        spec = None if said is None else settings_from(Preprocess, said, f"{path / 'data.json'}: preprocess")
        yield _Given(best, path.resolve().name, spec)
        return
    if path.suffix == ".onnx":
        yield _Given(path, path.stem)
        return
    from ..bundle.keys import load_public
    from ..bundle.opening import PREPROCESSING, open_bundle
    from ..strictjson import loads

    with open_bundle(path) as bundle, tempfile.TemporaryDirectory() as folder:
        if keys:
            bundle.check_signature([load_public(Path(k)) for k in keys])
        manifest = bundle.manifest
        if manifest.format != "onnx":
            hint = "pack the ONNX model"
            raise InputError("serving.no_model", manifest.label, f"holds {manifest.format}, not an ONNX model", hint)
        root = PurePosixPath(manifest.model).parent
        for file in manifest.files:
            if root in PurePosixPath(file.path).parents:
                to = Path(folder, PurePosixPath(file.path).relative_to(root))
                to.parent.mkdir(parents=True, exist_ok=True)
                bundle.extract(file.path, to)
        said = None
        if manifest.preprocessing:
            said = loads(bundle.read(PREPROCESSING), PREPROCESSING).get("preprocess")
        spec = None if said is None else settings_from(Preprocess, said, PREPROCESSING)
        yield _Given(Path(folder, PurePosixPath(manifest.model).name), manifest.name, spec)


def _settings(kind: type[T], texts: Sequence[str]) -> T:
    """``KEY=VALUE`` as the fields of a settings dataclass.

    Raises:
        InputError: settings.unknown, settings.value.
    """
    from .optimize import typed

    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        subject = f"--set {text}"
        if not equals:
            raise InputError("settings.value", subject, "has no '='; expected KEY=VALUE", "write KEY=VALUE")
        if key not in known:
            raise InputError("settings.unknown", subject, "is no setting", did_you_mean(key, known))
        allowed = get_args(hints[key]) if get_origin(hints[key]) is Literal else None
        if allowed is not None and value not in allowed:
            raise InputError("settings.value", subject, f"is {value!r}", did_you_mean(value, map(str, allowed)))
        values[key] = typed(value, known[key].default, subject)
    return kind(**values)
