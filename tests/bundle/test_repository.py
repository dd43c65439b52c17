"""Publishing: every change leaves a repository that every device can follow, at every moment of it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from servers import served
from shops import Shop, key, opened, publics
from tuf.api.metadata import Metadata, TargetFile
from tuf.ngclient import Updater

from edgeproof.bundle import repository
from edgeproof.bundle.repository import RootKeys, add_line, change_keys, create, describe, refresh, remove_target
from edgeproof.bundle.roles import Expiry
from edgeproof.errors import InputError, TrustError

DAY = timedelta(days=1)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return opened(tmp_path)


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    return caught.value.code


def plain_tuf_downloads(shop: Shop, tmp_path: Path, target: str) -> bytes:
    """What python-tuf's own client makes of the repository: no code of ours, not even to read the folder."""
    folder = tmp_path / f"plain-{len(list(tmp_path.glob('plain-*')))}"
    folder.mkdir()
    with served(shop.folder) as url:
        updater = Updater(str(folder), f"{url}/metadata/", str(folder), f"{url}/targets/", bootstrap=shop.root)
        found = updater.get_targetinfo(target)
        assert found is not None
        return Path(updater.download_target(found)).read_bytes()


def test_python_tufs_own_client_finds_what_was_published(shop, tmp_path):
    shop.add(2, content=b"second")
    assert plain_tuf_downloads(shop, tmp_path, "cameras/reader-1.bundle") == b"bundle 1"
    assert plain_tuf_downloads(shop, tmp_path, "cameras/reader-2.bundle") == b"second"


def test_python_tufs_own_client_follows_rotated_keys_of_every_role(shop, tmp_path):
    for role in ("timestamp", "snapshot", "targets", "cameras", "root"):
        rotate(shop, role)
    assert shop.load("root").signed.version == 5
    assert plain_tuf_downloads(shop, tmp_path, "cameras/reader-1.bundle") == b"bundle 1"


def rotate(shop: Shop, role: str) -> None:
    new = key()
    old = shop.keys[role].pop(0)
    shop.keys.setdefault("former", []).append(old)
    shop.keys[role].append(new)
    gone = [old.public_key.keyid]
    change_keys(shop.folder, role, shop.signers, now=shop.now, add=[new.public_key], remove=gone)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "cameras", "root"])
def test_a_device_follows_a_rotated_key(shop, role):
    device = shop.device()
    device.refresh()
    rotate(shop, role)
    shop.keys.pop("former")  # from now on without the old key
    shop.add(2)
    for name in ("device", "a fresh one"):
        assert shop.device(name).newest("cameras").bundle_version == 2


def test_a_device_that_slept_through_many_roots_follows_the_chain(shop):
    device = shop.device()
    device.refresh()
    for _ in range(4):
        rotate(shop, "root")  # in the end no key of the first root is left
    shop.keys.pop("former")
    shop.add(2)
    assert device.refresh().seen["root"].version == 5
    assert shop.device().newest("cameras").bundle_version == 2


def test_a_lost_root_key_is_revoked_by_the_other_two(shop):
    lost = shop.keys["root"].pop()
    change_keys(shop.folder, "root", shop.signers, now=shop.now, remove=[lost.public_key.keyid])
    assert shop.device().newest("cameras").bundle_version == 1


def test_the_count_of_versions_starts_anew_with_new_online_keys_after_a_fast_forward(shop):
    """TUF specification 5.3.11: who stole the online keys raised the versions so far that nothing newer is left."""
    device = shop.device()
    before = shutil.copytree(shop.folder, shop.folder.parent / "before")
    shop.forge("timestamp", lambda s: setattr(s, "version", 2**40), shop.keys["timestamp"])
    device.refresh()
    shop.folder = before
    assert refused(shop.device(source=str(before)).refresh) == "tuf.rollback"
    rotate(shop, "timestamp")
    shop.keys.pop("former")
    refresh(before, shop.signers, now=shop.now)
    assert shop.device(source=str(before)).refresh().seen["timestamp"].version < 100


@pytest.mark.parametrize(
    "what", ["add", "line", "refresh", "remove", "root", "timestamp", "snapshot", "targets", "cameras"]
)
def test_a_reader_is_served_at_every_moment_of_a_change(shop, tmp_path, what, monkeypatch):
    """Every prefix of the writes is what a reader meets, or a publisher who lost power leaves."""
    device = shop.device()
    device.refresh()
    steps: list[Path] = []

    def noted(folder: Path, written: Any) -> None:
        for name, data in written:
            (folder / name).write_bytes(data)
            steps.append(shutil.copytree(folder, tmp_path / f"step-{len(steps)}"))

    monkeypatch.setattr(repository, "publish", noted)
    if what == "add":
        shop.add(2)
    elif what == "line":
        add_line(
            shop.folder, "lidars", publics([shop.keys.setdefault("lidars", [key()])[0]]), shop.signers, now=shop.now
        )
    elif what == "refresh":
        refresh(shop.folder, shop.signers, now=shop.now, roles=("root", "targets", "snapshot", "cameras"))
    elif what == "remove":
        shop.add(2)
        remove_target(shop.folder, "cameras/reader-1.bundle", shop.signers, now=shop.now)
    else:
        rotate(shop, what)
    assert len(steps) >= 2
    for n, step in enumerate(steps):
        for name in (f"fresh-{n}", "device"):
            assert shop.device(name, source=str(step)).offers("cameras")


