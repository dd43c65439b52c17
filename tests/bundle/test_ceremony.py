"""Root and targets are signed on machines that never meet: only a file travels between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shops import Shop, key, opened, publics

from edgeproof.bundle.ceremony import adopt, countersign, propose, summary
from edgeproof.bundle.delegation import with_keys, with_line
from edgeproof.bundle.repository import refresh
from edgeproof.bundle.roles import read
from edgeproof.errors import InputError, TrustError


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return opened(tmp_path)


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    return caught.value.code


def online(shop: Shop) -> list[Any]:
    return shop.keys["snapshot"] + shop.keys["timestamp"]


def test_a_root_that_three_people_signed_apart_is_published_without_their_keys(shop):
    device = shop.device()
    device.refresh()
    new = key()
    old = read(shop.folder)
    gone = [shop.keys["root"][2].public_key.keyid]
    data = propose(old, with_keys(old, "root", [new.public_key], gone, None), "root", now=shop.now)
    assert summary(data)["signed_by"] == []
    for signer in shop.keys["root"][:2]:
        data = countersign(data, [signer], "root.json")
    adopt(shop.folder, data, online(shop), now=shop.now)
    assert device.refresh().seen["root"].version == 2
    assert new.public_key.keyid in shop.load("root").signed.roles["root"].keyids


def test_a_product_line_is_added_though_the_targets_key_is_elsewhere(shop):
    line = key()
    old = read(shop.folder)
    data = propose(old, with_line(old, "lidars", publics([line]), 1), "targets", now=shop.now)
    data = countersign(data, shop.keys["targets"], "targets.json")
    adopt(shop.folder, data, [line, *online(shop)], now=shop.now)
    assert shop.device().offers("lidars") == ()
    assert len(shop.device().offers("cameras")) == 1


def test_a_staged_rotation_of_an_online_key_signs_what_it_signs(shop):
    device = shop.device()
    device.refresh()
    new = key()
    old = read(shop.folder)
    gone = [shop.keys["snapshot"][0].public_key.keyid]
    data = propose(old, with_keys(old, "snapshot", [new.public_key], gone, None), "root", now=shop.now)
    data = countersign(data, shop.keys["root"][:2], "root.json")
    adopt(shop.folder, data, [new, *online(shop)], now=shop.now)
    assert len(device.offers("cameras")) == 1
    assert list(shop.load("snapshot").signatures).count(new.public_key.keyid) == 1


def test_one_signature_where_two_are_needed_publishes_nothing(shop):
    old = read(shop.folder)
    data = propose(old, old, "root", now=shop.now)
    data = countersign(data, shop.keys["root"][:1], "root.json")
    assert refused(lambda: adopt(shop.folder, data, online(shop), now=shop.now)) == "repo.threshold"
    assert shop.load("root").signed.version == 1


def test_a_change_that_was_overtaken_is_refused(shop):
    old = read(shop.folder)
    data = countersign(propose(old, old, "targets", now=shop.now), shop.keys["targets"], "targets.json")
    refresh(shop.folder, shop.signers, now=shop.now, roles=("targets",))
    assert refused(lambda: adopt(shop.folder, data, online(shop), now=shop.now)) == "repo.stale"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]"])
def test_only_staged_root_and_targets_are_signed(shop, content):
    assert refused(lambda: countersign(content, shop.keys["root"], "x")) == "repo.staged"
    timestamp = shop.path("timestamp").read_bytes()
    assert refused(lambda: countersign(timestamp, shop.keys["root"], "x")) == "repo.staged"
    old = read(shop.folder)
    assert refused(lambda: propose(old, old, "snapshot", now=shop.now)) == "repo.staged"
