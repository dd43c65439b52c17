"""Every error that a user can meet, as one small tree.

An error states what it is about, what is wrong with the value received and what was expected, and names the next
command. The same object feeds the command line, JSON and web pages. A failed gate is a result, not an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

State = Literal["accept", "reject", "hold"]

VERDICT_EXIT: dict[State, int] = {"accept": 0, "reject": 1, "hold": 5}
"""Exit code of a command that ends with a verdict."""


class EdgeproofError(Exception):
    """Base of all errors raised on purpose.

    Args:
        code: Dotted name of the rule that was broken, stable across versions, e.g. ``model.not_onnx``.
        subject: The thing at fault: a file, a tensor, a policy rule.
        problem: What is wrong, with the value received and what was expected.
        hint: The remedy, best as the next command.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, code: str, subject: str, problem: str, hint: str = "") -> None:
        super().__init__(code, subject, problem, hint)
        self.code = code
        self.subject = subject
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        """Two lines: ``subject: problem`` and ``hint: remedy  [code]``."""
        head = f"{self.subject}: {self.problem}"
        return f"{head}\n  hint: {self.hint}  [{self.code}]" if self.hint else f"{head}  [{self.code}]"

    def to_json(self) -> dict[str, str | int]:
        """The error as a JSON object."""
        return {
            "code": self.code,
            "subject": self.subject,
            "problem": self.problem,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class InputError(EdgeproofError):
    """Something the user gave cannot be used as it is."""

    exit_code = 2


class UnsupportedError(EdgeproofError):
    """The request is well formed, but this machine, runtime or operator set cannot do it."""

    exit_code = 3


class TrustError(EdgeproofError):
    """A digest, a signature or a containment rule does not hold."""

    exit_code = 4


class InternalError(EdgeproofError):
    """A bug of edgeproof's own, reported with what is needed to reproduce it."""

    exit_code = 70


def error_from(value: Mapping[str, Any]) -> EdgeproofError:
    """An error that another process reported as JSON."""
    kinds = (InputError, UnsupportedError, TrustError, InternalError)
    kind = next((k for k in kinds if k.exit_code == value["exit_code"]), InternalError)
    return kind(value["code"], value["subject"], value["problem"], value["hint"])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant.

    Returns:
        ``did you mean 'x'?`` for a near miss, otherwise the sorted list of what there is.

    >>> did_you_mean("latncy_p95", ["latency_p95", "size"])
    "did you mean 'latency_p95'?"
    >>> did_you_mean("zzz", ["b", "a"])
    'known: a, b'
    """
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(names)}" if names else "there is none"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant; empty when none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), "")