def test_a_publisher_who_lost_power_goes_on_with_the_same_command(shop, monkeypatch):
    def cut(folder: Path, written: Any) -> None:
        for name, data in list(written)[:2]:
            (folder / name).write_bytes(data)
        raise OSError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(repository, "publish", cut)
        with pytest.raises(OSError, match="power cut"):
            shop.add(2)
    assert [o.bundle_version for o in shop.device().offers("cameras")] == [1]
    shop.add(2)
    assert [o.bundle_version for o in shop.device().offers("cameras")] == [1, 2]


def test_defaults_of_expiry_are_a_year_a_quarter_a_week_and_a_day(shop):
    day = timedelta(days=1)
    left = {role: shop.load(role).signed.expires - shop.now for role in (*repository.TOP, "cameras")}
    assert {role: round(span / day) for role, span in left.items()} == {
        "root": 365,
        "targets": 90,
        "snapshot": 7,
        "timestamp": 1,
        "cameras": 90,
    }


def test_refresh_revives_a_repository_that_expired(tmp_path):
    shop = opened(tmp_path, ago=3 * DAY)
    assert refused(shop.device().refresh) == "tuf.expired_timestamp"
    online = shop.keys["snapshot"] + shop.keys["timestamp"]
    refresh(shop.folder, online, now=datetime.now(UTC))
    assert shop.device().newest("cameras").bundle_version == 1


def test_refresh_renews_offline_roles_when_their_keys_are_there(tmp_path):
    shop = opened(tmp_path, ago=100 * DAY)
    online = shop.keys["snapshot"] + shop.keys["timestamp"]
    refresh(shop.folder, online, now=datetime.now(UTC))
    assert refused(shop.device().refresh) == "tuf.expired_targets"
    refresh(shop.folder, shop.signers, now=datetime.now(UTC), roles=("targets", "cameras"))
    assert shop.device().newest("cameras").bundle_version == 1


def test_refresh_without_the_online_key_changes_nothing(shop):
    before = {p.name: p.read_bytes() for p in (shop.folder / "metadata").iterdir()}
    assert refused(lambda: refresh(shop.folder, shop.keys["targets"], now=shop.now)) == "repo.threshold"
    assert {p.name: p.read_bytes() for p in (shop.folder / "metadata").iterdir()} == before


def test_a_root_change_with_one_key_is_refused_before_anything_is_written(shop):
    signers = shop.keys["root"][:1] + shop.keys["timestamp"]
    gone = [shop.keys["root"][2].public_key.keyid]
    assert refused(lambda: change_keys(shop.folder, "root", signers, now=shop.now, remove=gone)) == "repo.threshold"
    assert shop.load("root").signed.version == 1


def test_a_withdrawn_bundle_is_no_longer_offered_nor_stored(shop):
    shop.add(2)
    remove_target(shop.folder, "cameras/reader-1.bundle", shop.signers, now=shop.now)
    assert [o.bundle_version for o in shop.device().offers("cameras")] == [2]
    assert len(list(shop.folder.glob("targets/cameras/*"))) == 1


def test_a_bundle_that_could_not_be_signed_leaves_nothing_behind(shop):
    online = shop.keys.pop("timestamp")
    before = sorted(p for p in shop.folder.rglob("*"))
    assert refused(lambda: shop.add(2)) == "repo.threshold"
    assert sorted(p for p in shop.folder.rglob("*")) == before
    shop.keys["timestamp"] = online
    shop.add(2)


def test_a_repository_whose_beginning_was_cut_short_can_be_begun_again(tmp_path, monkeypatch):
    shop = Shop(tmp_path / "repo", datetime.now(UTC))

    def cut(folder: Path, written: Any) -> None:
        (folder / "metadata").mkdir(parents=True)
        for name, data in list(written)[:-1]:
            (folder / name).write_bytes(data)
        raise OSError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(repository, "publish", cut)
        with pytest.raises(OSError, match="power cut"):
            shop.open()
    shop.open()
    assert shop.device().offers("cameras") == ()


def test_what_is_published_never_changes(shop):
    assert refused(lambda: shop.add(1, content=b"other")) == "repo.published"


def test_a_line_takes_no_name_of_a_top_role_and_no_name_twice(shop):
    keys = publics(shop.keys["cameras"])
    for name in ("root", "timestamp", "cameras"):
        assert refused(lambda name=name: add_line(shop.folder, name, keys, shop.signers, now=shop.now)) == "repo.line"
    for name in ("../x", "a/b", "Upper", "", "a*"):
        assert (
            refused(lambda name=name: add_line(shop.folder, name, keys, shop.signers, now=shop.now)) == "manifest.name"
        )


