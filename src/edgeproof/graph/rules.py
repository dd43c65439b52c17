"""Run rewrite rules on a clone of a model until nothing changes any more."""

from __future__ import annotations

from collections.abc import Sequence

from ..change import Change
from ..model import Model
from .rewrite import Editor, Rule

ROUNDS = 12
"""Enough for every model seen; each round but the last changes something."""


def run_rules(model: Model, rules: Sequence[Rule], *, rounds: int = ROUNDS) -> Change:
    """Apply rules in order, again and again, until a round changes nothing.

    Args:
        model: Left as it is.
        rules: In the order in which they run.
        rounds: At most this many.
    """
    editor = Editor(model.graph.clone())
    until_stable(editor, rules, rounds=rounds)
    return change_of(model, editor)


def until_stable(editor: Editor, rules: Sequence[Rule], *, rounds: int = ROUNDS) -> None:
    """Apply rules to a model that is being edited until a round changes nothing."""
    for _ in range(rounds):
        before = editor.edits
        for rule in rules:
            rule(editor)
        if editor.edits == before:
            return


def change_of(model: Model, editor: Editor) -> Change:
    """What an editor did to a clone of ``model``."""
    if not editor.edits:
        return Change.none(model, *editor.declined)
    return Change(Model.of(editor.model, model.name), True, editor.applied(), editor.declined)
