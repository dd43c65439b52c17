"""A manifest from JSON: ours, with a closed set of keys, and the seed's short style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ..digest import PREFIX
from ..errors import InputError
from ..manifest import (
    LIMIT_BYTES,
    METRICS,
    SCHEMA,
    STATISTICS,
    File,
    HardLimit,
    Manifest,
    Objective,
    Op,
    Rollback,
    Runtime,
    Sla,
    check_name,
    version,
)
from ..strictjson import keys, loads

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")


def read_manifest(data: bytes, subject: str = "manifest.json") -> Manifest:
    """A manifest from the bytes of a bundle's member.

    Raises:
        InputError: json.*, manifest.schema, manifest.value, manifest.version, manifest.name.
    """
    return manifest_from(loads(data, subject, limit_bytes=LIMIT_BYTES, canonical=True), subject)


_SCALARS = ("name", "product_line", "format", "model", "min_driver", "max_driver", "interface", "preprocessing")
_KEYS = ("schema", *_SCALARS, "evidence", "files", "bundle_version", "security_version", "device_allow", "runtime")


def manifest_from(value: Any, subject: str) -> Manifest:
    """A manifest from parsed JSON; every complaint names the key.

    Raises:
        InputError: json.missing_key, json.unknown_key, manifest.schema, manifest.value, manifest.version,
            manifest.name.
    """
    if isinstance(value, Mapping) and value.get("schema") != SCHEMA:
        problem = f"has the schema {value.get('schema')!r}; expected {SCHEMA!r}"
        raise InputError("manifest.schema", subject, problem, "use the version of edgeproof that wrote it, or a later")
    v = keys(value, (*_KEYS, "sla", "rollback"), (), subject)
    texts = {key: _text(v[key], f"{subject}: {key}") for key in _SCALARS}
    manifest = Manifest(
        **texts,
        files=tuple(_file(f, f"{subject}: files[{i}]") for i, f in enumerate(_list(v["files"], f"{subject}: files"))),
        bundle_version=whole(v["bundle_version"], f"{subject}: bundle_version", least=1),
        security_version=whole(v["security_version"], f"{subject}: security_version"),
        device_allow=tuple(
            _text(d, f"{subject}: device_allow") for d in _list(v["device_allow"], f"{subject}: device_allow")
        ),
        runtime=tuple(_runtime(r, f"{subject}: runtime") for r in _list(v["runtime"], f"{subject}: runtime")),
        evidence=_text(v["evidence"], f"{subject}: evidence"),
        sla=sla_from(v["sla"], f"{subject}: sla"),
        rollback=rollback_from(v["rollback"], f"{subject}: rollback"),
    )
    check_manifest(manifest, subject)
    return manifest


def check_manifest(manifest: Manifest, subject: str) -> None:
    """What must hold between and within the fields.

    Raises:
        InputError: manifest.name, manifest.value, manifest.version.
    """
    check_name(manifest.name, f"{subject}: name")
    check_name(manifest.product_line, f"{subject}: product_line")
    check_name(manifest.format, f"{subject}: format")
    paths = [f.path for f in manifest.files]
    if paths != sorted(set(paths)):
        raise _value(f"{subject}: files", "are not sorted, or one is listed twice", "each file once, sorted by path")
    if manifest.model not in paths:
        raise _value(f"{subject}: model", f"is {manifest.model!r}, which is not among the files", "one of the files")
    for name in ("interface", "preprocessing", "evidence"):
        digest = getattr(manifest, name)
        if digest and not _DIGEST.fullmatch(digest):
            raise _value(f"{subject}: {name}", f"is {digest!r}", "sha256: and 64 hex digits, or empty")
    if len(set(manifest.device_allow)) != len(manifest.device_allow) or "" in manifest.device_allow:
        raise _value(f"{subject}: device_allow", "has an empty or repeated name", "each device once")
    _check_range(manifest.min_driver, manifest.max_driver, f"{subject}: driver")
    for runtime in manifest.runtime:
        check_name(runtime.name, f"{subject}: runtime")
        _check_range(runtime.min, runtime.max, f"{subject}: runtime {runtime.name}")


def sla_from(value: Any, subject: str) -> Sla:
    """An SLA from parsed JSON.

    Raises:
        InputError: json.*, manifest.value.
    """
    v = keys(value, ("objectives", "hard"), (), subject)
    objectives = tuple(
        _objective(o, f"{subject}: objectives[{i}]") for i, o in enumerate(_list(v["objectives"], subject))
    )
    hard = tuple(_hard(h, f"{subject}: hard[{i}]") for i, h in enumerate(_list(v["hard"], subject)))
    return Sla(objectives, hard)


def rollback_from(value: Any, subject: str) -> Rollback:
    """The rollback settings from parsed JSON.

    Raises:
        InputError: json.*, manifest.value.
    """
    v = keys(value, ("trial_seconds", "boots", "samples"), (), subject)
    return Rollback(**{key: whole(v[key], f"{subject}: {key}", least=1) for key in v})


def objective(
    metric: str, statistic: str, op: str, limit: str | Decimal, *, window: int, k: int, n: int, subject: str
) -> Objective:
    """An objective whose values are checked.

    Raises:
        InputError: manifest.value.
    """
    if statistic not in STATISTICS:
        raise _value(f"{subject}: statistic", f"is {statistic!r}", f"one of {', '.join(STATISTICS)}")
    if not 1 <= k <= n <= 1000 or not 1 <= window <= 1_000_000:
        problem = f"asks for {k} of {n} windows of {window} samples"
        raise _value(subject, problem, "1 <= k <= n <= 1000 and a window of at least 1")
    return Objective(_metric(metric, subject), statistic, _op(op, subject), _limit(str(limit), subject), window, k, n)


def hard_limit(metric: str, op: str, limit: str | Decimal, subject: str) -> HardLimit:
    """A hard limit whose values are checked.

    Raises:
        InputError: manifest.value.
    """
    return HardLimit(_metric(metric, subject), _op(op, subject), _limit(str(limit), subject))


def whole(value: Any, subject: str, least: int = 0) -> int:
    """A whole number of at least ``least``.

    Raises:
        InputError: manifest.value.
    """
    if type(value) is not int or not least <= value < 2**53:
        raise _value(subject, f"is {value!r}", f"a whole number from {least}")
    return value


def _objective(value: Any, subject: str) -> Objective:
    names = ("metric", "statistic", "op", "limit", "window", "k", "n")
    v = keys(value, names, (), subject)
    texts = [_text(v[name], f"{subject}: {name}") for name in names[:4]]
    window, k, n = (whole(v[name], f"{subject}: {name}", least=1) for name in names[4:])
    return objective(*texts, window=window, k=k, n=n, subject=subject)


def _hard(value: Any, subject: str) -> HardLimit:
    v = keys(value, ("metric", "op", "limit"), (), subject)
    texts = [_text(v[name], f"{subject}: {name}") for name in ("metric", "op", "limit")]
    return hard_limit(texts[0], texts[1], texts[2], subject)


def _file(value: Any, subject: str) -> File:
    v = keys(value, ("path", "sha256", "size"), (), subject)
    path, sha256 = _text(v["path"], f"{subject}: path"), _text(v["sha256"], f"{subject}: sha256")
    if not _PATH.fullmatch(path) or len(path) > 200:
        raise _value(f"{subject}: path", f"is {path!r}", "a relative path of letters, digits and . _ + -")
    if not _DIGEST.fullmatch(sha256):
        raise _value(f"{subject}: sha256", f"is {sha256!r}", "sha256: and 64 hex digits")
    return File(path, sha256, whole(v["size"], f"{subject}: size"))


def _runtime(value: Any, subject: str) -> Runtime:
    v = keys(value, ("name", "min", "max"), (), subject)
    return Runtime(*(_text(v[name], f"{subject}: {name}") for name in ("name", "min", "max")))


def _metric(name: str, subject: str) -> str:
    if name not in METRICS:
        raise _value(f"{subject}: metric", f"is {name!r}", f"one of {', '.join(METRICS)}")
    return name


def _op(op: str, subject: str) -> Op:
    if op not in ("<=", ">="):
        raise _value(f"{subject}: op", f"is {op!r}", "'<=' or '>='")
    return op  # type: ignore[return-value]


def _limit(text: str, subject: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise _value(f"{subject}: limit", f"is {text!r}", "a decimal such as 80 or 0.5")
    return Decimal(text)


def _check_range(low: str, high: str, subject: str) -> None:
    for text in filter(None, (low, high)):
        version(text, subject)
    if low and high and version(low) > version(high):
        raise _value(subject, f"range ends ({high}) before it begins ({low})", "an end that is not earlier")


def _text(value: Any, subject: str) -> str:
    if not isinstance(value, str) or len(value) > 500 or not value.isprintable():
        raise _value(subject, f"is {str(value)[:60]!r}", "a short, printable text")
    return value


def _list(value: Any, subject: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > 10_000:
        raise _value(subject, f"is {type(value).__name__}", "a list")
    return value


def _value(subject: str, problem: str, expected: str) -> InputError:
    return InputError("manifest.value", subject, f"{problem}; expected {expected}", "correct it and pack again")


def from_seed(value: Any, subject: str) -> Manifest:
    """A manifest of the seed's style as one of ours: ``name, format, hash, size, device_allow, min_driver, rollback``.

    Such a manifest names one model file and says nothing of versions, evidence or an SLA: the versions are 1 and 0,
    the evidence is missing, and whoever packs it must give one. ``rollback`` is a flag there: the bundle it returns to
    is whatever the device has, so the defaults are taken; ``false`` is refused, since every bundle is tried here.

    Args:
        value: Parsed JSON.
        subject: What is being read, for errors.

    Raises:
        InputError: json.*, manifest.name, manifest.value, manifest.version, manifest.seed_rollback.
    """
    names = ("name", "format", "hash", "size", "device_allow")
    v = keys(value, names, ("min_driver", "rollback"), subject)
    name = re.sub(r"[^a-z0-9._-]+", "-", _text(v["name"], f"{subject}: name").lower()).strip("-._")
    kind = check_name(_text(v["format"], f"{subject}: format").lower(), f"{subject}: format")
    sha256 = _text(v["hash"], f"{subject}: hash").lower()
    if v.get("rollback", True) is False:
        problem = "is false; every bundle is tried and may go back"
        raise InputError("manifest.seed_rollback", f"{subject}: rollback", problem, "leave it out")
    entry = {"path": f"model/model.{kind}", "sha256": PREFIX + sha256.removeprefix(PREFIX), "size": v["size"]}
    manifest = Manifest(
        name=check_name(name, f"{subject}: name"),
        product_line=name,
        format=kind,
        model=f"model/model.{kind}",
        files=(_file(entry, subject),),
        bundle_version=1,
        security_version=0,
        device_allow=tuple(
            _text(d, f"{subject}: device_allow") for d in _list(v["device_allow"], f"{subject}: device_allow")
        ),
        min_driver=_text(v.get("min_driver") or "", f"{subject}: min_driver"),
    )
    check_manifest(manifest, subject)
    return manifest
