"""Slots: from any state to one that can be started, and never to bytes that were not checked."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest

from device_kit import NOW, Maker, put
from edgeproof.device.home import Home
from edgeproof.device.install import install
from edgeproof.device.slots import recover, roll_back
from edgeproof.device.sources import FileSource
from edgeproof.device.state import Slot, State, Trial, from_bytes
from edgeproof.digest import digest_file
from edgeproof.errors import EdgeproofError, InputError, TrustError


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "maker")


@pytest.fixture
def home(maker, tmp_path):
    """Slot a holds version 2, slot b runs version 3, and there is a golden version 1."""
    made = maker.device(tmp_path / "device", golden=maker.bundle(1))
    put(made, maker.bundle(2))
    put(made, maker.bundle(3))
    return made


def rot(path, at: int = -200) -> str:
    """Flip one bit; gives the digest of what is there now."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    return digest_file(path)


def test_a_start_without_a_fault_changes_nothing_but_the_time(home):
    before = home.state()
    assert recover(home, NOW).slot.version == 3
    assert home.state() == before
    recover(home, NOW + 60)
    assert replace(home.state(), last_seen=NOW, sequence=before.sequence) == before


def test_a_full_disk_does_not_keep_what_is_sound_from_running(home):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        assert recover(home, NOW + 60).slot.version == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert home.state().last_seen == NOW


def test_time_never_goes_back(home):
    recover(home, NOW + 1000)
    recover(home, 0)
    assert home.state().last_seen == NOW + 1000


def test_bit_rot_is_found_at_the_start_and_the_other_slot_takes_over(home):
    found = rot(home.bundle("b"))
    boot = recover(home, NOW)
    state = home.state()
    assert (boot.current, boot.slot.version) == ("a", 2)
    assert state.b.phase == "bad"
    assert state.quarantined(found).reason.startswith("device.rot: expected ")
    assert not home.bundle("b").exists()


def test_rot_does_not_keep_the_sound_bundle_from_being_installed_again(home, maker):
    rot(home.bundle("b"))
    recover(home, NOW)
    assert install(home, FileSource(maker.folder / "plate-reader-3.bundle"), NOW).fresh


def test_a_bundle_that_vanished_is_left_too(home):
    home.bundle("b").unlink()
    assert recover(home, NOW).current == "a"


def test_with_both_slots_bad_the_golden_bundle_runs(home):
    for name in ("a", "b"):
        rot(home.bundle(name))
    boot = recover(home, NOW)
    assert (boot.current, boot.slot.version, boot.path) == ("golden", 1, home.golden)
    assert (home.state().a.phase, home.state().b.phase) == ("bad", "bad")


def test_with_both_slots_and_the_golden_bundle_bad_nothing_runs(home):
    for path in (home.bundle("a"), home.bundle("b"), home.golden):
        rot(path)
    boot = recover(home, NOW)
    assert (boot.current, boot.path, home.state().current) == (None, None, None)


def test_a_device_that_stopped_runs_again_once_something_is_installed(home, maker):
    for path in (home.bundle("a"), home.bundle("b"), home.golden):
        rot(path)
    recover(home, NOW)
    put(home, maker.bundle(4))
    assert recover(home, NOW).slot.version == 4


def test_nothing_below_the_floor_takes_over_not_even_the_golden_bundle(home, maker):
    put(home, maker.bundle(4, security_version=5))
    home.change(lambda s: s.raised(5))
    assert home.state().fallbacks() == ()
    with pytest.raises(TrustError) as caught:
        roll_back(home, "by hand", NOW)
    assert caught.value.code == "device.no_fallback"
    rot(home.bundle(home.state().current))
    assert recover(home, NOW).current is None


def test_a_rollback_goes_to_the_other_slot_and_the_one_that_was_left_is_bad(home):
    state = roll_back(home, "by hand", NOW)
    assert (state.current, state.b.phase, state.b.reason) == ("a", "bad", "by hand")
    assert not state.quarantine
    with pytest.raises(TrustError) as caught:
        roll_back(home, "again", NOW)
    assert caught.value.code == "device.no_fallback"


def test_a_rollback_reads_the_other_slot_before_it_switches(home):
    rot(home.bundle("a"))
    before = home.state()
    with pytest.raises(TrustError) as caught:
        roll_back(home, "by hand", NOW)
    assert caught.value.code == "device.no_fallback"
    assert home.state() == before
    assert roll_back(home, "crashes", NOW, must_leave=True).current == "golden"


def test_writing_that_was_cut_short_leaves_an_empty_slot_and_no_remains(home):
    home.change(lambda s: s.writing("a", Slot(bundle="sha256:x")))
    for left in (home.incoming, home.slots / ".incoming.part.k3.tmp", home.root / "state.json.part"):
        left.write_bytes(b"half")
    assert recover(home, NOW).slot.version == 3
    assert home.state().a == Slot()
    assert sorted(p.name for p in home.slots.iterdir()) == ["b.bundle", "golden.bundle"]
    assert not list(home.root.glob("*.part"))


