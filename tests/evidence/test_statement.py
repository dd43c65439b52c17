"""The signature: made over this evidence, of this kind, by a key that was given; anything else says nothing."""

import base64
import json

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner

from edgeproof.archive import write_archive
from edgeproof.digest import canonical_json, digest_bytes
from edgeproof.evidence.statement import PAYLOAD_TYPE, envelope, signed_by, statement
from edgeproof.evidence.verify import verify
from evidence_files import digest, read, values, write

A, B = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
PAYLOAD = statement("m.onnx", digest("model"), digest("manifest"), {"state": "accept"})
KEY = A.public_key


def why(data: bytes, expected: bytes = PAYLOAD, keys=(KEY,)) -> str:
    found, code, sentence = signed_by(data, expected, keys)
    assert not found
    assert sentence
    return code


def changed(data: bytes, **fields) -> bytes:
    return canonical_json({**json.loads(data), **fields})


def test_a_signature_verifies_with_securesystemslib_alone_and_with_ours():
    data = envelope(PAYLOAD, [A])
    assert Envelope.from_dict(json.loads(data)).verify([KEY], 1) == {KEY.keyid: KEY}
    assert signed_by(data, PAYLOAD, [KEY, B.public_key]) == ((KEY.keyid,), "", "")


def test_the_statement_has_the_fields_that_in_toto_asks_for():
    # https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
    value = json.loads(PAYLOAD)
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "urn:edgeproof:evidence:1"
    assert [s["name"] for s in value["subject"]] == ["m.onnx", "manifest.json"]
    assert all(set(s["digest"]) == {"sha256"} and len(s["digest"]["sha256"]) == 64 for s in value["subject"])


def test_signing_twice_gives_the_same_bytes_whatever_the_order_of_keys():
    assert envelope(PAYLOAD, [A, B]) == envelope(PAYLOAD, [B, A])


def test_one_key_that_signs_twice_counts_once():
    data = json.loads(envelope(PAYLOAD, [A]))
    twice = canonical_json({**data, "signatures": data["signatures"] * 2})
    assert signed_by(twice, PAYLOAD, [KEY, KEY])[0] == (KEY.keyid,)


def test_two_keys_that_sign_count_as_two():
    assert signed_by(envelope(PAYLOAD, [A, B]), PAYLOAD, [KEY, B.public_key])[0] == tuple(
        sorted((KEY.keyid, B.public_key.keyid))
    )


def test_a_flipped_bit_in_the_signature_is_noticed():
    data = json.loads(envelope(PAYLOAD, [A]))
    raw = bytearray(base64.b64decode(data["signatures"][0]["sig"]))
    raw[0] ^= 1
    data["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    assert why(canonical_json(data)) == "evidence.signature"


def test_a_signature_under_anothers_key_id_is_noticed():
    data = json.loads(envelope(PAYLOAD, [B]))
    data["signatures"][0]["keyid"] = KEY.keyid
    assert why(canonical_json(data)) == "evidence.signature"


def test_a_signature_copied_from_other_evidence_is_noticed(tmp_path):
    write(values(), tmp_path / "a.zip", [A])
    other = values()
    other["request.json"]["change"] = "other words"
    write(other, tmp_path / "b.zip")
    copied = {**read(tmp_path / "b.zip"), "attestation.json": read(tmp_path / "a.zip")["attestation.json"]}
    write_archive(tmp_path / "b.zip", copied)
    found = verify(tmp_path / "b.zip", keys=[KEY])
    assert (found.differences, found.trusted, found.untrusted[0]) == ((), False, "evidence.statement")


def test_bytes_signed_as_another_kind_are_not_taken_for_evidence():
    other = Envelope(PAYLOAD, "application/vnd.edgeproof.bundle.manifest+json", {})
    other.sign(A)
    assert why(canonical_json(other.to_dict())) == "evidence.payload_type"
    # The type is part of what is signed, so renaming it breaks the signature.
    assert why(canonical_json({**other.to_dict(), "payloadType": PAYLOAD_TYPE})) == "evidence.signature"


def test_a_statement_of_another_predicate_is_not_taken_for_evidence():
    value = json.loads(PAYLOAD)
    for change in ({"predicateType": "https://slsa.dev/provenance/v1"}, {"_type": "https://in-toto.io/Statement/v0.1"}):
        assert why(envelope(canonical_json({**value, **change}), [A])) == "evidence.statement"


def test_a_statement_about_another_model_is_noticed():
    other = statement("m.onnx", digest("another model"), digest("manifest"), {"state": "accept"})
    assert why(envelope(other, [A])) == "evidence.statement"


@pytest.mark.parametrize(
    "fields",
    [
        {"signatures": {}},
        {"signatures": [{"keyid": "a"}]},
        {"signatures": [{"keyid": "a", "sig": "!"}]},
        {"signatures": [{"keyid": "a", "sig": "AA=="}] * 17},
        {"payload": "!"},
        {"payload": 1},
        {"extra": 1},
    ],
)
def test_an_envelope_of_another_shape_is_noticed(fields):
    assert why(changed(envelope(PAYLOAD, [A]), **fields)) == "evidence.envelope"


def test_an_envelope_without_signatures_says_that_no_key_signed():
    assert why(changed(envelope(PAYLOAD, [A]), signatures=[])) == "evidence.signature"


def test_digests_in_the_statement_are_those_of_the_members(tmp_path):
    write(values(), tmp_path / "e.zip", [A])
    members = read(tmp_path / "e.zip")
    value = json.loads(Envelope.from_dict(json.loads(members["attestation.json"])).payload)
    assert "sha256:" + value["subject"][1]["digest"]["sha256"] == digest_bytes(members["manifest.json"])
    assert value["predicate"]["state"] == "accept"
