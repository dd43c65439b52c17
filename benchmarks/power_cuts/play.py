"""Power cuts at every step of install, boot, commit, rollback, floor and recovery, over a model of a disk.

Every write, fsync, rename and removal that the device makes is recorded. For every prefix of them the disk is rebuilt
as it may look after a power cut: what was not synced is there, missing, cut in half or zeroed; names whose folder was
not synced are changed or unchanged, in every combination. On each such disk the device starts, and again after a second
cut at every step of that start. It must come up with the old bundle or the new one, verified, with its floor, its
quarantine and its sense of time.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from benchmarks.power_cuts.disk import Image, Operation, Platter, Recorder

from edgeproof.archive import write_archive
from edgeproof.bundle.opening import open_bundle
from edgeproof.device.home import Home, Profile
from edgeproof.device.install import Believed, install
from edgeproof.device.slots import Boot, recover, roll_back, verified
from edgeproof.device.state import SLOTS, Slot, State
from edgeproof.device.storage import replace
from edgeproof.device.trial import boot
from edgeproof.digest import digest_bytes, digest_file
from edgeproof.errors import EdgeproofError
from edgeproof.manifest import File, HardLimit, Manifest, Objective, Rollback, Sla

Seen = frozenset[tuple[str, str]]
NOW = 1_800_000_000
DEVICE, LINE = "bench-camera", "cameras"


def bundle(
    path: Path,
    version: int,
    *,
    security: int = 1,
    sla: Sla | None = None,
    rollback: Rollback | None = None,
    model: bytes | None = None,
    line: str = LINE,
) -> tuple[Manifest, str]:
    """A small bundle; its model is any bytes, for an install does not run it.

    Returns:
        Its manifest and the digest of its file.
    """
    content = model if model is not None else f"model {version}".encode() * 20
    manifest = Manifest(
        name="plate-reader", product_line=line, format="onnx", model="model/model.onnx",
        files=(File("model/model.onnx", digest_bytes(content), len(content)),),
        bundle_version=version, security_version=security, device_allow=(DEVICE,),
        sla=sla or Sla((Objective("latency", "p95", "<=", Decimal(1000), window=5, k=2, n=3),),
                       (HardLimit("nan_outputs", "<=", Decimal(0)), HardLimit("crashes", "<=", Decimal(0)))),
        rollback=rollback or Rollback(trial_seconds=600, boots=3, samples=20),
    )  # fmt: skip
    return manifest, write_archive(path, {"manifest.json": manifest.to_bytes(), "model/model.onnx": content})


@dataclass(frozen=True, slots=True)
class Believing:
    """A source that is believed: what is cut here is what comes after."""

    path: Path

    def take(self, home: Home) -> Believed:
        home.storage.write(home.incoming, [self.path.read_bytes()])
        with open_bundle(home.incoming) as opened:
            return Believed(opened.manifest, digest_file(home.incoming))


def _manifest_digest(path: Path) -> str:
    with open_bundle(path) as opened:
        return opened.digest


def prepare(root: Path, *, golden: Path | None = None) -> Home:
    """A provisioned device with empty slots."""
    home = Home(root, Recorder(root))
    for folder in (root, home.slots, home.receipts, root / "keys"):
        home.storage.folder(folder)
    fallback = None
    if golden is not None:
        shutil.copyfile(golden, home.golden)
        fallback = Slot("good", digest_file(golden), _manifest_digest(golden), "plate-reader", 1, 1)
    replace(
        home.storage,
        root / "state.json",
        State(floor=1, last_seen=NOW, current="golden" if golden else None).to_bytes(),
    )
    replace(home.storage, root / "device.json", Profile(DEVICE, LINE, 1, NOW, fallback).to_bytes())
    recover(home, NOW)
    return home


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that happens on a device.

    Attributes:
        name: What.
        before: Brings a provisioned device to where it begins.
        act: What the power is cut in.
    """

    name: str
    before: Callable[[Home, Path], object]
    act: Callable[[Home, Path], object]


def _installed(home: Home, bundles: Path, *versions: int, keep: bool = True) -> None:
    for version in versions:
        install(home, Believing(bundles / f"{version}.bundle"), NOW)
        if keep:
            home.change(lambda s: s.kept(NOW))


def _fourth(home: Home, bundles: Path) -> None:
    _installed(home, bundles, 4, keep=False)


