"""What a bundle says of itself: its files, its devices, what it promises there and how long it is on trial.

A manifest is one JSON object in its RFC 8785 form with a closed set of keys (schema ``edgeproof.bundle/1``). It lists
every other member of the bundle by SHA-256. An empty ``device_allow`` means nobody. Versions are compared as versions:
9.10 is later than 9.9. Limits are decimals, written as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from .digest import digest_bytes
from .errors import InputError, TrustError
from .strictjson import canonical

SCHEMA = "edgeproof.bundle/1"
LIMIT_BYTES = 2**20
"""Largest manifest that is read."""

Op = Literal["<=", ">="]
METRICS: Mapping[str, str] = {
    "latency": "ms",
    "throughput": "1/s",
    "power": "W",
    "temperature": "°C",
    "memory": "bytes",
    "nan_outputs": "1",
    "crashes": "1",
}
"""What a device can watch, with its unit."""
STATISTICS = ("p50", "p90", "p95", "p99", "mean", "min", "max")
"""What is computed over the samples of one window; percentiles are nearest-rank."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}(?:\+[A-Za-z0-9.-]{1,40})?")


@dataclass(frozen=True, slots=True)
class File:
    """One member of a bundle.

    Attributes:
        path: Its name in the bundle.
        sha256: ``sha256:`` + 64 hex digits.
        size: Bytes.
    """

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that the model was accepted with; one of those listed must be there.

    Attributes:
        name: E.g. ``onnxruntime``.
        min: Earliest version, included; empty for any.
        max: Latest version, included; empty for any.
    """

    name: str
    min: str = ""
    max: str = ""


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit on a statistic over windows of samples.

    Attributes:
        metric: One of `METRICS`.
        statistic: One of `STATISTICS`.
        op: ``<=`` or ``>=``: what holds while all is well.
        limit: In the metric's unit.
        window: Samples in one window.
        k: The objective is broken when at least ``k``…
        n: …of the last ``n`` windows are outside the limit.
    """

    metric: str
    statistic: str
    op: Op
    limit: Decimal
    window: int = 100
    k: int = 3
    n: int = 5


@dataclass(frozen=True, slots=True)
class HardLimit:
    """A limit on every single sample; one outside it rolls back at once.

    Attributes:
        metric: One of `METRICS`; ``nan_outputs`` and ``crashes`` count since the slot went on trial.
        op: ``<=`` or ``>=``.
        limit: In the metric's unit.
    """

    metric: str
    op: Op
    limit: Decimal


@dataclass(frozen=True, slots=True)
class Sla:
    """What the model promises on the device."""

    objectives: tuple[Objective, ...] = ()
    hard: tuple[HardLimit, ...] = (
        HardLimit("nan_outputs", "<=", Decimal(0)),
        HardLimit("crashes", "<=", Decimal(0)),
    )


@dataclass(frozen=True, slots=True)
class Rollback:
    """How a new bundle is tried. Undecided at the deadline means back to the old one.

    Attributes:
        trial_seconds: Longest trial.
        boots: Starts on trial before it counts as failed.
        samples: Samples that must lie behind a commit.
    """

    trial_seconds: int = 3600
    boots: int = 3
    samples: int = 500


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one bundle.

    Attributes:
        name: What the bundle is of, e.g. ``plate-reader``: lower case, digits and ``. _ -``.
        product_line: The line that may install it, and the role that signs it in a repository.
        format: Format of the model, e.g. ``onnx``.
        model: Path of the file that the runtime opens; one of ``files``.
        files: Every other member of the bundle, sorted by path.
        bundle_version: Counts up with every bundle of this name, from 1.
        security_version: Counts up when older ones must never come back; a device's floor is compared with it.
        device_allow: Device names, compared exactly; empty means nobody.
        min_driver: Earliest driver version, included; empty for any.
        max_driver: Latest driver version, included; empty for any.
        runtime: Runtimes of which one must be there; empty for any.
        interface: Digest of the model's inputs and outputs as the evidence states them; empty when unknown.
        preprocessing: Digest of the preprocessing member; empty when there is none.
        evidence: Digest of the evidence member; empty only for manifests of the seed's style.
        sla: What it promises.
        rollback: How it is tried.
    """

    name: str
    product_line: str
    format: str
    model: str
    files: tuple[File, ...]
    bundle_version: int
    security_version: int
    device_allow: tuple[str, ...] = ()
    min_driver: str = ""
    max_driver: str = ""
    runtime: tuple[Runtime, ...] = ()
    interface: str = ""
    preprocessing: str = ""
    evidence: str = ""
    sla: Sla = field(default_factory=Sla)
    rollback: Rollback = field(default_factory=Rollback)

    def file(self, path: str) -> File:
        """The entry of a member.

        Raises:
            TrustError: bundle.unlisted.
        """
        for file in self.files:
            if file.path == path:
                return file
        raise TrustError("bundle.unlisted", path, f"is not listed in the manifest of {self.name}", "pack it again")

    @property
    def model_sha256(self) -> str:
        """Digest of the model file."""
        return self.file(self.model).sha256

    @property
    def label(self) -> str:
        """E.g. ``plate-reader 3``."""
        return f"{self.name} {self.bundle_version}"

    def to_json(self) -> dict[str, Any]:
        """As JSON; decimals as text."""
        value: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        for limit in (*value["sla"]["objectives"], *value["sla"]["hard"]):
            limit["limit"] = f"{limit['limit']:f}"
        return _listed(value)  # type: ignore[no-any-return]

    def to_bytes(self) -> bytes:
        """The manifest's canonical form: the bytes that are signed."""
        return canonical(self.to_json(), f"manifest of {self.name}")

    @property
    def digest(self) -> str:
        """Digest of `to_bytes`."""
        return digest_bytes(self.to_bytes())


def check_name(name: str, subject: str) -> str:
    """A name that may stand in a path and in a URL.

    Raises:
        InputError: manifest.name.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        hint = "use lower-case letters, digits and . _ - (at most 64), such as plate-reader"
        raise InputError("manifest.name", subject, f"is {name!r}, which cannot be part of a path", hint)
    return name


def version(text: str, subject: str = "version") -> tuple[int, ...]:
    """A version as numbers that compare as versions do.

    What follows a ``+`` (a local build) does not count, and trailing zeros do not: 1.0 is 1.0.0. Any other letter is
    refused: which of two such versions is later depends on who named them.

    Raises:
        InputError: manifest.version.

    >>> version("9.10") > version("9.9"), version("535.104.05") == version("535.104.5.0")
    (True, True)
    """
    if not _VERSION.fullmatch(text):
        hint = "write it as numbers with dots, e.g. 535.104.5"
        raise InputError("manifest.version", subject, f"is {text!r}, which cannot be compared as a version", hint)
    numbers = [int(part) for part in text.partition("+")[0].split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def in_range(text: str, low: str, high: str, subject: str = "version") -> bool:
    """Whether a version lies in a range, ends included; an empty end is open.

    Raises:
        InputError: manifest.version.
    """
    if not low and not high:
        return True
    got = version(text, subject)
    return (not low or version(low, subject) <= got) and (not high or got <= version(high, subject))


def _listed(value: Any) -> Any:
    """Tuples as lists, however deep."""
    if isinstance(value, Mapping):
        return {k: _listed(v) for k, v in value.items()}
    return [_listed(v) for v in value] if isinstance(value, list | tuple) else value
