"""Installing: whom a device believes, and what an install that ends badly leaves behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from device_kit import NOW, Maker, put, repository
from edgeproof.archive import open_archive, write_archive
from edgeproof.device.home import Home
from edgeproof.device.install import Believed, install
from edgeproof.device.slots import recover, roll_back
from edgeproof.device.sources import FileSource, RepositorySource
from edgeproof.device.storage import Disk
from edgeproof.digest import digest_file
from edgeproof.errors import EdgeproofError

BIG = 1 << 32


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "maker")


@pytest.fixture
def home(maker, tmp_path):
    made = maker.device(tmp_path / "device")
    put(made, maker.bundle(1))
    return made


def refused(home, source) -> str:
    before, names = home.state(), sorted(p.name for p in home.slots.iterdir())
    with pytest.raises(EdgeproofError) as caught:
        install(home, source, NOW)
    assert home.state() == before
    assert sorted(p.name for p in home.slots.iterdir()) == names
    return caught.value.code


def test_a_first_install_is_on_trial_with_nothing_behind_it(maker, tmp_path):
    home = maker.device(tmp_path / "fresh")
    done = install(home, FileSource(maker.bundle(1)), NOW)
    assert (done.slot, done.fresh, done.state.current, done.state.slot("a").phase) == ("a", True, "a", "trial")
    assert done.state.fallbacks() == ()
    assert digest_file(home.bundle("a")) == done.state.a.bundle


def test_the_free_slot_is_taken_and_the_current_one_stays(home, maker):
    done = put(home, maker.bundle(2), keep=False)
    assert done.slot == "b"
    assert done.state.fallbacks() == ("a",)
    home.change(lambda s: s.kept(NOW))
    assert put(home, maker.bundle(3), keep=False).slot == "a"


def test_what_runs_already_is_not_installed_again(home, maker):
    before = home.state()
    done = install(home, FileSource(maker.folder / "plate-reader-1.bundle"), NOW)
    assert not done.fresh
    assert home.state() == before
    assert not home.incoming.exists()


def test_a_bundle_of_a_stranger_is_refused(home, tmp_path):
    assert refused(home, FileSource(Maker(tmp_path / "stranger").bundle(2))) == "bundle.wrong_key"


def test_a_bundle_without_a_signature_is_refused(home, maker, tmp_path):
    with open_archive(maker.bundle(2), allowed=lambda _: BIG, max_total=BIG) as archive:
        members = {name: archive.read(name) for name in archive.names if name != "signature.json"}
    write_archive(tmp_path / "unsigned.bundle", members)
    assert refused(home, FileSource(tmp_path / "unsigned.bundle")) == "bundle.unsigned"


def test_a_bundle_whose_model_was_exchanged_is_refused(home, maker, tmp_path):
    with open_archive(maker.bundle(2), allowed=lambda _: BIG, max_total=BIG) as archive:
        members = {name: archive.read(name) for name in archive.names}
    members["model/model.onnx"] = bytes(len(members["model/model.onnx"]))
    write_archive(tmp_path / "exchanged.bundle", members)
    assert refused(home, FileSource(tmp_path / "exchanged.bundle")) == "bundle.digest"


def test_a_device_that_believes_no_key_takes_no_file(maker, tmp_path):
    _, root = repository(tmp_path / "r", maker, bundle := maker.bundle(1))
    from edgeproof.device.provision import Factory, provision

    home = Home(tmp_path / "device")
    provision(home, Factory("bench-camera", "cameras", repository_root=root), NOW)
    assert refused(home, FileSource(bundle)) == "device.no_keys"


def test_a_bundle_in_quarantine_is_refused_when_it_is_offered_again(home, maker):
    bundle = maker.bundle(2)
    put(home, bundle, keep=False)
    roll_back(home, "sla.hard: a crash", NOW, quarantine=True)
    assert refused(home, FileSource(bundle)) == "device.quarantined"


def test_a_bundle_in_quarantine_is_not_even_downloaded(maker, tmp_path):
    bundle = maker.bundle(2)
    where, root = repository(tmp_path / "r", maker, bundle)
    home = maker.device(tmp_path / "device", repository_root=root)
    home.change(lambda s: s.quarantining(digest_file(bundle), "sla.hard: a crash", NOW))
    shutil.rmtree(where / "targets")
    assert refused(home, RepositorySource(str(where))) == "device.quarantined"


def test_the_newest_bundle_of_a_repository_is_installed(maker, tmp_path):
    where, root = repository(tmp_path / "r", maker, maker.bundle(1), maker.bundle(2))
    home = maker.device(tmp_path / "device", repository_root=root)
    done = install(home, RepositorySource(str(where)), NOW)
    assert (done.manifest.bundle_version, done.state.slot("a").phase) == (2, "trial")


@pytest.mark.parametrize(
    "lie", [{"security_version": 9}, {"manifest": "sha256:" + "0" * 64}], ids=["security version", "manifest"]
)
def test_a_bundle_that_is_not_what_the_signed_metadata_says_is_refused(maker, tmp_path, lie):
    bundle = maker.bundle(2)
    from edgeproof.bundle.opening import open_bundle

    with open_bundle(bundle) as opened:
        said = {"name": "plate-reader", "bundle_version": 2, "security_version": 1, "manifest": opened.digest} | lie
    where, root = repository(tmp_path / "r", maker, bundle, custom=said)
    home = maker.device(tmp_path / "device", repository_root=root)
    assert refused(home, RepositorySource(str(where))) == "bundle.metadata_differs"


def test_a_bundle_that_was_cut_short_in_the_repository_is_refused(maker, tmp_path):
    where, root = repository(tmp_path / "r", maker, maker.bundle(2))
    home = maker.device(tmp_path / "device", repository_root=root)
    target = next((where / "targets").rglob("*.bundle"))
    target.write_bytes(target.read_bytes()[:-100])
    assert refused(home, RepositorySource(str(where))) == "tuf.target_shorter"


def test_nothing_is_installed_over_what_a_trial_would_fall_back_to(home, maker):
    put(home, maker.bundle(2), keep=False)
    assert refused(home, FileSource(maker.bundle(3))) == "device.trial_running"


HOLD = """
import sys
from pathlib import Path
from edgeproof.device.home import Home
with Home(Path(sys.argv[1])).installing() as alone:
    print(alone, flush=True)
    sys.stdin.read()
