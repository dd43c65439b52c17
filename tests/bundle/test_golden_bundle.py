"""Bundles that earlier versions packed open, verify and install for good, and are packed again to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproof.bundle.keys import load_public
from edgeproof.bundle.opening import Bundle, open_bundle
from edgeproof.bundle.pack import Order, pack
from edgeproof.evidence.verify import verify
from edgeproof.manifest import Rollback, Runtime
from evidence_files import golden_signer

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.bundle"))
ORDER = Order(
    "plate-reader",
    "cameras",
    7,
    2,
    ("orin-nano", "agx-orin"),
    min_driver="535.104",
    max_driver="560.35.5",
    runtime=(Runtime("onnxruntime", "1.20", "1.32"),),
    rollback=Rollback(600, 2, 500),
)
"""How bundle-1 was ordered."""


def extracted(bundle: Bundle, folder: Path) -> None:
    for file in bundle.manifest.files:
        bundle.extract(file.path, folder / file.path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_bundle_opens_and_its_evidence_is_still_accepted(path, tmp_path):
    trusted = [load_public(GOLDEN / "evidence.pub")]
    with open_bundle(path) as bundle:
        assert bundle.check_signature(trusted) == (golden_signer().public_key.keyid,)
        bundle.check_files()
        extracted(bundle, tmp_path)
        accepted = verify(tmp_path / "evidence.zip", keys=trusted)
        assert accepted.accepted
        assert accepted.candidate == bundle.manifest.model_sha256


def test_there_is_a_golden_bundle_of_every_schema():
    assert {p.name for p in FILES} >= {"bundle-1.bundle"}


def test_the_same_order_evidence_model_and_key_give_the_golden_bytes(tmp_path):
    with open_bundle(GOLDEN / "bundle-1.bundle") as bundle:
        extracted(bundle, tmp_path)
    trusted = [load_public(GOLDEN / "evidence.pub")]
    inputs = (tmp_path / "evidence.zip", tmp_path / "model/int8.onnx")
    made = pack(*inputs, ORDER, trusted=trusted, signers=[golden_signer()], out=tmp_path / "again.bundle")
    assert made.path.read_bytes() == (GOLDEN / "bundle-1.bundle").read_bytes()
