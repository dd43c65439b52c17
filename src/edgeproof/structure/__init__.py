"""What a model file is made of, whatever its format: interface, operators, tensors by digest, findings.

`read_structure` recognises the format by content, reads the file in a child process with limits and returns a
`Structure`. What a format hides (an engine's weights) is unknown and stays unknown: it is never equal to anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..digest import PREFIX, digest_file
from ..graph.facts import Finding, Kind, State
from ..graph.findings import KINDS, Check
from ..model import TensorSpec

FORMAT = "edgeproof.structure/1"
EXACT = 2**53
"""Integers from here on are text in JSON: a double does not hold them."""
_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Part:
    """A file that belongs to the model.

    Attributes:
        name: Relative to the model's folder.
        size: Bytes.
        digest: Of its bytes.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored tensor.

    Attributes:
        name: Its name in the model.
        dtype: NumPy's name of the type, e.g. ``float32``, ``int4``.
        shape: Dimensions.
        digest: As `weight_digest`; None when its bytes cannot be told.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str | None


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the codes of a tensor are turned into real values.

    Attributes:
        tensor: The tensor.
        dtype: Of its codes.
        axis: Of the channels; None for one scale.
        count: Scales.
        low: Smallest scale.
        high: Largest scale.
        digest: Of all scales and zero points (or of a range's ends), exactly.
    """

    tensor: str
    dtype: str
    axis: int | None
    count: int
    low: float
    high: float
    digest: str


@dataclass(frozen=True, slots=True)
class Structure:
    """A model without its arithmetic.

    Attributes:
        format: ``onnx``, ``tflite``, ``openvino``, ``engine``, ``safetensors`` or ``gguf``.
        name: The file's stem.
        digest: What receipts call the model: of an ONNX model its `Model.digest`, of others of all their files.
        files: Every file that belongs to it; the first is the model.
        inputs: Inputs; None when the format does not tell.
        outputs: Outputs; None when the format does not tell.
        operators: Operator → how often; None when the format does not tell.
        weights: Stored tensors; None when the format does not tell.
        quantisation: Quantised tensors with their parameters.
        findings: Defects, then cautions, then gaps.
        checks: How each declared check ended.
        facts: Other things worth telling, by name.
        topology: Digest of operators, their settings and connections, without the tensors; None when unknown.
    """

    format: str
    name: str
    digest: str
    files: tuple[Part, ...]
    inputs: tuple[TensorSpec, ...] | None
    outputs: tuple[TensorSpec, ...] | None
    operators: Mapping[str, int] | None
    weights: tuple[Weight, ...] | None
    quantisation: tuple[Quantisation, ...] = ()
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    topology: str | None = None

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return sum(p.size for p in self.files)

    def to_json(self) -> dict[str, Any]:
        """As JSON that has an RFC 8785 form."""
        return {
            "format": FORMAT,
            "kind": self.format,
            "name": self.name,
            "digest": self.digest,
            "files": [{"name": p.name, "size": p.size, "digest": p.digest} for p in self.files],
            "inputs": _specs_json(self.inputs),
            "outputs": _specs_json(self.outputs),
            "operators": None if self.operators is None else dict(self.operators),
            "weights": None if self.weights is None else [_weight_json(w) for w in self.weights],
            "quantisation": [
                {
                    "tensor": q.tensor, "dtype": q.dtype, "axis": q.axis, "count": q.count, "low": q.low,
                    "high": q.high, "digest": q.digest,
                }
                for q in self.quantisation
            ],
            "findings": [f.to_json() for f in self.findings],
            "checks": [{**c.to_json(), "question": c.question} for c in self.checks],
            "facts": dict(self.facts),
            "topology": self.topology,
        }  # fmt: skip

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Structure:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError: When the value is no structure.
        """
        weights = value["weights"]
        return Structure(
            value["kind"],
            value["name"],
            value["digest"],
            tuple(Part(p["name"], p["size"], p["digest"]) for p in value["files"]),
            _specs(value["inputs"]),
            _specs(value["outputs"]),
            value["operators"],
            None
            if weights is None
            else tuple(Weight(w["name"], w["dtype"], tuple(map(int, w["shape"])), w["digest"]) for w in weights),
            tuple(Quantisation(**q) for q in value["quantisation"]),
            tuple(Finding(**f) for f in value["findings"]),
            tuple(Check(**c) for c in value["checks"]),
            value["facts"],
            value["topology"],
        )


@dataclass(frozen=True, slots=True)
class Assessment:
    """Collects how a reader's checks ended."""

    findings: list[Finding] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def check(self, name: str, question: str, state: State = "assessed", reason: str = "") -> None:
        """Close a check: all findings of its name belong to it."""
        count = sum(f.check == name for f in self.findings)
        self.checks.append(Check(name, question, state, reason, count))

    def found(self, kind: Kind, check: str, subject: str, problem: str, hint: str) -> None:
        """One finding."""
        self.findings.append(Finding(kind, check, subject, problem, hint))

    def sorted(self) -> tuple[Finding, ...]:
        """Defects first."""
        return tuple(sorted(self.findings, key=lambda f: KINDS.index(f.kind)))


def weight_digest(dtype: str, shape: Sequence[int], data: bytes | memoryview) -> str:
    """Digest of a tensor's type, shape and bytes, the same in every format (that of `model.tensor_digest`).

    Args:
        dtype: NumPy's name of the type.
        shape: Dimensions.
        data: Little-endian values in C order; types below 8 bits packed, low bits first.
    """
    h = hashlib.sha256(f"{_ONNX_NAMES.get(dtype, dtype.upper())}:{','.join(map(str, shape))}:".encode())
    h.update(data)
    return PREFIX + h.hexdigest()


def part(path: Path, folder: Path) -> Part:
    """A file of a model, hashed."""
    return Part(path.relative_to(folder).as_posix(), path.stat().st_size, digest_file(path))


def read_structure(path: str | Path) -> Structure:
    """Read a model file of any format that is known, in a child process with limits on memory and time.

    Raises:
        InputError: structure.*, model.*; UnsupportedError; TrustError: model.external_data.
    """
    from .child import confined

    return Structure.from_json(confined("structure", [Path(path)], {}))


def read_here(path: Path) -> Structure:
    """As `read_structure`, in this process and without limits: for a file of one's own, and for the child."""
    from .recognise import reader, recognise

    return reader(recognise(path)).read(path)


def _specs_json(specs: tuple[TensorSpec, ...] | None) -> list[dict[str, Any]] | None:
    if specs is None:
        return None
    return [
        {"name": s.name, "dtype": s.dtype, "shape": None if s.shape is None else [_exact(d) for d in s.shape]}
        for s in specs
    ]


def _specs(value: Any) -> tuple[TensorSpec, ...] | None:
    if value is None:
        return None
    return tuple(TensorSpec(s["name"], s["dtype"], None if s["shape"] is None else tuple(s["shape"])) for s in value)


def _weight_json(w: Weight) -> dict[str, Any]:
    return {"name": w.name, "dtype": w.dtype, "shape": [_exact(d) for d in w.shape], "digest": w.digest}


def _exact(d: int | str) -> int | str:
    return d if isinstance(d, str) or abs(d) < EXACT else str(d)
