"""Checks of the graph: its operators, its interface, its shapes."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..model import attribute, weight_bytes
from .cost import fixed_values
from .dims import dims, static
from .example_shape import example_shape
from .facts import Facts, Finding, Outcome, few, node_name
from .inference import inferred
from .shapes import shaped

if TYPE_CHECKING:
    import onnx_ir as ir

CHECKER_LIMIT_BYTES = 500_000_000
"""Above this, a second copy of the weights in memory costs more than the checker's word on them is worth."""

OLD_OPSET = 13
"""The first opset whose QuantizeLinear takes one scale per channel."""

_STANDARD = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"})
_RUNTIME_DOMAINS = {
    "com.microsoft": "ONNX Runtime",
    "com.microsoft.nchwc": "ONNX Runtime",
    "com.microsoft.dml": "ONNX Runtime on DirectML",
    "com.ms.internal.nhwc": "ONNX Runtime",
    "ai.onnx.contrib": "onnxruntime-extensions",
    "trt.plugins": "TensorRT",
    "org.openvinotoolkit": "OpenVINO",
    "org.pytorch.aten": "PyTorch",
}


def onnx_checker(facts: Facts) -> Outcome:
    """ONNX's own checker."""
    import onnx
    import onnx_ir as ir

    size = weight_bytes(facts.model.graph)
    whole = size <= CHECKER_LIMIT_BYTES
    try:
        onnx.checker.check_model(facts.model.to_bytes() if whole else ir.to_proto(_without_large(facts.shaped.proto)))
    except Exception as e:  # ValidationError, or whatever the C++ side throws on a malformed model
        problem = " ".join(str(e).split())
        finding = Finding("defect", "onnx_checker", facts.model.name, problem[:400], "export it again")
        return Outcome((finding,))
    if not whole:
        return Outcome((), "partial", f"the {size:,} bytes of weights were left out")
    return Outcome()


def _without_large(proto: Any) -> Any:
    """A proto without the large tensors' data, as inputs instead, so that the checker looks at the graph alone."""
    import onnx_ir as ir

    graph = ir.from_proto(proto)
    for name, value in list(graph.graph.initializers.items()):
        if isinstance(value.const_value, ir.ExternalTensor):
            del graph.graph.initializers[name]
            value.const_value = None
            graph.graph.inputs.append(value)
    return graph


def consistent_shapes(facts: Facts) -> Outcome:
    """ONNX's strict shape inference: declared and inferred types and shapes agree, and operators fit their inputs."""
    if facts.shaped.problem.startswith("functions cannot"):
        return Outcome((), "unavailable", facts.shaped.problem)
    try:
        inferred(facts.shaped.proto, strict=True)
    except Exception as e:  # InferenceError, or whatever the C++ side throws
        problem = " ".join(str(e).split())
        if op := _defined_by_function(problem):
            return Outcome((), "partial", f"ONNX cannot infer through the definition of {op}: {problem[:200]}")
        if facts.shapes and _consistent(shaped(facts.model).proto):
            given = given_shapes(facts)
            hint = "give other sizes with --shape, often multiples of 32"
            return Outcome((Finding("caution", "consistent_shapes", given, problem[:400], hint),))
        finding = Finding(
            "defect",
            "consistent_shapes",
            facts.model.name,
            problem[:400],
            "export the model again",
        )
        return Outcome((finding,))
    return Outcome()


def _consistent(proto: Any) -> bool:
    try:
        inferred(proto, strict=True)
    except Exception:  # of any kind, as above
        return False
    return True


def _defined_by_function(problem: str) -> str:
    """The operator whose own definition, a function of ONNX's, failed; empty when the fault is the model's."""
    import re

    import onnx

    ops = re.findall(r"op_type:(\w+)", problem)
    if len(ops) < 2:
        return ""
    try:
        return str(ops[0]) if onnx.defs.get_schema(ops[0]).has_function else ""
    except onnx.defs.SchemaError:
        return ""


