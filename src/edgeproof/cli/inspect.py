"""Say what a model is, what it costs, and what looks wrong, without running it."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .show import Show

if TYPE_CHECKING:
    from ..graph.cost import Layer
    from ..graph.facts import Finding
    from ..graph.inspection import Inspection
    from ..graph.symbolic import Amount, Dim

HEAVIEST = 10
SHOWN = 5
LONG_SYMBOL = 8
LONG_DIM = 14
WIDE, NARROW = 60, 24
"""Longest expressions in the totals and in the table, in characters."""

_POWERS = {1: "", 2: "²", 3: "³"}
TITLES = {"defect": "Defects", "caution": "Cautions", "gap": "Gaps"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="an .onnx file; or TFLite, OpenVINO IR (.xml), an engine, safetensors, GGUF",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input with open dimensions, once per input; an only input needs no NAME=",
    )
    parser.add_argument(
        "--layers", action="store_true", help="show every operator instead of the heaviest, all findings"
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="show nodes that would fall back or fail on a runtime, installed or not, or a device: orin-nx:dla0",
    )
    quantised_arguments(parser)


def run(args: argparse.Namespace, show: Show) -> int:
    """Inspect one model; findings do not change the exit code."""
    if args.quant or args.tensor is not None:
        from ._quantised import show_quantised

        return show_quantised(args, show)
    from ._foreign import foreign, show_foreign

    if foreign(args.model):
        return show_foreign(args.model, show)
    from ..graph.inspection import inspect_model
    from ..model import load_model

    model = load_model(args.model)
    shapes = parse_shapes(args.shape, [s.name for s in model.inputs])
    result = inspect_model(model, args.model, shapes)
    found = None
    if args.target is not None:
        from ..support.nodes import support

        found = support(model, args.target, shapes)
    if show.json:
        show.result(result.to_json() | ({} if found is None else {"support": found.to_json()}))
        return 0
    symbols = short_symbols(result)
    _header(result, show)
    _totals(result, symbols, show)
    _operators(result, show)
    _layers(result, symbols, show, everything=args.layers)
    _findings(result, show, everything=args.layers)
    if found is not None:
        from ._support import show_support

        show_support(found, show, everything=args.layers)
    return 0


def quantised_arguments(parser: argparse.ArgumentParser) -> None:
    """What explains a quantised model."""
    group = parser.add_argument_group("quantisation")
    group.add_argument(
        "--quant",
        action="store_true",
        help="per layer: range, clipped share, SQNR, precision, why it is in float "
        "(on --target; default: onnxruntime:cpu)",
    )
    group.add_argument("--data", metavar="D", help="samples to measure on: as for 'edgeproof apply --data'")
    group.add_argument("--samples", type=int, default=32, metavar="N", help="at most so many of them; default: 32")
    group.add_argument("--against", type=Path, metavar="FLOAT", help="the float model, for errors against it")
    group.add_argument(
        "--trt-cache", type=Path, metavar="FILE", help="with --quant: write ranges as TensorRT keeps them"
    )
    group.add_argument("--tensor", metavar="NAME", help="how one tensor's values are spread, and its range")
    group.add_argument("--picture", type=Path, metavar="FILE.svg", help="with --tensor: a picture of that")


def parse_shapes(texts: Sequence[str], inputs: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """Read ``name=1,3,224,224``, once per input; the name of an only input may be left out.

    Args:
        texts: As they were given.
        inputs: Names of the model's inputs.

    Raises:
        InputError: shape.syntax, shape.number, shape.twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        if not equals and len(inputs) == 1:
            name = inputs[0]
        elif not equals or not name:
            hint = f"write --shape {inputs[0]}={numbers}" if inputs else "name the input"
            hint += f"; the inputs are {', '.join(inputs)}" if len(inputs) > 1 else ""
            raise InputError("shape.syntax", f"--shape {text}", "has no input name; expected name=1,3,224,224", hint)
        if name in shapes:
            raise InputError("shape.twice", f"--shape {text}", f"gives input {name!r} a second shape", "leave one out")
        shape: list[int] = []
        for part in numbers.replace("x", ",").split(",") if numbers else ():
            if not part.strip().isascii() or not part.strip().isdigit() or len(part.strip()) > 18 or int(part) < 1:
                raise InputError(
                    "shape.number",
                    f"--shape {text}",
                    f"{part.strip()!r} is not a dimension; expected whole numbers from 1, e.g. {name}=1,3,224,224",
                    "dimensions that are left open need no --shape",
                )
            shape.append(int(part))
        shapes[name] = tuple(shape)
    return shapes


