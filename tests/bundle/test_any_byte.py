"""Whatever a single byte becomes, on a server or on a stick: refused by name, or without effect."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parcels import manifest, parcel
from shops import Shop, key, opened, publics

from edgeproof.bundle.client import Client
from edgeproof.bundle.envelope import sign, verify
from edgeproof.bundle.opening import open_bundle
from edgeproof.bundle.reading import read_manifest
from edgeproof.bundle.trust import read_trust
from edgeproof.errors import EdgeproofError

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ALICE = key()
MANIFEST = manifest().to_bytes()
ENVELOPE = sign(MANIFEST, "text/plain", [ALICE])


@st.composite
def changes(draw: st.DrawFn) -> tuple[float, int, str]:
    """Where (share of the length), what (a byte), and how."""
    return draw(st.floats(0, 1)), draw(st.integers(0, 255)), draw(st.sampled_from(["set", "insert", "delete", "cut"]))


def changed(data: bytes, change: tuple[float, int, str]) -> bytes:
    share, byte, how = change
    at = min(int(share * len(data)), max(0, len(data) - 1))
    if how == "set":
        return data[:at] + bytes([byte]) + data[at + 1 :]
    if how == "insert":
        return data[:at] + bytes([byte]) + data[at:]
    return data[:at] + data[at + 1 :] if how == "delete" else data[:at]


@SETTINGS
@given(changes())
def test_a_manifest_is_refused_or_says_exactly_its_bytes(change):
    data = changed(MANIFEST, change)
    try:
        found = read_manifest(data)
    except EdgeproofError:
        return
    assert found.to_bytes() == data


@SETTINGS
@given(st.binary(max_size=200))
def test_bytes_that_are_no_manifest_are_refused_by_name(data):
    with pytest.raises(EdgeproofError):
        read_manifest(data)


@SETTINGS
@given(changes())
def test_an_envelope_verifies_as_it_was_or_not_at_all(change):
    data = changed(ENVELOPE, change)
    try:
        payload, _ = verify(data, "text/plain", publics([ALICE]), "x")
    except EdgeproofError:
        return
    assert (data, payload) == (ENVELOPE, MANIFEST)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = opened(tmp_path_factory.mktemp("shop"))
    shop.add(2, content=b"second")
    shop.device().refresh()
    return shop


@SETTINGS
@given(st.sampled_from(["root", "timestamp", "snapshot", "targets", "cameras", "bundle"]), changes())
def test_a_device_refuses_a_changed_repository_or_gets_what_was_published(shop, tmp_path, role, change):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(shop.folder, copy)
    path = shop.path(role) if role != "bundle" else next(shop.folder.glob("targets/cameras/*.reader-2.bundle"))
    (copy / path.relative_to(shop.folder)).write_bytes(changed(path.read_bytes(), change))
    shutil.rmtree(tmp_path / "device", ignore_errors=True)
    shutil.copytree(shop.folder.parent / "device", tmp_path / "device", symlinks=True)
    for cached in ("timestamp", "snapshot", "targets", "cameras"):
        (tmp_path / "device/metadata" / f"{cached}.json").unlink(missing_ok=True)
    device = Client(tmp_path / "device", str(copy), grace_s=5)
    try:
        device.download(device.newest("cameras"), tmp_path / "got")
    except EdgeproofError:
        return
    assert (tmp_path / "got").read_bytes() == b"second"


@SETTINGS
@given(changes())
def test_a_bundle_gives_out_what_was_packed_or_is_refused(tmp_path, change):
    good = parcel(tmp_path / "good", [ALICE]).read_bytes()
    (tmp_path / "a").write_bytes(changed(good, change))
    try:
        with open_bundle(tmp_path / "a") as bundle:
            bundle.check_signature(publics([ALICE]))
            bundle.check_files()
    except EdgeproofError:
        return
    assert (tmp_path / "a").read_bytes() == good


@SETTINGS
@given(changes())
def test_what_a_device_remembers_is_read_or_refused_by_name(shop, tmp_path, change):
    data = (shop.folder.parent / "device/trust.json").read_bytes()
    (tmp_path / "trust.json").write_bytes(changed(data, change))
    try:
        trust = read_trust(tmp_path)
    except EdgeproofError:
        return
    assert trust.time.tzinfo is not None
