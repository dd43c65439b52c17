"""What the device remembers, as one frozen value, and the steps that lead from one to the next.

A slot goes from empty to writing to trial to good or bad. Nothing here reads or writes: a step takes a state and gives
the next one, so that what may follow what is read on one page. The floor never falls, a quarantined digest stays, time
never goes back; every step keeps that by building on the state before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from .. import strictjson
from ..digest import digest_bytes
from ..errors import InputError, TrustError
from ..files import check_record

SCHEMA = "edgeproof.device/1"
SlotName = Literal["a", "b"]
Phase = Literal["empty", "writing", "trial", "good", "bad"]
Current = Literal["a", "b", "golden"]
SLOTS: tuple[SlotName, SlotName] = ("a", "b")


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the two places for a bundle.

    Attributes:
        phase: Where it stands.
        bundle: Digest of the bundle file; empty in an empty slot.
        manifest: Digest of the manifest's bytes.
        name: What the bundle is of.
        version: The bundle's version.
        security_version: What the floor is compared with.
        reason: Why it is bad.
    """

    phase: Phase = "empty"
    bundle: str = ""
    manifest: str = ""
    name: str = ""
    version: int = 0
    security_version: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """How the trial of the current slot goes.

    Attributes:
        since: Unix time at which it began, in s.
        boots: Starts of the supervisor since then.
        served_s: Time during which it served, in s: counts on when the clock does not.
        samples: Inferences in windows that met the SLA.
        decision: What these samples say: ``commit`` once they are enough.
        why: In words.
    """

    since: int
    boots: int = 0
    served_s: float = 0.0
    samples: int = 0
    decision: Literal["go_on", "commit"] = "go_on"
    why: str = "no inference has been watched yet"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A digest that is never run again on this device.

    Attributes:
        digest: Of a bundle file.
        reason: What it did.
        at: Unix time, in s.
    """

    digest: str
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the device remembers.

    Attributes:
        floor: Smallest security version that may run.
        last_seen: Latest Unix time that this device has seen, in s.
        current: What is to run; None stops.
        a: The first slot.
        b: The second slot.
        trial: Of the current slot, while its phase is ``trial``.
        quarantine: In the order in which they came.
        sequence: Number of changes.
    """

    floor: int
    last_seen: int
    current: Current | None = None
    a: Slot = field(default_factory=Slot)
    b: Slot = field(default_factory=Slot)
    trial: Trial | None = None
    quarantine: tuple[Quarantined, ...] = ()
    sequence: int = 0

    def slot(self, name: SlotName) -> Slot:
        """The slot of a name."""
        return self.a if name == "a" else self.b

    def with_slot(self, name: SlotName, slot: Slot) -> State:
        """The same state with another content of a slot."""
        return replace(self, a=slot) if name == "a" else replace(self, b=slot)

    def quarantined(self, digest: str) -> Quarantined | None:
        """The entry of a digest, if it is in quarantine."""
        return next((q for q in self.quarantine if q.digest == digest), None)

    def fallbacks(self) -> tuple[SlotName, ...]:
        """Good slots other than the current one that may run: at or above the floor and not in quarantine."""
        return tuple(n for n in SLOTS if n != self.current and self.may_run(n))

    def may_run(self, name: SlotName) -> bool:
        """Whether a slot holds a bundle that was kept, is at or above the floor, and is not in quarantine."""
        slot = self.slot(name)
        return slot.phase == "good" and slot.security_version >= self.floor and not self.quarantined(slot.bundle)

    def free(self) -> SlotName:
        """The slot that the next install takes: never the current one; an empty or bad one first."""
        others = [n for n in SLOTS if n != self.current]
        return min(others, key=lambda n: ("empty", "bad", "writing", "trial", "good").index(self.slot(n).phase))

    # Steps.

    def seen(self, now: int) -> State:
        """Time moves on, never back."""
        return replace(self, last_seen=max(self.last_seen, now))

    def writing(self, name: SlotName, slot: Slot) -> State:
        """A slot is about to get a new bundle: what it held counts no more."""
        if name == self.current:
            raise InputError("device.current", name, "is the slot that runs", "install into the other one")
        return self.with_slot(name, replace(slot, phase="writing", reason=""))

    def on_trial(self, name: SlotName, now: int) -> State:
        """A written slot becomes the current one, to be kept or left."""
        slot = self.slot(name)
        if slot.phase != "writing":
            raise InputError("device.phase", name, f"is {slot.phase}; only a written slot goes on trial", "install")
        on = self.with_slot(name, replace(slot, phase="trial"))
        return replace(on, current=name, trial=Trial(since=max(now, self.last_seen))).seen(now)

    def kept(self, now: int) -> State:
        """The slot on trial is good. The floor stays where it is."""
        name = self.on_trial_name()
        good = self.with_slot(name, replace(self.slot(name), phase="good"))
        return replace(good, trial=None).seen(now)

    def left(self, reason: str, to: Current | None, now: int, *, quarantine: bool = False) -> State:
        """The current slot is bad, and another takes over."""
        name = self.current
        if name is None or name == "golden":
            raise InputError("device.phase", str(name), "is no slot that could be left", "install a bundle")
        if to is not None and to != "golden" and not self.may_run(to):
            raise TrustError("device.no_fallback", to, "may not run", "see 'edgeproof status'")
        slot = self.slot(name)
        bad = replace(self.with_slot(name, replace(slot, phase="bad", reason=reason)), current=to, trial=None)
        return (bad.quarantining(slot.bundle, reason, now) if quarantine else bad).seen(now)

    def spoilt(self, name: SlotName, reason: str) -> State:
        """A slot that does not run now is bad."""
        return self.with_slot(name, replace(self.slot(name), phase="bad", reason=reason))

    def emptied(self, name: SlotName) -> State:
        """A slot holds nothing."""
        return self.with_slot(name, Slot())

    def quarantining(self, digest: str, reason: str, now: int) -> State:
        """A digest is never run again."""
        if not digest or self.quarantined(digest):
            return self
        entry = Quarantined(digest, reason, max(now, self.last_seen))
        return replace(self, quarantine=(*self.quarantine, entry))

    def raised(self, floor: int) -> State:
        """The floor rises.

        Raises:
            TrustError: device.floor_falls; device.floor_unproven when the current slot is not good or below it.
        """
        if floor < self.floor:
            raise TrustError("device.floor_falls", f"floor {floor}", f"the floor is {self.floor} and never falls", "")
        if self.current not in SLOTS or not self.slot(self.current).security_version >= floor:
            raise TrustError(
                "device.floor_unproven",
                f"floor {floor}",
                "what runs now is below it, and would have to stop",
                "install and keep a bundle of that security version first",
            )
        if self.slot(self.current).phase != "good":
            raise TrustError("device.floor_unproven", f"floor {floor}", "what runs now is on trial", "mark it good")
        return replace(self, floor=floor)

    def on_trial_name(self) -> SlotName:
        """The slot on trial.

        Raises:
            InputError: device.no_trial.
        """
        if self.current in SLOTS and self.slot(self.current).phase == "trial":
            return self.current
        raise InputError("device.no_trial", "slots", "none is on trial", "see 'edgeproof status'")

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"schema": SCHEMA, **asdict(self), "quarantine": [asdict(q) for q in self.quarantine]}

    def to_bytes(self) -> bytes:
        """As the state file holds it: canonical, with its own digest, so that rot in it is noticed."""
        body = self.to_json()
        return strictjson.canonical({**body, "digest": digest_bytes(strictjson.canonical(body))})