def operators(facts: Facts) -> Outcome:
    """Every operator has an opset import and a definition."""
    import onnx

    found: list[Finding] = []
    model = facts.model.graph
    defined = {(f.domain, f.name) for f in model.functions.values()}
    used: dict[tuple[str, str], list[str]] = {}
    for node in facts.nodes():
        used.setdefault((node.domain, node.op_type), []).append(node_name(node))
    imports = set(model.opset_imports) | {d for f in model.functions.values() for d in f.opset_imports}
    if "" in imports:
        imports.add("ai.onnx")
    elif "ai.onnx" in imports:
        imports.add("")
    found += [
        Finding(
            "defect",
            "operators",
            domain or "ai.onnx",
            "operators of this domain are used, but the model imports no opset of it",
            "add the opset import, or export the model again",
        )
        for domain in sorted({d for d, _ in used} - imports)
    ]
    for (domain, op), names in sorted(used.items()):
        if (domain, op) in defined:
            continue
        where = f"{len(names)}× ({few(names, 2)})"
        if domain in _STANDARD:
            found += _standard(onnx, "" if domain == "ai.onnx" else domain, op, where, model.opset_imports)
        elif domain in _RUNTIME_DOMAINS:
            found.append(
                Finding(
                    "caution",
                    "operators",
                    f"{domain}.{op}",
                    f"used {where}; only {_RUNTIME_DOMAINS[domain]} runs it",
                    "export the model with ONNX's own operators to run it elsewhere",
                )
            )
        else:
            found.append(
                Finding(
                    "defect",
                    "operators",
                    f"{domain}.{op}",
                    f"used {where}; operator domain {domain!r} is unknown and the model does not define it",
                    "include it as a model function, or export the model with ONNX's own operators",
                )
            )
    return Outcome(tuple(found))


def _standard(onnx: Any, domain: str, op: str, where: str, imports: Any) -> list[Finding]:
    version = imports.get(domain, imports.get("ai.onnx", 1) if not domain else 1)
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return [
            Finding(
                "defect",
                "operators",
                f"{domain}.{op}".lstrip("."),
                f"used {where}; opset {version} of {domain or 'ai.onnx'} has no such operator",
                "export the model again with a matching opset",
            )
        ]
    if schema.deprecated:
        problem = f"used {where}; deprecated since opset {schema.since_version}"
        return [Finding("caution", "operators", op, problem, "export the model again with its successor")]
    return []


def opset(facts: Facts) -> Outcome:
    """The opset is one that today's tools handle well."""
    import onnx

    version = facts.model.graph.opset_imports.get("", facts.model.graph.opset_imports.get("ai.onnx"))
    if version is None:
        return Outcome((), "unavailable", "the model imports no opset of ai.onnx")
    if version < OLD_OPSET:
        finding = Finding(
            "caution",
            "opset",
            f"ai.onnx {version}",
            f"is older than {OLD_OPSET}: no quantisation per channel",
            "convert it with onnx.version_converter or export it again",
        )
        return Outcome((finding,))
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        problem = f"is newer than {newest}, the newest that the installed onnx package knows"
        return Outcome(
            (Finding("gap", "opset", f"ai.onnx {version}", problem, "pip install --upgrade onnx"),),
            "partial",
            "operators of a newer opset cannot be checked",
        )
    return Outcome()


def dynamic_inputs(facts: Facts) -> Outcome:
    """Inputs whose shape is open."""
    found = []
    bound = {v.name: static(v) for v in facts.shaped.graph.graph.inputs}
    for spec in facts.model.inputs:
        if spec.dynamic:
            fixed = bound.get(spec.name)
            held = "" if fixed is None else f"; looked at as {','.join(map(str, fixed))}"
            sizes = example_shape(spec, facts.model.outputs) if fixed is None else ",".join(map(str, fixed))
            fix = facts.command("apply fix_shapes", f"--shapes {shlex.quote(spec.name)}={sizes} --out fixed.onnx")
            found.append(
                Finding(
                    "caution",
                    "dynamic_inputs",
                    spec.name,
                    f"has open dimensions: {spec}{held}",
                    f"many accelerators need fixed shapes: {fix}",
                )
            )
    return Outcome(tuple(found))


def interface_types(facts: Facts) -> Outcome:
    """Inputs and outputs of types that accelerators or hosts handle badly."""
    why = {
        "int64": "many accelerators have no 64-bit integers and convert or fall back",
        "float64": "no edge accelerator has double precision",
        "string": "text is handled on the CPU only",
        "float16": "the host must convert it",
        "bfloat16": "the host must convert it",
        "int8": "the host must quantise and needs its scale and zero point",
        "uint8": "the host must know its scale and zero point, if it is quantised",
    }
    hint = f"'edgeproof targets' lists targets; to try one: {facts.command('bench', '--target TARGET')}"
    return Outcome(
        tuple(
            Finding("caution", "interface_types", s.name, f"{side} {s}: {why[s.dtype]}", hint)
            for side, specs in (("input", facts.model.inputs), ("output", facts.model.outputs))
            for s in specs
            if s.dtype in why
        )
    )


