"""A manifest has one meaning: closed keys, versions that compare as versions, limits that are decimals."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.bundle.promise import check_promise, describe, promise
from edgeproof.bundle.reading import check_manifest, from_seed, manifest_from, read_manifest
from edgeproof.errors import InputError, TrustError
from edgeproof.manifest import File, HardLimit, Manifest, Objective, Rollback, Runtime, Sla, in_range, version
from edgeproof.policy import Policy, Rule

DIGEST = "sha256:" + "ab" * 32
MANIFEST = Manifest(
    name="plate-reader",
    product_line="cameras",
    format="onnx",
    model="model/best.onnx",
    files=(File("evidence.zip", DIGEST, 10), File("model/best.onnx", DIGEST, 20)),
    bundle_version=3,
    security_version=1,
    device_allow=("orin-nano", "agx"),
    min_driver="535.104",
    max_driver="560.35.5",
    runtime=(Runtime("onnxruntime", "1.20", "1.32"),),
    interface=DIGEST,
    evidence=DIGEST,
    sla=Sla((Objective("latency", "p95", "<=", Decimal("80.5")),), (HardLimit("temperature", "<=", Decimal(95)),)),
    rollback=Rollback(600, 2, 500),
)


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    return caught.value.code


def test_a_manifest_comes_back_from_its_bytes():
    assert read_manifest(MANIFEST.to_bytes()) == MANIFEST
    assert MANIFEST.model_sha256 == DIGEST
    assert refused(lambda: MANIFEST.file("model/other.onnx")) == "bundle.unlisted"
    assert b'"limit":"80.5"' in MANIFEST.to_bytes()


def test_a_manifest_is_read_in_its_canonical_form_alone():
    loose = json.dumps(json.loads(MANIFEST.to_bytes()), indent=1).encode()
    assert refused(lambda: read_manifest(loose)) == "json.not_canonical"


def changed(path: str, value: Any) -> Any:
    tree = json.loads(MANIFEST.to_bytes())
    *parents, last = path.split(".")
    inner = tree
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("schema", "edgeproof.bundle/2", "manifest.schema"),
        ("schema", KeyError, "manifest.schema"),
        ("more", 1, "json.unknown_key"),
        ("device_allow", KeyError, "json.missing_key"),
        ("name", "../x", "manifest.name"),
        ("name", "a..b", "manifest.name"),
        ("name", "Upper", "manifest.name"),
        ("name", "", "manifest.name"),
        ("name", 3, "manifest.value"),
        ("product_line", "a/b", "manifest.name"),
        ("bundle_version", 0, "manifest.value"),
        ("bundle_version", "3", "manifest.value"),
        ("bundle_version", True, "manifest.value"),
        ("bundle_version", 2**53, "manifest.value"),
        ("security_version", -1, "manifest.value"),
        ("device_allow", "abc", "manifest.value"),
        ("device_allow", ["line\nbreak"], "manifest.value"),
        ("device_allow", ["a", "a"], "manifest.value"),
        ("device_allow", [""], "manifest.value"),
        ("device_allow", [1], "manifest.value"),
        ("min_driver", "9.10-beta", "manifest.version"),
        ("min_driver", "561", "manifest.value"),
        ("runtime.0.min", "latest", "manifest.version"),
        ("runtime.0.name", "", "manifest.name"),
        ("interface", "abc", "manifest.value"),
        ("evidence", DIGEST.upper(), "manifest.value"),
        ("model", "model/other.onnx", "manifest.value"),
        ("files.0.path", "../evidence.zip", "manifest.value"),
        ("files.0.path", "/evidence.zip", "manifest.value"),
        ("files.0.path", "model/zzz", "manifest.value"),
        ("files.0.sha256", "ab" * 32, "manifest.value"),
        ("files.0.size", -1, "manifest.value"),
        ("files.0.more", 1, "json.unknown_key"),
        ("files.1.path", "evidence.zip", "manifest.value"),
        ("sla.objectives.0.metric", "vibes", "manifest.value"),
        ("sla.objectives.0.statistic", "p42", "manifest.value"),
        ("sla.objectives.0.op", "<", "manifest.value"),
        ("sla.objectives.0.limit", 80, "manifest.value"),
        ("sla.objectives.0.limit", "nan", "manifest.value"),
        ("sla.objectives.0.limit", "1e3", "manifest.value"),
        ("sla.objectives.0.window", 0, "manifest.value"),
        ("sla.objectives.0.k", 6, "manifest.value"),
        ("sla.objectives.0.k", 0, "manifest.value"),
        ("sla.hard.0.metric", "", "manifest.value"),
        ("rollback.boots", 0, "manifest.value"),
        ("rollback.samples", 1.5, "manifest.value"),
        ("rollback.more", 1, "json.unknown_key"),
    ],
)
def test_what_a_manifest_cannot_say_is_refused(path, value, code):
    assert refused(lambda: manifest_from(changed(path, value), "manifest.json")) == code


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("9.9", "9.10"), ("535.54.3", "535.104.5"), ("1", "1.0.1"), ("0.9", "1"), ("1.2+cu11", "1.3+cu10")],
)
def test_versions_compare_as_versions(earlier, later):
    assert version(earlier) < version(later)
    assert in_range(later, earlier, "")
    assert not in_range(earlier, later, "")
    assert in_range(earlier, "", later)
    assert not in_range(later, "", earlier)


def test_the_ends_of_a_range_are_in_it_and_no_range_is_every_version():
    assert in_range("1.20.0", "1.20", "1.20")
    assert in_range("anything", "", "")
    assert refused(lambda: in_range("anything", "1", "")) == "manifest.version"


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5), st.lists(st.integers(0, 99), min_size=1, max_size=5))
def test_versions_order_as_their_numbers_do(a, b):
    """Second derivation: numbers padded to one width, compared as text."""

    def padded(numbers: list[int]) -> str:
        return "".join(f"{n:04d}" for n in [*numbers, 0, 0, 0, 0, 0][:5])

    left, right = (".".join(map(str, n)) for n in (a, b))
    assert (version(left) < version(right)) == (padded(a) < padded(b))
    assert (version(left) == version(right)) == (padded(a) == padded(b))


@pytest.mark.parametrize(
    "text", ["", "v1", "1.2rc1", "1..2", ".1", "1.", "1-2", "1,2", "１", "1" * 12, "1.2.3.4.5.6.7.8.9"]
)
def test_what_cannot_be_ordered_is_no_version(text):
    assert refused(lambda: version(text)) == "manifest.version"


SEED = {
    "name": "Plate Reader",
    "format": "ONNX",
    "hash": "ab" * 32,
    "size": 20,
    "device_allow": ["orin-nano"],
    "min_driver": "535.104",
    "rollback": True,
}


def test_a_manifest_of_the_seeds_style_is_read():
    manifest = from_seed(SEED, "seed.json")
    assert (manifest.name, manifest.product_line, manifest.format) == ("plate-reader", "plate-reader", "onnx")
    assert (manifest.model_sha256, manifest.files[0].size) == (DIGEST, 20)
    assert (manifest.device_allow, manifest.min_driver, manifest.evidence) == (("orin-nano",), "535.104", "")
    assert read_manifest(manifest.to_bytes()) == manifest


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("hash", "ab" * 31, "manifest.value"),
        ("hash", None, "json.missing_key"),
        ("size", -1, "manifest.value"),
        ("name", "///", "manifest.name"),
        ("device_allow", None, "json.missing_key"),
        ("min_driver", "new", "manifest.version"),
        ("rollback", False, "manifest.seed_rollback"),
        ("more", 1, "json.unknown_key"),
    ],
)
def test_a_seeds_manifest_that_does_not_say_enough_is_refused(key, value, code):
    seed = {**SEED, key: value}
    if value is None:
        del seed[key]
    assert refused(lambda: from_seed(seed, "seed.json")) == code


def rule(metric: str, op: str, limit: str, unit: str, relative: str = "") -> Rule:
    return Rule(metric, op, Decimal(limit), unit, relative)


def test_a_promise_follows_from_the_absolute_limits_that_a_device_can_watch():
    policy = Policy(
        "p",
        (
            rule("quality", "<=", "0.01", "drop", "baseline"),
            rule("latency_p95", "<=", "80", "ms"),
            rule("latency_p95", "<=", "60", "ms"),
            rule("latency_p50", "<=", "1.03", "ratio", "baseline"),
            rule("throughput", ">=", "20", "1/s"),
            rule("throughput", ">=", "25", "1/s"),
            rule("size", "<=", "1000", "bytes"),
        ),
    )
    sla = promise(policy)
    assert [(o.metric, o.statistic, o.op, o.limit) for o in sla.objectives] == [
        ("latency", "p95", "<=", 60),
        ("throughput", "mean", ">=", 25),
    ]
    assert {(h.metric, h.op, h.limit) for h in sla.hard} == {("nan_outputs", "<=", 0), ("crashes", "<=", 0)}


def test_a_trial_must_be_long_enough_to_judge_its_objectives():
    sla = Sla((Objective("latency", "p95", "<=", Decimal(1), window=200, k=3, n=5),))
    assert refused(lambda: check_promise(sla, Rollback(samples=999), "x")) == "manifest.value"
    check_promise(sla, Rollback(samples=1000), "x")
    assert len(describe(sla, Rollback())) == 4


def test_an_empty_allow_list_stays_empty_and_a_large_limit_keeps_its_digits():
    sla = Sla((Objective("memory", "max", "<=", Decimal("1E+9")),))
    nobody = replace(MANIFEST, device_allow=(), sla=sla)
    check_manifest(nobody, "x")
    assert read_manifest(nobody.to_bytes()).device_allow == ()
    assert read_manifest(nobody.to_bytes()).sla.objectives[0].limit == 10**9