"""


def test_of_two_installers_at_once_one_is_refused_and_goes_through_once_the_other_has_ended(home, maker):
    command = [sys.executable, "-c", HOLD, str(home.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        assert refused(home, FileSource(maker.bundle(2))) == "device.installing"
        other.kill()  # however it ends, its lock goes with it
    assert install(home, FileSource(maker.folder / "plate-reader-2.bundle"), NOW).fresh


@dataclass(frozen=True)
class Slow:
    """A source during whose fetch somebody else tries to do something."""

    bundle: FileSource
    meanwhile: object

    def take(self, home: Home) -> Believed:
        believed = self.bundle.take(home)
        self.meanwhile()
        return believed


def test_a_start_during_an_install_leaves_what_is_being_written_alone(home, maker):
    done = install(home, Slow(FileSource(maker.bundle(2)), lambda: recover(home, NOW)), NOW)
    assert done.state.slot(done.slot).version == 2
    assert digest_file(home.bundle(done.slot)) == done.state.slot(done.slot).bundle


def test_a_rollback_during_an_install_does_not_cost_the_slot_that_runs_now(home, maker):
    put(home, maker.bundle(2))  # b runs, a is what it falls back to
    done = install(home, Slow(FileSource(maker.bundle(3)), lambda: roll_back(home, "sla", NOW)), NOW)
    assert done.slot == "b"
    assert done.state.fallbacks() == ("a",)


def test_a_source_that_changes_after_it_was_checked_changes_nothing(home, maker, tmp_path):
    path = tmp_path / "stick.bundle"
    shutil.copyfile(maker.bundle(2), path)
    expected = digest_file(path)
    done = install(home, Slow(FileSource(path), lambda: path.write_bytes(b"something else")), NOW)
    assert digest_file(home.bundle(done.slot)) == expected == done.state.slot(done.slot).bundle


@dataclass(frozen=True)
class Switching:
    """Storage during whose write the stick that is read from gets another content."""

    stick: Path
    other: Path
    disk: Disk = field(default_factory=Disk)

    def write(self, path, chunks):
        self.disk.write(path, chunks)
        shutil.copyfile(self.other, self.stick)

    def sync(self, path):
        self.disk.sync(path)

    def remove(self, path):
        self.disk.remove(path)


def test_what_is_checked_is_the_copy_and_not_the_source(home, maker, tmp_path):
    evil, good, stick = Maker(tmp_path / "stranger").bundle(2), maker.bundle(2), tmp_path / "stick.bundle"
    shutil.copyfile(evil, stick)
    switching = Home(home.root, Switching(stick=stick, other=good))
    assert refused(switching, FileSource(stick)) == "bundle.wrong_key"


FULL = """
import json, resource, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from device_kit import NOW, Maker, put
from edgeproof.device.install import install
from edgeproof.device.slots import recover
from edgeproof.device.sources import FileSource
from edgeproof.errors import EdgeproofError

folder = Path(sys.argv[1])
maker = Maker(folder / "maker")
small = [maker.bundle(n) for n in (1, 2)]
large = maker.bundle(3, bytes(400_000))
disk = folder / "disk"
disk.mkdir()
mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
mounted = not subprocess.run(mount, capture_output=True).returncode
home = maker.device(disk / "device")
for bundle in small:
    put(home, bundle)
if not mounted:  # no file of this process may be larger: the next best real refusal of the system
    resource.setrlimit(resource.RLIMIT_FSIZE, (256_000, 256_000))
before = home.state()
slots = {p.name: p.read_bytes() for p in home.slots.iterdir()}
try:
    install(home, FileSource(large), NOW)
    code = "installed"
except EdgeproofError as e:
    code = e.code
same = home.state() == before and {p.name: p.read_bytes() for p in home.slots.iterdir()} == slots
print(json.dumps({"mounted": mounted, "code": code, "same": same, "runs": recover(home, NOW).slot.version}))
"""


def test_a_full_disk_ends_the_install_and_touches_neither_slot(tmp_path):
    alone = ["unshare", "-rm"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        alone = []
    tests = str(Path(__file__).parents[1])
    command = [*alone, sys.executable, "-c", FULL, str(tmp_path), tests]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["code"] == ("files.disk_full" if said["mounted"] else "files.os")
    assert said["same"]
    assert said["runs"] == 2


def test_the_model_is_not_looked_at_by_an_install(home, maker):
    assert put(home, maker.bundle(2, b"no model at all"), keep=False).fresh