def short_symbols(result: Inspection) -> dict[str, str]:
    """Short stand-ins for open dimensions with long names, so that tables stay readable; longest names first."""
    names = {d for shape in result.shapes.values() for d in shape or () if isinstance(d, str)}
    long = [n for n in sorted(names) if len(n) > LONG_SYMBOL]
    free = (f"d{i}" for i in range(len(names) + len(long)) if f"d{i}" not in names)
    pairs = dict(zip(long, free, strict=False))
    return dict(sorted(pairs.items(), key=lambda kv: -len(kv[0])))


def _shorten(text: str, symbols: dict[str, str]) -> str:
    for name, short in symbols.items():
        text = text.replace(name, short)
    return text


def _header(result: Inspection, show: Show) -> None:
    weights = f"weights {size(result.weight_bytes)}"
    opsets = ", ".join(f"{d} {v}" for d, v in result.opsets.items()) or "none"
    rows = [
        ("model", result.name),
        ("digest", result.digest),
        ("size", weights if result.file_bytes is None else f"{size(result.file_bytes)} on disk, {weights}"),
        ("opset", f"{opsets}; IR version {result.ir_version}"),
        ("producer", result.producer or "not given"),
    ]
    rows += [("input" if i == 0 else "", str(s)) for i, s in enumerate(result.inputs)]
    rows += [("output" if i == 0 else "", str(s)) for i, s in enumerate(result.outputs)]
    for label, value in rows:
        show.text(f"{label:<10}{value}")


def _totals(result: Inspection, symbols: dict[str, str], show: Show) -> None:
    cost = result.cost
    held = ", ".join(f"{n} {'×'.join(map(str, s))}" for n, s in result.shapes.items() if s is not None)
    show.text()
    legend = ", ".join(f"{short} = {name}" for name, short in sorted(symbols.items(), key=lambda kv: kv[1]))
    show.text(f"for {_shorten(held, symbols) or 'any input'}" + (f", where {legend}" if legend else ""))
    open_ = depends_on(result)
    ask = f"{open_}; give --shape" if any(s.dynamic for s in result.inputs) else open_
    show.text(f"{'  parameters':<26}{_number(cost.parameters, symbols, ask)}")
    macs = _number(cost.macs, symbols, ask)
    if cost.macs is None:
        macs = f"unknown; at least {_number(cost.known_macs, symbols, ask)} in the operators that are known"
    show.text(f"{'  multiply-accumulates':<26}{macs}")
    peak = "unknown"
    if cost.peak_bytes is not None:
        peak = f"{_amount(cost.peak_bytes, size, symbols, WIDE, ask)} at {cost.peak_layer}"
    show.text(f"{'  peak activation memory':<26}{peak}")


def _operators(result: Inspection, show: Show) -> None:
    show.text()
    show.text(f"Operators ({sum(result.ops.values())})")
    line = "  "
    for op, n in result.ops.items():
        item = f"{op} {n}"
        if len(line) + len(item) > 100:
            show.text(line.rstrip())
            line = "  "
        line += item + "   "
    show.text(line.rstrip())


def _layers(result: Inspection, symbols: dict[str, str], show: Show, *, everything: bool) -> None:
    layers = list(result.cost.layers)
    total = result.cost.macs.value if result.cost.macs is not None else None
    if everything:
        title = f"All {len(layers)} operators, in order"
    else:
        layers = sorted((x for x in layers if x.macs is None or x.macs.terms), key=_weight, reverse=True)[:HEAVIEST]
        title = f"The {len(layers)} heaviest operators"
    if not layers:
        return
    open_ = depends_on(result)
    rows = [
        [
            x.name,
            x.op,
            "?" if x.shape is None else _dims(x.shape, symbols),
            "?" if x.parameters is None else _amount(x.parameters, _scaled, symbols, NARROW, open_),
            "?" if x.macs is None else _amount(x.macs, _scaled, symbols, NARROW, open_),
            _share(x, total),
            "?" if x.output_bytes is None else _amount(x.output_bytes, size, symbols, NARROW, open_),
            "?" if x.live_bytes is None else _amount(x.live_bytes, size, symbols, NARROW, open_),
        ]
        for x in layers
    ]
    show.text()
    show.text(title)
    columns = ["name", "operator", "output", "parameters", "MACs", "share", "output size", "live"]
    if total is None:  # open dimensions: no shares, and more expressions would push the names out of the table
        keep = [0, 1, 2, 3, 4]
        columns, rows = [columns[i] for i in keep], [[row[i] for i in keep] for row in rows]
    show.table(columns, rows, right="lllrrrrr", optional=("live", "output size", "parameters", "operator", "output"))


