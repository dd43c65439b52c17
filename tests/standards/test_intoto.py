"""The attestation goes out byte for byte, and verifies with securesystemslib alone."""

import json

import pytest
from securesystemslib.dsse import Envelope

from edgeproof.errors import TrustError
from edgeproof.evidence.verify import verify
from edgeproof.standards import export, read_verified
from evidence_files import read
from standards.sealing import GOLDEN, KEY, sealed


def test_it_verifies_with_securesystemslib_and_is_about_the_model():
    data = export(read_verified(GOLDEN, [KEY]), "intoto", [KEY])
    signed = Envelope.from_dict(json.loads(data))
    assert signed.verify([KEY], 1) == {KEY.keyid: KEY}
    subjects = json.loads(signed.payload)["subject"]
    assert "sha256:" + subjects[0]["digest"]["sha256"] == verify(GOLDEN).candidate


def test_it_is_the_attestation_of_the_evidence():
    assert export(read_verified(GOLDEN), "intoto") == read(GOLDEN)["attestation.json"]


def test_evidence_that_nobody_signed_has_none(tmp_path):
    with pytest.raises(TrustError) as e:
        export(read_verified(sealed(tmp_path / "e.zip", signed=False)), "intoto")
    assert e.value.code == "standards.unsigned"
