"""Trials over starts and time."""

from __future__ import annotations

import pytest

from device_kit import NOW, Maker, put
from edgeproof.device.floor import instruction, raise_floor
from edgeproof.device.sources import trusted_keys
from edgeproof.device.state import Trial
from edgeproof.device.trial import boot, mark_good, watched
from edgeproof.errors import EdgeproofError, InputError
from edgeproof.manifest import Rollback


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "maker")


@pytest.fixture
def home(maker, tmp_path):
    """Version 1 was kept, version 2 is on trial: three starts, ten seconds."""
    made = maker.device(tmp_path / "device", floor=1)
    put(made, maker.bundle(1))
    put(made, maker.bundle(2, security_version=2, rollback=Rollback(trial_seconds=10, boots=3, samples=6)), keep=False)
    return made


def seen(decision: str, served_s: float = 1.0) -> Trial:
    return Trial(0, 0, served_s, 6, decision, "as told")


def test_a_bundle_that_is_never_confirmed_is_left_after_its_starts(home):
    assert [boot(home, NOW + i).slot.version for i in range(5)] == [2, 2, 2, 1, 1]
    state = home.state()
    assert state.b.reason.startswith("sla.undecided: start 4 of 3")
    assert not state.quarantine


def test_a_bundle_that_had_its_time_is_left_at_the_next_start(home):
    boot(home, NOW)
    watched(home, seen("go_on", served_s=9.9), NOW)
    assert boot(home, NOW).slot.version == 2
    watched(home, seen("go_on", served_s=10.0), NOW)
    assert boot(home, NOW).slot.version == 1


def test_a_clock_that_jumps_neither_ends_a_trial_nor_prolongs_it(home):
    assert boot(home, NOW + 10**8).slot.version == 2
    watched(home, seen("go_on", served_s=10.0), 0)
    assert boot(home, 0).slot.version == 1


def test_a_trial_without_anything_to_go_back_to_stops(maker, tmp_path):
    home = maker.device(tmp_path / "fresh")
    put(home, maker.bundle(1, rollback=Rollback(trial_seconds=10, boots=1, samples=6)), keep=False)
    assert boot(home, NOW).slot.version == 1
    assert boot(home, NOW).current is None


def test_mark_good_needs_what_the_sla_asks(home):
    boot(home, NOW)
    with pytest.raises(InputError) as caught:
        mark_good(home, NOW)
    assert caught.value.code == "device.undecided"
    watched(home, seen("commit"), NOW)
    state = mark_good(home, NOW)
    assert (state.b.phase, state.trial, state.floor) == ("good", None, 1)
    with pytest.raises(InputError) as caught:
        mark_good(home, NOW)
    assert caught.value.code == "device.no_trial"


def test_a_restart_takes_back_what_was_watched_before_it(home):
    boot(home, NOW)
    watched(home, seen("commit"), NOW)
    boot(home, NOW)
    with pytest.raises(InputError) as caught:
        mark_good(home, NOW)
    assert caught.value.code == "device.undecided"


def kept(home):
    watched(home, seen("commit"), NOW)
    mark_good(home, NOW)


def signer(maker):
    from edgeproof.bundle.keys import load_signer

    return load_signer(maker.key)


def test_the_floor_rises_only_after_mark_good_and_never_above_what_was_kept(home, maker):
    told = instruction("cameras", 2, [signer(maker)])
    with pytest.raises(EdgeproofError) as caught:
        raise_floor(home, told, trusted_keys(home))
    assert caught.value.code == "device.floor_unproven"
    kept(home)
    with pytest.raises(EdgeproofError) as caught:
        raise_floor(home, instruction("cameras", 3, [signer(maker)]), trusted_keys(home))
    assert caught.value.code == "device.floor_unproven"
    assert raise_floor(home, told, trusted_keys(home)).floor == 2
    assert home.state().fallbacks() == ()
    with pytest.raises(EdgeproofError) as caught:
        raise_floor(home, instruction("cameras", 1, [signer(maker)]), trusted_keys(home))
    assert caught.value.code == "device.floor_falls"


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (lambda maker, other: instruction("cameras", 2, [signer(other)]), "bundle.wrong_key"),
        (lambda maker, other: instruction("drones", 2, [signer(maker)]), "floor.other_line"),
        (lambda maker, other: instruction("cameras", 2.5, [signer(maker)]), "floor.value"),
        (lambda maker, other: instruction("cameras", -1, [signer(maker)]), "floor.value"),
        (lambda maker, other: b"{}", "json.missing_key"),
        (lambda maker, other: signature_of(maker.bundle(3)), "bundle.payload_type"),
    ],
)
def test_an_instruction_that_is_not_to_be_believed_changes_nothing(home, maker, tmp_path, told, code):
    kept(home)
    with pytest.raises(EdgeproofError) as caught:
        raise_floor(home, told(maker, Maker(tmp_path / "other")), trusted_keys(home))
    assert caught.value.code == code
    assert home.state().floor == 1


def signature_of(bundle):
    """A signed manifest in the place of an instruction."""
    from edgeproof.archive import open_archive

    with open_archive(bundle, allowed=lambda _: 1 << 32, max_total=1 << 32) as archive:
        return archive.read("signature.json")