def from_bytes(data: bytes, subject: str) -> State:
    """Read a state file.

    Raises:
        TrustError: device.state_damaged.
    """
    try:
        value = strictjson.loads(data, subject, limit_bytes=1 << 20)
        if not isinstance(value, Mapping):
            raise _damaged(subject, "is no object")
        body = dict(value)
        if body.pop("digest", None) != digest_bytes(strictjson.canonical(body)):
            raise _damaged(subject, "does not match its own digest")
        if body.pop("schema", None) != SCHEMA:
            raise _damaged(subject, f"is not {SCHEMA}")
        check_record(State, {k: v for k, v in body.items() if k not in ("a", "b", "trial", "quarantine")}, subject)
        parts = {name: _record(Slot, body.pop(name), subject) for name in SLOTS}
        trial = body.pop("trial")
        entries = tuple(_record(Quarantined, q, subject) for q in body.pop("quarantine"))
        made = State(
            **body, **parts, trial=None if trial is None else _record(Trial, trial, subject), quarantine=entries
        )
    except InputError as e:
        raise _damaged(subject, e.problem) from e
    except (KeyError, TypeError) as e:
        raise _damaged(subject, f"lacks a field, or has a strange one: {e}") from e
    _check(made, subject)
    return made


def _record(kind: type, value: Any, subject: str) -> Any:
    check_record(kind, value, subject)
    return kind(**value)


def _check(state: State, subject: str) -> None:
    """What no step can lead to is damage."""
    running = state.slot(state.current) if state.current in SLOTS else None
    if running is not None and running.phase not in ("trial", "good"):
        raise _damaged(subject, f"runs slot {state.current}, which is {running.phase}")
    if (state.trial is not None) != (running is not None and running.phase == "trial"):
        raise _damaged(subject, "has a trial without a slot on trial, or the other way round")
    if any(state.slot(n).phase == "trial" and n != state.current for n in SLOTS):
        raise _damaged(subject, "has a slot on trial that does not run")
    if state.current not in (*get_args(Current), None):
        raise _damaged(subject, f"runs {state.current!r}")


def _damaged(subject: str, problem: str) -> TrustError:
    return TrustError(
        "device.state_damaged",
        subject,
        problem,
        "only the golden fallback runs until the device is provisioned anew",
    )
