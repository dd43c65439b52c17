"""What is refused of a bundle file, and of its signature, each with its own code."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from parcels import MEMBERS, manifest, parcel
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from shops import key, opened, publics

from edgeproof.bundle.client import Offer
from edgeproof.bundle.envelope import payload_of, sign, verify
from edgeproof.bundle.opening import PAYLOAD_TYPE, open_bundle
from edgeproof.bundle.release import add_bundle
from edgeproof.errors import InputError, TrustError
from edgeproof.strictjson import canonical


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    return caught.value.code


@pytest.fixture
def alice() -> Any:
    return key()


def checked(path: Path, trusted: list[Any], threshold: int = 1) -> Any:
    with open_bundle(path) as bundle:
        return bundle.check_signature(trusted, threshold)


def test_a_bundle_says_what_is_in_it_and_gives_it_out(tmp_path, alice):
    with open_bundle(parcel(tmp_path / "a.bundle", [alice])) as bundle:
        assert bundle.manifest == manifest()
        assert bundle.check_signature(publics([alice])) == (alice.public_key.keyid,)
        bundle.check_files()
        bundle.extract("model/net.data", tmp_path / "net.data")
        assert bundle.read("model/net.onnx") == b"model bytes"
        assert bundle.digest == manifest().digest
    assert (tmp_path / "net.data").read_bytes() == b"weights"


# Signatures


def test_securesystemslib_alone_verifies_our_envelope_and_refuses_a_changed_one(tmp_path, alice):
    from edgeproof.archive import open_archive

    with open_archive(parcel(tmp_path / "a.bundle", [alice]), allowed=lambda _: 2**20, max_total=2**24) as archive:
        value = json.loads(archive.read("signature.json"))
        text = archive.read("manifest.json")
    envelope = Envelope.from_dict(json.loads(json.dumps(value)))
    assert envelope.payload == text
    assert set(envelope.verify([alice.public_key], 1)) == {alice.public_key.keyid}
    value["payload"] = base64.b64encode(text.replace(b"orin", b"evil")).decode()
    with pytest.raises(VerificationError):
        Envelope.from_dict(value).verify([alice.public_key], 1)


def test_an_envelope_of_securesystemslib_is_verified(alice):
    envelope = Envelope(b"data", "text/plain", {})
    envelope.sign(alice)
    data = canonical(envelope.to_dict())
    assert verify(data, "text/plain", [alice.public_key], "x") == (b"data", (alice.public_key.keyid,))
    assert payload_of(data, "text/plain", "x") == b"data"


def test_the_signed_bytes_are_those_of_the_dsse_specification():
    """DSSE 1.0.0, protocol.md, the worked example of its test vectors."""
    envelope = Envelope(b"hello world", "http://example.com/HelloWorld", {})
    assert envelope.pae() == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_an_unsigned_bundle_is_refused(tmp_path, alice):
    assert refused(lambda: checked(parcel(tmp_path / "a", []), publics([alice]))) == "bundle.unsigned"
    empty = parcel(tmp_path / "b", [], signature=sign(manifest().to_bytes(), PAYLOAD_TYPE, []))
    assert refused(lambda: checked(empty, publics([alice]))) == "bundle.unsigned"


def test_a_strangers_signature_is_refused(tmp_path, alice):
    assert refused(lambda: checked(parcel(tmp_path / "a", [key()]), publics([alice]))) == "bundle.wrong_key"
    assert refused(lambda: checked(parcel(tmp_path / "b", [alice]), [])) == "bundle.wrong_key"


def test_a_strangers_signature_under_a_trusted_name_is_refused(tmp_path, alice):
    mallory = key()
    mallory.public_key.keyid = alice.public_key.keyid
    assert refused(lambda: checked(parcel(tmp_path / "a", [mallory]), publics([alice]))) == "bundle.bad_signature"


def test_a_flipped_bit_in_a_signature_is_refused(tmp_path, alice):
    value = json.loads(sign(manifest().to_bytes(), PAYLOAD_TYPE, [alice]))
    raw = bytearray(base64.b64decode(value["signatures"][0]["sig"]))
    raw[10] ^= 1
    value["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    path = parcel(tmp_path / "a", [], signature=canonical(value))
    assert refused(lambda: checked(path, publics([alice]))) == "bundle.bad_signature"


def test_a_signature_copied_from_another_bundle_is_refused(tmp_path, alice):
    other = manifest(name="other").to_bytes()
    path = parcel(tmp_path / "a", [alice], signed=other)
    assert refused(lambda: checked(path, publics([alice]))) == "bundle.other_manifest"


def test_a_signature_over_another_kind_of_thing_is_refused(tmp_path, alice):
    signature = sign(manifest().to_bytes(), "application/vnd.in-toto+json", [alice])
    path = parcel(tmp_path / "a", [], signature=signature)
    assert refused(lambda: checked(path, publics([alice]))) == "bundle.payload_type"


def test_relabelling_the_kind_of_thing_breaks_the_signature(tmp_path, alice):
    value = json.loads(sign(manifest().to_bytes(), "application/vnd.in-toto+json", [alice]))
    value["payloadType"] = PAYLOAD_TYPE
    path = parcel(tmp_path / "a", [], signature=canonical(value))
    assert refused(lambda: checked(path, publics([alice]))) == "bundle.bad_signature"


def test_one_signature_where_two_are_needed_is_refused(tmp_path, alice):
    bob = key()
    path = parcel(tmp_path / "a", [alice])
    assert refused(lambda: checked(path, publics([alice, bob]), 2)) == "bundle.threshold"
    assert len(checked(parcel(tmp_path / "b", [alice, bob]), publics([alice, bob]), 2)) == 2


def test_one_signature_twice_does_not_count_as_two(tmp_path, alice):
    value = json.loads(sign(manifest().to_bytes(), PAYLOAD_TYPE, [alice]))
    value["signatures"] *= 2
    path = parcel(tmp_path / "a", [], signature=canonical(value))
    assert refused(lambda: checked(path, publics([alice, key()]), 2)) == "bundle.duplicate_signature"


def test_one_key_trusted_under_two_names_does_not_count_as_two(tmp_path, alice):
    from securesystemslib.signer import SSlibKey

    value = json.loads(sign(manifest().to_bytes(), PAYLOAD_TYPE, [alice]))
    value["signatures"].append({**value["signatures"][0], "keyid": "f" * 64})
    public = alice.public_key
    renamed = SSlibKey("f" * 64, public.keytype, public.scheme, dict(public.keyval))
    path = parcel(tmp_path / "a", [], signature=canonical(value))
    assert refused(lambda: checked(path, [public, renamed], 2)) == "bundle.threshold"


def test_an_envelope_has_one_writing(alice):
    data = sign(b"data", "text/plain", [alice])
    value = json.loads(data)
    keys = publics([alice])
    loose = json.dumps(value).encode()
    more = canonical({**value, "more": 1})
    text = canonical({**value, "payload": value["payload"].rstrip("=") + "\n=="})
    assert refused(lambda: verify(loose, "text/plain", keys, "x")) == "json.not_canonical"
    assert refused(lambda: verify(more, "text/plain", keys, "x")) == "json.unknown_key"
    assert refused(lambda: verify(text, "text/plain", keys, "x")) == "dsse.envelope"
    # the last character of base64 has bits to spare: "ZGF0YQ==" and "ZGF0YR==" are one payload
    spare = canonical({**value, "payload": "ZGF0YR=="})
    assert refused(lambda: verify(spare, "text/plain", keys, "x")) == "dsse.envelope"
    many = canonical({**value, "signatures": value["signatures"] * 17})
    assert refused(lambda: verify(many, "text/plain", keys, "x")) == "dsse.envelope"
    number = canonical({**value, "payload": 1})
    assert refused(lambda: verify(number, "text/plain", keys, "x")) == "dsse.envelope"


# Members


def test_a_member_that_is_not_listed_is_refused(tmp_path, alice):
    path = parcel(tmp_path / "a", [alice], members={**MEMBERS, "model/more.data": b"x"})
    assert refused(lambda: open_bundle(path)) == "bundle.extra_member"


def test_a_listed_member_that_is_not_there_is_refused(tmp_path, alice):
    path = parcel(tmp_path / "a", [alice], members={k: v for k, v in MEMBERS.items() if k != "model/net.data"})
    assert refused(lambda: open_bundle(path)) == "bundle.missing_member"


def test_a_member_of_another_size_is_refused(tmp_path, alice):
    path = parcel(tmp_path / "a", [alice], members={**MEMBERS, "model/net.data": b"weights!"})
    assert refused(lambda: open_bundle(path)) == "bundle.size"


def test_a_member_of_other_bytes_is_refused_when_it_is_read_and_leaves_no_file(tmp_path, alice):
    path = parcel(tmp_path / "a", [alice], members={**MEMBERS, "model/net.data": b"w3ights"})
    with open_bundle(path) as bundle:
        assert refused(bundle.check_files) == "bundle.digest"
        assert refused(lambda: bundle.read("model/net.data")) == "bundle.digest"
        assert refused(lambda: bundle.extract("model/net.data", tmp_path / "out")) == "bundle.digest"
        assert refused(lambda: bundle.read("manifest.json")) == "bundle.unlisted"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["run.sh", "models/x", "evidence.zip.sh", "README"])
def test_a_member_of_a_name_without_a_place_is_refused(tmp_path, alice, name):
    members = {**MEMBERS, name: b"x"}
    path = parcel(tmp_path / "a", [alice], manifest(members), members=members)
    assert refused(lambda: open_bundle(path)) == "archive.not_allowed"


def test_what_the_manifest_names_must_stand_where_it_belongs(tmp_path, alice):
    for fields in (
        {"model": "evidence.zip"},
        {"evidence": "sha256:" + "0" * 64},
        {"preprocessing": "sha256:" + "0" * 64},
    ):
        path = parcel(tmp_path / "a", [alice], manifest(**fields))
        assert refused(lambda path=path: open_bundle(path)) == "bundle.place"


def test_a_bundle_cut_short_or_longer_than_it_was_is_refused(tmp_path, alice):
    data = parcel(tmp_path / "a", [alice]).read_bytes()
    for name, changed, code in (("b", data[:-1], "archive.no_end"), ("c", data + b"x", "archive.trailing")):
        (tmp_path / name).write_bytes(changed)
        assert refused(lambda name=name: open_bundle(tmp_path / name)) == code


def test_a_bundle_that_is_not_what_the_repository_said_is_refused(tmp_path, alice):
    said = {
        "target": "cameras/reader-1.bundle",
        "name": "reader",
        "bundle_version": 1,
        "security_version": 1,
        "manifest": manifest().digest,
    }
    with open_bundle(parcel(tmp_path / "a", [alice])) as bundle:
        bundle.check_offer(Offer(**said, sha256="", size=0))
        for key_, value in (
            ("target", "lidars/reader-1.bundle"),
            ("name", "other"),
            ("bundle_version", 2),
            ("security_version", 2),
            ("manifest", "sha256:" + "0" * 64),
        ):
            offer = Offer(**{**said, key_: value}, sha256="", size=0)
            assert refused(lambda offer=offer: bundle.check_offer(offer)) == "bundle.metadata_differs"


# Publishing


def test_a_bundle_is_published_under_its_line_and_arrives_as_it_was(tmp_path):
    shop = opened(tmp_path)
    file = parcel(tmp_path / "a", shop.keys["cameras"], manifest(name="sorter"))
    assert add_bundle(shop.folder, file, shop.signers, now=shop.now) == "cameras/sorter-1.bundle"
    device = shop.device()
    offer = device.newest("cameras", "sorter")
    device.download(offer, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == file.read_bytes()
    with open_bundle(tmp_path / "got") as bundle:
        bundle.check_offer(offer)
    assert refused(lambda: device.newest("cameras")) == "tuf.which"
    assert refused(lambda: device.newest("cameras", "nothing")) == "tuf.no_bundle"
    assert refused(lambda: device.newest("lidars")) == "tuf.no_line"


def test_a_repository_takes_only_bundles_that_their_line_signed(tmp_path):
    shop = opened(tmp_path)
    for signers, code in (
        ([key()], "bundle.wrong_key"),
        ([], "bundle.unsigned"),
        (shop.keys["targets"], "bundle.wrong_key"),
    ):
        file = parcel(tmp_path / "a", signers)
        assert refused(lambda file=file: add_bundle(shop.folder, file, shop.signers, now=shop.now)) == code
    elsewhere = parcel(tmp_path / "a", shop.keys["cameras"], manifest(product_line="lidars"))
    assert refused(lambda: add_bundle(shop.folder, elsewhere, shop.signers, now=shop.now)) == "repo.role"


def test_versions_of_a_published_name_only_rise(tmp_path):
    shop = opened(tmp_path)
    line = shop.keys["cameras"]

    def add(version: int, security: int) -> str:
        says = manifest(bundle_version=version, security_version=security)
        return add_bundle(shop.folder, parcel(tmp_path / "a", line, says), shop.signers, now=shop.now)

    assert add(3, 2) == "cameras/reader-3.bundle"
    assert refused(lambda: add(3, 2)) == "repo.version"
    assert refused(lambda: add(2, 2)) == "repo.version"
    assert refused(lambda: add(4, 1)) == "repo.security_version"
    assert add(4, 2) == "cameras/reader-4.bundle"


def test_a_bundle_without_evidence_or_with_other_bytes_is_not_published(tmp_path):
    shop = opened(tmp_path)
    line = shop.keys["cameras"]
    bare = {name: data for name, data in MEMBERS.items() if name != "evidence.zip"}
    file = parcel(tmp_path / "a", line, manifest(bare, bundle_version=2), members=bare)
    assert refused(lambda: add_bundle(shop.folder, file, shop.signers, now=shop.now)) == "repo.no_evidence"
    other = {**MEMBERS, "model/net.data": b"w3ights"}
    file = parcel(tmp_path / "b", line, manifest(bundle_version=2), members=other)
    assert refused(lambda: add_bundle(shop.folder, file, shop.signers, now=shop.now)) == "bundle.digest"
