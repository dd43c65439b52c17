"""What a candidate must meet, fixed before the first one is measured.

Limits are decimals, so that a drop of exactly 0.01 meets a limit of 0.01. A policy file is a short YAML document; its
JSON schema is ``policy.schema.json`` beside this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from .digest import digest_json
from .errors import InputError, State, did_you_mean
from .files import os_error, yaml_problem

CheckState = Literal["pass", "fail", "missing", "incomparable", "invalid_environment", "undecided"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit.

    Attributes:
        metric: Metric name; ``quality`` stands for the data set's own metric.
        op: ``<=`` or ``>=``.
        limit: The limit.
        unit: Unit of the limit. Relative rules use ``drop`` (how much worse than the baseline, in the metric's own
            unit) or ``ratio`` (candidate / baseline).
        relative_to: ``baseline``, or empty for an absolute limit.
    """

    metric: str
    op: Literal["<=", ">="]
    limit: Decimal
    unit: str
    relative_to: Literal["", "baseline"] = ""

    def __str__(self) -> str:
        """E.g. ``latency_p95 <= 80 ms``."""
        if self.unit == "drop":
            return f"{self.metric} drop {self.op} {self.limit}"
        if self.unit == "ratio":
            return f"{self.metric} / baseline {self.op} {self.limit}"
        return f"{self.metric} {self.op} {self.limit} {self.unit}".removesuffix(" 1")


