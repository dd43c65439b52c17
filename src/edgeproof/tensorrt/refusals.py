"""What TensorRT refuses, with the node at fault and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from ..model import Model

INSPECT = "run 'edgeproof inspect' on the model for its findings"

_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"(?i)uint8.*quantiz|quantiz.*uint8|zero ?point.*(zero|symmetric)|asymmetric",
        "quantise with pass int8 for this target: signed int8 with zero point 0",
    ),
    (
        r"(?i)int32.*dequantiz|dequantiz.*int32",
        "quantise with pass int8 for this target: biases stay in float32",
    ),
    (
        r"NonMaxSuppression|EfficientNMS",
        "leave suppression to the processor behind the engine, or build with TensorRT, which has the plugin",
    ),
    (
        r"(?i)for turing",
        "run pass fp16 or int8 on the model first: Turing multiplies matrices in lower precision only",
    ),
    (
        r"(?i)no importer registered|plugin not found|unknown op|unsupported operator",
        "export it with standard ONNX operators, run pass simplify, or load the plugin's library",
    ),
    (r"(?i)\bdouble\b|float64|DOUBLE", "export the model in float32: TensorRT has no float64"),
    (
        r"(?i)\b(u?int16|uint32|uint64|complex\w*|string|uint8|int8)\b.*(not supported|unsupported|invalid)"
        r"|(not supported|unsupported|invalid).*\b(u?int16|uint32|uint64|complex\w*|string|uint8|int8)\b",
        "cast to float32, int32 or int64 ahead of it: TensorRT computes in few types",
    ),
    (
        r"(?i)sequence|optional",
        "export the model without sequences and optional values; run pass fold_branches",
    ),
    (
        r"(?i)must be (an initializer|a constant|constant)|initializer|build-time constant|constant",
        "run pass freeze_weights and fold_constants: TensorRT needs this input as a constant",
    ),
    (
        r"(?i)data.?dependent|shape tensor|dynamic|nonzero|loop|\bif\b|scan",
        "run pass fix_shapes and simplify, which fold computed shapes into constants",
    ),
)
"""What its messages are about → what to do."""

UNKNOWN = re.compile(r"(?i)no importer registered|plugin not found|failed to load \w*plugin")
_BARE = re.compile(r"(?i)(Assertion failed: )?(false|0|creator)?")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that the parser or the builder refused.

    Attributes:
        node: Its name; empty where the message names none.
        operator: Its operator, likewise.
        problem: In TensorRT's words.
    """

    node: str
    operator: str
    problem: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        text = f"{self.operator} {self.problem}"
        return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), INSPECT)


def of_parser(parser: Any) -> tuple[Refusal, ...]:
    """What a parser reported.

    Args:
        parser: TensorRT's ``OnnxParser``, after parsing failed.
    """
    found = []
    for i in range(parser.num_errors):
        error = parser.get_error(i)
        problem, operator = _line(error.desc()), error.node_operator()
        if _BARE.fullmatch(problem):
            problem = f"{operator or 'the model'} is used in a way that the parser does not support"
        elif UNKNOWN.search(problem):
            problem = f"{operator} is an operator that neither the parser nor a plugin knows ({problem})"
        found.append(Refusal(error.node_name(), operator, problem))
    return tuple(found)


def of_build(errors: Sequence[str], model: Model) -> tuple[Refusal, ...]:
    """What the builder logged before it gave up; nodes are those whose names its messages hold.

    Args:
        errors: Messages of severity error, in order.
        model: With named nodes.
    """
    nodes = {v.name: n for n in model.graph.graph for v in n.outputs if v.name}
    nodes |= {n.name: n for n in model.graph.graph if n.name}
    names = sorted(nodes, key=len, reverse=True)
    found = []
    for message in errors:
        name = next((n for n in names if re.search(rf"(?<![\w/.]){re.escape(n)}(?![\w/.])", message)), "")
        node = nodes.get(name)
        found.append(Refusal((node and node.name) or name, node.op_type if node else "", _line(message)))
    return tuple(found)


def refused(model: Model, target: str, refusals: Sequence[Refusal], stage: str) -> UnsupportedError:
    """The error for the first of them.

    Args:
        model: What was to be built.
        target: For whom.
        refusals: At least one, unless TensorRT said nothing.
        stage: ``parse`` or ``build``.
    """
    if not refusals:
        return UnsupportedError(
            "backend.refused", f"{model.name} on {target}", f"could not {stage}, and TensorRT did not say why", INSPECT
        )
    first = next((r for r in refusals if r.node), refusals[0])
    unknown = next((r for r in refusals if UNKNOWN.search(r.problem)), None)
    if unknown is not None:
        first = unknown
    where = f": node {first.node}" if first.node else ""
    where += f" ({first.operator})" if first.operator else ""
    more = f"; and {len(refusals) - 1} more" if len(refusals) > 1 else ""
    code = "backend.unknown_operator" if unknown is not None else "backend.refused"
    return UnsupportedError(code, f"{model.name} on {target}{where}", first.problem[:400] + more, first.remedy)


def _line(text: str) -> str:
    """Without source positions, line breaks, and the call that failed."""
    text = re.sub(r"\[[\w.]+:[\w:]+:\d+\]|\[[\w.]+:\d+: \w+\]|In function \w+:?", "", text)
    text = re.sub(r"\.? In \w+ at /\S+?:\d+", "", text)
    text = re.sub(r"^(I\w+::\w+: )?Error Code \d+: ", "", " ".join(text.split()))
    return text.replace("( ", "(")