def test_keys_of_root_and_targets_are_never_online(tmp_path):
    shop = Shop(tmp_path / "repo", datetime.now(UTC))
    for role in ("root", "targets"):
        keys = {name: publics(signers) for name, signers in shop.keys.items() if name != "cameras"}
        keys["timestamp"] = keys[role][:1]
        assert (
            refused(lambda keys=keys: create(shop.folder, RootKeys(**keys), shop.signers, now=shop.now))
            == "repo.online_root"
        )


def test_one_key_cannot_stand_twice_in_a_role(tmp_path):
    shop = Shop(tmp_path / "repo", datetime.now(UTC))
    keys = {name: publics(signers) for name, signers in shop.keys.items() if name != "cameras"}
    keys["root"][1] = keys["root"][0]
    assert refused(lambda: create(shop.folder, RootKeys(**keys), shop.signers, now=shop.now)) == "keys.duplicate"


def test_a_second_repository_in_one_folder_is_refused(shop):
    keys = {name: publics(signers) for name, signers in shop.keys.items() if name != "cameras"}
    assert refused(lambda: create(shop.folder, RootKeys(**keys), shop.signers, now=shop.now)) == "repo.exists"


def test_a_publisher_never_signs_on_top_of_what_was_slipped_into_the_folder(shop):
    """Who may write where the repository is served plants a root of his own that lists our line key beside his."""
    evil = Shop(shop.folder.parent / "evil", shop.now)
    evil.keys["cameras"] = [key(), shop.keys["cameras"][0]]
    evil.keys["snapshot"], evil.keys["timestamp"] = shop.keys["snapshot"], shop.keys["timestamp"]
    evil.open()

    def planted(signed: Any) -> None:
        path = "cameras/reader-9.bundle"
        signed.targets[path] = TargetFile(1, {"sha256": "0" * 64}, path, {"custom": {}})

    evil.forge("cameras", planted, evil.keys["cameras"][:1])
    evil.republish()
    shutil.rmtree(shop.folder)
    shutil.copytree(evil.folder, shop.folder)
    assert refused(lambda: shop.add(2)) == "repo.foreign"


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp", "cameras"])
def test_a_publisher_notices_a_changed_file(shop, role):
    metadata = shop.load(role)
    metadata.signed.unrecognized_fields["planted"] = True
    shop.put(role, metadata)
    assert refused(lambda: shop.add(2)) == "repo.broken"


def test_a_publisher_misses_a_file(shop):
    shop.path("targets").unlink()
    assert refused(lambda: shop.add(2)) == "files.missing"


def test_an_unknown_role_key_target_or_folder_is_named(shop, tmp_path):
    signers, now = shop.signers, shop.now
    assert refused(lambda: refresh(shop.folder, signers, now=now, roles=("lidars",))) == "repo.role"
    assert refused(lambda: change_keys(shop.folder, "root", signers, now=now, remove=["0" * 64])) == "repo.key"
    assert refused(lambda: remove_target(shop.folder, "cameras/x-1.bundle", signers, now=now)) == "repo.target"
    assert refused(lambda: refresh(tmp_path / "nowhere", signers, now=now)) == "repo.none"
    (tmp_path / "metadata").mkdir()
    assert refused(lambda: describe(tmp_path)) == "repo.none"


def test_two_publishers_at_once_are_kept_apart(shop):
    with repository.locked(shop.folder):
        assert refused(lambda: refresh(shop.folder, shop.signers, now=shop.now)) == "repo.busy"


def test_lifetimes_can_be_chosen(tmp_path):
    shop = opened(tmp_path, expiry=Expiry(timestamp=timedelta(hours=2)))
    assert shop.load("timestamp").signed.expires - shop.now < timedelta(hours=2, seconds=1)


def test_metadata_is_what_python_tuf_writes_and_nothing_else(shop):
    for path in (shop.folder / "metadata").iterdir():
        metadata: Metadata[Any] = Metadata.from_bytes(path.read_bytes())
        assert not metadata.unrecognized_fields
        assert not metadata.signed.unrecognized_fields
        assert metadata.to_bytes() == path.read_bytes()


def test_a_role_keeps_as_many_keys_as_it_needs_signatures(shop):
    ids = [s.public_key.keyid for s in shop.keys["root"][:2]]
    signers, now = shop.signers, shop.now
    assert refused(lambda: change_keys(shop.folder, "root", signers, now=now, remove=ids)) == "repo.threshold"
    assert refused(lambda: change_keys(shop.folder, "root", signers, now=now, threshold=0)) == "repo.threshold"


def test_bundles_go_under_product_lines_alone(shop, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    for line in ("lidars", "targets"):
        assert (
            refused(
                lambda line=line: repository.add_target(
                    shop.folder, line, "x", tmp_path / "x", {}, shop.signers, now=shop.now
                )
            )
            == "repo.role"
        )
