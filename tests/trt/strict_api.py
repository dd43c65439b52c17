"""A module with TensorRT's API as its bindings declare it, and nothing behind it.

A call of a method that a version lacks, with too many or too few arguments, with an unknown keyword or with an
enumeration of another type raises; everything else is recorded and returns something of the declared type. The
declarations are those of the real bindings (``python -m benchmarks.tensorrt_api``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).parent / "api"
VERSIONS = tuple(sorted(p.stem.removeprefix("tensorrt-") for p in FOLDER.glob("*.json")))


class Member:
    """One value of an enumeration."""

    def __init__(self, kind: str, name: str, number: int) -> None:
        self.kind, self.name, self.number = kind, name, number

    def __int__(self) -> int:
        return self.number


class Api:
    """The module, and what was called.

    Attributes:
        calls: (class, method, arguments), in order.
        answers: (class, method or property) → what it gives instead of a value of the declared type.
    """

    def __init__(self, version: str) -> None:
        self.declared = json.loads((FOLDER / f"tensorrt-{version}.json").read_text())
        self.calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.answers: dict[tuple[str, str], Any] = {}
        self.set: dict[tuple[str, str], Any] = {}

    def module(self) -> Any:
        found: dict[str, Any] = {"__name__": "tensorrt", "__version__": self.declared["version"]}
        for name, entry in self.declared["classes"].items():
            if "members" in entry:
                members = {m: Member(name, m, i) for i, m in enumerate(entry["members"])}
                found[name] = SimpleNamespace(__members__=members, **members)
            else:
                found[name] = self._class(name)
        found["init_libnvinfer_plugins"] = lambda logger, namespace: bool(logger) and namespace == ""
        return SimpleNamespace(**found)

    def _class(self, name: str) -> type:
        api = self

        class Declared:
            def __init__(self, *args: Any) -> None:
                api.check(name, "__init__", (self, *args), {})

            def __getattr__(self, key: str) -> Any:
                return api.attribute(self, name, key)

            def __setattr__(self, key: str, value: Any) -> None:
                if key not in api.declared["classes"][name]["properties"]:
                    raise AttributeError(f"TensorRT {api.declared['version']}: {name} has no property {key}")
                api.set[name, key] = value

        Declared.__name__ = name
        # What is meant to be overridden takes attributes of its own.
        return (
            type(name, (), {"__init__": lambda self: None})
            if name in ("ILogger", "IInt8EntropyCalibrator2")
            else Declared
        )

    def attribute(self, owner: Any, kind: str, key: str) -> Any:
        entry = self.declared["classes"][kind]
        if key in entry["properties"]:
            if (kind, key) in self.answers:
                return self.answers[kind, key]
            return self.set.get((kind, key), 0)
        if key not in entry["methods"]:
            raise AttributeError(f"TensorRT {self.declared['version']}: {kind} has no {key}")

        def call(*args: Any, **named: Any) -> Any:
            result = self.check(kind, key, (owner, *args), named)
            self.calls.append((kind, key, args))
            answer = self.answers.get((kind, key), result)
            return answer(*args) if callable(answer) and (kind, key) in self.answers else answer

        return call

    def check(self, kind: str, key: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Hold a call against the declared forms; a value of the declared type."""
        forms = self.declared["classes"][kind]["methods"][key]
        problems = []
        for form in forms:
            inside, _, gives = re.fullmatch(r"\w+\((.*)\)( -> (.*))?", form).groups()
            problem = self._fits(_parameters(inside), args, named)
            if not problem:
                return self._value(gives or "None")
            problems.append(f"{form}: {problem}")
        raise TypeError(f"TensorRT {self.declared['version']}: {'; '.join(problems)}")

    def _fits(self, wanted: list[tuple[str, str, bool]], args: tuple[Any, ...], named: dict[str, Any]) -> str:
        if len(args) > len(wanted):
            return f"{len(args)} arguments"
        given = {n: a for (n, _, _), a in zip(wanted, args, strict=False)} | named
        for name, kind, optional in wanted:
            if name not in given and not optional:
                return f"{name} is missing"
            value = given.get(name)
            if isinstance(value, Member) and value.kind != kind:
                return f"{name} is a {value.kind}"
            if kind in ("int", "typing.SupportsInt", "bool", "str") and name in given:
                python = {"str": str, "bool": bool}.get(kind, int)
                if not isinstance(value, python):
                    return f"{name} is {value!r}"
        unknown = set(named) - {n for n, _, _ in wanted}
        return f"{', '.join(unknown)} not known" if unknown else ""

    def _value(self, kind: str) -> Any:
        if kind in self.declared["classes"] and "members" not in self.declared["classes"][kind]:
            made = self._class(kind)
            return made.__new__(made)
        return {"bool": True, "int": 0, "str": ""}.get(kind)


def _parameters(text: str) -> list[tuple[str, str, bool]]:
    """(name, type, has a default) of each."""
    parts = re.split(r", (?=\w+:)", text) if text else []
    found = []
    for part in parts:
        name, _, rest = part.partition(": ")
        kind, equals, _ = rest.partition(" = ")
        found.append((name, kind.strip(), bool(equals)))
    return found