@pytest.mark.parametrize("damage", ["flip", "empty", "gone", "not json", "another schema", "extra key", "impossible"])
def test_a_damaged_state_runs_the_golden_bundle_and_takes_no_install(home, maker, damage):
    path = home.root / "state.json"
    good = path.read_bytes()
    impossible = replace(home.state(), current="a", a=Slot("bad", "sha256:x"), b=Slot()).to_bytes()
    damaged = {
        "flip": good.replace(b'"floor":0', b'"floor":1'),
        "empty": b"",
        "not json": b"\0" * len(good),
        "another schema": good.replace(b"edgeproof.device/1", b"edgeproof.device/2"),
        "extra key": good[:-1] + b',"z":1}',
        "impossible": impossible,
    }
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(damaged[damage])
    assert recover(home, NOW).current == "golden"
    with pytest.raises(TrustError) as caught:
        install(home, FileSource(maker.bundle(9)), NOW)
    assert caught.value.code == "device.state_damaged"


def test_a_deleted_state_is_no_fresh_device_without_a_golden_bundle_it_stops(maker, tmp_path):
    home = maker.device(tmp_path / "device", floor=1)
    put(home, maker.bundle(1))
    (home.root / "state.json").unlink()
    assert recover(home, NOW).current is None


def test_a_damaged_description_is_told(home):
    (home.root / "device.json").write_bytes(b'{"schema":"edgeproof.device/1"}')
    with pytest.raises(TrustError) as caught:
        home.profile()
    assert caught.value.code == "device.profile_damaged"


def test_a_folder_that_is_no_devices_is_told(tmp_path):
    with pytest.raises(InputError) as caught:
        Home(tmp_path).profile()
    assert caught.value.code == "device.not_provisioned"


def test_a_state_reads_back_as_it_was():
    state = State(
        floor=3,
        last_seen=NOW,
        current="b",
        a=Slot("bad", "sha256:1", "sha256:2", "n", 4, 3, "why"),
        b=Slot("trial", "sha256:3"),
        trial=Trial(NOW, 2, 1.5, 7, "go_on", "waits"),
    ).quarantining("sha256:1", "rot", NOW)
    assert from_bytes(state.to_bytes(), "state") == state


def start(**changes) -> State:
    good = Slot("good", "sha256:g", "sha256:m", "n", 1, 2)
    return replace(State(floor=1, last_seen=NOW, current="a", a=good), **changes)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (lambda s: s.raised(0), "device.floor_falls"),
        (lambda s: s.raised(3), "device.floor_unproven"),
        (lambda s: replace(s, current=None).raised(2), "device.floor_unproven"),
        (lambda s: s.with_slot("a", replace(s.a, phase="trial")).raised(2), "device.floor_unproven"),
        (lambda s: s.writing("a", Slot()), "device.current"),
        (lambda s: s.on_trial("b", NOW), "device.phase"),
        (lambda s: s.kept(NOW), "device.no_trial"),
        (lambda s: s.left("why", "b", NOW), "device.no_fallback"),
        (lambda s: replace(s, current="golden").left("why", None, NOW), "device.phase"),
    ],
)
def test_what_must_not_follow_is_refused(step, code):
    with pytest.raises(EdgeproofError) as caught:
        step(start())
    assert caught.value.code == code


def test_a_good_slot_whose_bundle_is_in_quarantine_may_not_run():
    state = start(b=Slot("good", "sha256:o", "sha256:m", "n", 1, 1))
    assert state.quarantining("sha256:o", "sla.hard", NOW).fallbacks() == ()
    assert not state.quarantining("sha256:g", "sla.hard", NOW).may_run("a")


def test_a_bundle_that_went_into_quarantine_while_it_ran_is_left_at_the_next_start(home):
    home.change(lambda s: s.quarantining(s.b.bundle, "told so", NOW))
    assert recover(home, NOW).current == "a"


def test_the_floor_rises_to_what_was_kept_and_a_lower_slot_may_run_no_more():
    state = start(b=Slot("good", "sha256:o", "sha256:m", "n", 1, 1))
    assert state.fallbacks() == ("b",)
    assert state.raised(2).floor == 2
    assert state.raised(2).fallbacks() == ()


def test_a_link_in_the_place_of_the_incoming_bundle_is_not_followed(home, maker, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    home.incoming.symlink_to(victim)
    with pytest.raises(InputError):
        install(home, FileSource(maker.bundle(4)), NOW)
    assert victim.read_bytes() == b"untouched"
