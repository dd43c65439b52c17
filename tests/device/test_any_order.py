"""Whatever happens to a device, in whatever order: what runs was checked, and what must not go back does not."""

from __future__ import annotations

import shutil

from benchmarks.power_cuts.play import NOW, Believing, bundle, in_memory, prepare
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgeproof.device.home import Home
from edgeproof.device.install import install
from edgeproof.device.slots import recover, roll_back, verified
from edgeproof.device.state import SLOTS, from_bytes
from edgeproof.device.trial import boot
from edgeproof.errors import EdgeproofError


class Device(RuleBasedStateMachine):
    """Installs, starts, commits, rollbacks, floors, rot and stray files in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = in_memory()
        self.folder = self._memory.__enter__()
        self.version = 1
        bundle(self.folder / "golden.bundle", 1)
        self.home = Home(prepare(self.folder / "device", golden=self.folder / "golden.bundle").root)
        self.before = self.home.state()

    def teardown(self) -> None:
        self._memory.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def attempt(self, act) -> None:
        """What is refused changes nothing."""
        state = self.home.state()
        try:
            act()
        except EdgeproofError:
            assert self.home.state() == state

    @rule(security=st.integers(0, 3))
    def install(self, security):
        self.version += 1
        path = self.folder / "next.bundle"
        bundle(path, self.version, security=security)
        self.attempt(lambda: install(self.home, Believing(path), NOW))

    @rule()
    def keep(self):
        self.attempt(lambda: self.home.change(lambda s: s.kept(NOW)))

    @rule(quarantine=st.booleans(), must_leave=st.booleans())
    def leave(self, quarantine, must_leave):
        self.attempt(lambda: roll_back(self.home, "told", NOW, quarantine=quarantine, must_leave=must_leave))

    @rule(floor=st.integers(0, 3))
    def raise_floor(self, floor):
        self.attempt(lambda: self.home.change(lambda s: s.raised(floor)))

    @rule(name=st.sampled_from((*SLOTS, "golden")), damage=st.sampled_from((b"", b"rot", None)))
    def spoil(self, name, damage):
        path = self.home.golden if name == "golden" else self.home.bundle(name)
        if damage is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            path.write_bytes(damage)

    @rule(name=st.sampled_from(("state.json.part", "slots/incoming.part", "slots/.incoming.part.x.tmp")))
    def litter(self, name):
        (self.home.root / name).write_bytes(b"left over")

    @rule(now=st.integers(0, 2 * NOW))
    def start(self, now):
        found = boot(self.home, now)
        assert found.path is None or verified(found.path, found.slot) is None
        assert found.path is None or found.slot.security_version >= self.home.state().floor
        assert recover(self.home, now) == found

    @invariant()
    def nothing_goes_back(self):
        state = self.home.state()
        assert state.floor >= self.before.floor
        assert state.last_seen >= self.before.last_seen
        assert state.sequence >= self.before.sequence
        assert set(self.before.quarantine) <= set(state.quarantine)
        assert from_bytes(state.to_bytes(), "state") == state
        self.before = state


TestDevice = Device.TestCase
TestDevice.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
