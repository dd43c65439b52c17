"""`edgeproof repo`, as its page tells it: from keys to a device, offline ceremonies included."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from parcels import manifest, parcel

from edgeproof.bundle.client import Client
from edgeproof.bundle.keys import load_signer
from edgeproof.bundle.trust import provision
from edgeproof.cli import main


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    names = ["a", "b", "c", "targets", "cameras", "online"]
    assert main(["keys", "new", *names, "--no-passphrase"]) == 0
    root = [f for name in "abc" for f in ("--root", f"keys/{name}.pub")]
    online = ["--snapshot", "keys/online.pub", "--timestamp", "keys/online.pub"]
    create = ["repo", "create", "REPO", *root, "--targets", "keys/targets.pub", *online]
    assert main([*create, *private("a", "b", "targets", "online")]) == 0
    line = ["repo", "line", "REPO", "cameras", "--public", "keys/cameras.pub"]
    assert main([*line, *private("targets", "cameras", "online")]) == 0
    return tmp_path


def private(*names: str) -> list[str]:
    return [f for name in names for f in ("--key", f"keys/{name}.key")]


def device(folder: Path, name: str = "device") -> Client:
    state = folder / name
    if not state.exists():
        root = (folder / "REPO/metadata/1.root.json").read_bytes()
        provision(state, root, last_seen=datetime.now(UTC) - timedelta(days=1))
    return Client(state, str(folder / "REPO"))


def bundle(folder: Path, version: int) -> str:
    says = manifest(bundle_version=version)
    parcel(folder / f"{version}.bundle", [load_signer(folder / "keys/cameras.key")], says)
    return f"{version}.bundle"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_bundles_are_published_withdrawn_and_shown(shop, capsys):
    files = [bundle(shop, 1), bundle(shop, 2)]
    assert main(["repo", "add", "REPO", *files, *private("cameras", "online")]) == 0
    assert device(shop).newest("cameras").bundle_version == 2
    withdrawn = ["repo", "remove", "REPO", "cameras/reader-2.bundle", *private("cameras", "online")]
    assert main(withdrawn) == 0
    assert device(shop).newest("cameras").bundle_version == 1
    described = shown(capsys, "repo", "show", "REPO")
    assert [t["path"] for t in described["targets"]] == ["cameras/reader-1.bundle"]
    assert {r["role"]: (r["threshold"], len(r["keys"])) for r in described["roles"]} == {
        "root": (2, 3),
        "targets": (1, 1),
        "snapshot": (1, 1),
        "timestamp": (1, 1),
        "cameras": (1, 1),
    }
    assert main(["repo", "show", "REPO"]) == 0
    assert "cameras/reader-1.bundle" in capsys.readouterr().out


def test_a_daily_refresh_needs_the_online_key_alone(shop, capsys):
    before = shown(capsys, "repo", "show", "REPO")["roles"][3]["version"]
    assert main(["repo", "refresh", "REPO", *private("online"), "--timestamp-days", "2"]) == 0
    after = shown(capsys, "repo", "show", "REPO")["roles"][3]
    assert after["version"] == before + 1
    assert datetime.fromisoformat(after["expires"]) - datetime.now(UTC) > timedelta(days=1)


def test_an_online_key_is_rotated_and_the_old_one_no_longer_counts(shop, capsys):
    assert main(["keys", "new", "online-2", "--no-passphrase"]) == 0
    old = shown(capsys, "keys", "show", "keys/online.pub")["keys"][0]["id"]
    for role in ("timestamp", "snapshot"):
        change = ["repo", "keys", "REPO", role, "--public", "keys/online-2.pub", "--revoke", old[:12]]
        assert main([*change, *private("a", "b", "online", "online-2")]) == 0
    assert main(["repo", "refresh", "REPO", *private("online")]) == 2
    assert main(["repo", "refresh", "REPO", *private("online-2")]) == 0
    assert device(shop).offers("cameras") == ()


def test_offline_keys_sign_a_staged_root_one_by_one(shop, capsys):
    lost = shown(capsys, "keys", "show", "keys/c.pub")["keys"][0]["id"]
    client = device(shop)
    client.refresh()
    assert main(["keys", "new", "d", "--no-passphrase"]) == 0
    stage = ["repo", "keys", "REPO", "root", "--public", "keys/d.pub", "--revoke", lost[:12], "--stage", "root.json"]
    assert main(stage) == 0
    assert main(["repo", "sign", "root.json", *private("a")]) == 0
    assert main(["repo", "adopt", "REPO", "root.json", *private("online")]) == 2
    staged = shown(capsys, "repo", "sign", "root.json", "--key", "keys/b.key")
    assert (staged["role"], staged["version"], len(staged["signed_by"])) == ("root", 2, 2)
    assert main(["repo", "adopt", "REPO", "root.json", *private("online")]) == 0
    assert client.refresh().seen["root"].version == 2


def test_a_line_is_staged_for_the_targets_key(shop):
    assert main(["keys", "new", "lidars", "--no-passphrase"]) == 0
    stage = ["repo", "line", "REPO", "lidars", "--public", "keys/lidars.pub", "--stage", "targets.json"]
    assert main(stage) == 0
    assert main(["repo", "sign", "targets.json", *private("targets")]) == 0
    assert main(["repo", "adopt", "REPO", "targets.json", *private("lidars", "online")]) == 0
    assert device(shop).offers("lidars") == ()


def test_targets_are_staged_before_they_expire(shop, capsys):
    assert main(["repo", "refresh", "REPO", "--role", "targets", "--stage", "targets.json"]) == 0
    assert main(["repo", "sign", "targets.json", *private("targets")]) == 0
    assert main(["repo", "adopt", "REPO", "targets.json", *private("online")]) == 0
    assert shown(capsys, "repo", "show", "REPO")["roles"][1]["version"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["repo", "line", "REPO"],
        ["repo", "add", "REPO"],
        ["repo", "show", "REPO", "more"],
        ["repo", "keys", "REPO", "root"],
        ["repo", "keys", "REPO", "root", "targets", "--revoke", "12345678"],
        ["repo", "add", "REPO", "nothing.bundle", "--key", "keys/online.key"],
        ["repo", "refresh", "REPO", "--stage", "x.json"],
        ["repo", "refresh", "REPO", "--timestamp-days", "0", "--key", "keys/online.key"],
        ["repo", "refresh", "REPO", "--key", "keys/online.pub"],
        ["repo", "sign", "nothing.json", "--key", "keys/a.key"],
        ["repo", "show", "nowhere"],
        ["repo", "dance", "REPO"],
    ],
)
def test_a_wrong_command_changes_nothing(shop, arguments, capsys):
    before = {p: p.read_bytes() for p in (shop / "REPO").rglob("*") if p.is_file()}
    assert main(arguments) == 2
    assert "hint" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (shop / "REPO").rglob("*") if p.is_file()} == before