def _on_trial(home: Home, bundles: Path) -> None:
    _installed(home, bundles, 2, 3)
    _fourth(home, bundles)


def _kept(home: Home, bundles: Path) -> None:
    _installed(home, bundles, 2, 3, 4)


def _rotten(home: Home, bundles: Path) -> None:
    _kept(home, bundles)
    path = home.bundle(home.state().current)  # type: ignore[arg-type]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _boot_again(home: Home, _: Path) -> None:
    boot(home, NOW + 5)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("install, first", lambda h, b: None, lambda h, b: _installed(h, b, 2, keep=False)),
    Scenario("install, second", lambda h, b: _installed(h, b, 2), lambda h, b: _installed(h, b, 3, keep=False)),
    Scenario("install over an older one", lambda h, b: _installed(h, b, 2, 3), _fourth),
    Scenario("boot on trial", _on_trial, _boot_again),
    Scenario("commit", _on_trial, lambda h, b: h.change(lambda s: s.kept(NOW + 9))),
    Scenario("rollback of a trial", _on_trial, lambda h, b: roll_back(h, "sla.hard", NOW + 9, quarantine=True)),
    Scenario("rollback of a kept one", _kept, lambda h, b: roll_back(h, "by hand", NOW + 9)),
    Scenario("floor raised", _kept, lambda h, b: h.change(lambda s: s.raised(2))),
    Scenario("recovery from bit rot", _rotten, lambda h, b: recover(h, NOW + 9)),
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What was tried, and what went wrong."""

    operations: int = 0
    images: int = 0
    disks: int = 0
    second_images: int = 0
    second_disks: int = 0
    old: int = 0
    new: int = 0
    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def count(self, column: str) -> int:
        value = getattr(self, column)
        return len(value) if isinstance(value, list) else value


def play(scenario: Scenario, folder: Path, *, golden: bool = False, forget: frozenset[str] = frozenset()) -> Tally:
    """Cut the power at every step of a scenario.

    Args:
        scenario: What happens.
        folder: Empty folder to work in, best in memory.
        golden: The device has a fallback from the factory.
        forget: Kinds of operations that the device leaves out, to see that this is noticed.
    """
    tally, bundles = Tally(), folder / "bundles"
    bundles.mkdir()
    for version in range(1, 6):
        bundle(bundles / f"{version}.bundle", version, security=1 if version < 4 else 2)
    home = prepare(folder / "device", golden=bundles / "1.bundle" if golden else None)
    scenario.before(home, bundles)
    before, start = home.state(), _image(home.root)
    recorder = Recorder(home.root, forget)
    scenario.act(Home(home.root, recorder), bundles)
    after = home.state()
    tally.operations = len(recorder.log)
    tally.kinds = Counter(o.kind for o in recorder.log)
    expected = Expected(before, after, home.golden)
    work, seen, again = folder / "cut", set[Seen](), set[Seen]()
    for done, image in _cut(start, recorder.log):
        tally.images += 1
        if not _first(image, done, seen):
            continue
        tally.disks += 1
        runs, log = _start(image, work, expected, tally.problems, done=done)
        _go_on(Home(work, Recorder(work)), bundles / "5.bundle", tally.problems)
        tally.new += runs == expected.new
        tally.old += runs == expected.old != expected.new
        for _, second in _cut(image, log):
            tally.second_images += 1
            if _first(second, done, again):
                tally.second_disks += 1
                _start(second, work, expected, tally.problems, done=done)
    return tally


def _first(image: Image, done: bool, seen: set[Seen]) -> bool:
    """Whether a disk was not looked at before: the same disk starts in the same way."""
    key = frozenset([("", str(done)), *((name, digest_bytes(data)) for name, data in image.items())])
    if key in seen:
        return False
    seen.add(key)
    return True


def _cut(start: Image, log: list[Operation]) -> Iterator[tuple[bool, Image]]:
    """Every disk after every prefix of the operations, and whether that is all of them."""
    platter = Platter(start)
    for number in range(len(log) + 1):
        if number:
            platter.apply(log[number - 1])
        for image in platter.images():
            yield number == len(log), image


class Expected:
    """What a device may be after a power cut: what it was, or what it was to become."""

    def __init__(self, before: State, after: State, golden: Path) -> None:
        self.before, self.after = before, after
        self._golden = digest_file(golden) if golden.exists() else ""
        self.old, self.new = self._runs(before), self._runs(after)

    def _runs(self, state: State) -> str:
        return state.slot(state.current).bundle if state.current in SLOTS else self._golden

    def faults(self, home: Home, found: Boot, state: State) -> Iterator[str]:
        """What is wrong."""
        for name in state.fallbacks():
            if verified(home.bundle(name), state.slot(name)) is not None:
                yield f"calls slot {name} good, which is not what was installed"
        if found.slot.bundle not in (self.old, self.new):
            yield f"runs {found.slot.bundle or 'nothing'} ({found.why}); expected {self.old} or {self.new}"
        if found.path is not None and verified(found.path, found.slot) is not None:
            yield "runs a bundle that is not what was installed"
        if state.floor < self.before.floor:
            yield "the floor fell"
        if not set(self.before.quarantine) <= set(state.quarantine):
            yield "the quarantine lost an entry"
        if state.last_seen < self.before.last_seen:
            yield "time went back"

    def undone(self, found: Boot, state: State) -> Iterator[str]:
        """What is wrong although all operations had ended: what was reported as done is undone."""
        if found.slot.bundle != self.new or state.floor != self.after.floor:
            yield "what had ended is undone"
        if not set(self.after.quarantine) <= set(state.quarantine):
            yield "an entry of the quarantine that had been made is gone"


def _start(
    image: Image, root: Path, expected: Expected, problems: list[str], *, done: bool
) -> tuple[str, list[Operation]]:
    """Start the device from a disk; gives the bundle that runs, and what the start itself wrote."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ("", "slots", "receipts", "keys"):
        (root / name).mkdir()
    for name, data in image.items():
        (root / name).write_bytes(data)
    recorder = Recorder(root)
    home = Home(root, recorder)
    try:
        found = recover(home, NOW + 20)
        problems += expected.faults(home, found, home.state())
        problems += expected.undone(found, home.state()) if done else ()
    except EdgeproofError as e:
        problems.append(f"does not start: {e}")
        return "", []
    return found.slot.bundle, recorder.log


