"""What TensorRT says while it parses and builds: its errors, and the table of layers that only the log has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEPT = 200
"""Errors and warnings that are kept, each; the first ones name the cause."""


@dataclass(slots=True)
class Said:
    """What was said.

    Attributes:
        errors: Of the severities error and internal error.
        warnings: Of the severity warning.
        layers: Messages that hold a table of layers.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)


def recorder(trt: Any) -> tuple[Any, Said]:
    """A logger of TensorRT's, and what it will have recorded.

    Args:
        trt: The module.
    """
    said = Said()

    class Recorder(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            kind = severity.name
            if kind in ("ERROR", "INTERNAL_ERROR"):
                said.errors.extend([message] if len(said.errors) < KEPT else [])
            elif kind == "WARNING":
                said.warnings.extend([message] if len(said.warnings) < KEPT else [])
            elif "LayerType: " in message:
                said.layers.append(message)

    return Recorder(), said
