"""What a pass did: the new model, the nodes it touched, and those it left alone with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .model import Model


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a pass.

    Attributes:
        model: The new model; the very input when nothing changed.
        modified: Whether it differs from the input.
        applied: What was done, one line each, naming the node.
        declined: (node, reason) for what the pass looked at and left alone.
        facts: Numbers worth reporting, JSON values (e.g. the ranges that calibration found).
    """

    model: Model
    modified: bool
    applied: tuple[str, ...] = ()
    declined: tuple[tuple[str, str], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def none(model: Model, *declined: tuple[str, str]) -> Change:
        """Nothing changed."""
        return Change(model, False, (), declined)