def _go_on(home: Home, later: Path, problems: list[str]) -> None:
    """After the cut, life goes on: a later bundle can be installed, kept and left."""
    try:
        if home.state().trial is not None:
            home.change(lambda s: s.kept(NOW + 30))
        install(home, Believing(later), NOW + 31)
        home.change(lambda s: s.kept(NOW + 32))
        if home.state().fallbacks():
            roll_back(home, "by hand", NOW + 33)
    except EdgeproofError as e:
        problems.append(f"is stuck: {e}")


def kills(count: int, folder: Path, seed: int = 1) -> Counter[str]:
    """End a real install with SIGKILL at random points, start the device, and see what it is.

    Args:
        count: How many installs.
        folder: Empty folder on a real disk; everything is really synced.
        seed: Of the points in time.

    Returns:
        How often the device came up with the old bundle, on trial, or with the new one kept; ``problems`` if any.
    """
    chance, outcomes = random.Random(seed), Counter[str]()
    bundle(folder / "0.bundle", 1, model=bytes(300_000))
    home = Home(prepare(folder / "device", golden=folder / "0.bundle").root)
    longest = 0.0
    for version in range(2, count + 2):
        before = home.state()
        _, digest = bundle(path := folder / "next.bundle", version, model=version.to_bytes(4, "big") * 75_000)
        start = time.monotonic()
        child = os.fork()
        if not child:
            install(home, Believing(path), NOW + version)
            home.change(lambda s: s.kept(NOW))
            os._exit(0)
        if version > 3:  # the first two tell how long one takes
            time.sleep(chance.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        longest = max(longest, time.monotonic() - start)
        found = recover(home, NOW + version)
        state = home.state()
        problems = list(Expected(before, state, home.golden).faults(home, found, state))
        old = found.slot.bundle == Expected(before, before, home.golden).old
        outcomes["problems"] += len(problems) + (not old and found.slot.bundle != digest)
        outcomes["old" if old else "on trial" if state.trial else "kept"] += 1
        if state.trial:
            home.change(lambda s: s.kept(NOW))
    return outcomes


def _image(root: Path) -> Image:
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")
    return {str(p.relative_to(root)): p.read_bytes() for p in files}


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory where there is one: the model of a disk needs no disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)
