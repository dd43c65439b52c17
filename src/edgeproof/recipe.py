"""How a candidate is made: passes in order with their settings, and how the runtime is set when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .digest import digest_json
from .target import Setting


@dataclass(frozen=True, slots=True)
class Step:
    """One pass, by file name, with the settings that differ from its defaults."""

    name: str
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named way to make a candidate.

    Attributes:
        name: Short name for people, e.g. ``int8-percentile``.
        steps: Passes in order.
        runtime: Settings of the backend under which the candidate is measured and shipped.
        seed: For every step that draws random numbers.
        reasons: Node → why the search wants it left in float; for reports, not part of what is made.
    """

    name: str
    steps: tuple[Step, ...] = ()
    runtime: Mapping[str, Setting] = field(default_factory=dict)
    seed: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON; reasons only when there are some."""
        value: dict[str, Any] = {
            "name": self.name,
            "steps": [{"name": s.name, "settings": dict(s.settings)} for s in self.steps],
            "runtime": dict(self.runtime),
            "seed": self.seed,
        }
        return {**value, "reasons": dict(self.reasons)} if self.reasons else value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Recipe:
        """Inverse of `to_json`."""
        steps = tuple(Step(s["name"], s.get("settings", {})) for s in value.get("steps", ()))
        return Recipe(value["name"], steps, value.get("runtime", {}), value.get("seed", 0), value.get("reasons", {}))

    @property
    def digest(self) -> str:
        """Digest of everything but the name and the reasons."""
        return digest_json({k: v for k, v in self.to_json().items() if k not in ("name", "reasons")})
