"""TensorRT engines: what can be told without TensorRT, which is little: digest, size, version, the build record.

An engine hides its weights and operators, so they are unknown. A build record is a JSON file beside it
(``model.engine.json`` or ``model.engine.build.metadata.json``) that whoever built it wrote: it may name ``inputs`` and
``outputs`` (each name, dtype, shape), and holds whatever else was noted. It is kept by digest and believed no further
than that: it is a claim of the builder's.
What its first bytes tell stands in `edgeproof.tensorrt.header`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..digest import digest_json
from ..errors import InputError
from ..model import TensorSpec
from ..onnxfile import contained
from ..strictjson import loads
from ..tensorrt.header import BYTES, read_header
from . import Assessment, Part, Structure, part

RECORDS = (".json", ".build.metadata.json")
RECORD_BYTES = 1 << 20
_HIDDEN = ("operators", "weight_digests", "finite_weights", "quantisation")
_QUESTIONS = {
    "operators": "Every operator is known.",
    "weight_digests": "Every tensor has a digest.",
    "finite_weights": "NaN or infinity among the weights.",
    "quantisation": "Every scale is positive and finite.",
    "header": "The file begins as a TensorRT plan does.",
    "build_record": "A record beside the engine tells what it was built from.",
}


def read(path: Path) -> Structure:
    """The file's structure.

    Raises:
        InputError: structure.build_record, json.*; TrustError: model.external_data, when the record is a link.
    """
    assessed = Assessment()
    files = [part(path, path.parent)]
    facts = _header(path, assessed)
    record, beside = _record(path)
    inputs = outputs = None
    if beside is None:
        problem, hint = "has no build record beside it", f"write {path.name}{RECORDS[0]} where it is built"
        assessed.found("gap", "build_record", path.name, problem, hint)
        assessed.check("build_record", _QUESTIONS["build_record"], "unavailable", problem)
    else:
        files.append(beside)
        inputs, outputs = (
            _specs(record.get(key), f"{path.parent / beside.name}: {key}") for key in ("inputs", "outputs")
        )
        assessed.check("build_record", _QUESTIONS["build_record"], "assessed", "kept as the builder's claim")
    for name in _HIDDEN:
        assessed.check(name, _QUESTIONS[name], "unavailable", "an engine hides what it is made of")
    problem = "hides its operators and weights"
    hint = "compare the models that the engines were built from as well"
    assessed.found("gap", "weight_digests", path.name, problem, hint)
    digest = files[0].digest if beside is None else digest_json({"engine": files[0].digest, "record": beside.digest})
    return Structure(
        "engine", path.stem, digest, tuple(files), inputs, outputs, None, None, (), assessed.sorted(),
        tuple(assessed.checks), facts,
    )  # fmt: skip


def values(path: Path, names: list[str]) -> dict[str, Any]:
    """An engine hides its weights."""
    del path, names
    return {}


def _header(path: Path, assessed: Assessment) -> dict[str, str | int | float]:
    with path.open("rb") as f:
        head = f.read(BYTES)
    header = read_header(head)
    if header is None:
        problem = f"begins with {head[:4]!r}, not as a TensorRT plan does"
        assessed.found("caution", "header", path.name, problem, "check with trtexec --loadEngine on the device")
        assessed.check("header", _QUESTIONS["header"])
        return {}
    assessed.check("header", _QUESTIONS["header"])
    facts: dict[str, str | int | float] = {}
    if header.version:
        facts["tensorrt_version"] = header.text
    if header.rtx:
        facts["runtime"] = "TensorRT for RTX"
    if header.capabilities:
        facts["compute_capability"] = ", ".join(header.capabilities)
    return facts


def _record(path: Path) -> tuple[dict[str, Any], Part | None]:
    for ending in RECORDS:
        beside = path.with_name(path.name + ending)
        if not beside.exists() and not beside.is_symlink():
            continue
        info = contained(path, beside.name, f"{path}: build record")
        if info.st_size > RECORD_BYTES:
            raise _refused(str(beside), f"has {info.st_size:,} bytes; at most {RECORD_BYTES:,} are read")
        record = loads(beside.read_bytes(), str(beside))
        if not isinstance(record, dict):
            raise _refused(str(beside), f"is {type(record).__name__}; expected an object")
        return record, part(beside, path.parent)
    return {}, None


def _specs(value: Any, subject: str) -> tuple[TensorSpec, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _refused(subject, "is no list; expected name, dtype and shape of each")
    specs = []
    for item in value:
        fields = item if isinstance(item, dict) else {}
        name, dtype, shape = fields.get("name"), fields.get("dtype"), fields.get("shape")
        good = isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)
        if not good or not all(isinstance(d, int | str) and not isinstance(d, bool) for d in shape or ()):
            raise _refused(subject, f"holds {str(item)[:60]}; expected name, dtype and shape")
        dims = tuple("?" if isinstance(d, int) and d < 0 else d for d in shape or ())
        specs.append(TensorSpec(str(name), str(dtype), dims))
    return tuple(specs)


def _refused(subject: str, problem: str) -> InputError:
    return InputError("structure.build_record", subject, problem, "correct the record, or remove it")
