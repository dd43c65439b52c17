"""Run what the slots say, watch it, and keep it or leave it without being asked.

A bundle on trial is left at once for what its SLA calls hard, and at the deadline when undecided. One that was kept is
watched on: it is left for another verified slot at or above the floor, and where there is none it runs on with an
alarm.
Every decision is a change of the state file first and a signed receipt second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

from numpy.typing import NDArray

from ..errors import EdgeproofError, InputError, TrustError, UnsupportedError
from ..manifest import Manifest, Rollback, Sla
from . import receipts
from .home import Home
from .load import manifest_of
from .record import Record
from .sensors import Sensors
from .serving import Answer, CrashedError, Serving, finite_only
from .sla import Decision, Watch
from .slots import Boot, recover, roll_back
from .state import SLOTS, Slot, Trial
from .trial import boot, mark_good, watched

_NOT_ITS_FAULT = ("device.runtime_missing", "device.format")
"""What keeps a model from being served although nothing is wrong with it."""
CRASHES_WITHIN_S = 60.0


@final
class Supervisor:
    """Serves one device. Start it, close it.

    Args:
        home: The device's folder.
        threads: Of one inference; 0 lets the runtime choose.
        by_hand: Leave the last word on a bundle that could be kept to 'edgeproof mark-good'.
        restarts: Crashes within a minute that a kept bundle may have.
        timeout_s: Longest inference; a longer one counts as a crash.
        save_s: How often what was watched is kept, for a restart.
        sensors: What the device tells of itself.
    """

    def __init__(
        self,
        home: Home,
        *,
        threads: int = 0,
        by_hand: bool = False,
        restarts: int = 3,
        timeout_s: float = 30.0,
        save_s: float = 10.0,
        sensors: Sensors | None = None,
    ) -> None:
        self._home, self._threads, self._by_hand = home, threads, by_hand
        self._restarts, self._timeout_s, self._save_s = restarts, timeout_s, save_s
        self._sensors = sensors or Sensors()
        self._lock = threading.RLock()
        self._serving: Serving | None = None
        self._boot = Boot(None, Slot(), None, "not started")
        self._manifest: Manifest | None = None
        self._watch = Watch(Sla(), Rollback())
        self._crashes: deque[float] = deque()
        self._since = self._saved = time.monotonic()
        self._served_s, self._boots = 0.0, 0
        self._owed: Decision | None = None
        self._followed: tuple[str | None, str, str] = (None, "", "")
        self._told = "go_on"
        self.record = Record()
        self.alarm = ""

    # Used from outside: start, infer, tick, health, close.

    def start(self) -> Boot:
        """Bring the slots in order and serve what is there.

        Raises:
            UnsupportedError: device.runtime_missing, device.format.
        """
        with self._lock:
            self._take(boot(self._home, _now()))
            return self._boot

    def infer(self, feeds: Mapping[str, NDArray[Any]]) -> Answer:
        """Run one inference, and decide on what it showed.

        Raises:
            InputError: serve.input_nan, serve.input_infinite, serve.refused, serve.dtype.
            UnsupportedError: serve.stopped, serve.crashed, serve.failed.
        """
        finite_only(feeds)
        with self._lock:
            if self._serving is None:
                raise UnsupportedError("serve.stopped", "model", f"nothing runs: {self._boot.why}", "install a bundle")
            try:
                answer = self._serving.infer(feeds, self._timeout_s)
            except CrashedError as e:
                label = self._boot.slot.name
                self._crashed(str(e))
                hint = "ask again; 'edgeproof status' shows what runs now"
                raise UnsupportedError("serve.crashed", label, str(e), hint) from e
            except UnsupportedError:
                self.record.failed += 1
                self._watch.failed()
                raise
            values = {
                "latency": answer.latency_ms,
                "throughput": 1e3 / answer.whole_ms,
                "nan_outputs": float(answer.nan_outputs),
            }
            self.record.inference(values)
            self._watch.inference(values)
            self._decide()
            return answer

    def tick(self) -> None:
        """Read the sensors, follow what others did to the slots, keep what was watched; a few times a second.

        What the system refuses meanwhile is an alarm, and tried again with the next tick.
        """
        with self._lock:
            try:
                self._tick()
            except EdgeproofError as e:
                self.alarm = f"{e.code}: {e.problem}"

    def health(self) -> dict[str, Any]:
        """What runs and how it goes, as JSON."""
        with self._lock:
            on_trial = self._boot.slot.phase == "trial"
            return {
                "serving": self._serving is not None,
                "pid": self._serving.pid if self._serving is not None else None,
                "current": self._boot.current,
                "phase": self._boot.slot.phase,
                "name": self._boot.slot.name,
                "bundle_version": self._boot.slot.version,
                "bundle": self._boot.slot.bundle,
                "why": self._boot.why,
                "alarm": self.alarm,
                "trial": {"served_s": round(self._elapsed(), 3), "boots": self._boots, "why": self._verdict().why}
                if on_trial
                else None,
                "interface": dict(self._serving.interface) if self._serving is not None else None,
                "watched": self.record.to_json(samples=False),
                "missing_sensors": self._sensors.missing,
            }

    def interface(self) -> Mapping[str, Any]:
        """Inputs and outputs of what runs; empty when nothing does."""
        with self._lock:
            return self._serving.interface if self._serving is not None else {}

    def latencies(self) -> list[float]:
        """Latencies of the last inferences, in ms."""
        with self._lock:
            return list(self.record.samples.get("latency", ()))[-1000:]

    def close(self) -> None:
        """Keep what was watched, and end the model."""
        with self._lock:
            if self._serving is not None and self._boot.slot.phase == "trial":
                self._save(self._verdict())
            self._end()

    def _tick(self) -> None:
        if self._owed is not None:
            self._act(self._owed, must_leave=True)
        self._follow()
        if self._serving is None:
            return
        values = self._sensors.read()
        memory = self._serving.memory_bytes()
        if memory is not None:
            values["memory"] = float(memory)
        self.record.reading(values)
        self._watch.reading(values)
        if not self._decide() and time.monotonic() - self._saved >= self._save_s:
            self._save(self._verdict())

    # Taking a slot.

    def _take(self, found: Boot) -> None:
        """Serve what is there; what cannot be loaded is left for the next one."""
        self._try_in_turn(found)
        self._note_slots()

    def _try_in_turn(self, found: Boot) -> None:
        for _ in range(3):  # the slot, the other one, the golden fallback
            self._end()
            self._boot = found
            if found.path is None:
                self._receipt("stopped", found.slot, {"why": found.why})
                return
            try:
                self._manifest = manifest_of(found.path, found.slot)
                self._serving = Serving(found.path, found.slot, self._threads)
            except (EdgeproofError, CrashedError) as e:
                if isinstance(e, EdgeproofError) and e.code in _NOT_ITS_FAULT:
                    raise
                found = self._unloadable(found, e)
                continue
            self._begin()
            return
        self._boot = replace(found, current=None, path=None, why="nothing here can be loaded")

    def _begin(self) -> None:
        """Watch from the start."""
        assert self._manifest is not None
        trial = self._home.state().trial
        sla = self._manifest.sla
        if trial is None:  # a kept bundle may crash now and then: it is started again, within limits
            sla = Sla(sla.objectives, tuple(h for h in sla.hard if h.metric != "crashes"))
        self._watch = Watch(sla, self._manifest.rollback)
        self._served_s, self._boots = (trial.served_s, trial.boots) if trial else (0.0, 0)
        self._since = self._saved = time.monotonic()
        self._crashes.clear()
        self._told = "go_on"
        self.record = Record()

    def _unloadable(self, found: Boot, error: EdgeproofError | CrashedError) -> Boot:
        """Leave a slot whose bundle cannot be loaded."""
        code = error.code if isinstance(error, EdgeproofError) else "device.crashed"
        problem = error.problem if isinstance(error, EdgeproofError) else str(error)
        again = recover(self._home, _now())  # finds and quarantines bytes that are not what was installed
        if (again.current, again.slot.bundle) != (found.current, found.slot.bundle):
            self._receipt("left", found.slot, {"decision": {"code": code, "why": problem}})
            return again
        if found.current not in SLOTS:
            return Boot(None, Slot(), None, f"{code}: {problem}")
        following = self._leave(Decision("roll_back", code, problem), must_leave=True)
        assert following is not None
        return following

    def _follow(self) -> None:
        """See whether somebody installed, kept or left a bundle meanwhile."""
        state = self._home.state()
        slot = state.slot(state.current) if state.current in SLOTS else Slot()
        before, self._followed = self._followed, (state.current, slot.bundle, slot.phase)
        if before[:2] != self._followed[:2]:
            self._take(boot(self._home, _now()))
        elif before != self._followed:
            self._boot = replace(self._boot, slot=slot)
            self._begin()

    def _note_slots(self) -> None:
        """Remember what the state says now, to see later whether somebody else changed it."""
        with suppress(TrustError):  # a damaged state; the golden bundle runs, or nothing
            state = self._home.state()
            slot = state.slot(state.current) if state.current in SLOTS else Slot()
            self._followed = (state.current, slot.bundle, slot.phase)

    # Deciding.

    def _elapsed(self) -> float:
        return self._served_s + time.monotonic() - self._since

    def _verdict(self) -> Decision:
        if self._boot.slot.phase == "trial":
            return self._watch.decide(self._elapsed(), self._boots)
        return self._watch.violated() or Decision("go_on", "sla.watching", "inside the SLA")

    def _decide(self) -> bool:
        """Act on what was watched; gives whether something was done."""
        verdict = self._verdict()
        if verdict.kind == "roll_back":
            self._act(verdict, must_leave=self._boot.slot.phase == "trial")
            return True
        if verdict.kind == "commit" and not self._by_hand:
            self._keep(verdict)
            return True
        if self._by_hand and self._boot.slot.phase == "trial" and verdict.kind != self._told:
            self._save(verdict)  # 'mark-good' must not believe what is no longer so
        return False

    def _act(self, verdict: Decision, *, must_leave: bool) -> None:
        """Leave what runs. While the system refuses to write that down, nothing runs, and it is tried again."""
        self._owed = None
        if self._boot.current not in SLOTS:
            if must_leave:
                self._end()
                self._boot = Boot(None, Slot(), None, f"{verdict.code}: {verdict.why}")
            else:
                self._raise_alarm(verdict)
            return
        try:
            following = self._leave(verdict, must_leave=must_leave)
        except InputError as e:
            self._end()
            self._owed = verdict
            self.alarm = f"{verdict.code}: {verdict.why}; cannot be left: {e.problem}"
            return
        if following is None:
            self._raise_alarm(verdict)
        else:
            self._take(following)

    def _keep(self, verdict: Decision) -> None:
        self._save(verdict)
        try:
            state = mark_good(self._home, _now())
        except InputError as e:
            self.alarm = f"cannot be kept: {e.problem}"
            return
        assert state.current in SLOTS
        self._receipt("kept", self._boot.slot, {"decision": {"code": verdict.code, "why": verdict.why}})
        self._boot = replace(self._boot, slot=state.slot(state.current))
        self._begin()
        self._note_slots()

    def _leave(self, verdict: Decision, *, must_leave: bool) -> Boot | None:
        """Switch to another slot, the golden bundle or nothing; None when a kept bundle has no other one to leave for.

        Raises:
            InputError: files.*, when the state cannot be written.
        """
        on_trial, slot = self._boot.slot.phase == "trial", self._boot.slot
        try:
            roll_back(
                self._home,
                f"{verdict.code}: {verdict.why}",
                _now(),
                quarantine=on_trial and verdict.code != "sla.undecided",
                must_leave=must_leave,
            )
        except TrustError as e:
            if e.code != "device.no_fallback":
                raise
            return None
        self._receipt("left", slot, {"decision": {"code": verdict.code, "why": verdict.why}})
        return recover(self._home, _now())

    def _raise_alarm(self, verdict: Decision) -> None:
        self.alarm = f"{verdict.code}: {verdict.why}; there is nothing to go back to"
        self._begin()

    def _crashed(self, why: str) -> None:
        """Count a crash, then start again or leave."""
        self.record.crashes += 1
        self._watch.reading({"crashes": 1.0})
        self._watch.failed()
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes and now - self._crashes[0] > CRASHES_WITHIN_S:
            self._crashes.popleft()
        if self._decide():
            return
        if len(self._crashes) > self._restarts:
            verdict = Decision("roll_back", "device.crashes", f"{len(self._crashes)} crashes within a minute; {why}")
            self._act(verdict, must_leave=True)
            return
        self._restart()

    def _restart(self) -> None:
        self._end()
        assert self._boot.path is not None
        try:
            self._serving = Serving(self._boot.path, self._boot.slot, self._threads)
        except (EdgeproofError, CrashedError) as e:
            self._take(self._unloadable(self._boot, e))

    def _save(self, verdict: Decision) -> None:
        """Keep what was watched in the state."""
        trial = Trial(
            since=0,
            served_s=round(self._elapsed(), 3),
            samples=self._watch.clean,
            decision="commit" if verdict.kind == "commit" else "go_on",
            why=verdict.why,
        )
        self._saved, self._told = time.monotonic(), verdict.kind
        try:
            watched(self._home, trial, _now())
        except InputError as e:
            self.alarm = f"what was watched is not kept: {e.problem}"

    def _receipt(self, event: str, slot: Slot, facts: Mapping[str, Any]) -> None:
        observed = {"watched": self.record.to_json(samples=True), "missing_sensors": self._sensors.missing}
        runs = {"providers": self._serving.interface["providers"]} if self._serving is not None else {}
        self.alarm = receipts.attempt(self._home, event, slot, {**facts, **observed, **runs}, _now()) or self.alarm

    def _end(self) -> None:
        if self._serving is not None:
            self._serving.close()
            self._serving = None


def _now() -> int:
    return int(time.time())