def _findings(result: Inspection, show: Show, *, everything: bool) -> None:
    groups: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for f in result.findings:
        groups[f.kind][f.check].append(f)
    for kind, title in TITLES.items():
        show.text(f"{title}: {sum(map(len, groups[kind].values())) or 'none'}")
        for check, findings in groups[kind].items():
            if kind == "gap" and not everything and len(findings) > 2:
                _alike(check, findings, show)
                continue
            shown = findings if everything else findings[:SHOWN]
            for i, f in enumerate(shown):
                show.text(f"  {f.subject}: {f.problem}")
                if f.hint and (i + 1 == len(shown) or shown[i + 1].hint != f.hint):
                    show.text(f"    hint: {f.hint}  [{check}]")
            if len(findings) > len(shown):
                show.text(f"    and {len(findings) - len(shown)} more like it; --layers shows all  [{check}]")
    done = sum(c.state == "assessed" for c in result.checks)
    show.text(f"Checks: {done} of {len(result.checks)} assessed")
    for c in result.checks:
        if c.state != "assessed":
            show.text(f"  {c.name}: {c.state}: {c.reason}")


def _alike(check: str, findings: list[Finding], show: Show) -> None:
    """Many gaps of one kind, in one line and one hint per remedy."""
    from ..graph.facts import few

    by_hint: dict[str, list[Finding]] = defaultdict(list)
    for f in findings:
        by_hint[f.hint].append(f)
    for hint, same in by_hint.items():
        others = [f.subject for f in same[1:]]
        more = f"; likewise {few(others, 3)} (--layers shows all)" if others else ""
        show.text(f"  {same[0].subject}: {same[0].problem}{more}")
        show.text(f"    hint: {hint}  [{check}]" if hint else f"    [{check}]")


def _weight(layer: Layer) -> int:
    """For sorting: MACs, with a stand-in of 1,000 for every open dimension; unknown ones last."""
    if layer.macs is None:
        return -1
    return sum(int(n * 1000 ** len(m)) for m, n in layer.macs.terms.items())


def _share(layer: Layer, total: int | None) -> str:
    value = None if layer.macs is None else layer.macs.value
    return "" if value is None or not total else f"{value / total:.1%}"


def depends_on(result: Inspection) -> str:
    """What amounts that are too long to be read depend on."""
    from ..graph.facts import few

    open_ = [s.name for s in result.inputs if s.dynamic]
    return f"depends on {few(open_, 3)}" if open_ else "depends on the data"


def _dims(shape: Sequence[Dim], symbols: dict[str, str]) -> str:
    """A shape, with an ellipsis for what is too long to be read."""
    parts = [_shorten(str(d), symbols) for d in shape]
    return "×".join(p if len(p) <= LONG_DIM else "…" for p in parts)


def _number(amount: Amount | None, symbols: dict[str, str], otherwise: str) -> str:
    if amount is None:
        return "unknown"
    if amount.value is None:
        return _amount(amount, _scaled, symbols, WIDE, otherwise)
    return f"{amount.value:,}" + (f"  ({_scaled(amount.value)})" if amount.value >= 10_000 else "")


def _amount(amount: Amount, scaled: Callable[[int], str], symbols: dict[str, str], width: int, otherwise: str) -> str:
    """An amount for people: ``75.3 kB × N``; JSON has the whole expression.

    Args:
        amount: What to show.
        scaled: Writes a number with its unit.
        symbols: Short names of open dimensions.
        width: Longest text that is still read.
        otherwise: What stands for a longer one.
    """
    parts = []
    for monomial, n in sorted(amount.terms.items(), key=lambda mn: (-len(mn[0]), mn[0])):
        powers = [s + _POWERS.get(k, f"^{k}") for s, k in Counter(monomial).items()]
        parts.append(" × ".join([scaled(n), *powers]))
    text = _shorten(" + ".join(parts) or "0", symbols)
    return text if len(text) <= width else otherwise


def _scaled(n: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= limit:
            return f"{n / limit:.3g} {unit}" if n < 1000 * limit else f"{n / limit:,.0f} {unit}"
    return str(n)


def size(n: int) -> str:
    """Bytes for people, in decimal units.

    >>> size(999), size(13_640_000)
    ('999 B', '13.6 MB')
    """
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n >= limit:
            return f"{n / limit:.1f} {unit}"
    return f"{n} B"