def constant_subgraphs(facts: Facts) -> Outcome:
    """Operators whose result is the same in every run."""
    graph = facts.model.graph.graph
    fixed = fixed_values(graph)
    stored_so = ("Constant", "QuantizeLinear", "DequantizeLinear")  # how a model holds its weights
    names = [
        node_name(n)
        for n in graph
        if n.op_type not in stored_so and n.inputs and n.outputs and id(n.outputs[0]) in fixed
    ]
    if not names:
        return Outcome()
    problem = f"{len(names)} operators compute constants: {few(names)}"
    hint = facts.command("apply simplify", "--out simplified.onnx")
    return Outcome((Finding("caution", "constant_subgraphs", facts.model.name, problem, hint),))


def training_mode(facts: Facts) -> Outcome:
    """Batch normalisation or dropout that behaves as in training."""
    found = []
    version = facts.model.graph.opset_imports.get("", 1)
    for node in facts.nodes():
        training = False
        if node.op_type == "BatchNormalization":
            used = [v for v in node.outputs[1:] if v.name]
            training = bool(attribute(node, "training_mode", 0)) if version >= 14 else bool(used)
            if version < 7:
                training = not attribute(node, "is_test", 0)
        elif node.op_type == "Dropout":
            flag = node.inputs[2] if len(node.inputs) > 2 else None
            if flag is not None:
                value = flag.const_value
                training = value is not None and bool(value.numpy().any())
            elif version < 7:
                training = not attribute(node, "is_test", 0)
        if training:
            found.append(
                Finding(
                    "caution",
                    "training_mode",
                    node_name(node),
                    f"{node.op_type} runs in training mode: its result depends on the batch or on chance",
                    "export the model in evaluation mode",
                )
            )
    return Outcome(tuple(found))


def known_shapes(facts: Facts) -> Outcome:
    """Every value has a shape, or it is said which has none and why."""
    missing: Counter[str] = Counter()
    example: dict[str, str] = {}
    open_dims = count = 0
    for node in facts.shaped.graph.graph:
        for value in node.outputs:
            if not value.name or not _is_tensor(value):
                continue
            count += 1
            shape = dims(value)
            if shape is None or None in shape:
                op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
                missing[op] += 1
                example.setdefault(op, value.name)
            elif any(isinstance(d, str) for d in shape):
                open_dims += 1
    found = [
        Finding(
            "gap",
            "known_shapes",
            op,
            f"{n} {'output has' if n == 1 else 'outputs have'} no shape that can be known, first {example[op]!r}",
            f"give the open sizes: {facts.command('inspect', facts.shape_flags)}"
            if facts.shape_flags
            else f"they depend on the data; to measure instead: {facts.command('bench', given_shapes(facts))}",
        )
        for op, n in sorted(missing.items())
    ]
    if open_dims:
        found.append(
            Finding(
                "gap",
                "known_shapes",
                facts.model.name,
                f"{open_dims} of {count} values have open dimensions; costs are given as expressions",
                f"for numbers: {facts.command('inspect', facts.shape_flags)}" if facts.shape_flags else "",
            )
        )
    if facts.shaped.problem:
        return Outcome(tuple(found), "partial", facts.shaped.problem)
    if missing:
        return Outcome(tuple(found), "partial", f"{sum(missing.values())} of {count} shapes are unknown")
    return Outcome(tuple(found))


def known_costs(facts: Facts) -> Outcome:
    """Every operator's multiply-accumulates and memory are known."""
    reasons: dict[str, list[str]] = {}
    for name, why in facts.cost.reasons:
        if "unknown" in why or "depends on" in why:
            reasons.setdefault(why, []).append(name or facts.model.name)
    hint = (
        f"give the open sizes: {facts.command('inspect', facts.shape_flags)}"
        if facts.shape_flags
        else f"to measure instead: {facts.command('bench', given_shapes(facts))}"
    )
    found = tuple(Finding("gap", "known_costs", few(names, 2), why, hint) for why, names in reasons.items())
    if found:
        return Outcome(
            found, "partial", f"unknown at {len({n for names in reasons.values() for n in names})} operators"
        )
    return Outcome()


def given_shapes(facts: Facts) -> str:
    """The shapes that were given, as flags."""
    return " ".join(f"--shape {shlex.quote(n)}={','.join(map(str, s))}" for n, s in facts.shapes.items())


def _is_tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return value.type is None or isinstance(value.type, ir.TensorType)