@dataclass(frozen=True, slots=True)
class Port:
    """How an input or output of the baseline appears in the candidate, where it may differ.

    Attributes:
        baseline: Its name in the baseline.
        candidate: Its name in the candidate.
        dtype: Its type in the candidate; empty for the baseline's.
        transpose: Where the candidate's dimensions come from: ``(0, 2, 3, 1)`` for NCHW → NHWC. Empty for as they are.
        shape: Its shape in the candidate, a text for an open dimension; None for the baseline's, transposed.
    """

    baseline: str
    candidate: str
    dtype: str = ""
    transpose: tuple[int, ...] = ()
    shape: tuple[int | str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON; what is not declared is left out."""
        value: dict[str, Any] = {"baseline": self.baseline, "candidate": self.candidate}
        value |= {"dtype": self.dtype} if self.dtype else {}
        value |= {"transpose": list(self.transpose)} if self.transpose else {}
        return value | ({} if self.shape is None else {"shape": list(self.shape)})


@dataclass(frozen=True, slots=True)
class Interface:
    """Changes of the interface that are allowed; any other is not."""

    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"inputs": [p.to_json() for p in self.inputs], "outputs": [p.to_json() for p in self.outputs]}


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules and how strictly they are tested.

    Attributes:
        name: For people.
        rules: All must pass.
        alpha: One-sided error probability, shared by all looks.
        runs: Fresh processes per confirmation.
        inferences: Timed inferences per process.
        looks: Confirmations declared in advance; alpha is divided by it.
        interface: Changes of the interface that are allowed; None when the policy does not speak of them.
    """

    name: str
    rules: tuple[Rule, ...]
    alpha: Decimal = Decimal("0.05")
    runs: int = 10
    inferences: int = 200
    looks: int = 1
    interface: Interface | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON; decimals as strings. A policy without a mapping has the form, and so the digest, of old."""
        mapping = {} if self.interface is None else {"interface": self.interface.to_json()}
        return {
            **mapping,
            "name": self.name,
            "alpha": str(self.alpha),
            "runs": self.runs,
            "inferences": self.inferences,
            "looks": self.looks,
            "rules": [
                {
                    "metric": r.metric,
                    "op": r.op,
                    "limit": str(r.limit),
                    "unit": r.unit,
                    "relative_to": r.relative_to,
                }
                for r in self.rules
            ],
        }

    @property
    def digest(self) -> str:
        """Digest of all of it."""
        return digest_json(self.to_json())


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one rule.

    Attributes:
        rule: The rule.
        state: ``pass``, ``fail``, or why it is open.
        got: Point value in the rule's unit; None when missing.
        low: Lower confidence bound used to fail.
        high: Upper confidence bound used to pass (the worse side for ``>=`` rules is ``low``).
        reason: One sentence for people.
        more_runs: Further runs (or examples) expected to be needed; None when not undecided.
    """

    rule: Rule
    state: CheckState
    got: float | None
    low: float | None
    high: float | None
    reason: str
    more_runs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rule": str(self.rule),
            "metric": self.rule.metric,
            "state": self.state,
            "got": self.got,
            "low": self.low,
            "high": self.high,
            "limit": str(self.rule.limit),
            "unit": self.rule.unit,
            "reason": self.reason,
            "more_runs": self.more_runs,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accept, reject or hold, with every check behind it."""

    state: State
    checks: tuple[Check, ...]
    policy: str
    model: str

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "state": self.state,
            "policy": self.policy,
            "model": self.model,
            "checks": [c.to_json() for c in self.checks],
        }

    @property
    def why(self) -> str:
        """The first reason that explains the state."""
        for check in self.checks:
            if check.state == "fail" or (self.state == "hold" and check.state != "pass"):
                return check.reason
        return "every rule passes"


BUILT_IN: tuple[str, ...] = ("default", "default-power", "speed")
"""Policies that come with edgeproof, as ``policies/NAME.yaml`` beside this file."""


def default_policy() -> Policy:
    """Quality drop of at most 1 %, p95 of at most 80 ms, at least 20 frames a second."""
    return load_policy("default", {"latency_p95": "ms", "throughput": "1/s"})


EXAMPLE = 'a policy is e.g.  rules: [{metric: latency_p95, op: "<=", limit: 80}]'
"""For hints: the shortest policy there is."""

_KEYS = ("name", "alpha", "runs", "inferences", "looks", "rules", "interface")
_PORT_KEYS = ("baseline", "candidate", "dtype", "transpose", "shape")
_PORT = "a mapping is e.g.  interface: {inputs: [{baseline: x, candidate: x_int8, dtype: int8}]}"
_RULE_KEYS = ("metric", "op", "limit", "unit", "relative_to")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def load_policy(path: str | Path, metrics: Mapping[str, str]) -> Policy:
    """Read a policy file.

    Args:
        path: YAML file, or the name of a built-in policy.
        metrics: Known metric names → unit; ``quality`` is known besides.

    Raises:
        InputError: policy.missing, policy.not_yaml, policy.key, policy.metric, policy.value.
    """
    if str(path) in BUILT_IN:
        path = Path(__file__).parent / "policies" / f"{path}.yaml"
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        hint = f"{did_you_mean(str(path), BUILT_IN)} (built in), or give the path of a YAML file"
        raise InputError("policy.missing", str(path), "no such file", hint) from e
    except OSError as e:
        raise os_error(path, e) from e
    except UnicodeDecodeError as e:
        raise InputError("policy.not_yaml", str(path), "is not UTF-8 text", f"save it as UTF-8; {EXAMPLE}") from e
    return policy_from(_parsed(text, str(path)), str(path), metrics)


def _parsed(text: str, subject: str) -> Any:
    """YAML as text, lists and mappings. Numbers stay the text that was written, so that limits stay decimals."""
    import yaml

    try:
        return _plain(yaml.compose(text, Loader=yaml.BaseLoader), subject, set())
    except (yaml.YAMLError, RecursionError) as e:
        raise InputError("policy.not_yaml", subject, f"is not valid YAML: {yaml_problem(e)}", EXAMPLE) from e


def _plain(node: Any, subject: str, seen: set[int]) -> Any:
    """The value of a YAML node. Keys written twice and aliases are refused: both hide what a policy says."""
    import yaml

    if node is None:
        return None
    line = f"line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise InputError("policy.not_yaml", subject, f"uses a YAML alias ({line})", "write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, subject, seen) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        value: dict[str, Any] = {}
        for key, item in node.value:
            name = str(_plain(key, subject, seen))
            if name in value:
                where = f"line {key.start_mark.line + 1}"
                raise InputError("policy.key", subject, f"key {name!r} is written twice ({where})", "delete one")
            value[name] = _plain(item, subject, seen)
        return value
    return node.value


def policy_from(value: Any, subject: str, metrics: Mapping[str, str]) -> Policy:
    """A policy from parsed YAML or JSON; every complaint names the rule and the key."""
    if not isinstance(value, Mapping) or not isinstance(value.get("rules"), list) or not value["rules"]:
        raise InputError("policy.value", subject, "has no list of rules", EXAMPLE)
    _known_keys(value, _KEYS, subject)
    rules = tuple(_rule(r, f"{subject}: rule {i + 1}", metrics) for i, r in enumerate(value["rules"]))
    alpha = _decimal(value.get("alpha", "0.05"), f"{subject}: alpha")
    if not Decimal(0) < alpha < Decimal("0.5"):
        raise InputError("policy.value", f"{subject}: alpha", f"is {alpha}; expected between 0 and 0.5", "use 0.05")
    return Policy(
        str(value.get("name", Path(subject).stem)),
        rules,
        alpha,
        _count(value.get("runs", 10), f"{subject}: runs", 2),
        _count(value.get("inferences", 200), f"{subject}: inferences", 1),
        _count(value.get("looks", 1), f"{subject}: looks", 1),
        None if value.get("interface") is None else _interface(value["interface"], f"{subject}: interface"),
    )


def _interface(value: Any, subject: str) -> Interface:
    if not isinstance(value, Mapping):
        raise InputError("policy.value", subject, f"is {value!r}; expected inputs and outputs", _PORT)
    _known_keys(value, ("inputs", "outputs"), subject)
    sides = []
    for side in ("inputs", "outputs"):
        listed = value.get(side) or []
        if not isinstance(listed, list):
            raise InputError("policy.value", f"{subject}: {side}", f"is {listed!r}; expected a list", _PORT)
        ports = tuple(_port(p, f"{subject}: {side} {i + 1}") for i, p in enumerate(listed))
        for ends in ([p.baseline for p in ports], [p.candidate for p in ports]):
            if twice := next((n for n in ends if ends.count(n) > 1), ""):
                raise InputError("policy.value", f"{subject}: {side}", f"maps {twice!r} twice", "delete one")
        sides.append(ports)
    return Interface(*sides)


def _port(value: Any, subject: str) -> Port:
    if not isinstance(value, Mapping) or not value.get("baseline"):
        raise InputError("policy.value", subject, f"is {value!r}; expected at least the baseline's name", _PORT)
    _known_keys(value, _PORT_KEYS, subject)
    for key in ("transpose", "shape"):
        if not isinstance(value.get(key, []), list):
            raise InputError("policy.value", f"{subject}: {key}", f"is {value[key]!r}; expected a list", _PORT)
    order = tuple(_count(d, f"{subject}: transpose", 0) for d in value.get("transpose", ()))
    if sorted(order) != list(range(len(order))):
        problem = f"is {list(order)}; expected every dimension from 0 once"
        raise InputError("policy.value", f"{subject}: transpose", problem, "NCHW to NHWC is [0, 2, 3, 1]")
    given = value.get("shape")
    shape = None if given is None else tuple(int(d) if str(d).isdecimal() else str(d) for d in given)
    name = str(value["baseline"])
    return Port(name, str(value.get("candidate") or name), str(value.get("dtype") or ""), order, shape)


def _rule(value: Any, subject: str, metrics: Mapping[str, str]) -> Rule:
    if not isinstance(value, Mapping):
        raise InputError("policy.value", subject, f"is {value!r}; expected metric, op, limit", EXAMPLE)
    _known_keys(value, _RULE_KEYS, subject)
    for key in ("metric", "op", "limit"):
        if key not in value:
            raise InputError("policy.key", subject, f"has no {key!r}", "every rule needs metric, op and limit")
    metric = str(value["metric"])
    if metric != "quality" and metric not in metrics:
        raise InputError(
            "policy.metric",
            subject,
            f"unknown metric {metric!r}",
            did_you_mean(metric, ["quality", *metrics]),
        )
    op = str(value["op"])
    if op not in ("<=", ">="):
        raise InputError("policy.value", subject, f"op is {op!r}; expected '<=' or '>='", 'write op: "<="')
    relative = str(value.get("relative_to") or "")
    if relative not in ("", "baseline"):
        raise InputError(
            "policy.value", subject, f"relative_to is {relative!r}; expected 'baseline'", "or leave it out"
        )
    unit = str(value.get("unit") or ("drop" if relative else metrics.get(metric, "1")))
    if relative and unit not in ("drop", "ratio"):
        raise InputError(
            "policy.value",
            subject,
            f"unit is {unit!r} in a relative rule; expected 'drop' or 'ratio'",
            "write unit: drop for how much worse, unit: ratio for candidate / baseline",
        )
    if not relative and unit in ("drop", "ratio"):
        raise InputError(
            "policy.value",
            subject,
            f"unit is {unit!r} in an absolute rule",
            "add relative_to: baseline, or leave the unit out",
        )
    if not relative and metric != "quality" and unit != metrics[metric]:
        raise InputError(
            "policy.value",
            subject,
            f"unit is {unit!r}; {metric} is measured in {metrics[metric]!r}",
            "convert the limit",
        )
    return Rule(metric, op, _decimal(value["limit"], f"{subject}: limit"), unit, relative)  # type: ignore[arg-type]


def _known_keys(value: Mapping[str, Any], known: tuple[str, ...], subject: str) -> None:
    for key in value:
        if key not in known:
            raise InputError("policy.key", subject, f"unknown key {key!r}", did_you_mean(str(key), known))


def _decimal(value: Any, subject: str) -> Decimal:
    text = str(value)
    if not _NUMBER.fullmatch(text):
        raise InputError("policy.value", subject, f"is {value!r}; expected a number", "write it as 0.01, not 1%")
    return Decimal(text)


def _count(value: Any, subject: str, least: int) -> int:
    text = str(value)
    if not text.isdecimal() or not text.isascii() or len(text) > 18 or int(text) < least:
        raise InputError(
            "policy.value",
            subject,
            f"is {value!r}; expected a whole number of at least {least}",
            "leave it out for the default",
        )
    return int(text)
