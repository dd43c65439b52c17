"""What a device must refuse of a repository: the TUF and signing cases of the evidence page, each with its own code."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from servers import dripping, served
from shops import Shop, key, opened, publics
from tuf.api.metadata import Key, MetaFile, TargetFile

from edgeproof.bundle.client import Client
from edgeproof.bundle.fetch import Fetcher, base_url
from edgeproof.bundle.repository import change_keys, refresh
from edgeproof.bundle.trust import provision, read_trust
from edgeproof.errors import InputError, TrustError

DAY = timedelta(days=1)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return opened(tmp_path)


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    assert caught.value.problem
    return caught.value.code


def test_a_device_finds_and_downloads_what_was_published(shop, tmp_path):
    device = shop.device()
    shop.add(2, content=b"second")
    offer = device.newest("cameras")
    device.download(offer, tmp_path / "got.bundle")
    assert (offer.bundle_version, (tmp_path / "got.bundle").read_bytes()) == (2, b"second")
    assert [o.bundle_version for o in device.offers("cameras")] == [1, 2]


def test_a_device_reads_a_stick_and_a_server_alike(shop, tmp_path):
    with served(shop.folder) as url:
        web = shop.device("web", source=url)
        stick = shop.device("stick")
        assert web.offers("cameras") == stick.offers("cameras")
        web.download(web.newest("cameras"), tmp_path / "got.bundle")
    assert (tmp_path / "got.bundle").read_bytes() == b"bundle 1"


# Old copies and clocks


def test_an_old_copy_replayed_to_an_updated_device_is_a_rollback(shop, tmp_path):
    old = shutil.copytree(shop.folder, tmp_path / "old")
    shop.add(2)
    shop.device().refresh()
    assert refused(shop.device(source=str(old)).refresh) == "tuf.rollback"


def test_an_old_copy_is_a_rollback_even_when_the_device_lost_its_metadata(shop, tmp_path):
    old = shutil.copytree(shop.folder, tmp_path / "old")
    shop.add(2)
    device = shop.device()
    device.refresh()
    shutil.rmtree(device.state / "metadata")
    assert refused(shop.device(source=str(old)).refresh) == "tuf.rollback"


def test_an_old_copy_replayed_to_a_fresh_device_is_older_than_its_last_seen_time(tmp_path):
    shop = opened(tmp_path)  # valid for the clock, whatever that says
    assert refused(shop.device(seen=shop.now + 2 * DAY).refresh) == "tuf.expired_timestamp"


def test_an_old_bundle_replayed_to_a_fresh_device_is_below_its_factory_floor(shop):
    assert refused(lambda: shop.device(floor=2).newest("cameras")) == "bundle.below_floor"


def test_a_frozen_timestamp_expires(tmp_path):
    shop = opened(tmp_path, ago=2 * DAY)
    assert refused(shop.device().refresh) == "tuf.expired_timestamp"


def test_a_clock_set_back_does_not_revive_what_was_valid_before_the_last_seen_time(shop):
    device = shop.device()
    device.refresh()
    remembered(device, last_seen=(shop.now + 2 * DAY).isoformat())  # the clock was there once, and is back now
    assert refused(shop.device().refresh) == "tuf.expired_timestamp"


def test_a_timestamp_that_was_seen_expired_stays_so_when_the_clock_is_set_back(shop):
    device = shop.device()
    device.refresh()
    remembered(device, last_seen=(shop.now + 2 * DAY).isoformat())
    assert refused(shop.device().refresh) == "tuf.expired_timestamp"
    remembered(device, last_seen=(shop.now - DAY).isoformat())
    assert refused(shop.device().refresh) == "tuf.frozen"


def test_an_expired_timestamp_is_remembered_though_it_was_never_trusted(tmp_path):
    shop = opened(tmp_path, ago=2 * DAY)
    device = shop.device()
    assert refused(device.refresh) == "tuf.expired_timestamp"
    assert read_trust(device.state).stale.version == shop.load("timestamp").signed.version


def test_a_clock_far_ahead_locks_a_device_out_only_until_the_next_timestamp(shop):
    device = shop.device()
    device.refresh()
    before = read_trust(device.state)
    remembered(device, last_seen=(shop.now + 3650 * DAY).isoformat())
    assert refused(shop.device().refresh).startswith("tuf.expired")
    remembered(device, last_seen=before.last_seen)  # a clock ahead never raises last_seen: that refresh failed
    assert refused(shop.device().refresh) == "tuf.frozen"
    refresh(shop.folder, shop.signers, now=shop.now)
    assert shop.device().newest("cameras").bundle_version == 1


def test_last_seen_rises_with_a_refresh_and_never_falls(shop):
    device = shop.device()
    assert device.refresh().time >= shop.now.replace(microsecond=0)
    ahead = (shop.now + timedelta(hours=3)).isoformat(timespec="seconds")
    remembered(device, last_seen=ahead)
    assert shop.device().refresh().last_seen == ahead


@pytest.mark.parametrize(("role", "code"), [("snapshot", "tuf.expired_snapshot"), ("targets", "tuf.expired_targets")])
def test_every_role_expires_with_its_own_code(shop, role, code):
    shop.forge(role, expires_yesterday, shop.keys[role])
    if role == "targets":
        shop.republish()
    else:
        point_at_snapshot(shop)
    assert refused(shop.device().refresh) == code


def test_an_expired_root_is_refused(shop):
    shop.forge("root", expires_yesterday, shop.keys["root"][:2])
    assert refused(shop.device().refresh) == "tuf.expired_root"


def test_an_expired_product_line_is_refused(shop):
    shop.forge("cameras", expires_yesterday, shop.keys["cameras"])
    shop.republish()
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.expired_line"


def test_a_product_line_that_expired_before_the_last_seen_time_is_refused(tmp_path):
    shop = opened(tmp_path)
    shop.forge("cameras", lambda s: setattr(s, "expires", at(shop.now + timedelta(hours=1))), shop.keys["cameras"])
    shop.republish()
    device = shop.device(seen=shop.now + timedelta(hours=2))
    assert refused(lambda: device.offers("cameras")) == "tuf.expired_line"


# Mixed versions


def test_an_old_snapshot_under_a_new_name_is_not_what_the_timestamp_lists(shop):
    old = shop.path("snapshot").read_bytes()
    shop.add(2)
    shop.path("snapshot").write_bytes(old)
    assert refused(shop.device().refresh) == "tuf.mismatch"


def test_an_old_snapshot_under_a_new_version_is_refused_though_the_timestamp_key_is_lost(shop):
    old = shop.path("snapshot").read_bytes()
    shop.add(2)
    shop.path("snapshot").write_bytes(old)
    version = int(shop.path("snapshot").name.partition(".")[0])
    shop.forge(
        "timestamp",
        lambda s: setattr(s, "snapshot_meta", MetaFile.from_data(version, old, ["sha256"])),
        shop.keys["timestamp"],
    )
    assert refused(shop.device().refresh) == "tuf.version_mismatch"


def test_old_targets_under_a_new_name_are_not_what_the_snapshot_lists(shop):
    old = shop.path("targets").read_bytes()
    refresh(shop.folder, shop.signers, now=shop.now, roles=("targets",))
    shop.path("targets").write_bytes(old)
    assert refused(shop.device().refresh) == "tuf.mismatch"


def test_old_targets_under_a_new_version_are_refused_though_the_online_keys_are_lost(shop):
    old = shop.path("targets").read_bytes()
    refresh(shop.folder, shop.signers, now=shop.now, roles=("targets",))
    shop.path("targets").write_bytes(old)
    shop.republish()
    assert refused(shop.device().refresh) == "tuf.version_mismatch"


def test_older_targets_in_a_new_snapshot_are_a_rollback(shop):
    refresh(shop.folder, shop.signers, now=shop.now, roles=("targets",))
    device = shop.device()
    device.refresh()
    shop.path("targets").unlink()
    shop.republish()
    assert refused(device.refresh) == "tuf.rollback"


def test_a_line_that_vanishes_from_the_snapshot_is_refused(shop):
    device = shop.device()
    device.refresh()
    shop.forge("snapshot", lambda s: s.meta.pop("cameras.json"), shop.keys["snapshot"])
    point_at_snapshot(shop)
    assert refused(device.refresh) == "tuf.removed"


def test_a_line_that_the_snapshot_never_listed_is_refused(shop):
    shop.forge("snapshot", lambda s: s.meta.pop("cameras.json"), shop.keys["snapshot"])
    point_at_snapshot(shop)
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.incomplete"


# Bytes


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_a_flipped_bit_in_metadata_is_refused(shop, role):
    data = bytearray(shop.path(role).read_bytes())
    place = data.index(b'"expires":"20') + len(b'"expires":"20') + 1
    data[place] ^= 1
    shop.path(role).write_bytes(data)
    expected = "tuf.bad_signature" if role == "timestamp" else "tuf.mismatch"
    assert refused(shop.device().refresh) == expected


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:2] + bytes([data[2] ^ 1]) + data[3:], "tuf.target_hash"),
        (lambda data: data + b"!", "tuf.target_longer"),
        (lambda data: data[:-1], "tuf.target_shorter"),
        (lambda data: b"", "tuf.target_shorter"),
    ],
    ids=["flipped bit", "longer than signed", "truncated", "empty"],
)
def test_a_changed_bundle_is_refused_and_leaves_no_file(shop, tmp_path, change, code):
    device = shop.device()
    offer = device.newest("cameras")
    (file,) = shop.folder.glob("targets/cameras/*.bundle")
    file.write_bytes(change(file.read_bytes()))
    to = tmp_path / "out" / "got.bundle"
    assert refused(lambda: device.download(offer, to)) == code
    assert not to.parent.exists() or not list(to.parent.iterdir())


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"[" * 16_000, b'{"signed": {"_type": "root"}}'])
def test_metadata_that_is_none_is_refused(shop, content):
    shop.path("timestamp").write_bytes(content)
    assert refused(shop.device().refresh) == "tuf.malformed"


@pytest.mark.parametrize("role", ["timestamp", "root"])
def test_oversized_metadata_is_refused_before_it_is_parsed(shop, role):
    data = shop.path("timestamp").read_bytes() if role == "timestamp" else shop.path("root").read_bytes()
    name = "timestamp.json" if role == "timestamp" else "2.root.json"
    (shop.folder / "metadata" / name).write_bytes(data + b" " * 600_000)
    assert refused(shop.device().refresh) == "tuf.too_long"


def test_a_snapshot_longer_than_signed_is_refused(shop):
    shop.path("snapshot").write_bytes(shop.path("snapshot").read_bytes() + b" ")
    assert refused(shop.device().refresh) == "tuf.too_long"


def test_metadata_that_is_not_there_is_missing_and_no_accept(shop):
    shop.path("snapshot").unlink()
    assert refused(shop.device().refresh) == "tuf.missing"


# Signatures


def test_a_timestamp_of_a_strangers_key_is_refused(shop):
    shop.forge("timestamp", lambda s: None, [key()])
    assert refused(shop.device().refresh) == "tuf.wrong_key"


def test_unsigned_metadata_is_refused(shop):
    shop.forge("timestamp", lambda s: None)
    assert refused(shop.device().refresh) == "tuf.unsigned"


def test_a_root_with_one_signature_where_two_are_needed_is_refused(shop):
    shop.forge("root", lambda s: None, shop.keys["root"][:1])
    assert refused(shop.device().refresh) == "tuf.threshold"


def test_the_same_signature_twice_does_not_count_as_two(shop):
    shop.forge("root", lambda s: None, shop.keys["root"][:1])
    text = json.loads(shop.path("root").read_bytes())
    text["signatures"] *= 2
    shop.path("root").write_bytes(json.dumps(text).encode())
    assert refused(shop.device().refresh) == "tuf.duplicate_signature"


def test_one_key_under_two_names_does_not_count_as_two(shop):
    """Two of the three root keys collude: they list the first key twice, so that it alone could sign later."""

    def twice(signed: Any) -> None:
        first = shop.keys["root"][0].public_key
        signed.keys["f" * 64] = Key.from_dict("f" * 64, first.to_dict())
        signed.roles["root"].keyids.append("f" * 64)

    shop.forge("root", twice, shop.keys["root"][:2])
    assert refused(shop.device().refresh) == "tuf.same_key"


def test_a_revoked_timestamp_key_is_refused(shop):
    old, new = shop.keys["timestamp"], [key()]
    shop.keys["new"] = new
    gone = [old[0].public_key.keyid]
    change_keys(shop.folder, "timestamp", shop.signers, now=shop.now, add=publics(new), remove=gone)
    device = shop.device()
    device.refresh()
    shop.forge("timestamp", lambda s: None, old)
    assert refused(device.refresh) == "tuf.revoked"


def test_a_revoked_root_key_no_longer_counts(shop):
    new = key()
    shop.keys["new"] = [new]
    first, second = shop.keys["root"][:2]
    change_keys(shop.folder, "root", shop.signers, now=shop.now, add=[new.public_key], remove=[first.public_key.keyid])
    device = shop.device()
    device.refresh()
    shop.forge("root", lambda s: None, [first, second])
    assert refused(device.refresh) == "tuf.threshold"


def test_a_revoked_key_of_a_product_line_is_refused(shop):
    old, new = shop.keys["cameras"], [key()]
    shop.keys["new"] = new
    gone = [old[0].public_key.keyid]
    change_keys(shop.folder, "cameras", shop.signers, now=shop.now, add=publics(new), remove=gone)
    assert len(shop.device().offers("cameras")) == 1
    shop.forge("cameras", lambda s: None, old)
    shop.republish()
    assert refused(lambda: shop.device("another").offers("cameras")) == "tuf.wrong_key"


def test_another_timestamp_of_the_same_version_changes_nothing(shop):
    device = shop.device()
    device.refresh()
    before = (device.state / "metadata/timestamp.json").read_bytes()
    later = shop.now + 30 * DAY
    shop.forge("timestamp", lambda s: setattr(s, "expires", at(later)), shop.keys["timestamp"], later=False)
    device.refresh()
    assert (device.state / "metadata/timestamp.json").read_bytes() == before


def test_a_timestamp_that_goes_back_to_an_older_snapshot_is_a_rollback(shop):
    old = shop.load("timestamp").signed.snapshot_meta
    shop.add(2)
    device = shop.device()
    device.refresh()
    shop.forge("timestamp", lambda s: setattr(s, "snapshot_meta", old), shop.keys["timestamp"])
    assert refused(device.refresh) == "tuf.rollback"


def test_a_gap_between_root_versions_is_refused(shop):
    shop.forge("root", lambda s: setattr(s, "version", 3), shop.keys["root"][:2])
    (shop.folder / "metadata" / "3.root.json").rename(shop.folder / "metadata" / "2.root.json")
    assert refused(shop.device().refresh) == "tuf.root_gap"


@pytest.mark.parametrize("expired", [False, True])
def test_a_version_beyond_all_others_is_refused_and_not_remembered(shop, expired):
    """Who stole the online key could otherwise make the device remember what it cannot read again."""
    device = shop.device()
    before = device.refresh()
    version = 10**30

    def raised(signed: Any) -> None:
        signed.version = version
        signed.expires = at(shop.now + (-DAY if expired else DAY))

    shop.forge("timestamp", raised, shop.keys["timestamp"])
    assert refused(device.refresh) == ("tuf.expired_timestamp" if expired else "tuf.version_size")
    assert read_trust(device.state) == before


def test_an_online_key_cannot_sign_targets(shop):
    shop.forge("targets", lambda s: None, shop.keys["timestamp"] + shop.keys["snapshot"])
    shop.republish()
    assert refused(shop.device().refresh) == "tuf.wrong_role"


def test_a_delegate_cannot_offer_outside_its_paths(shop):
    other = "lidars/reader-9.bundle"

    def added(signed: Any) -> None:
        signed.targets[other] = TargetFile(1, {"sha256": "0" * 64}, other, {"custom": {}})

    shop.forge("cameras", added, shop.keys["cameras"])
    shop.republish()
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.target_path"


def test_a_line_whose_paths_were_narrowed_cannot_offer_the_rest(shop):
    shop.device().offers("cameras")
    shop.forge(
        "targets",
        lambda s: setattr(s.delegations.roles["cameras"], "paths", ["cameras/", "cameras/front-*"]),
        shop.keys["targets"],
    )
    shop.republish()
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.outside_delegation"


@pytest.mark.parametrize(
    "path", ["cameras/..", "cameras/../../etc/passwd", "/etc/passwd", "cameras/a..b-1.bundle", "cameras/x-1.bundle\n"]
)
def test_a_target_path_that_leaves_its_folder_is_refused(shop, path):
    def added(signed: Any) -> None:
        signed.targets[path] = TargetFile(1, {"sha256": "0" * 64}, path, {"custom": {}})

    shop.forge("cameras", added, shop.keys["cameras"])
    shop.republish()
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.target_path"


@pytest.mark.parametrize(
    "custom",
    [
        None,
        {},
        {"name": "reader", "bundle_version": 9, "security_version": 1, "manifest": "x", "more": 1},
        {"name": "reader", "bundle_version": "8", "security_version": 1, "manifest": "x"},
        {"name": "reader", "bundle_version": True, "security_version": 1, "manifest": "x"},
        {"name": "reader", "bundle_version": 9, "security_version": 1, "manifest": "x"},
        {"name": "other", "bundle_version": 8, "security_version": 1, "manifest": "x"},
    ],
)
def test_a_target_that_is_not_described_as_a_bundle_is_refused(shop, custom):
    path = "cameras/reader-8.bundle"

    def added(signed: Any) -> None:
        fields = {} if custom is None else {"custom": custom}
        signed.targets[path] = TargetFile(1, {"sha256": "0" * 64}, path, fields)

    shop.forge("cameras", added, shop.keys["cameras"])
    shop.republish()
    assert refused(lambda: shop.device().offers("cameras")) == "tuf.target_fields"


def test_a_snapshot_in_the_place_of_the_timestamp_is_refused_though_one_key_signs_both(tmp_path):
    shop = Shop(tmp_path / "repo", datetime.now(UTC))
    shop.keys["timestamp"] = shop.keys["snapshot"]
    shop.open()
    shop.path("timestamp").write_bytes(shop.path("snapshot").read_bytes())
    assert refused(shop.device().refresh) == "tuf.type"


def test_a_product_line_in_the_place_of_targets_is_refused(shop):
    line = shop.load("cameras")
    shop.put("targets", line)
    shop.republish()
    assert refused(shop.device().refresh) == "tuf.wrong_key"


# Factory


def test_a_root_that_its_own_keys_did_not_sign_is_no_factory_root(shop, tmp_path):
    shop.forge("root", lambda s: None, shop.keys["root"][:1])
    data = shop.path("root").read_bytes()
    assert refused(lambda: provision(tmp_path / "new", data, last_seen=shop.now)) == "trust.root"


def test_other_metadata_is_no_factory_root(shop, tmp_path):
    data = shop.path("targets").read_bytes()
    assert refused(lambda: provision(tmp_path / "new", data, last_seen=shop.now)) == "trust.root"


def test_a_last_seen_time_without_a_time_zone_is_refused(shop, tmp_path):
    naive = shop.now.replace(tzinfo=None)
    assert refused(lambda: provision(tmp_path / "new", shop.root, last_seen=naive)) == "trust.time"


def test_a_device_is_provisioned_once(shop):
    device = shop.device()
    assert refused(lambda: provision(device.state, shop.root, last_seen=shop.now)) == "trust.exists"


def test_a_device_without_a_root_trusts_nothing(tmp_path):
    assert refused(Client(tmp_path / "nothing", str(tmp_path)).refresh) == "trust.missing"


def test_a_stranger_with_a_repository_of_his_own_is_refused(shop, tmp_path):
    other = opened(tmp_path / "other")
    assert refused(shop.device(source=str(other.folder)).refresh) == "tuf.wrong_key"


# Folders and servers


@pytest.mark.parametrize("make", ["symlink", "pipe", "folder_link"])
def test_a_stick_cannot_point_elsewhere(shop, tmp_path, make):
    import os

    timestamp = shop.path("timestamp")
    if make == "folder_link":
        moved = shutil.move(shop.folder / "metadata", tmp_path / "elsewhere")
        (shop.folder / "metadata").symlink_to(moved)
    else:
        moved = tmp_path / "timestamp.json"
        timestamp.rename(moved)
        timestamp.symlink_to(moved) if make == "symlink" else os.mkfifo(timestamp)
    assert refused(shop.device().refresh) == "tuf.unreachable"


@pytest.mark.parametrize("name", ["../x", "metadata/../../x", "/x", "a//b", ".", "..", "a/\0"])
def test_the_fetcher_stays_in_its_folder(tmp_path, name):
    from tuf.api.exceptions import DownloadError

    (tmp_path / "repo").mkdir()
    (tmp_path / "x").write_bytes(b"secret")
    fetcher = Fetcher(base_url(str(tmp_path / "repo")))
    with pytest.raises(DownloadError):
        list(fetcher.fetch(base_url(str(tmp_path / "repo")) + name))


def test_the_fetcher_reads_nothing_outside_its_base(tmp_path):
    from tuf.api.exceptions import DownloadError

    fetcher = Fetcher(base_url("https://updates.example.org/a"))
    with pytest.raises(DownloadError):
        fetcher.fetch("https://updates.example.org/b/timestamp.json")


@pytest.mark.parametrize("slow", ["headers", "body", "silence"])
def test_slow_retrieval_is_given_up_though_bytes_keep_coming(shop, slow):
    with dripping(slow) as url:
        device = Client(shop.device().state, url, grace_s=0.5, slowest=10_000)
        started = time.monotonic()
        assert refused(device.refresh) == "tuf.slow"
        assert time.monotonic() - started < 60  # the server would go on for hours


def test_endless_data_ends_at_the_length_that_may_be(shop):
    with dripping("endless") as url:
        device = Client(shop.device().state, url)
        assert refused(device.refresh) == "tuf.too_long"


def test_a_server_that_fails_is_unreachable_and_no_accept(shop):
    with served(shop.folder) as url:
        pass
    assert refused(shop.device(source=url).refresh) == "tuf.unreachable"


def expires_yesterday(signed: Any) -> None:
    signed.expires = at(datetime.now(UTC) - DAY)


def at(when: datetime) -> datetime:
    return when.replace(microsecond=0)


def point_at_snapshot(shop: Shop) -> None:
    path = shop.path("snapshot")
    meta = MetaFile.from_data(int(path.name.partition(".")[0]), path.read_bytes(), ["sha256"])
    shop.forge("timestamp", lambda s: setattr(s, "snapshot_meta", meta), shop.keys["timestamp"])


def remembered(device: Client, **fields: Any) -> None:
    path = device.state / "trust.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "fields",
    [{"schema": "edgeproof.trust/2"}, {"last_seen": "soon"}, {"last_seen": "2026-12-01T00:00:00"}, {"seen": []}],
)
def test_a_memory_that_is_not_what_was_written_is_refused(shop, fields):
    device = shop.device()
    remembered(device, **fields)
    assert refused(device.refresh) == "files.value"


def test_a_fetcher_of_one_folder_reads_no_other(tmp_path):
    from tuf.api.exceptions import DownloadError

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"x")
    with pytest.raises(DownloadError, match="outside"):
        Fetcher(base_url(str(tmp_path / "a"))).fetch(base_url(str(tmp_path / "b")) + "f")
